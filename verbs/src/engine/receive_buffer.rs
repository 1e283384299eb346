//! The receive buffer of a connection. It is taken from a pool when bytes arrive, and returned when
//! all are handled.
//!
//! Between two turns a connection keeps a buffer only for an incomplete frame, or for bytes that
//! wait because a message has no receive. An incomplete frame has at most one FPDU of bytes, and
//! waiting bytes at most fill the buffer. The bytes are charged to the peer. The connection keeps
//! the whole buffer while less than half of the memory limits of the peer and the device is in use,
//! because it will soon need the buffer again. When more is in use, the bytes are moved to a buffer
//! of their size.
//!
//! A connection that fills its buffer gets a larger one from the next read on. It returns to a
//! normal one after many reads that would have fitted a normal one.

use std::sync::Arc;

use super::buffer_pool::{BUFFER, BufferPool, LARGE};
use super::page_offset_buffer::PageOffsetBuffer;
use crate::limits::{Charge, PeerAccount, What};

/// Minimum charge in bytes for an FPDU that has begun to arrive: the size of the largest FPDU.
///
/// The rest of the FPDU may then arrive without another check of the limits.
const FPDU: u64 = 68 * 1024;
/// A connection stops using a large buffer after this many consecutive reads that would have fit a
/// normal one.
///
/// If a receiver is faster than its peer, short reads occur between those that need the large
/// buffer.
const SMALL_READS: u16 = 1024;
/// Size in bytes of the largest staging buffer of sends (`transmit.rs`) that an idle connection
/// keeps. A larger one returns to the pool.
pub(super) const SMALL_STAGING: usize = 16 * 1024;

/// Received bytes that are not handled yet.
#[derive(Default)]
pub(crate) struct ReceiveBuffer {
    buffer: Option<PageOffsetBuffer>,
    start: usize,
    end: usize,
    /// Number of further reads that use a large buffer. A read that fills its buffer restarts the
    /// count.
    large_for: u16,
    /// The account of the peer had room for a large buffer when this turn began.
    may_be_large: bool,
    /// Number of bytes consumed since the connection was made.
    consumed: u64,
    /// Charge to the peer while bytes are left over.
    charge: Option<Charge>,
}

impl ReceiveBuffer {
    /// Returns true if this peer's bytes may be read.
    ///
    /// A frame that was begun may always be finished. A new one may begin only if the limits of the
    /// peer and the device leave room for it. Every turn begins with this call, which also decides
    /// whether the turn may use a large buffer.
    pub(crate) fn check_room_for_turn(&mut self, peer: Option<&Arc<PeerAccount>>) -> bool {
        let large = LARGE as u64;
        self.may_be_large = peer.is_none_or(|peer| peer.has_room(What::ReceiveMemory, large, 2));
        !self.is_empty() || peer.is_none_or(|peer| peer.has_room(What::ReceiveMemory, FPDU, 1))
    }

