//! What happens in a run, drawn from its seed before it begins.

use std::time::Duration;

use fastrand::Rng;

use crate::switch::Faults;
use crate::wrong::Wrong;

/// All that a seed decides beforehand; the rest is drawn while the run goes on.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// Nothing happens that may end a connection.
    pub(crate) harmless: bool,
    pub(crate) ipv6: bool,
    pub(crate) mtu: usize,
    pub(crate) faults: Faults,
    pub(crate) hosts: Vec<HostPlan>,
    pub(crate) connections: Vec<ConnectionPlan>,
    /// By time.
    pub(crate) mishaps: Vec<(Duration, Mishap)>,
}

/// How a host is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPlan {
    /// MPA of RFC 5044 alone, without that of RFC 6581.
    pub(crate) revision_1: bool,
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    /// Over how many TCP segments its FPDUs go.
    pub(crate) fpdu_segments: u16,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    /// Packets that wait for a connection at most.
    pub(crate) inbox: usize,
    pub(crate) congestion: Congestion,
    pub(crate) ack_delay: Option<Duration>,
    /// Receives are shared.
    pub(crate) srq: bool,
    /// How many protection domains it has; one with shared receives, since both have to be of the same.
    pub(crate) domains: usize,
    /// A message without a receive waits for one, so nobody counts receives before it sends.
    pub(crate) hold: bool,
    /// Bytes of a receive, and so of a Send.
    pub(crate) receive: usize,
    /// Nobody polls, and the queue is small.
    pub(crate) overflow: bool,
}

/// What TCP does about loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Congestion {
    Off,
    Reno,
    Cubic,
}

/// A connection, and the program at its two ends: the first one connects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionPlan {
    pub(crate) hosts: [usize; 2],
    /// Of which protection domain each end is, of those that its host has.
    pub(crate) domains: [usize; 2],
    pub(crate) peer_to_peer: bool,
    /// IRD and ORD that each end wants.
    pub(crate) depths: [[u16; 2]; 2],
    /// An end has more Reads under way than its peer can take: in revision 1 nobody tells it.
    pub(crate) greedy: bool,
    /// Operations of each end, in each round.
    pub(crate) operations: [u32; 2],
    /// How often it is connected.
    pub(crate) rounds: u32,
    /// The longest payload.
    pub(crate) longest: usize,
}

/// What befalls a host or a connection at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mishap {
    /// The cable is pulled, and put back.
    Down {
        host: usize,
    },
    Up {
        host: usize,
    },
    /// Longer packets do not pass any more.
    Mtu(usize),
    /// The host is gone without a word.
    Death {
        host: usize,
    },
    /// A misdeed of the program at one end.
    Misdeed {
        connection: usize,
        end: usize,
        what: Misdeed,
    },
}

/// What a program should not do, or may do at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misdeed {
    /// More Sends than the peer has receives for.
    TooManySends,
    /// A request that the peer has to refuse.
    Request(Wrong),
    /// The peer's region goes while it is in use.
    Deregister,
    /// The connection is reset.
    Abort,
    /// It is closed while both sides are at work.
    Disconnect,
    /// The QP is dropped.
    Drop,
}

const MISDEEDS: [Misdeed; 5] = [
    Misdeed::TooManySends,
    Misdeed::Deregister,
    Misdeed::Abort,
    Misdeed::Disconnect,
    Misdeed::Drop,
];

