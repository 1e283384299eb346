//! A host: a device and the resources that its programs share.

use std::collections::VecDeque;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use uwarp_verbs::llp::Keepalive;
use uwarp_verbs::llp::smol::{
    Clock, Congestion as Tcp, ManualClock, MemoryNetwork, MemorySettings,
};
use uwarp_verbs::{
    Access, Completion, CompletionChannel, Cq, Device, EventChannel, FpduSegments, Limits,
    Listener, Notify, OnNoReceive, Pd, Progress, Revision, Settings, Srq, SrqAttr, Status,
    TimeSource, Timeouts,
};

use crate::end::Posted;
use crate::memory::Tracked;
use crate::scenario::{Congestion, HostPlan};
use crate::switch::Switch;

/// Port on which every host listens.
const PORT: u16 = 7174;

/// A running host.
pub(crate) struct Host {
    pub(crate) plan: HostPlan,
    pub(crate) network: MemoryNetwork,
    pub(crate) device: Device,
    pub(crate) resources: Option<Resources>,
}

/// Resources that the programs of a host share. They are dropped before the device, so that the run
/// can check that the device releases everything.
pub(crate) struct Resources {
    /// Protection domains; each end of a connection belongs to one of them.
    domains: Vec<Pd>,
    cq: Cq,
    /// Channel for the events of the CQ.
    cq_channel: CompletionChannel,
    /// If the CQ is armed: the kind of completion that raises an event, and whether such a
    /// completion was polled since then.
    armed: Option<(Notify, bool)>,
    pub(crate) channel: EventChannel,
    pub(crate) listener: Listener,
    pub(crate) shared: Option<Shared>,
}

impl Resources {
    /// Returns the domain with this number, modulo the number of domains.
    pub(crate) fn domain(&self, number: usize) -> &Pd {
        &self.domains[number % self.domains.len()]
    }

    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Polls the CQ into `batch`. Once the CQ is empty, checks its events: there must be exactly
    /// one if the CQ was armed and a matching completion was polled, otherwise none. May then arm
    /// the CQ.
    pub(crate) fn take(
        &mut self,
        batch: &mut [Completion],
        random: &mut Rng,
    ) -> Result<usize, String> {
        let count = self.cq.poll(batch);
        for wc in &batch[..count] {
            if let Some((notify, due)) = &mut self.armed {
                *due |= match notify {
                    Notify::Any => true,
                    Notify::Solicited => wc.solicited || wc.status != Status::Success,
                };
            }
        }
        // An overflowed CQ also raises events for lost completions.
        if count == batch.len() || self.cq.has_overflowed() {
            return Ok(count);
        }
        if let Some((notify, due)) = self.armed {
            let events = self.cq_channel.waiting();
            if events != usize::from(due) {
                return Err(format!(
                    "a CQ armed for {notify:?} has {events} events, but such a completion has {}",
                    if due { "come" } else { "not come" }
                ));
            }
            if due {
                drop(self.cq_channel.try_get_event());
                self.armed = None;
            }
        } else if random.bool() {
            let notify = if random.bool() {
                Notify::Any
            } else {
                Notify::Solicited
            };
            // Arming also receives pending data, and the resulting completions raise an event. If
            // completions were in the queue before, `req_notify` returns true, and no event is
            // checked.
            if !self.cq.req_notify(notify) {
                self.armed = Some((notify, false));
            }
        }
        Ok(count)
    }
}

/// SRQ whose receives all connections of the host share.
pub(crate) struct Shared {
    pub(crate) srq: Srq,
    pub(crate) memory: Tracked,
    pub(crate) posted: VecDeque<Posted>,
}

/// Returns the listening address of a host.
pub(crate) fn address(host: usize, ipv6: bool) -> SocketAddr {
    let number = u8::try_from(host + 1).unwrap_or(u8::MAX);
    let ip = if ipv6 {
        IpAddr::from(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, number.into()))
    } else {
        IpAddr::from(Ipv4Addr::new(10, 0, 0, number))
    };
    SocketAddr::new(ip, PORT)
}

