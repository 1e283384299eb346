//! Buffers for IP packets, and the pool of unused buffers.

use parking_lot::Mutex;

/// Maximum total size in bytes of the buffers of the usual size that a pool keeps. Further buffers
/// that are returned are freed.
const POOL_BYTES: usize = 16 << 20;

/// Largest IP packet in bytes. GSO makes packets of up to 64 KiB.
pub(crate) const LARGEST: usize = 64 << 10;

/// Size classes of larger buffers, for a wire whose other side cuts and merges segments. Each entry
/// is the size of a buffer, and the maximum total size of the buffers that a pool keeps, in bytes.
const LARGER: [(usize, usize); 2] = [(16 << 10, 1 << 20), (LARGEST, 2 << 20)];

/// Number of buffers moved between a connection and the pool at a time, to avoid the pool's lock
/// for every packet.
const BATCH: usize = 32;

/// An IP packet in a reusable buffer. The buffer is initialised once and keeps its size; only the
/// packet's length changes.
pub(crate) struct Packet {
    buffer: Box<[u8]>,
    len: usize,
    pub(crate) offload: PacketOffload,
}

/// Work on a packet that its sender has left to the receiver, by offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PacketOffload {
    pub(crate) sums: ChecksumState,
    /// Number of data bytes of each segment into which the TCP segment has to be cut. 0 means that
    /// it is not cut.
    pub(crate) segment: u16,
}

/// State of a packet's checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ChecksumState {
    /// The checksums are complete and were not verified.
    #[default]
    Complete,
    /// The checksums need no verification: the kernel has verified them, or this process has
    /// completed them.
    Verified,
    /// The transport's checksum is partial. Its field, `offset` bytes after `start`, holds the sum
    /// of the pseudo-header. The bytes from `start` to the end have to be added. A packet that is
    /// received in this state was never on a cable.
    Partial { start: u16, offset: u16 },
}

impl Packet {
    /// Creates an empty packet with a buffer of `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            buffer: vec![0; capacity].into_boxed_slice(),
            len: 0,
            offload: PacketOffload::default(),
        }
    }

    /// Size of the buffer in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the bytes of the packet.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }

    /// Returns the bytes of the packet for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(..self.len).unwrap_or_default()
    }

    /// Completes the packet's checksum if it is partial.
    pub(crate) fn complete(&mut self) {
        if let ChecksumState::Partial { .. } = self.offload.sums {
            let sums = std::mem::replace(&mut self.offload.sums, ChecksumState::Verified);
            crate::wire::complete(self.bytes_mut(), sums);
        }
    }

    /// Extends the packet by `bytes` bytes with undefined content. Keeps the existing bytes.
    /// Returns all bytes.
    pub(crate) fn extend(&mut self, bytes: usize) -> &mut [u8] {
        let len = self.len + bytes;
        if self.buffer.len() < len {
            let mut larger = vec![0; len].into_boxed_slice();
            larger[..self.len].copy_from_slice(self.bytes());
            self.buffer = larger;
        }
        self.len = len;
        self.bytes_mut()
    }

    /// Sets the length to `len` and returns the bytes for writing. They may hold data of an earlier
    /// packet.
    pub(crate) fn resize(&mut self, len: usize) -> &mut [u8] {
        if self.buffer.len() < len {
            self.buffer = vec![0; len].into_boxed_slice();
        }
        self.len = len;
        self.buffer.get_mut(..len).unwrap_or_default()
    }
}

/// Unused buffers of one link, of the usual size and of the larger sizes.
pub(crate) struct Pool {
    free: [Mutex<Free>; 1 + LARGER.len()],
    packet_bytes: usize,
}

/// Unused buffers of one size class, and their total size in bytes. A buffer can be larger than the
/// size of its class.
#[derive(Default)]
struct Free {
    packets: Vec<Packet>,
    bytes: usize,
}

impl Free {
    fn push(&mut self, packet: Packet, class: usize) {
        let bytes = self.bytes.saturating_add(packet.buffer.len());
        let keeps = match class.checked_sub(1).and_then(|larger| LARGER.get(larger)) {
            Some((_, bound)) => bytes <= *bound,
            None => bytes <= POOL_BYTES || self.packets.len() < BATCH,
        };
        if keeps {
            self.bytes = bytes;
            self.packets.push(packet);
        }
    }

