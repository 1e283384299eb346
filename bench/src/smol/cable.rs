//! An in-memory cable between two bare smoltcps. Packets move from one queue to the other, and
//! their buffers move back.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use super::bare::Port;

/// Packets in flight in one direction, and used buffers that return to the sender.
#[derive(Default)]
struct Way {
    packets: VecDeque<Vec<u8>>,
    used: Vec<Vec<u8>>,
}

type Shared = Arc<Mutex<Way>>;

/// Settings of a cable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cable {
    /// Maximum length of an IP packet in bytes.
    pub(super) mtu: usize,
    /// Probability that a packet is lost, from 0 to 1.
    pub(super) loss: f64,
    /// Seed of the random losses.
    pub(super) seed: u64,
}

/// One end of a cable.
pub(super) struct End {
    cable: Cable,
    incoming: Shared,
    /// Packets that were fetched from the cable and not processed by smoltcp yet.
    arrived: VecDeque<Vec<u8>>,
    used: Vec<Vec<u8>>,
    sender: Sender,
}

struct Sender {
    outgoing: Shared,
    /// Packets sent since the last flush.
    left: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
    loss: f64,
    random: fastrand::Rng,
}

impl Cable {
    /// Creates both ends.
    pub(super) fn ends(self) -> [End; 2] {
        let ways = [Shared::default(), Shared::default()];
        let end = |from: usize, to: usize| End {
            cable: self,
            incoming: Arc::clone(&ways[from]),
            arrived: VecDeque::new(),
            used: Vec::new(),
            sender: Sender {
                outgoing: Arc::clone(&ways[to]),
                left: VecDeque::new(),
                free: Vec::new(),
                loss: self.loss,
                random: fastrand::Rng::with_seed(2 * self.seed + from as u64),
            },
        };
        [end(0, 1), end(1, 0)]
    }
}

fn locked(way: &Shared) -> std::sync::MutexGuard<'_, Way> {
    way.lock().unwrap_or_else(PoisonError::into_inner)
}

impl End {
    /// Fetches all arrived packets, and returns the used buffers to the sender.
    fn fetch(&mut self) {
        let mut way = locked(&self.incoming);
        mem::swap(&mut way.packets, &mut self.arrived);
        way.used.append(&mut self.used);
    }
}

impl Port for End {
    fn flush(&mut self) {
        self.sender.flush();
    }
}

impl Sender {
    /// Passes the sent packets to the cable, and fetches free buffers.
    fn flush(&mut self) {
        if !self.left.is_empty() {
            let mut way = locked(&self.outgoing);
            way.packets.append(&mut self.left);
            self.free.append(&mut way.used);
        }
    }
}

impl Device for End {
    type RxToken<'a> = Arrived<'a>;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Arrived<'_>, Leaving<'_>)> {
        if self.arrived.is_empty() {
            // The responses to earlier packets are sent first, so that the other side can process
            // them.
            self.sender.flush();
            self.fetch();
        }
        let packet = self.arrived.pop_front()?;
        let used = &mut self.used;
        Some((Arrived { packet, used }, Leaving(&mut self.sender)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.sender))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.cable.mtu;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities.checksum.ipv4 = Checksum::Both;
        capabilities.checksum.tcp = Checksum::Both;
        capabilities
    }
}

/// Token to process an arrived packet.
pub(super) struct Arrived<'a> {
    packet: Vec<u8>,
    used: &'a mut Vec<Vec<u8>>,
}

impl smoltcp::phy::RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.packet);
        self.used.push(self.packet);
        result
    }
}

/// Token to send a packet.
pub(super) struct Leaving<'a>(&'a mut Sender);

impl smoltcp::phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Sender {
            left,
            free,
            loss,
            random,
            ..
        } = self.0;
        let mut packet = free.pop().unwrap_or_default();
        // Only additional bytes are cleared, because smoltcp overwrites the whole packet.
        packet.resize(len, 0);
        let result = f(&mut packet);
        if *loss > 0.0 && random.f64() < *loss {
            free.push(packet);
        } else {
            left.push_back(packet);
        }
        result
    }
}