impl Scenario {
    /// The scenario of a seed. `crc` can be switched off for all, to see what is lost then.
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
        // It is in use where one side wants it: so one of all hosts may not.
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
            mishaps: Vec::new(),
        };
        scenario.add_mishaps(random);
        if harmless {
            let lives =
                |mishap: &Mishap| !matches!(mishap, Mishap::Death { .. } | Mishap::Misdeed { .. });
            scenario.mishaps.retain(|(_, mishap)| lives(mishap));
            scenario
                .hosts
                .iter_mut()
                .for_each(|host| host.overflow = false);
        }
        scenario
    }

    /// Whether nothing is lost or late, and no host lets another one wait.
    pub(crate) fn is_quiet(&self) -> bool {
        let invalid_operation = |(_, what): &(_, Mishap)| matches!(what, Mishap::Misdeed { .. });
        let holds = |plan: &HostPlan| plan.hold || plan.overflow;
        !self.faults.is_lossy()
            && !self.faults.changes_octets()
            && self.mishaps.iter().all(invalid_operation)
            && !self.hosts.iter().any(holds)
    }

    /// What is special about it, one line for each part.
    pub(crate) fn describe(&self) -> String {
        let Scenario {
            harmless,
            ipv6,
            mtu,
            faults,
            hosts,
            connections,
            mishaps,
        } = self;
        let ip = if *ipv6 { "IPv6" } else { "IPv4" };
        let harmless = if *harmless { ", harmless" } else { "" };
        let mut lines = vec![format!("{ip}, MTU {mtu}{harmless}, {faults:?}")];
        let number = |(index, text): (usize, String)| format!("{index}: {text}");
        let hosts = hosts.iter().map(|plan| format!("{plan:?}"));
        lines.extend(hosts.enumerate().map(number));
        let connections = connections.iter().map(|plan| format!("{plan:?}"));
        lines.extend(connections.enumerate().map(number));
        lines.extend((mishaps.iter()).map(|(at, what)| format!("at {at:?}: {what:?}")));
        lines.join("\n    ")
    }

    fn add_mishaps(&mut self, random: &mut Rng) {
        let at = |random: &mut Rng| {
            // Most runs are over after some tens of milliseconds.
            Duration::from_micros(1 << random.u32(7..17))
                + Duration::from_nanos(random.u64(0..100_000))
        };
        for _ in 0..random.u8(0..3) {
            let host = random.usize(0..self.hosts.len());
            let (begin, long) = (at(random), Duration::from_millis(1 << random.u32(0..13)));
            self.mishaps.push((begin, Mishap::Down { host }));
            self.mishaps.push((begin + long, Mishap::Up { host }));
        }
        if random.u8(0..4) == 0 {
            let mtu = *pick(random, &[576, 1000, 1400]);
            let mtu = least_mtu(self.ipv6).max(mtu);
            self.mishaps.push((at(random), Mishap::Mtu(mtu)));
        }
        if random.u8(0..12) == 0 {
            let host = random.usize(0..self.hosts.len());
            self.mishaps.push((at(random), Mishap::Death { host }));
        }
        if random.u8(0..2) == 0 {
            for _ in 0..random.u8(1..4) {
                let connection = random.usize(0..self.connections.len());
                let what = if random.bool() {
                    Misdeed::Request(*pick(random, &Wrong::ALL))
                } else {
                    *pick(random, &MISDEEDS)
                };
                let end = random.usize(0..2);
                let invalid_operation = Mishap::Misdeed {
                    connection,
                    end,
                    what,
                };
                self.mishaps.push((at(random), invalid_operation));
            }
        }
        self.mishaps.sort_by_key(|(at, _)| *at);
    }
}

fn pick<'a, T>(random: &mut Rng, from: &'a [T]) -> &'a T {
    &from[random.usize(0..from.len())]
}

/// What every way has to carry (RFC 791, RFC 8200 section 5).
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
    // Without congestion control smoltcp sends a whole window again after each loss, waits longer each time, and takes
    // hours over a bad link.
    let tcp = [Congestion::Reno, Congestion::Cubic, Congestion::Off];
    let tcp = if lossy { &tcp[..2] } else { &tcp[..] };
    let srq = random.u8(0..3) == 0;
    // Seeds from before there was such a choice mean the same still.
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
    // Revision 1 has no such model.
    let peer_to_peer = random.bool() && !revision_1;
    let mut depth = || *pick(random, &[1, 2, 16]);
    let mut depths = [[depth(), depth()], [depth(), depth()]];
    let greedy = revision_1 && random.u8(0..3) == 0 && !harmless;
    if greedy {
        depths = [[1, 16]; 2];
    } else if revision_1 {
        // Both programs know what the other one takes.
        for end in 0..2 {
            depths[end][1] = depths[end][1].min(depths[1 - end][0]);
        }
    }
    // In the client-server model nobody may send before the initiator has.
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
