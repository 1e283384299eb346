//! IP packets on their way through memory, and the pool that their buffers come from.

use parking_lot::Mutex;

/// The most octets that a pool keeps for reuse; what comes back beyond is freed.
const POOL_OCTETS: usize = 16 << 20;

/// How many buffers move between a connection and the pool at a time, so that the pool's lock is
/// not taken for every packet.
const BATCH: usize = 32;

/// One IP packet in a buffer that is used again and again. The buffer is initialised once and stays
/// as long as it is; only the packet's length changes.
pub(crate) struct Packet {
    buffer: Box<[u8]>,
    len: usize,
}

impl Packet {
    /// A buffer for packets of up to `capacity` octets.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            buffer: vec![0; capacity].into_boxed_slice(),
            len: 0,
        }
    }

    /// How many octets it can have without a new buffer.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// The packet.
    pub(crate) fn octets(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }

    /// Makes it `len` octets long and gives them for writing; what they hold is left over from an
    /// earlier packet.
    pub(crate) fn resize(&mut self, len: usize) -> &mut [u8] {
        if self.buffer.len() < len {
            self.buffer = vec![0; len].into_boxed_slice();
        }
        self.len = len;
        self.buffer.get_mut(..len).unwrap_or_default()
    }
}

/// The buffers of one link that are not in use.
pub(crate) struct Pool {
    free: Mutex<Free>,
    packet_octets: usize,
}

/// Buffers, and how many octets they have together: those that a link fills can be longer than its
/// MTU.
#[derive(Default)]
struct Free {
    packets: Vec<Packet>,
    octets: usize,
}

impl Free {
    fn push(&mut self, packet: Packet) {
        let octets = self.octets.saturating_add(packet.buffer.len());
        if octets <= POOL_OCTETS || self.packets.len() < BATCH {
            self.octets = octets;
            self.packets.push(packet);
        }
    }
}

impl Pool {
    /// For packets of up to `packet_octets` each.
    pub(crate) fn new(packet_octets: usize) -> Self {
        Self {
            free: Mutex::default(),
            packet_octets,
        }
    }

    /// One buffer, for those who need no more.
    pub(crate) fn take_one(&self) -> Packet {
        let packet = {
            let mut free = self.free.lock();
            let packet = free.packets.pop();
            let octets = packet.as_ref().map_or(0, |packet| packet.buffer.len());
            free.octets = free.octets.saturating_sub(octets);
            packet
        };
        packet.unwrap_or_else(|| Packet::new(self.packet_octets))
    }

    /// Takes one buffer back.
    pub(crate) fn give_one(&self, packet: Packet) {
        self.free.lock().push(packet);
    }

    /// Takes back all that `from` has.
    pub(crate) fn give_all(&self, from: &mut Vec<Packet>) {
        let mut free = self.free.lock();
        for packet in from.drain(..) {
            free.push(packet);
        }
    }
}

/// The buffers that one connection has at hand, without a lock.
#[derive(Default)]
pub(crate) struct Spares(Vec<Packet>);

impl Spares {
    /// A buffer: from here, else from the pool, else a new one.
    pub(crate) fn take(&mut self, pool: &Pool) -> Packet {
        if let Some(packet) = self.0.pop() {
            return packet;
        }
        {
            let mut free = pool.free.lock();
            let rest = free.packets.len().saturating_sub(BATCH);
            self.0.extend(free.packets.drain(rest..));
            let octets: usize = self.0.iter().map(|packet| packet.buffer.len()).sum();
            free.octets = free.octets.saturating_sub(octets);
        }
        self.0
            .pop()
            .unwrap_or_else(|| Packet::new(pool.packet_octets))
    }

    /// Keeps the buffers of packets that were used up; a surplus goes to the pool.
    pub(crate) fn refill(&mut self, used: &mut Vec<Packet>, pool: &Pool) {
        self.0.append(used);
        if self.0.len() > 2 * BATCH {
            let mut surplus = self.0.split_off(BATCH);
            pool.give_all(&mut surplus);
        }
    }

    /// Everything back to the pool.
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
        assert_eq!(spares.take(&pool).octets(), b"abc");
        assert!(pool.free.lock().packets.is_empty());
        assert_eq!(pool.free.lock().octets, 0);
    }

    #[test]
    fn a_surplus_goes_back_to_the_pool() {
        let pool = Pool::new(100);
        let mut spares = Spares::default();
        let mut used = (0..2 * BATCH + 1).map(|_| Packet::new(100)).collect();
        spares.refill(&mut used, &pool);
        assert_eq!(spares.0.len(), BATCH);
        assert_eq!(pool.free.lock().packets.len(), BATCH + 1);
    }

    #[test]
    fn a_pool_never_keeps_more_than_its_bound() {
        let pool = Pool::new(POOL_OCTETS);
        let large = || Packet::new(POOL_OCTETS / 2);
        pool.give_all(&mut (0..2 * BATCH).map(|_| large()).collect());
        pool.give_one(large());
        assert_eq!(pool.free.lock().packets.len(), BATCH);
    }

    #[test]
    fn a_packet_larger_than_its_buffer_gets_a_larger_one() {
        let mut packet = Packet::new(4);
        packet.resize(9).fill(7);
        assert_eq!(packet.octets(), [7; 9]);
        packet.resize(2);
        assert_eq!(packet.octets(), [7; 2]);
    }
}