    fn pop(&mut self) -> Option<Packet> {
        let packet = self.packets.pop()?;
        self.bytes = self.bytes.saturating_sub(packet.buffer.len());
        Some(packet)
    }
}

impl Pool {
    /// Creates a pool whose usual buffers hold `packet_bytes` bytes.
    pub(crate) fn new(packet_bytes: usize) -> Self {
        Self {
            free: Default::default(),
            packet_bytes,
        }
    }

    /// Returns the size class for a packet of `len` bytes, and the size of a new buffer.
    fn class_for(&self, len: usize) -> (usize, usize) {
        if len <= self.packet_bytes {
            return (0, self.packet_bytes);
        }
        let larger = LARGER.iter().position(|(bytes, _)| len <= *bytes);
        let class = larger.unwrap_or(LARGER.len() - 1);
        (
            class + 1,
            LARGER
                .get(class)
                .map_or(len, |(bytes, _)| (*bytes).max(len)),
        )
    }

    /// Returns the size class to which a buffer belongs.
    fn class_of(&self, packet: &Packet) -> usize {
        let bytes = packet.buffer.len();
        if bytes <= self.packet_bytes {
            return 0;
        }
        LARGER.iter().filter(|(least, _)| bytes >= *least).count()
    }

    /// Returns a copy of a packet in a buffer of the pool.
    pub(crate) fn copy(&self, packet: &Packet) -> Packet {
        let mut copy = self.take_for(packet.len);
        copy.resize(packet.len).copy_from_slice(packet.bytes());
        copy.offload = packet.offload;
        copy
    }

    /// Takes a buffer of the usual size.
    pub(crate) fn take_one(&self) -> Packet {
        self.take_for(0)
    }

    /// Takes a buffer for a packet of `bytes` bytes.
    pub(crate) fn take_for(&self, bytes: usize) -> Packet {
        let (class, capacity) = self.class_for(bytes);
        let packet = self.free.get(class).and_then(|free| free.lock().pop());
        let mut packet = packet.unwrap_or_else(|| Packet::new(capacity));
        packet.offload = PacketOffload::default();
        packet
    }

    /// Returns true if a smaller size class could hold this packet.
    pub(crate) fn has_smaller(&self, packet: &Packet) -> bool {
        self.class_for(packet.len).0 < self.class_of(packet)
    }

    /// Returns true if packets of `bytes` bytes fit the usual size.
    fn is_usual(&self, bytes: usize) -> bool {
        bytes <= self.packet_bytes
    }

    /// Returns a buffer to the pool.
    pub(crate) fn give_one(&self, packet: Packet) {
        let class = self.class_of(&packet);
        if let Some(free) = self.free.get(class) {
            free.lock().push(packet, class);
        }
    }

    /// Returns all buffers of `from`, which have the usual size.
    fn give_all(&self, from: &mut Vec<Packet>) {
        let [usual, ..] = &self.free;
        let mut free = usual.lock();
        for packet in from.drain(..) {
            free.push(packet, 0);
        }
    }
}

/// Buffers of the usual size that one connection keeps for itself, without a lock.
#[derive(Default)]
pub(crate) struct Spares(Vec<Packet>);

impl Spares {
    /// Takes a buffer of the usual size: a spare one if there is one, otherwise one from the pool
    /// or a new one.
    pub(crate) fn take(&mut self, pool: &Pool) -> Packet {
        let mut packet = self.find(pool);
        packet.offload = PacketOffload::default();
        packet
    }

    /// Takes a buffer for a packet of `bytes` bytes.
    pub(crate) fn take_for(&mut self, bytes: usize, pool: &Pool) -> Packet {
        if pool.is_usual(bytes) {
            self.take(pool)
        } else {
            pool.take_for(bytes)
        }
    }

