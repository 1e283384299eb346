//! Plan of a run, drawn from its seed before the run begins.

use std::time::Duration;

use fastrand::Rng;

use crate::switch::Faults;
use crate::wrong::Wrong;

/// Choices that are made before the run. Other choices are drawn during the run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// True if nothing in this run may end a connection.
    pub(crate) harmless: bool,
    pub(crate) ipv6: bool,
    pub(crate) mtu: usize,
    pub(crate) faults: Faults,
    pub(crate) hosts: Vec<HostPlan>,
    pub(crate) connections: Vec<ConnectionPlan>,
    /// Incidents, sorted by time.
    pub(crate) incidents: Vec<(Duration, Incident)>,
}

/// Configuration of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPlan {
    /// True if only MPA revision 1 (RFC 5044) is used, without the extensions of RFC 6581.
    pub(crate) revision_1: bool,
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    /// Maximum number of TCP segments that an FPDU may span.
    pub(crate) fpdu_segments: u16,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    /// Maximum number of received packets that wait for a connection.
    pub(crate) inbox: usize,
    pub(crate) congestion: Congestion,
    pub(crate) ack_delay: Option<Duration>,
    /// True if receives come from an SRQ.
    pub(crate) srq: bool,
    /// Number of protection domains. With an SRQ it is one, because QP and SRQ must be in the same
    /// domain.
    pub(crate) domains: usize,
    /// True if a message without a receive waits for one. Senders then need not count the peer's
    /// receives.
    pub(crate) hold: bool,
    /// Length in bytes of each receive, which limits the Sends of the peers.
    pub(crate) receive: usize,
    /// True if the CQ is small and not polled.
    pub(crate) overflow: bool,
}

/// Congestion control of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Congestion {
    Off,
    Reno,
    Cubic,
}

/// A connection and the programs at its two ends. End 0 connects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionPlan {
    pub(crate) hosts: [usize; 2],
    /// Index of each end's protection domain, modulo the number of domains of its host.
    pub(crate) domains: [usize; 2],
    pub(crate) peer_to_peer: bool,
    /// IRD and ORD that each end requests.
    pub(crate) depths: [[u16; 2]; 2],
    /// True if the ends have more Reads in flight than their peer accepts. This needs revision 1,
    /// which does not negotiate IRD and ORD.
    pub(crate) greedy: bool,
    /// Number of operations of each end in each round.
    pub(crate) operations: [u32; 2],
    /// Number of times that the connection is set up.
    pub(crate) rounds: u32,
    /// Maximum payload in bytes.
    pub(crate) longest: usize,
}

/// Incident at a planned time, in the network or at a host or a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Incident {
    /// The cable of the host is pulled out; `Up` plugs it in again.
    Down {
        host: usize,
    },
    Up {
        host: usize,
    },
    /// The MTU of all paths falls to this value, if it was larger.
    Mtu(usize),
    /// The host vanishes without sending another packet.
    Death {
        host: usize,
    },
    /// The program at one end performs an invalid or abrupt operation.
    InvalidOperation {
        connection: usize,
        end: usize,
        what: InvalidOperation,
    },
}

/// Operation that is invalid, or that ends the connection abruptly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InvalidOperation {
    /// Sends more messages than the peer has receives for.
    TooManySends,
    /// Posts a request that the peer must refuse.
    Request(Wrong),
    /// Deregisters the region that the peer writes to, while it is in use.
    Deregister,
    /// Resets the connection.
    Abort,
    /// Closes the connection gracefully while both sides are working.
    Disconnect,
    /// Drops the QP.
    Drop,
}

const INVALID_OPERATIONS: [InvalidOperation; 5] = [
    InvalidOperation::TooManySends,
    InvalidOperation::Deregister,
    InvalidOperation::Abort,
    InvalidOperation::Disconnect,
    InvalidOperation::Drop,
];

