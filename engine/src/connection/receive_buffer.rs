//! The receive buffer of a connection. It is taken from a pool when bytes arrive, and returned when
//! all are handled.
//!
//! Between two turns a connection keeps a buffer only for an incomplete frame, or for bytes that
//! wait because a message has no receive. An incomplete frame has at most one FPDU of bytes, and
//! waiting bytes at most fill the buffer. The bytes are charged to the peer. The connection keeps
//! the whole buffer while less than half of the memory limits of the peer and the device is in use,
//! because it will soon need the buffer again. When more is in use, the bytes are moved to a buffer
//! of their size, and only they are charged.
//!
//! ```text
//!    less than half in use       more than half            no room for an FPDU
//!   ───────────────────────► ┌─────────────────────┐ ──────────────────────────► ┌─────────────┐
//!    the buffer is kept      │ the bytes are kept  │                             │ the reserve │
//!                            └─────────────────────┘ ◄────────────────────────── └─────────────┘
//!                                                        one FPDU was handled
//! ```
//!
//! Without room for an FPDU, the connection needs the reserve of its peer ([`Reserve`]). With it,
//! a turn reads one FPDU and no byte of the next one, so that the reserve is free for the next
//! connection. An FPDU that is not complete keeps the reserve.
//!
//! A connection that fills its buffer gets a larger one from the next read on. It returns to a
//! normal one after many reads that would have fitted a normal one.

use std::sync::Arc;

use super::buffer_pool::{self, BufferPool};
use crate::limits::{Charge, PeerAccount, Reserve, What};
use crate::policy::transfer::{LARGE_RECEIVE_BUFFER, RECEIVE_BUFFER, SMALL_READS};
use crate::policy::{Heuristic, is_on};

/// Size in bytes of the largest FPDU, with Markers. A turn begins if the limits leave this much,
/// because it can leave one incomplete FPDU.
const FPDU: u64 = 68 * 1024;

/// Received bytes that are not handled yet.
#[derive(Default)]
pub struct ReceiveBuffer {
    buffer: Option<Box<[u8]>>,
    start: usize,
    end: usize,
    /// Number of further reads that use a large buffer. A read that fills its buffer restarts the
    /// count.
    large_for: u16,
    /// The account of the peer had room for a large buffer when this turn began.
    may_be_large: bool,
    /// Number of bytes consumed since the connection was made.
    consumed: u64,
    /// Number of bytes that the incomplete FPDU lacks, if known; otherwise 0.
    missing: usize,
    /// Charge to the peer while bytes are left over.
    charge: Option<Charge>,
    /// Held while the limits leave no room for an FPDU.
    reserve: Option<Reserve>,
}

impl ReceiveBuffer {
    /// Returns true if this peer's bytes may be read.
    ///
    /// They may if the limits of the peer and the device leave room for an FPDU, if the whole
    /// buffer is charged already, or if this connection gets the reserve of its peer. Every turn
    /// begins with this call, which also decides whether the turn may use a large buffer.
    pub fn check_room_for_turn(&mut self, peer: Option<&Arc<PeerAccount>>) -> bool {
        let Some(peer) = peer else {
            self.may_be_large = true;
            return true;
        };
        self.may_be_large = peer.has_room(What::ReceiveMemory, LARGE_RECEIVE_BUFFER as u64, 2);
        if self.may_be_large || self.reserve.is_some() || self.holds_whole_buffer() {
            return true;
        }
        if peer.has_room(What::ReceiveMemory, FPDU, 1) {
            return true;
        }
        self.reserve = peer.reserve();
        self.reserve.is_some()
    }

    /// Returns true if the limits of the peer and the device leave room for an FPDU.
    pub fn has_room(&self, peer: Option<&Arc<PeerAccount>>) -> bool {
        peer.is_none_or(|peer| peer.has_room(What::ReceiveMemory, FPDU, 1))
    }

    /// Returns true if the whole buffer is charged, so that the rest of an FPDU needs no more room.
    fn holds_whole_buffer(&self) -> bool {
        self.charged() >= RECEIVE_BUFFER as u64
    }

