//! The receive buffer of a connection: taken from a pool when bytes arrive, given back when none are left.
//!
//! Between two turns a connection holds one only for the beginning of something that has not come whole: at
//! most one FPDU; or for what waits behind a message without a receive: at most the buffer. That is charged to the peer. While there is plenty, the whole buffer is kept, because it is
//! about to be used again; when half of what the peer or the device may have is in use, the bytes are moved
//! to a buffer of their size.
//!
//! A connection that fills its buffer in one read has a larger one from the next read on, until it has not needed it for a while.

use std::sync::Arc;

use super::buffer_pool::{BUFFER, BufferPool, LARGE};
use super::page_offset_buffer::PageOffsetBuffer;
use crate::limits::{Charge, PeerAccount, What};

/// What is charged at least for an FPDU that has begun to come, however little of it: the largest one, so
/// that it may come whole without another look at the limits.
const FPDU: u64 = 68 * 1024;
/// After so many reads in a row that would have fitted into a smaller buffer, a large one is not asked for any more. (A receiver that is faster than
/// its peer has a few of these between those that it needs it for.)
const SMALL_READS: u16 = 1024;
/// Staging with more bytes than this is not kept by an idle connection: it goes to the pool.
pub(super) const SMALL_STAGING: usize = 16 * 1024;

/// The bytes that were received and not yet understood.
#[derive(Default)]
pub(crate) struct ReceiveBuffer {
    buffer: Option<PageOffsetBuffer>,
    start: usize,
    end: usize,
    /// Reads for which a large buffer is worth its while, unless there is another that fills what it is given.
    large_for: u16,
    /// The peer's account had room for a large buffer when this turn began.
    may_be_large: bool,
    /// Bytes consumed in all.
    consumed: u64,
    /// What the peer is charged with while something is left over.
    charge: Option<Charge>,
}

impl ReceiveBuffer {
    /// Whether something may be read from this peer: what was begun may always be finished, but nothing
    /// is begun while the limits of the peer and the device leave no place for it. A turn begins with this question.
    pub(crate) fn may_read(&mut self, peer: Option<&Arc<PeerAccount>>) -> bool {
        let large = LARGE as u64;
        self.may_be_large = peer.is_none_or(|peer| peer.has_room(What::ReceiveMemory, large, 2));
        !self.is_empty() || peer.is_none_or(|peer| peer.has_room(What::ReceiveMemory, FPDU, 1))
    }

    /// Whether nothing is left over.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes consumed since the connection was made.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Bytes received and not yet consumed; the first is the next one of the stream.
    pub(crate) fn filled(&self) -> &[u8] {
        self.buffer
            .as_deref()
            .map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    /// Room for the next read, half of the buffer at least: what is left over is moved to the front when there is less
    /// behind it.
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

    /// Moves what is left to the front of this buffer.
    fn replace(&mut self, pool: &BufferPool, mut buffer: PageOffsetBuffer) {
        let left = self.filled();
        buffer[..left.len()].copy_from_slice(left);
        self.end = left.len();
        self.start = 0;
        if let Some(old) = self.buffer.replace(buffer) {
            pool.give(old);
        }
    }

    /// `octets` were read into `space`.
    pub(crate) fn received(&mut self, octets: usize) {
        self.end += octets;
        let room = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        if self.end == room {
            self.large_for = SMALL_READS;
        } else if octets < BUFFER {
            self.large_for = self.large_for.saturating_sub(1);
        }
    }

    /// The first `octets` are consumed.
    pub(crate) fn discard(&mut self, octets: usize) {
        self.consumed += octets as u64;
        self.start += octets;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// The turn is over: the buffer goes back when nothing is left in it, and what is left is charged.
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

    /// Moves what is left to a buffer of its size.
    fn shrink(&mut self, pool: &BufferPool) {
        self.replace(pool, PageOffsetBuffer::exact(self.filled().len()));
    }

    /// Appends bytes, if there is a buffer with room for them.
    #[cfg(test)]
    pub(crate) fn append(&mut self, octets: &[u8]) -> bool {
        let end = self.end;
        let room = self
            .buffer
            .as_deref_mut()
            .and_then(|buffer| buffer.get_mut(end..)?.get_mut(..octets.len()));
        let Some(room) = room else {
            return false;
        };
        room.copy_from_slice(octets);
        self.received(octets.len());
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
        // What stays is less than the longest FPDU.
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
                .for_each(|octet| *octet = sent.next().unwrap());
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
        assert_eq!(pool.len(), 0, "a buffer with bytes in it stays");
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
            assert!(rx.may_read(Some(&peer)));
            assert_eq!(rx.space(&pool).len(), BUFFER);
            rx.received(BUFFER);
            // All but the beginning of an FPDU is understood.
            rx.discard(BUFFER - 100);
            assert_eq!(rx.space(&pool).len(), then - 100);
            rx.release(&pool, Some(&peer));
            let held = rx.buffer.as_ref().map_or(0, |buffer| buffer.len());
            assert!(held == then && rx.charge.as_ref().map_or(0, Charge::amount) >= held as u64);
            // Not for ever.
            for _ in 0..SMALL_READS {
                assert!(rx.may_read(Some(&peer)));
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
            if !rx.may_read(Some(&peer)) {
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
        // Half of the limit in whole buffers, the rest as small as it can be.
        assert_eq!(sizes[..2], [BUFFER; 2]);
        assert_eq!(sizes[2..], [100; 7]);
        assert!(
            ReceiveBuffer::default().may_read(Some(&other)),
            "only it has to wait"
        );
        // What was begun goes on, and when it is whole there is place again.
        for (nth, rx) in (0..).zip(&mut begun) {
            assert!(rx.may_read(Some(&peer)));
            rx.space(&pool);
            assert!(rx.append(b"rest"));
            assert_eq!(rx.filled(), [&[nth; 100][..], b"rest"].concat());
            rx.discard(104);
            rx.release(&pool, Some(&peer));
        }
        assert!(ReceiveBuffer::default().may_read(Some(&peer)));
        assert!(
            peer.has_room(What::ReceiveMemory, 1 << 20, 1),
            "nothing is charged"
        );
    }
}