fn settings(plan: HostPlan, clock: Arc<dyn Clock>, seed: u64) -> Settings {
    // The retransmission timeout of TCP grows to a minute, and one FIN on a bad link can need
    // several retransmissions.
    let long = Duration::from_secs(900);
    let revision = if plan.revision_1 {
        Revision::One
    } else {
        Revision::Two
    };
    Settings::default()
        .crc(plan.crc)
        .revision(revision)
        .accept_revision(revision)
        .markers(plan.markers)
        // A draw would change all seeds that are kept.
        .placed_writes(seed % 4 == 1)
        .fpdu_segments(FpduSegments::new(plan.fpdu_segments).unwrap_or_default())
        .on_no_receive(if plan.hold {
            OnNoReceive::Hold(2 * long)
        } else {
            OnNoReceive::Terminate
        })
        // The limit is the number of domains in use. A domain exists as long as it contains
        // objects, so a leftover object makes a later allocation fail.
        .limits(
            Limits::default()
                .max_pd(u32::try_from(plan.domains).unwrap_or(u32::MAX))
                .max_cq(1),
        )
        .timeouts(
            Timeouts::default()
                .connect(long)
                .reply(long)
                .request(long)
                .rtr(long)
                .close(long)
                .stalled(Some(2 * long))
                // Programs pause for a long time, also after the peer has closed.
                .hold_after_close(2 * long),
        )
        .keepalive(Some(Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(20),
            // TCP gives up after the time of all probes, and waits a minute before its seventh
            // retransmission. A link that loses a tenth of its packets can lose three responses in
            // a row, but not ten.
            probes: 30,
        }))
        .progress(Progress::Manual)
        .clock(TimeSource::Given(clock))
        .seed(Some(seed))
}

impl Host {
    /// Sets up a host. `receives` is the maximum number of shared receives that its peers use,
    /// `depth` the size of the CQ.
    pub(crate) fn new(
        number: usize,
        plan: HostPlan,
        address: SocketAddr,
        (clock, switch, mtu, seed): (&Arc<ManualClock>, &Switch, usize, u64),
        (receives, depth): (usize, u32),
    ) -> Result<Self, String> {
        let given: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
        let link = MemorySettings::default()
            .mtu(mtu)
            .receive_buffer(plan.receive_buffer)
            .send_buffer(plan.send_buffer)
            .inbox(plan.inbox)
            .congestion(match plan.congestion {
                Congestion::Off => Tcp::None,
                Congestion::Reno => Tcp::Reno,
                Congestion::Cubic => Tcp::Cubic,
            })
            .checksums(true)
            .ack_delay(plan.ack_delay)
            .connect_timeout(Duration::from_secs(60))
            .addresses([vec![address.ip()], Vec::<IpAddr>::new()])
            .clock(Arc::clone(&given))
            .seed(Some(seed));
        let said = |error: &dyn Display| format!("host {number}: {error}");
        let network = MemoryNetwork::host(&link, switch.port(number)).map_err(|e| said(&e))?;
        let device = Device::open(Arc::new(network.clone()), settings(plan, given, seed))
            .map_err(|e| said(&e))?;
        let depth = if plan.overflow { 4 } else { depth };
        let resources = Resources::new(&device, plan, address, receives, depth);
        Ok(Host {
            plan,
            network,
            resources: Some(resources.map_err(|error| said(&error))?),
            device,
        })
    }
}

impl Resources {
    fn new(
        device: &Device,
        plan: HostPlan,
        listen: SocketAddr,
        receives: usize,
        depth: u32,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let domains: Result<Vec<_>, _> = (0..plan.domains).map(|_| device.alloc_pd()).collect();
        let (domains, cq_channel) = (domains?, CompletionChannel::new()?);
        let shared = if plan.srq {
            let attr = SrqAttr::default().max_wr(4096);
            let len = (plan.receive * receives).max(1);
            let what = "the shared receives";
            Some(Shared {
                srq: domains[0].create_srq(attr)?,
                memory: Tracked::blank(&domains[0], what, len, Access::LOCAL_WRITE, 0, None)?,
                posted: VecDeque::new(),
            })
        } else {
            None
        };
        Ok(Resources {
            domains,
            cq: device.create_cq_on(depth, &cq_channel, 0)?,
            cq_channel,
            armed: None,
            channel: EventChannel::new()?,
            listener: device.listen(listen)?,
            shared,
        })
    }
}
