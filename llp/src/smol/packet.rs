//! IP packets on their way through memory, and the pool that their buffers come from.

use parking_lot::Mutex;

/// The most bytes that a pool keeps of buffers of the usual size for reuse; what comes back beyond
/// is freed.
const POOL_OCTETS: usize = 16 << 20;

/// The largest IP packet that anything here makes or takes: GSO makes them of up to 64 KiB.
pub(crate) const LARGEST: usize = 64 << 10;

/// Buffers for packets that are longer than usual, where segments are cut and put together by the other side of a
/// wire, and the most bytes that a pool keeps of each.
const LARGER: [(usize, usize); 2] = [(16 << 10, 1 << 20), (LARGEST, 2 << 20)];

/// How many buffers move between a connection and the pool at a time, so that the pool's lock is
/// not taken for every packet.
const BATCH: usize = 32;

/// One IP packet in a buffer that is used again and again. The buffer is initialised once and stays
/// as long as it is; only the packet's length changes.
pub(crate) struct Packet {
    buffer: Box<[u8]>,
    len: usize,
    pub(crate) left: Left,
}

/// What is left to be done about a packet by the other side of a wire, or was left to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Left {
    pub(crate) sums: Sums,
    /// The TCP segment is to be cut into those of so many bytes of data; 0: it is to stay whole.
    pub(crate) segment: u16,
}

/// How far the checksums of a packet are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sums {
    /// They are complete. Whether they are right is another matter.
    #[default]
    Whole,
    /// Who gave us the packet has verified them.
    Vouched,
    /// That of the transport is only begun: its field, `offset` bytes behind `start` in the packet, holds the sum of the
    /// pseudo-header, and the bytes from `start` to the end are to be added. On a packet that arrived this means
    /// that it was on no cable yet.
    Begun { start: u16, offset: u16 },
}

impl Packet {
    /// A buffer for packets of up to `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            buffer: vec![0; capacity].into_boxed_slice(),
            len: 0,
            left: Left::default(),
        }
    }

    /// How many bytes it can have without a new buffer.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// The packet.
    pub(crate) fn octets(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }

    /// The packet, to be changed.
    pub(crate) fn octets_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(..self.len).unwrap_or_default()
    }

    /// Completes its checksums.
    pub(crate) fn complete(&mut self) {
        if let Sums::Begun { .. } = self.left.sums {
            let sums = std::mem::replace(&mut self.left.sums, Sums::Vouched);
            crate::wire::complete(self.octets_mut(), sums);
        }
    }

    /// Makes it longer by `octets`, keeps what it has, and gives all of it.
    pub(crate) fn extend(&mut self, octets: usize) -> &mut [u8] {
        let len = self.len + octets;
        if self.buffer.len() < len {
            let mut larger = vec![0; len].into_boxed_slice();
            larger[..self.len].copy_from_slice(self.octets());
            self.buffer = larger;
        }
        self.len = len;
        self.octets_mut()
    }

    /// Makes it `len` bytes long and gives them for writing; what they hold is left over from an
    /// earlier packet.
    pub(crate) fn resize(&mut self, len: usize) -> &mut [u8] {
        if self.buffer.len() < len {
            self.buffer = vec![0; len].into_boxed_slice();
        }
        self.len = len;
        self.buffer.get_mut(..len).unwrap_or_default()
    }
}

/// The buffers of one link that are not in use, those of the usual size and larger ones.
pub(crate) struct Pool {
    free: [Mutex<Free>; 1 + LARGER.len()],
    packet_octets: usize,
}

/// Buffers, and how many bytes they have together: those that a link fills can be longer than its
/// MTU.
#[derive(Default)]
struct Free {
    packets: Vec<Packet>,
    octets: usize,
}

impl Free {
    fn push(&mut self, packet: Packet, class: usize) {
        let octets = self.octets.saturating_add(packet.buffer.len());
        let keeps = match class.checked_sub(1).and_then(|larger| LARGER.get(larger)) {
            Some((_, bound)) => octets <= *bound,
            None => octets <= POOL_OCTETS || self.packets.len() < BATCH,
        };
        if keeps {
            self.octets = octets;
            self.packets.push(packet);
        }
    }

    fn pop(&mut self) -> Option<Packet> {
        let packet = self.packets.pop()?;
        self.octets = self.octets.saturating_sub(packet.buffer.len());
        Some(packet)
    }
}