    fn find(&mut self, pool: &Pool) -> Packet {
        if let Some(packet) = self.0.pop() {
            return packet;
        }
        {
            let [usual, ..] = &pool.free;
            let mut free = usual.lock();
            let rest = free.packets.len().saturating_sub(BATCH);
            self.0.extend(free.packets.drain(rest..));
            let bytes: usize = self.0.iter().map(|packet| packet.buffer.len()).sum();
            free.bytes = free.bytes.saturating_sub(bytes);
        }
        self.0
            .pop()
            .unwrap_or_else(|| Packet::new(pool.packet_bytes))
    }

    /// Keeps the buffers of processed packets. Returns larger buffers and a surplus to the pool.
    pub(crate) fn refill(&mut self, used: &mut Vec<Packet>, pool: &Pool) {
        for packet in used.drain(..) {
            if pool.class_of(&packet) == 0 {
                self.0.push(packet);
            } else {
                pool.give_one(packet);
            }
        }
        if self.0.len() > 2 * BATCH {
            let mut surplus = self.0.split_off(BATCH);
            pool.give_all(&mut surplus);
        }
    }

    /// Returns all buffers to the pool.
    pub(crate) fn release(&mut self, pool: &Pool) {
        pool.give_all(&mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_came_back_is_used_again() {
        let pool = Pool::new(1500);
        let mut packet = Packet::new(1500);
        packet.resize(3).copy_from_slice(b"abc");
        pool.give_one(packet);
        let mut spares = Spares::default();
        assert_eq!(spares.take(&pool).bytes(), b"abc");
        assert!(pool.free[0].lock().packets.is_empty());
        assert_eq!(pool.free[0].lock().bytes, 0);
    }

    #[test]
    fn a_surplus_goes_back_to_the_pool() {
        let pool = Pool::new(100);
        let mut spares = Spares::default();
        let mut used = (0..2 * BATCH + 1).map(|_| Packet::new(100)).collect();
        spares.refill(&mut used, &pool);
        assert_eq!(spares.0.len(), BATCH);
        assert_eq!(pool.free[0].lock().packets.len(), BATCH + 1);
    }

    #[test]
    fn a_pool_never_keeps_more_than_its_bound() {
        let pool = Pool::new(POOL_BYTES);
        let large = || Packet::new(POOL_BYTES / 2);
        pool.give_all(&mut (0..2 * BATCH).map(|_| large()).collect());
        pool.give_one(large());
        assert_eq!(pool.free[0].lock().packets.len(), BATCH);
    }

    #[test]
    fn larger_buffers_are_kept_apart_and_few_of_them() {
        let pool = Pool::new(1500);
        let mut spares = Spares::default();
        let mut used: Vec<Packet> = (0..100).map(|_| spares.take_for(60_000, &pool)).collect();
        used.extend((0..100).map(|_| spares.take_for(3000, &pool)));
        used.push(spares.take_for(1500, &pool));
        let capacities = |at: usize| used[at].capacity();
        assert_eq!(
            [capacities(0), capacities(100), capacities(200)],
            [LARGEST, 16 << 10, 1500]
        );
        spares.refill(&mut used, &pool);
        assert_eq!(spares.0.len(), 1);
        let kept = |class: usize| pool.free[class].lock().packets.len();
        assert_eq!([kept(0), kept(1), kept(2)], [0, 64, 32]);
        assert_eq!(spares.take(&pool).capacity(), 1500);
        assert_eq!(pool.take_for(20_000).capacity(), LARGEST);
        assert_eq!(pool.free[2].lock().bytes, 31 * LARGEST);
    }

    #[test]
    fn what_was_left_to_do_about_a_packet_is_forgotten_with_it() {
        let pool = Pool::new(1500);
        let mut packet = pool.take_one();
        packet.resize(3);
        packet.offload.segment = 7;
        assert_eq!(pool.copy(&packet).offload, packet.offload);
        pool.give_one(packet);
        assert_eq!(pool.take_one().offload, PacketOffload::default());
    }

    #[test]
    fn a_packet_larger_than_its_buffer_gets_a_larger_one() {
        let mut packet = Packet::new(4);
        packet.resize(9).fill(7);
        assert_eq!(packet.bytes(), [7; 9]);
        packet.resize(2);
        assert_eq!(packet.bytes(), [7; 2]);
    }
}