    fn charged(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::amount)
    }

    /// Returns true if bytes are left over that were received while more than half of a memory
    /// limit was in use.
    pub fn is_pressed(&self) -> bool {
        !self.is_empty() && self.charge.is_some() && !self.holds_whole_buffer()
    }

    /// Returns true if the turn used the reserve of the peer for an FPDU, which is now complete. No
    /// more is read in this turn.
    pub fn has_used_reserve(&self) -> bool {
        self.reserve.is_some() && self.is_empty()
    }

    /// Records the number of bytes that the incomplete FPDU lacks.
    #[inline]
    pub(crate) fn set_missing(&mut self, bytes: usize) {
        self.missing = bytes;
    }

    /// Returns true if no bytes are left over.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Number of bytes consumed since the connection was made.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Bytes received and not yet consumed, from the next byte of the stream on.
    pub fn filled(&self) -> &[u8] {
        self.buffer
            .as_deref()
            .map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    /// Returns room for the next read, at least half of the buffer. With the reserve of the peer,
    /// returns room for the rest of the FPDU. Returns `None` if there is too little memory.
    ///
    /// If there is less room after the remaining bytes, they are moved to the front.
    pub fn space(&mut self, pool: &BufferPool) -> Option<&mut [u8]> {
        let large = is_on(Heuristic::LargeReceive) && self.large_for > 0 && self.may_be_large;
        let wanted = if large {
            LARGE_RECEIVE_BUFFER
        } else {
            RECEIVE_BUFFER
        };
        let len = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        if len < wanted {
            let mut buffer = pool.take(wanted);
            if large && buffer.is_none() {
                // Not tried again with each read.
                self.large_for = 0;
                if len < RECEIVE_BUFFER {
                    buffer = pool.take(RECEIVE_BUFFER);
                }
            }
            match buffer {
                Some(buffer) => self.replace(pool, buffer),
                None if len < RECEIVE_BUFFER => return None,
                None => {}
            }
        }
        let buffer = self.buffer.as_mut()?;
        if self.start > 0 && buffer.len() - self.end < buffer.len() / 2 {
            buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let space = &mut buffer[self.end..];
        if self.reserve.is_some() && (1..space.len()).contains(&self.missing) {
            return Some(&mut space[..self.missing]);
        }
        Some(space)
    }

    /// Moves the remaining bytes to the front of `buffer`, which replaces the old one.
    fn replace(&mut self, pool: &BufferPool, mut buffer: Box<[u8]>) {
        let left = self.filled();
        buffer[..left.len()].copy_from_slice(left);
        self.end = left.len();
        self.start = 0;
        if let Some(old) = self.buffer.replace(buffer) {
            pool.give(old);
        }
    }

    /// Records that `bytes` bytes were read into [`space`](Self::space), at most its length.
    pub fn received(&mut self, bytes: usize) {
        self.end += bytes;
        let room = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        if self.end == room {
            self.large_for = SMALL_READS;
        } else if bytes < RECEIVE_BUFFER {
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
    pub fn release(&mut self, pool: &BufferPool, peer: Option<&Arc<PeerAccount>>) {
        if self.is_empty() {
            if let Some(buffer) = self.buffer.take() {
                self.start = 0;
                self.end = 0;
                pool.give(buffer);
            }
            self.charge = None;
            self.reserve = None;
            return;
        }
        let Some(peer) = peer else {
            return;
        };
        let len = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        let whole = len.max(RECEIVE_BUFFER) as u64;
        if self.charged() < whole && peer.has_room(What::ReceiveMemory, whole, 2) {
            self.charge = None;
            self.charge = Some(peer.take_in_any_case(What::ReceiveMemory, whole));
        }
        if self.charged() < whole {
            let due = self.filled().len() as u64;
            match &mut self.charge {
                Some(charge) if charge.amount() >= due => charge.shrink_to(due),
                charge => {
                    *charge = None;
                    *charge = Some(peer.take_in_any_case(What::ReceiveMemory, due));
                }
            }
            self.shrink(pool);
        }
        if self.reserve.is_some() && peer.has_room(What::ReceiveMemory, FPDU, 1) {
            self.reserve = None;
        }
    }

    /// Moves the remaining bytes to a buffer of their size, if there is memory for it.
    fn shrink(&mut self, pool: &BufferPool) {
        if let Some(buffer) = buffer_pool::allocate(self.filled().len()) {
            self.replace(pool, buffer);
        }
    }

    /// Appends bytes, if there is a buffer with room for them.
    #[doc(hidden)]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
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
        rx.space(&pool).unwrap();
        assert!(rx.append(b"abcdef"));
        rx.discard(4);
        rx.space(&pool).unwrap()[..2].copy_from_slice(b"gh");
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
            let space = rx.space(&pool).unwrap();
            assert!(space.len() >= RECEIVE_BUFFER / 2);
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
        rx.space(&pool).unwrap();
        assert!(rx.append(b"abc"));
        rx.release(&pool, None);
        assert_eq!(pool.len(), 0, "a buffer with bytes is kept");
        rx.discard(3);
        rx.release(&pool, None);
        assert_eq!(pool.len(), 1);
        rx.space(&pool).unwrap();
        assert_eq!(pool.len(), 0);
    }

    #[test]
    fn reads_that_fill_the_buffer_make_it_a_large_one_while_the_peers_account_has_room() {
        for (limit, then) in [(4 << 20, LARGE_RECEIVE_BUFFER), (1 << 20, RECEIVE_BUFFER)] {
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
            assert_eq!(rx.space(&pool).unwrap().len(), RECEIVE_BUFFER);
            rx.received(RECEIVE_BUFFER);
            // Everything is consumed except the beginning of an FPDU.
            rx.discard(RECEIVE_BUFFER - 100);
            assert_eq!(rx.space(&pool).unwrap().len(), then - 100);
            rx.release(&pool, Some(&peer));
            let held = rx.buffer.as_ref().map_or(0, |buffer| buffer.len());
            assert!(held == then && rx.charge.as_ref().map_or(0, Charge::amount) >= held as u64);
            // The buffer does not stay large for ever.
            for _ in 0..SMALL_READS {
                assert!(rx.check_room_for_turn(Some(&peer)));
                rx.space(&pool).unwrap();
                rx.received(1);
                rx.discard(rx.filled().len());
                rx.release(&pool, Some(&peer));
            }
            assert_eq!(rx.space(&pool).unwrap().len(), RECEIVE_BUFFER);
        }
    }

    /// A peer with a limit of 1 MiB, and another one, on a device with a limit of 4 MiB.
    fn peers() -> [Arc<PeerAccount>; 2] {
        let accounts = Accounts::new(&Limits {
            max_receive_memory: 4 << 20,
            per_peer: PeerLimits {
                max_receive_memory: 1 << 20,
                ..PeerLimits::default()
            },
            ..Limits::default()
        });
        [1, 2].map(|host| accounts.peer(([192, 0, 2, host], 1).into()))
    }

    /// Begins an FPDU and receives `bytes` of it. Returns `None` if it may not be read.
    fn begun(pool: &BufferPool, peer: &Arc<PeerAccount>, bytes: usize) -> Option<ReceiveBuffer> {
        let mut rx = ReceiveBuffer::default();
        rx.check_room_for_turn(Some(peer)).then(|| {
            rx.space(pool).unwrap();
            assert!(rx.append(&vec![0x55; bytes]));
            rx.release(pool, Some(peer));
            rx
        })
    }

    fn used(peer: &Arc<PeerAccount>) -> u64 {
        let free = (0..=1 << 20)
            .rev()
            .find(|free| peer.has_room(What::ReceiveMemory, *free, 1));
        (1 << 20) - free.unwrap()
    }

    #[test]
    fn what_has_arrived_is_charged_once_half_of_the_limit_is_in_use() {
        let ([peer, _], pool) = (peers(), BufferPool::default());
        let begun: Vec<_> = (0..1000)
            .map(|_| begun(&pool, &peer, 100).expect("a few bytes need little memory"))
            .collect();
        let sizes = begun.iter().map(|rx| rx.buffer.as_ref().unwrap().len());
        let whole = sizes.clone().filter(|len| *len == RECEIVE_BUFFER).count();
        assert_eq!((whole, sizes.filter(|len| *len == 100).count()), (2, 998));
        assert_eq!(used(&peer), 2 * RECEIVE_BUFFER as u64 + 998 * 100);
        assert!(!begun[0].is_pressed() && begun[999].is_pressed());
        drop(begun);
        assert_eq!(used(&peer), 0, "everything is given back");
    }

    #[test]
    fn at_the_limit_one_fpdu_after_the_other_is_received_and_other_peers_notice_nothing() {
        let ([peer, other], pool) = (peers(), BufferPool::default());
        let mut begun_ones: Vec<_> = std::iter::from_fn(|| {
            (used(&peer) <= (1 << 20) - FPDU).then(|| begun(&pool, &peer, 60_000).unwrap())
        })
        .collect();
        // One more is read with the reserve, and then no other.
        let first = begun_ones.len();
        begun_ones.push(begun(&pool, &peer, 60_000).unwrap());
        assert!(begun(&pool, &peer, 1).is_none());
        assert!(begun(&pool, &other, 1).is_some());
        let mut others = begun_ones.split_off(first);
        assert!(
            !begun_ones
                .last_mut()
                .unwrap()
                .check_room_for_turn(Some(&peer))
        );
        // Its FPDU lacks 5 bytes. Those are read, and none of the next FPDU.
        let last = &mut others[0];
        last.set_missing(5);
        assert!(last.check_room_for_turn(Some(&peer)) && !last.has_used_reserve());
        assert_eq!(last.space(&pool).unwrap().len(), 5);
        last.received(5);
        last.discard(60_005);
        assert!(last.has_used_reserve());
        last.release(&pool, Some(&peer));
        // The next connection gets the reserve.
        let next = begun_ones.last_mut().unwrap();
        assert!(next.check_room_for_turn(Some(&peer)));
        next.discard(60_000);
        next.release(&pool, Some(&peer));
        drop(others);
        drop(begun_ones);
        assert_eq!(used(&peer), 0);
    }
}
