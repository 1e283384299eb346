//! Registered memory that is lent out in pieces and accessible as slices while no transfer uses it.
//!
//! A [`Loan`] owns its bytes: the free list hands out each piece once, and its region grants no
//! remote right. So besides the holder, only a transfer that the holder has posted may access them.
//! To post a transfer, the holder converts the piece into an [`InFlight`], which has no slices.
//! [`InFlight::reclaim`] converts it back.
//!
//! ```text
//!         start_transfer             reclaim (after the completion)
//!   Loan  ───────────────► InFlight ───────────────────────────────► Loan  ── drop ──► free list
//! ```

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use super::{Buffer, Sge};
use crate::fork_guard::ForkGuarded;

/// A buffer that is lent out in pieces of one size.
pub struct Pieces {
    buffer: Arc<Buffer>,
    size: usize,
    state: ForkGuarded<Mutex<State>>,
}

struct State {
    free: Vec<u32>,
    /// Tasks that wait for a piece.
    waiting: Vec<Waker>,
}

/// A piece, owned by one holder.
pub struct Loan {
    of: Arc<Pieces>,
    index: u32,
}

/// A piece that transfers may use. Dropping it leaks the piece, because a transfer may still use
/// it.
pub struct InFlight {
    of: Arc<Pieces>,
    index: u32,
}

impl Pieces {
    /// Divides `buffer` into as many pieces of `size` bytes as fit.
    ///
    /// # Safety
    /// Until everything that this returns is dropped, only pieces and the transfers of their
    /// holders access the buffer: no other division of it exists, its regions grant no remote
    /// right, and no program maps or writes its memory in another way. The buffer is writable.
    pub unsafe fn new(buffer: Arc<Buffer>, size: usize) -> Arc<Self> {
        let count = u32::try_from(buffer.len() / size.max(1)).unwrap_or(u32::MAX);
        let state = State {
            free: (0..count).rev().collect(),
            waiting: Vec::new(),
        };
        Arc::new(Pieces {
            buffer,
            size,
            state: ForkGuarded::new(Mutex::new(state)),
        })
    }

    /// Size of a piece in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Number of free pieces; 0 in the child of a fork.
    pub fn free(&self) -> usize {
        self.state.here().map_or(0, |state| state.lock().free.len())
    }

    /// Takes a free piece, if there is one.
    pub fn take(self: &Arc<Self>) -> Option<Loan> {
        let index = self.state.here()?.lock().free.pop()?;
        Some(Loan {
            of: Arc::clone(self),
            index,
        })
    }

    /// Takes a free piece, or registers `waker`, which is called when a piece is returned. In the
    /// child of a fork the waker is never called.
    pub fn take_or_wait(self: &Arc<Self>, waker: &Waker) -> Option<Loan> {
        let state = self.state.here()?;
        // Cloned before the lock, because a waker runs foreign code.
        let waker = waker.clone();
        let mut state = state.lock();
        let Some(index) = state.free.pop() else {
            if !state.waiting.iter().any(|old| old.will_wake(&waker)) {
                state.waiting.push(waker);
            }
            return None;
        };
        drop(state);
        Some(Loan {
            of: Arc::clone(self),
            index,
        })
    }

