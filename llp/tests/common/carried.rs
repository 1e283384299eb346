//! Two hosts in simulated time. The test carries their packets, and can add forged ones.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_llp::smol::{Carrier, Clock, Congestion, ManualClock, MemoryNetwork, MemorySettings};

/// TCP header fields of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) ports: [u16; 2],
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) bytes: u32,
}

impl Fields {
    pub(crate) fn of(packet: &[u8]) -> Self {
        let at = if packet[0] >> 4 == 4 { 20 } else { 40 };
        let tcp = &packet[at..];
        let short = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let long = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
        Self {
            ports: [short(0), short(2)],
            seq: long(4),
            ack: long(8),
            flags: tcp[13] & 0x3f,
            window: short(14),
            bytes: tcp.len() as u32 - u32::from(tcp[12] >> 4) * 4,
        }
    }

    /// Makes a packet between the hosts. Checksums are not used here.
    pub(crate) fn packet(&self, from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
        let bytes = (20 + payload.len()) as u16;
        let mut packet = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0];
                header[2..4].copy_from_slice(&(20 + bytes).to_be_bytes());
                [header, from.octets().to_vec(), to.octets().to_vec()].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut header = vec![0x60, 0, 0, 0, 0, 0, 6, 64];
                header[4..6].copy_from_slice(&bytes.to_be_bytes());
                [header, from.octets().to_vec(), to.octets().to_vec()].concat()
            }
            _ => panic!("two families"),
        };
        for port in self.ports {
            packet.extend(port.to_be_bytes());
        }
        packet.extend(self.seq.to_be_bytes());
        packet.extend(self.ack.to_be_bytes());
        packet.extend([5 << 4, self.flags]);
        packet.extend(self.window.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(payload);
        packet
    }
}

/// Packets between the hosts.
#[derive(Default)]
pub(crate) struct Wire {
    /// Packets in flight, each with its receiving host.
    pub(crate) in_flight: VecDeque<(usize, Vec<u8>)>,
    /// Header of each packet sent, including lost ones, with its sending host.
    pub(crate) sent: Vec<(usize, Fields)>,
    /// True if packets with data are lost.
    pub(crate) lossy: bool,
}

struct Plug(Arc<Mutex<Wire>>, usize);

impl Carrier for Plug {
    fn carry(&self, packet: &[u8]) {
        let mut wire = self.0.lock();
        let fields = Fields::of(packet);
        wire.sent.push((self.1, fields));
        if !wire.lossy || fields.bytes == 0 {
            wire.in_flight.push_back((1 - self.1, packet.to_vec()));
        }
    }

    fn reaches(&self, _: IpAddr) -> bool {
        true
    }
}

/// A client on host 0 and a server on host 1.
pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) wire: Arc<Mutex<Wire>>,
    pub(crate) settings: MemorySettings,
    pub(crate) hosts: [MemoryNetwork; 2],
    pub(crate) at: SocketAddr,
}

impl World {
    pub(crate) fn new(v6: bool) -> Self {
        Self::with(v6, Congestion::None)
    }

    pub(crate) fn with(v6: bool, congestion: Congestion) -> Self {
        let clock = Arc::new(ManualClock::new());
        let wire = Arc::<Mutex<Wire>>::default();
        let settings = MemorySettings::default()
            .clock(Arc::<ManualClock>::clone(&clock))
            .congestion(congestion);
        let host = |number| Self::host(&settings, &wire, number);
        let hosts = [host(0), host(1)];
        let addr: IpAddr = settings.addresses[1][usize::from(v6)];
        let at = SocketAddr::new(addr, 7174);
        Self {
            clock,
            wire,
            settings,
            hosts,
            at,
        }
    }

    pub(crate) fn host(
        settings: &MemorySettings,
        wire: &Arc<Mutex<Wire>>,
        number: usize,
    ) -> MemoryNetwork {
        let mut settings = settings.clone();
        settings.addresses.swap(0, number);
        let plug = Arc::new(Plug(Arc::clone(wire), number));
        MemoryNetwork::host(&settings, plug).unwrap()
    }

    pub(crate) fn carry(&self) -> bool {
        let packets = std::mem::take(&mut self.wire.lock().in_flight);
        for (to, packet) in &packets {
            self.hosts[*to].deliver(packet);
        }
        !packets.is_empty()
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn wait(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Takes the headers recorded since the last call, and returns those of `host`.
    pub(crate) fn sent_by(&self, host: usize) -> Vec<Fields> {
        let sent = std::mem::take(&mut self.wire.lock().sent);
        sent.into_iter()
            .filter_map(|(from, fields)| (from == host).then_some(fields))
            .collect()
    }
}