impl Scenario {
    /// Draws the scenario of a seed. `crc: false` switches the CRC off on all hosts, which shows
    /// what goes undetected without it.
    pub(crate) fn new(random: &mut Rng, crc: bool) -> Self {
        let harmless = random.u8(0..3) == 0;
        let count = random.usize(2..=4);
        let ipv6 = random.u8(0..3) == 0;
        let revision_1 = random.u8(0..6) == 0;
        let mtu = *pick(random, &[576, 1280, 1500, 1500, 4000, 9000]);
        let mtu = least_mtu(ipv6).max(mtu);
        let mut faults = faults(random);
        if harmless {
            (faults.corrupt_unseen, faults.rewrite) = (0.0, 0.0);
        }
        let mut hosts: Vec<_> = (0..count)
            .map(|_| host(random, crc, faults.is_lossy()))
            .map(|plan| HostPlan { revision_1, ..plan })
            .collect();
        // At most one host does not request the CRC, because MPA uses the CRC if either side
        // requests it.
        let without = random.usize(0..2 * count);
        if let Some(host) = hosts.get_mut(without) {
            host.crc = false;
        }
        let connections = (0..random.usize(1..=4))
            .map(|_| connection(random, count, revision_1, harmless))
            .collect();
        let mut scenario = Scenario {
            harmless,
            ipv6,
            mtu,
            faults,
            hosts,
            connections,
            incidents: Vec::new(),
        };
        scenario.add_incidents(random);
        if harmless {
            let lives = |incident: &Incident| {
                !matches!(
                    incident,
                    Incident::Death { .. } | Incident::InvalidOperation { .. }
                )
            };
            scenario.incidents.retain(|(_, incident)| lives(incident));
            scenario
                .hosts
                .iter_mut()
                .for_each(|host| host.overflow = false);
        }
        scenario
    }

    /// Returns true if nothing is lost or late, and no host makes another one wait.
    pub(crate) fn is_quiet(&self) -> bool {
        let invalid_operation =
            |(_, what): &(_, Incident)| matches!(what, Incident::InvalidOperation { .. });
        let holds = |plan: &HostPlan| plan.hold || plan.overflow;
        !self.faults.is_lossy()
            && !self.faults.changes_bytes()
            && self.incidents.iter().all(invalid_operation)
            && !self.hosts.iter().any(holds)
    }

    /// Describes the scenario in several lines.
    pub(crate) fn describe(&self) -> String {
        let Scenario {
            harmless,
            ipv6,
            mtu,
            faults,
            hosts,
            connections,
            incidents,
        } = self;
        let ip = if *ipv6 { "IPv6" } else { "IPv4" };
        let harmless = if *harmless { ", harmless" } else { "" };
        let mut lines = vec![format!("{ip}, MTU {mtu}{harmless}, {faults:?}")];
        let number = |(index, text): (usize, String)| format!("{index}: {text}");
        let hosts = hosts.iter().map(|plan| format!("{plan:?}"));
        lines.extend(hosts.enumerate().map(number));
        let connections = connections.iter().map(|plan| format!("{plan:?}"));
        lines.extend(connections.enumerate().map(number));
        lines.extend((incidents.iter()).map(|(at, what)| format!("at {at:?}: {what:?}")));
        lines.join("\n    ")
    }

    fn add_incidents(&mut self, random: &mut Rng) {
        let at = |random: &mut Rng| {
            // Most runs end after some tens of milliseconds.
            Duration::from_micros(1 << random.u32(7..17))
                + Duration::from_nanos(random.u64(0..100_000))
        };
        for _ in 0..random.u8(0..3) {
            let host = random.usize(0..self.hosts.len());
            let (begin, long) = (at(random), Duration::from_millis(1 << random.u32(0..13)));
            self.incidents.push((begin, Incident::Down { host }));
            self.incidents.push((begin + long, Incident::Up { host }));
        }
        if random.u8(0..4) == 0 {
            let mtu = *pick(random, &[576, 1000, 1400]);
            let mtu = least_mtu(self.ipv6).max(mtu);
            self.incidents.push((at(random), Incident::Mtu(mtu)));
        }
        if random.u8(0..12) == 0 {
            let host = random.usize(0..self.hosts.len());
            self.incidents.push((at(random), Incident::Death { host }));
        }
        if random.u8(0..2) == 0 {
            for _ in 0..random.u8(1..4) {
                let connection = random.usize(0..self.connections.len());
                let what = if random.bool() {
                    InvalidOperation::Request(*pick(random, &Wrong::ALL))
                } else {
                    *pick(random, &INVALID_OPERATIONS)
                };
                let end = random.usize(0..2);
                let invalid_operation = Incident::InvalidOperation {
                    connection,
                    end,
                    what,
                };
                self.incidents.push((at(random), invalid_operation));
            }
        }
        self.incidents.sort_by_key(|(at, _)| *at);
    }
}