    /// Returns true if no bytes are left over.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Number of bytes consumed since the connection was made.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Bytes received and not yet consumed, from the next byte of the stream on.
    pub(crate) fn filled(&self) -> &[u8] {
        self.buffer
            .as_deref()
            .map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    /// Returns room for the next read, at least half of the buffer.
    ///
    /// If there is less room after the remaining bytes, they are moved to the front.
    pub(crate) fn space(&mut self, pool: &BufferPool) -> &mut [u8] {
        let large = self.large_for > 0 && self.may_be_large;
        let wanted = if large { LARGE } else { BUFFER };
        let len = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        if len < wanted {
            self.replace(pool, pool.take(wanted));
        }
        let buffer = self.buffer.get_or_insert_with(|| pool.take(wanted));
        if self.start > 0 && buffer.len() - self.end < buffer.len() / 2 {
            buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut buffer[self.end..]
    }

    /// Moves the remaining bytes to the front of `buffer`, which replaces the old one.
    fn replace(&mut self, pool: &BufferPool, mut buffer: PageOffsetBuffer) {
        let left = self.filled();
        buffer[..left.len()].copy_from_slice(left);
        self.end = left.len();
        self.start = 0;
        if let Some(old) = self.buffer.replace(buffer) {
            pool.give(old);
        }
    }

    /// Records that `bytes` bytes were read into `space`.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.end += bytes;
        let room = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        if self.end == room {
            self.large_for = SMALL_READS;
        } else if bytes < BUFFER {
            self.large_for = self.large_for.saturating_sub(1);
        }
    }

    /// Consumes the first `bytes` bytes.
    pub(crate) fn discard(&mut self, bytes: usize) {
        self.consumed += bytes as u64;
        self.start += bytes;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Ends a turn. Returns an empty buffer to the pool; otherwise charges the remaining bytes to
    /// the peer, and shrinks the buffer if the limits leave little room.
    pub(crate) fn release(&mut self, pool: &BufferPool, peer: Option<&Arc<PeerAccount>>) {
        if self.is_empty() {
            if let Some(buffer) = self.buffer.take() {
                self.start = 0;
                self.end = 0;
                pool.give(buffer);
            }
            self.charge = None;
            return;
        }
        let Some(peer) = peer else {
            return;
        };
        let len = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        let whole = len.max(BUFFER) as u64;
        let charged = |charge: &Option<Charge>| charge.as_ref().map_or(0, Charge::amount);
        if charged(&self.charge) < whole && peer.has_room(What::ReceiveMemory, whole, 2) {
            self.charge = None;
            self.charge = Some(peer.take_in_any_case(What::ReceiveMemory, whole));
        }
        let charged = charged(&self.charge);
        if charged >= whole {
            return;
        }
        let due = (self.filled().len() as u64).max(FPDU);
        if charged < due {
            self.charge = None;
            self.charge = Some(peer.take_in_any_case(What::ReceiveMemory, due));
        }
        self.shrink(pool);
    }

    /// Moves the remaining bytes to a buffer of their size.
    fn shrink(&mut self, pool: &BufferPool) {
        self.replace(pool, PageOffsetBuffer::exact(self.filled().len()));
    }

    /// Appends bytes, if there is a buffer with room for them.
    #[cfg(test)]
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let end = self.end;
        let room = self
            .buffer
            .as_deref_mut()
            .and_then(|buffer| buffer.get_mut(end..)?.get_mut(..bytes.len()));
        let Some(room) = room else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.received(bytes.len());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Accounts;
    use crate::settings::{Limits, PeerLimits};

    #[test]
    fn what_is_left_over_stays_in_front_of_the_next_read() {
        let pool = BufferPool::default();
        let mut rx = ReceiveBuffer::default();
        rx.space(&pool);
        assert!(rx.append(b"abcdef"));
        rx.discard(4);
        rx.space(&pool)[..2].copy_from_slice(b"gh");
        rx.received(2);
        assert_eq!(rx.filled(), b"efgh");
        assert_eq!(rx.consumed(), 4);
    }

    #[test]
    fn there_is_room_for_half_a_buffer_whatever_is_left_over() {
        let pool = BufferPool::default();
        let mut rx = ReceiveBuffer::default();
        let mut sent = (0_u32..).flat_map(u32::to_le_bytes);
        let mut expected = (0_u32..).flat_map(u32::to_le_bytes);
        // The remaining bytes are shorter than the longest FPDU.
        for (read, used) in [
            (200_000, 150_000),
            (100_000, 90_000),
            (90_000, 149_999),
            (131_072, 131_073),
        ] {
            let space = rx.space(&pool);
            assert!(space.len() >= BUFFER / 2);
            space[..read]
                .iter_mut()
                .for_each(|byte| *byte = sent.next().unwrap());
            rx.received(read);
            let filled = rx.filled()[..used].iter().copied();
            assert!(filled.eq(expected.by_ref().take(used)));
            rx.discard(used);
        }
    }

    #[test]
    fn an_empty_buffer_goes_back_to_the_pool_and_is_used_again() {
        let pool = BufferPool::default();
        let mut rx = ReceiveBuffer::default();
        rx.space(&pool);
        assert!(rx.append(b"abc"));
        rx.release(&pool, None);
        assert_eq!(pool.len(), 0, "a buffer with bytes is kept");
        rx.discard(3);
        rx.release(&pool, None);
        assert_eq!(pool.len(), 1);
        rx.space(&pool);
        assert_eq!(pool.len(), 0);
    }

    #[test]
    fn reads_that_fill_the_buffer_make_it_a_large_one_while_the_peers_account_has_room() {
        for (limit, then) in [(4 << 20, LARGE), (1 << 20, BUFFER)] {
            let accounts = Accounts::new(&Limits {
                per_peer: PeerLimits {
                    max_receive_memory: limit,
                    ..PeerLimits::default()
                },
                ..Limits::default()
            });
            let peer = accounts.peer(([192, 0, 2, 1], 1).into());
            let pool = BufferPool::default();
            let mut rx = ReceiveBuffer::default();
            assert!(rx.check_room_for_turn(Some(&peer)));
            assert_eq!(rx.space(&pool).len(), BUFFER);
            rx.received(BUFFER);
            // Everything is consumed except the beginning of an FPDU.
            rx.discard(BUFFER - 100);
            assert_eq!(rx.space(&pool).len(), then - 100);
            rx.release(&pool, Some(&peer));
            let held = rx.buffer.as_ref().map_or(0, |buffer| buffer.len());
            assert!(held == then && rx.charge.as_ref().map_or(0, Charge::amount) >= held as u64);
            // The buffer does not stay large for ever.
            for _ in 0..SMALL_READS {
                assert!(rx.check_room_for_turn(Some(&peer)));
                rx.space(&pool);
                rx.received(1);
                rx.discard(rx.filled().len());
                rx.release(&pool, Some(&peer));
            }
            assert_eq!(rx.space(&pool).len(), BUFFER);
        }
    }

    /// A peer that begins FPDUs on many connections and finishes none.
    #[test]
    fn unfinished_fpdus_shrink_under_pressure_and_then_nothing_more_is_begun() {
        let accounts = Accounts::new(&Limits {
            max_receive_memory: 4 << 20,
            per_peer: PeerLimits {
                max_receive_memory: 1 << 20,
                ..PeerLimits::default()
            },
            ..Limits::default()
        });
        let peer = accounts.peer(([192, 0, 2, 1], 1).into());
        let other = accounts.peer(([192, 0, 2, 2], 1).into());
        let pool = BufferPool::default();
        let mut begun = Vec::new();
        for nth in 0.. {
            let mut rx = ReceiveBuffer::default();
            if !rx.check_room_for_turn(Some(&peer)) {
                break;
            }
            assert!(nth < 16, "the limit holds");
            rx.space(&pool);
            assert!(rx.append(&[nth; 100]));
            rx.release(&pool, Some(&peer));
            begun.push(rx);
        }
        let sizes: Vec<usize> = begun
            .iter()
            .map(|rx| rx.buffer.as_ref().unwrap().len())
            .collect();
        // Whole buffers use half of the limit. The other buffers are as small as possible.
        assert_eq!(sizes[..2], [BUFFER; 2]);
        assert_eq!(sizes[2..], [100; 7]);
        assert!(
            ReceiveBuffer::default().check_room_for_turn(Some(&other)),
            "only the first peer has to wait"
        );
        // Begun FPDUs can be finished, and then there is room again.
        for (nth, rx) in (0..).zip(&mut begun) {
            assert!(rx.check_room_for_turn(Some(&peer)));
            rx.space(&pool);
            assert!(rx.append(b"rest"));
            assert_eq!(rx.filled(), [&[nth; 100][..], b"rest"].concat());
            rx.discard(104);
            rx.release(&pool, Some(&peer));
        }
        assert!(ReceiveBuffer::default().check_room_for_turn(Some(&peer)));
        assert!(
            peer.has_room(What::ReceiveMemory, 1 << 20, 1),
            "nothing is charged"
        );
    }
}