impl Pool {
    /// For packets of up to `packet_octets` each, as a rule.
    pub(crate) fn new(packet_octets: usize) -> Self {
        Self {
            free: Default::default(),
            packet_octets,
        }
    }

    /// The number of the kind of buffers that a packet of so many bytes needs, and their bytes.
    fn class_for(&self, len: usize) -> (usize, usize) {
        if len <= self.packet_octets {
            return (0, self.packet_octets);
        }
        let larger = LARGER.iter().position(|(octets, _)| len <= *octets);
        let class = larger.unwrap_or(LARGER.len() - 1);
        (
            class + 1,
            LARGER
                .get(class)
                .map_or(len, |(octets, _)| (*octets).max(len)),
        )
    }

    /// The kind that a buffer is of.
    fn class_of(&self, packet: &Packet) -> usize {
        let octets = packet.buffer.len();
        if octets <= self.packet_octets {
            return 0;
        }
        LARGER.iter().filter(|(least, _)| octets >= *least).count()
    }

    /// The same packet once more.
    pub(crate) fn copy(&self, packet: &Packet) -> Packet {
        let mut copy = self.take_for(packet.len);
        copy.resize(packet.len).copy_from_slice(packet.octets());
        copy.left = packet.left;
        copy
    }

    /// One buffer of the usual size, for those who need no more.
    pub(crate) fn take_one(&self) -> Packet {
        self.take_for(0)
    }

    /// A buffer for a packet of so many bytes.
    pub(crate) fn take_for(&self, octets: usize) -> Packet {
        let (class, capacity) = self.class_for(octets);
        let packet = self.free.get(class).and_then(|free| free.lock().pop());
        let mut packet = packet.unwrap_or_else(|| Packet::new(capacity));
        packet.left = Left::default();
        packet
    }

    /// Whether there are smaller buffers that would hold this packet.
    pub(crate) fn has_smaller(&self, packet: &Packet) -> bool {
        self.class_for(packet.len).0 < self.class_of(packet)
    }

    /// Whether packets of so many bytes have buffers of the usual size.
    fn is_usual(&self, octets: usize) -> bool {
        octets <= self.packet_octets
    }

    /// Takes one buffer back.
    pub(crate) fn give_one(&self, packet: Packet) {
        let class = self.class_of(&packet);
        if let Some(free) = self.free.get(class) {
            free.lock().push(packet, class);
        }
    }

    /// Takes back all that `from` has, which is of the usual size.
    fn give_all(&self, from: &mut Vec<Packet>) {
        let [usual, ..] = &self.free;
        let mut free = usual.lock();
        for packet in from.drain(..) {
            free.push(packet, 0);
        }
    }
}

/// The buffers of the usual size that one connection has at hand, without a lock.
#[derive(Default)]
pub(crate) struct Spares(Vec<Packet>);

impl Spares {
    /// A buffer of the usual size: from here, else from the pool, else a new one.
    pub(crate) fn take(&mut self, pool: &Pool) -> Packet {
        let mut packet = self.find(pool);
        packet.left = Left::default();
        packet
    }

    /// A buffer for a packet of so many bytes.
    pub(crate) fn take_for(&mut self, octets: usize, pool: &Pool) -> Packet {
        if pool.is_usual(octets) {
            self.take(pool)
        } else {
            pool.take_for(octets)
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
            let octets: usize = self.0.iter().map(|packet| packet.buffer.len()).sum();
            free.octets = free.octets.saturating_sub(octets);
        }
        self.0
            .pop()
            .unwrap_or_else(|| Packet::new(pool.packet_octets))
    }

    /// Keeps the buffers of packets that were used up; a surplus and larger ones go to the pool.
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
        assert!(pool.free[0].lock().packets.is_empty());
        assert_eq!(pool.free[0].lock().octets, 0);
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
        let pool = Pool::new(POOL_OCTETS);
        let large = || Packet::new(POOL_OCTETS / 2);
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
        assert_eq!(pool.free[2].lock().octets, 31 * LARGEST);
    }

    #[test]
    fn what_was_left_to_do_about_a_packet_is_forgotten_with_it() {
        let pool = Pool::new(1500);
        let mut packet = pool.take_one();
        packet.resize(3);
        packet.left.segment = 7;
        assert_eq!(pool.copy(&packet).left, packet.left);
        pool.give_one(packet);
        assert_eq!(pool.take_one().left, Left::default());
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
