//! Two hosts with TCP in user space, and the packets or frames in flight between them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use uwarp_verbs::llp::ethernet::{EthernetNetwork, FrameCarrier, LinkSettings};
use uwarp_verbs::llp::smol::{
    Carrier, Clock, Congestion, ManualClock, MemoryNetwork, MemorySettings,
};
use uwarp_verbs::llp::{Keepalive, Network};
use uwarp_verbs::{Device, Listener, Progress, Settings, TimeSource, Timeouts};

use super::ethernet;
use crate::live::settle;

/// Maximum number of packets in flight in one direction. Further ones are dropped.
const ROOM: usize = 512;
pub(super) const PORT: u16 = 7174;
/// Size in bytes of each buffer of a connection, one for each direction.
const BUFFER: usize = 16 << 10;
/// Length of the queue of received packets of a connection.
const INBOX: usize = 64;

/// Packets sent by one host.
#[derive(Default)]
struct Kept {
    under_way: Mutex<VecDeque<Vec<u8>>>,
    /// Last packet with a TCP segment. A third host may have observed it.
    seen: Mutex<Vec<u8>>,
}

impl Kept {
    fn keep(&self, bytes: &[u8]) {
        let mut under_way = self.under_way.lock().expect("no call panics under it");
        if under_way.len() < ROOM {
            under_way.push_back(bytes.to_vec());
        }
    }

    fn see(&self, packet: &[u8]) {
        *self.seen.lock().expect("no call panics under it") = packet.to_vec();
    }
}

impl FrameCarrier for Kept {
    fn carry(&self, frame: &[u8]) {
        self.keep(frame);
        if let Some(packet) = ethernet::ipv4(frame) {
            self.see(packet);
        }
    }
}

impl Carrier for Kept {
    fn carry(&self, packet: &[u8]) {
        self.keep(packet);
        self.see(packet);
    }

    fn reaches(&self, to: IpAddr) -> bool {
        [address(0), address(1)].iter().any(|host| host.ip() == to)
    }
}

pub(super) fn address(host: usize) -> SocketAddr {
    let last = if host == 0 { 1 } else { 2 };
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, last), PORT))
}

/// Network of a host.
enum Attached {
    /// The link carries IP packets.
    Ip(MemoryNetwork),
    /// The link carries Ethernet frames.
    Ethernet(EthernetNetwork),
}

/// A host with its device and its listener.
pub(super) struct Host {
    attached: Attached,
    kept: Arc<Kept>,
    pub(super) device: Device,
    pub(super) listener: Listener,
}

impl Attached {
    fn by_ip(number: usize, clock: &Arc<dyn Clock>, kept: &Arc<Kept>) -> Self {
        let link = MemorySettings::default()
            .receive_buffer(BUFFER)
            .send_buffer(BUFFER)
            .inbox(INBOX)
            .congestion(Congestion::Reno)
            .addresses([vec![address(number).ip()], Vec::new()])
            // No checksums, because smoltcp does not check them under a fuzzer either.
            .checksums(false)
            .clock(Arc::clone(clock))
            .seed(Some(number as u64));
        let carrier: Arc<Kept> = Arc::clone(kept);
        Self::Ip(MemoryNetwork::host(&link, carrier).expect("the settings are valid"))
    }

    fn on_ethernet(number: usize, clock: &Arc<dyn Clock>, kept: &Arc<Kept>) -> Self {
        let link = LinkSettings::default()
            .addresses(vec![
                (address(number).ip(), 24),
                (ethernet::ipv6(number).into(), 64),
            ])
            .receive_buffer(BUFFER)
            .send_buffer(BUFFER)
            .inbox(INBOX)
            .clock(Arc::clone(clock))
            .seed(Some(number as u64));
        let carrier: Arc<Kept> = Arc::clone(kept);
        let network = EthernetNetwork::with_carrier(&link, ethernet::mac(number), carrier);
        Self::Ethernet(network.expect("the settings are valid"))
    }
}

