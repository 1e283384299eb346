//! Unused buffers, shared by all connections of a device.
//!
//! The pool has several shelves, and few threads share a shelf, so no lock is shared by all
//! connections. A thread that serves its connections one after the other gets the buffer that is
//! still in its caches.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::page_offset_buffer::PageOffsetBuffer;

/// Length in bytes of a normal receive buffer.
///
/// It has room for many FPDUs, and for more than one of the largest (64768 bytes of ULPDU with
/// Markers).
pub(super) const BUFFER: usize = 256 * 1024;
/// Length in bytes of the receive buffer of a connection that fills a normal one.
///
/// A longer buffer needs fewer reads. Besides the bytes, each read costs the socket lock of the
/// kernel and an acknowledgement.
///
/// A plain TCP sender on a Zen 4 takes 104 us per MiB if the receiver reads 1 MiB at once, and 119
/// us if it polls with reads of 256 KiB.
pub(super) const LARGE: usize = 1024 * 1024;
/// Number of shelves of a pool.
const SHELVES: usize = 8;
/// Maximum number of buffers of each kind on one shelf, so 16 in a pool.
const KEEP: usize = 2;

/// Pool of unused buffers.
#[derive(Default)]
pub struct BufferPool {
    shelves: [Shelf; SHELVES],
}

/// Buffers of the threads whose numbers are equal modulo [`SHELVES`]. A shelf has cache lines of
/// its own.
#[repr(align(128))]
struct Shelf {
    receive: Mutex<Vec<PageOffsetBuffer>>,
    large: Mutex<Vec<PageOffsetBuffer>>,
    staging: Mutex<Vec<Vec<u8>>>,
}

/// Reserves room for all kept buffers at once. Returning a buffer then does not allocate on the
/// data path.
impl Default for Shelf {
    fn default() -> Self {
        Self {
            receive: Mutex::new(Vec::with_capacity(KEEP)),
            large: Mutex::new(Vec::with_capacity(KEEP)),
            staging: Mutex::new(Vec::with_capacity(KEEP)),
        }
    }
}

impl Shelf {
    fn receive(&self) -> &Mutex<Vec<PageOffsetBuffer>> {
        &self.receive
    }

    fn large(&self) -> &Mutex<Vec<PageOffsetBuffer>> {
        &self.large
    }
}

/// Returns the number of the calling thread. Threads are numbered from 1 in the order of their
/// first calls.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(1);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

impl BufferPool {
    fn own_shelf(&self) -> &Shelf {
        &self.shelves[thread_number() % SHELVES]
    }

    /// Takes a buffer from the calling thread's shelf, or from another shelf that is not locked.
    fn pop<T>(&self, kind: impl Fn(&Shelf) -> &Mutex<Vec<T>>) -> Option<T> {
        let own = kind(self.own_shelf()).lock().pop();
        let others = || {
            let mut shelves = self.shelves.iter();
            shelves.find_map(|shelf| kind(shelf).try_lock()?.pop())
        };
        own.or_else(others)
    }

    /// Returns a receive buffer of `len` bytes: [`BUFFER`] or [`LARGE`]. Returns `None` if there is
    /// too little memory.
    pub(super) fn take(&self, len: usize) -> Option<PageOffsetBuffer> {
        let kind = if len == LARGE {
            Shelf::large
        } else {
            Shelf::receive
        };
        self.pop(kind)
            .or_else(|| PageOffsetBuffer::try_new(len))
            .or_else(|| {
                if len == LARGE {
                    // A connection can do without it. The other buffers are of more use.
                    return None;
                }
                // The other buffers may hold the memory.
                self.clear();
                PageOffsetBuffer::try_new(len)
            })
    }

    /// Drops all buffers, because memory is short. Skips a shelf that another thread uses.
    pub fn clear(&self) {
        for shelf in &self.shelves {
            for buffers in [&shelf.receive, &shelf.large] {
                if let Some(mut buffers) = buffers.try_lock() {
                    buffers.clear();
                }
            }
            if let Some(mut buffers) = shelf.staging.try_lock() {
                buffers.clear();
            }
        }
    }

    /// Takes back a receive buffer. Drops it if it has another length, or does not begin in the
    /// middle of a page.
    pub(super) fn give(&self, buffer: PageOffsetBuffer) {
        match buffer.len() {
            _ if !buffer.is_placed() => {}
            BUFFER => keep(&self.own_shelf().receive, buffer),
            LARGE => keep(&self.own_shelf().large, buffer),
            _ => {}
        }
    }

    /// Returns a large staging buffer that another connection has returned, or an empty one.
    pub(super) fn take_staging(&self) -> Vec<u8> {
        self.pop(|shelf| &shelf.staging).unwrap_or_default()
    }

    /// Takes back a staging buffer that a connection does not need now.
    pub(super) fn give_staging(&self, buffer: Vec<u8>) {
        keep(&self.own_shelf().staging, buffer);
    }

    /// Number of receive buffers in the pool.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let shelves = self.shelves.iter();
        shelves.map(|shelf| shelf.receive.lock().len()).sum()
    }
}

/// Puts a buffer on a shelf, or drops it if the shelf is full.
fn keep<T>(shelf: &Mutex<Vec<T>>, buffer: T) {
    let mut shelf = shelf.lock();
    if shelf.len() < KEEP {
        shelf.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_the_buffer_that_it_gave_last() {
        let pool = BufferPool::default();
        let [one, other] = [(); 2].map(|()| pool.take(BUFFER).unwrap());
        let last = other.as_ptr();
        pool.give(one);
        pool.give(other);
        let again = pool.take(BUFFER).unwrap();
        assert_eq!(again.as_ptr(), last);
    }

    #[test]
    fn what_another_thread_gave_is_used_before_there_is_a_new_one() {
        let pool = BufferPool::default();
        let given = std::thread::scope(|scope| {
            let giving = scope.spawn(|| {
                let buffer = pool.take(BUFFER).unwrap();
                let address = buffer.as_ptr().addr();
                pool.give(buffer);
                address
            });
            giving.join().unwrap()
        });
        let taken = pool.take(BUFFER).unwrap();
        assert_eq!(taken.as_ptr().addr(), given);
        assert_eq!(pool.len(), 0);
    }

    #[test]
    fn no_more_are_kept_than_a_thread_needs_and_none_that_is_not_whole() {
        let pool = BufferPool::default();
        pool.give(PageOffsetBuffer::try_new(100).unwrap());
        pool.give(PageOffsetBuffer::misplaced(BUFFER));
        assert_eq!(pool.len(), 0);
        for _ in 0..2 * KEEP {
            pool.give(PageOffsetBuffer::try_new(BUFFER).unwrap());
        }
        assert_eq!(pool.len(), KEEP);
    }

    #[test]
    fn the_two_lengths_lie_apart() {
        let pool = BufferPool::default();
        let [short, long] = [BUFFER, LARGE].map(|len| pool.take(len).unwrap());
        assert_eq!((short.len(), long.len()), (BUFFER, LARGE));
        assert!(short.is_placed() && long.is_placed());
        let at = [short.as_ptr(), long.as_ptr()];
        pool.give(short);
        pool.give(long);
        let again = [BUFFER, LARGE].map(|len| pool.take(len).unwrap());
        assert_eq!(again.map(|buffer| buffer.as_ptr()), at);
    }
}