    fn give_back(&self, index: u32) {
        let Some(state) = self.state.here() else {
            return;
        };
        let waiting = {
            let mut state = state.lock();
            state.free.push(index);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Loan {
    /// Returns true if no other piece is free.
    pub fn is_last(&self) -> bool {
        self.of.free() == 0
    }

    /// The bytes of the piece.
    pub fn as_slice(&self) -> &[u8] {
        let (start, len) = (self.start(), self.of.size);
        // SAFETY: `start..start + len` lies in the buffer, which `of` keeps alive, and is
        // initialized (a buffer starts as zeros). No other code writes it while the slice lives:
        // the free list gave this piece to `self` only, no peer has a right to the region, and no
        // transfer uses a piece that is not `InFlight`.
        unsafe { std::slice::from_raw_parts(self.of.buffer.base().as_ptr().add(start), len) }
    }

    /// The bytes of the piece, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let (start, len) = (self.start(), self.of.size);
        // SAFETY: as for `as_slice`. `self` is borrowed exclusively, so no other slice of the piece
        // exists.
        unsafe { std::slice::from_raw_parts_mut(self.of.buffer.base().as_ptr().add(start), len) }
    }

    /// Converts the piece into one that transfers may use, and that has no slices.
    pub fn start_transfer(self) -> InFlight {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the `Arc` is moved, not copied.
        let of = unsafe { std::ptr::read(&raw const this.of) };
        InFlight {
            of,
            index: this.index,
        }
    }

    fn start(&self) -> usize {
        self.index as usize * self.of.size
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.of.give_back(self.index);
    }
}

impl InFlight {
    /// Returns the SGE of the bytes `offset..offset + len`, limited to the piece.
    pub fn sge(&self, lkey: u32, offset: usize, len: usize) -> Sge {
        let offset = offset.min(self.of.size);
        let len = len.min(self.of.size - offset);
        let start = self.index as usize * self.of.size + offset;
        Sge {
            addr: self.of.buffer.addr() + start as u64,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            lkey,
        }
    }

    /// Returns the piece to its holder.
    ///
    /// # Safety
    /// No transfer uses the piece: every work request that named it has completed or was refused.
    pub unsafe fn reclaim(self) -> Loan {
        Loan {
            of: self.of,
            index: self.index,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> Arc<Pieces> {
        // SAFETY: nothing else has the buffer.
        unsafe { Pieces::new(Arc::new(Buffer::zeroed(100).unwrap()), 40) }
    }

    #[test]
    fn each_piece_is_lent_to_one_holder_and_comes_back() {
        let pieces = pieces();
        let (mut one, mut two) = (pieces.take().unwrap(), pieces.take().unwrap());
        assert!(pieces.take().is_none(), "two times 40 bytes fit in 100");
        one.as_mut_slice().fill(1);
        two.as_mut_slice().fill(2);
        assert_eq!(one.as_slice(), [1; 40]);
        assert_eq!(two.as_slice(), [2; 40]);
        drop(one);
        assert_eq!(pieces.free(), 1);
        let again = pieces.take().unwrap();
        assert_eq!(again.as_slice(), [1; 40]);
    }

    #[test]
    fn memory_in_flight_is_written_by_others_and_seen_when_it_has_landed() {
        let pieces = pieces();
        let mut piece = pieces.take().unwrap();
        piece.as_mut_slice().fill(1);
        let in_flight = piece.start_transfer();
        let sge = in_flight.sge(7, 10, 1000);
        assert_eq!((sge.len, sge.lkey), (30, 7));
        let start = usize::try_from(sge.addr - pieces.buffer.addr()).unwrap();
        pieces.buffer.write_at(start, &[9; 30]).unwrap();
        assert_eq!(pieces.free(), 1, "it is not free while it flies");
        // SAFETY: the transfer of this test is over.
        let piece = unsafe { in_flight.reclaim() };
        assert_eq!(piece.as_slice()[..10], [1; 10]);
        assert_eq!(piece.as_slice()[10..], [9; 30]);
        drop(piece);
        assert_eq!(pieces.free(), 2);
    }

    #[test]
    fn who_waits_for_a_piece_is_woken_when_one_comes_back() {
        struct Count(std::sync::atomic::AtomicU32);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let pieces = pieces();
        let count = Arc::new(Count(0.into()));
        let waker = Waker::from(Arc::clone(&count));
        let (one, two) = (pieces.take(), pieces.take_or_wait(&waker));
        assert!(one.is_some() && two.is_some());
        assert!(pieces.take_or_wait(&waker).is_none());
        assert!(pieces.take_or_wait(&waker).is_none());
        assert_eq!(count.0.load(std::sync::atomic::Ordering::SeqCst), 0);
        drop(one);
        assert_eq!(count.0.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert!(pieces.take_or_wait(&waker).is_some());
    }
}