impl Host {
    fn new(number: usize, clock: &Arc<ManualClock>, on_ethernet: bool) -> Self {
        let given: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
        let kept = Arc::new(Kept::default());
        let attached = if on_ethernet {
            Attached::on_ethernet(number, &given, &kept)
        } else {
            Attached::by_ip(number, &given, &kept)
        };
        let network: Arc<dyn Network> = match &attached {
            Attached::Ip(network) => Arc::new(network.clone()),
            Attached::Ethernet(network) => Arc::new(network.clone()),
        };
        let short = Duration::from_secs(60);
        let settings = Settings::default()
            .crc(true)
            .timeouts(Timeouts::default().stalled(Some(2 * short)).close(short))
            .keepalive(Some(Keepalive {
                idle: short,
                interval: short / 6,
                probes: 3,
            }))
            .progress(Progress::Manual)
            .clock(TimeSource::Given(given))
            .seed(Some(number as u64 + 2));
        let device = Device::open(network, settings).expect("it can be opened");
        let listener = device.listen(address(number)).expect("the address is free");
        Self {
            attached,
            kept,
            device,
            listener,
        }
    }
}

/// Both hosts, the link between them and their common clock.
pub(super) struct Link {
    pub(super) clock: Arc<ManualClock>,
    start: Instant,
    pub(super) hosts: [Host; 2],
    pub(super) on_ethernet: bool,
}

impl Link {
    pub(super) fn new(on_ethernet: bool) -> Self {
        let clock = Arc::new(ManualClock::new());
        let hosts = [0, 1].map(|number| Host::new(number, &clock, on_ethernet));
        Self {
            start: clock.now(),
            clock,
            hosts,
            on_ethernet,
        }
    }

    /// Calls `what` with the packets in flight from a host and returns its result.
    pub(super) fn under_way<T>(
        &self,
        from: usize,
        what: impl FnOnce(&mut VecDeque<Vec<u8>>) -> T,
    ) -> T {
        let kept = &self.hosts[from].kept;
        what(&mut kept.under_way.lock().expect("no call panics under it"))
    }

    /// Returns the last packet with a TCP segment that a host sent.
    pub(super) fn seen(&self, from: usize) -> Vec<u8> {
        let seen = self.hosts[from].kept.seen.lock();
        seen.expect("no call panics under it").clone()
    }

    /// Delivers a packet or a frame to a host.
    pub(super) fn deliver(&self, to: usize, bytes: &[u8]) {
        match &self.hosts[to].attached {
            Attached::Ip(network) => network.deliver(bytes),
            Attached::Ethernet(network) => network.deliver(bytes),
        }
    }

    /// Delivers an IP packet to a host, in a frame if it is on an Ethernet.
    pub(super) fn deliver_ip(&self, to: usize, packet: &[u8]) {
        if self.on_ethernet {
            let mut frame = ethernet::frame(to, 1 - to, 0x0800, packet);
            ethernet::seal(&mut frame);
            self.deliver(to, &frame);
        } else {
            self.deliver(to, packet);
        }
    }

    /// Delivers up to `count` packets in flight from a host. Returns true if there were any.
    pub(super) fn carry(&self, from: usize, count: usize) -> bool {
        let packets: Vec<Vec<u8>> = self.under_way(from, |under_way| {
            let count = count.min(under_way.len());
            under_way.drain(..count).collect()
        });
        packets
            .iter()
            .for_each(|packet| self.deliver(1 - from, packet));
        !packets.is_empty()
    }

    /// Runs both hosts at the current time. Returns the time of their next timer.
    pub(super) fn progress(&self) -> Option<Instant> {
        let due = self.hosts.each_ref().map(|host| {
            let of_device = settle(&host.device, &self.clock);
            let of_link = match &host.attached {
                Attached::Ip(_) => None,
                Attached::Ethernet(network) => network.turn(),
            };
            of_device.into_iter().chain(of_link).min()
        });
        due.into_iter().flatten().min()
    }

    /// Runs the hosts, delivers all packets and advances the clock until `is` returns true. Returns
    /// false after `rounds` rounds, or if no packet and no timer is left.
    pub(super) fn until(&self, rounds: usize, mut is: impl FnMut() -> bool) -> bool {
        for _ in 0..rounds {
            let due = self.progress();
            if is() {
                return true;
            }
            if self.carry(0, usize::MAX) | self.carry(1, usize::MAX) {
                continue;
            }
            match due {
                Some(due) => self.clock.set(due),
                None => return is(),
            }
        }
        false
    }

    /// Returns the time since the link was created.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.now() - self.start
    }

    /// Drops both hosts and checks that no device keeps a reference to the clock.
    pub(super) fn end(self) {
        let Self { clock, hosts, .. } = self;
        drop(hosts);
        assert_eq!(Arc::strong_count(&clock), 1, "a device still exists");
    }
}