fn pick<'a, T>(random: &mut Rng, from: &'a [T]) -> &'a T {
    &from[random.usize(0..from.len())]
}

/// Returns the smallest MTU that every path must support (RFC 791, RFC 8200 section 5).
fn least_mtu(ipv6: bool) -> usize {
    if ipv6 { 1280 } else { 576 }
}

fn faults(random: &mut Rng) -> Faults {
    let mut sometimes = |one_in: u8, most: f64| {
        if random.u8(0..one_in) == 0 {
            random.f64() * most
        } else {
            0.0
        }
    };
    let mut faults = Faults {
        loss: sometimes(2, 0.08),
        duplicate: sometimes(3, 0.2),
        reorder: sometimes(3, 0.2),
        corrupt: sometimes(3, 0.05),
        corrupt_unseen: sometimes(4, 0.05),
        rewrite: sometimes(12, 0.1),
        replay: sometimes(4, 0.03),
        split: sometimes(2, 1.0),
        join: sometimes(3, 1.0),
        ..Faults::default()
    };
    faults.delay = Duration::from_micros(*pick(random, &[1, 10, 100, 1000, 20_000]));
    faults.jitter = Duration::from_micros(*pick(random, &[0, 0, 5, 500]));
    if random.u8(0..3) == 0 {
        faults.bandwidth = *pick(random, &[200_000, 5_000_000, 100_000_000]);
        faults.queue = *pick(random, &[20_000, 100_000, 1_000_000]);
    }
    faults
}

fn host(random: &mut Rng, crc: bool, lossy: bool) -> HostPlan {
    // Without congestion control, smoltcp resends a whole window after each loss and waits longer
    // each time. Over a bad link this takes hours.
    let tcp = [Congestion::Reno, Congestion::Cubic, Congestion::Off];
    let tcp = if lossy { &tcp[..2] } else { &tcp[..] };
    let srq = random.u8(0..3) == 0;
    // Drawing from a copy of the generator keeps later draws unchanged, so that older seeds keep
    // their meaning.
    let mut aside = random.clone();
    HostPlan {
        revision_1: false,
        crc,
        markers: random.u8(0..3) == 0,
        fpdu_segments: *pick(&mut aside, &[1, 1, 1, 2, 45]),
        receive_buffer: *pick(random, &[4096, 16_384, 65_535, 262_144]),
        send_buffer: *pick(random, &[4096, 16_384, 65_536]),
        inbox: *pick(random, &[8, 64, 256]),
        congestion: *pick(random, tcp),
        ack_delay: (random.u8(0..4) == 0).then_some(Duration::from_millis(10)),
        srq,
        domains: if srq { 1 } else { random.usize(1..=3) },
        hold: random.u8(0..4) == 0,
        receive: *pick(random, &[0, 8, 100, 2000, 8192]),
        overflow: random.u8(0..16) == 0,
    }
}

fn connection(random: &mut Rng, hosts: usize, revision_1: bool, harmless: bool) -> ConnectionPlan {
    let first = random.usize(0..hosts);
    let second = (first + random.usize(1..hosts)) % hosts;
    // Revision 1 has no peer-to-peer model.
    let peer_to_peer = random.bool() && !revision_1;
    let mut depth = || *pick(random, &[1, 2, 16]);
    let mut depths = [[depth(), depth()], [depth(), depth()]];
    let greedy = revision_1 && random.u8(0..3) == 0 && !harmless;
    if greedy {
        depths = [[1, 16]; 2];
    } else if revision_1 {
        // Both programs know the IRD of the other program.
        for end in 0..2 {
            depths[end][1] = depths[end][1].min(depths[1 - end][0]);
        }
    }
    // In the client-server model the initiator must send first, so it needs an operation.
    let least = u32::from(!peer_to_peer);
    ConnectionPlan {
        hosts: [first, second],
        domains: [random.usize(0..3), random.usize(0..3)],
        peer_to_peer,
        depths,
        greedy,
        operations: [random.u32(least..24), random.u32(0..24)],
        rounds: random.u32(1..=3),
        longest: *pick(random, &[16, 1500, 10_000, 60_000]),
    }
}
