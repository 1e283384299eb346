//! Unused buffers, shared by all connections of a device.
//!
//! The pool has several shelves, and few threads share a shelf, so no lock is shared by all
//! connections. A thread that serves its connections one after the other gets the buffer that is
//! still in its caches.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::headroom;
use crate::policy::transfer::{LARGE_RECEIVE_BUFFER, POOL_SHELVES, RECEIVE_BUFFER, SHELF_BUFFERS};
use crate::policy::{Heuristic, is_on};

/// Pool of unused buffers.
#[derive(Default)]
pub struct BufferPool {
    shelves: [Shelf; POOL_SHELVES],
}

/// Buffers of the threads whose numbers are equal modulo [`POOL_SHELVES`]. A shelf has cache lines
/// of its own.
#[repr(align(128))]
struct Shelf {
    receive: Mutex<Vec<Box<[u8]>>>,
    large: Mutex<Vec<Box<[u8]>>>,
    staging: Mutex<Vec<Vec<u8>>>,
}

/// Reserves room for all kept buffers at once. Returning a buffer then does not allocate on the
/// data path.
impl Default for Shelf {
    fn default() -> Self {
        Self {
            receive: Mutex::new(Vec::with_capacity(SHELF_BUFFERS)),
            large: Mutex::new(Vec::with_capacity(SHELF_BUFFERS)),
            staging: Mutex::new(Vec::with_capacity(SHELF_BUFFERS)),
        }
    }
}

impl Shelf {
    fn receive(&self) -> &Mutex<Vec<Box<[u8]>>> {
        &self.receive
    }

    fn large(&self) -> &Mutex<Vec<Box<[u8]>>> {
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
        &self.shelves[thread_number() % POOL_SHELVES]
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

    /// Returns a receive buffer of `len` bytes: [`RECEIVE_BUFFER`] or [`LARGE_RECEIVE_BUFFER`].
    /// Returns `None` if there is too little memory.
    pub(super) fn take(&self, len: usize) -> Option<Box<[u8]>> {
        let kind = if len == LARGE_RECEIVE_BUFFER {
            Shelf::large
        } else {
            Shelf::receive
        };
        self.pop(kind).or_else(|| allocate(len)).or_else(|| {
            if len == LARGE_RECEIVE_BUFFER {
                // A connection can do without it. The other buffers are of more use.
                return None;
            }
            // The other buffers may hold the memory.
            self.clear();
            allocate(len)
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

    /// Takes back a receive buffer. Drops it if it has another length.
    pub(super) fn give(&self, buffer: Box<[u8]>) {
        match buffer.len() {
            RECEIVE_BUFFER => keep(&self.own_shelf().receive, buffer),
            LARGE_RECEIVE_BUFFER => keep(&self.own_shelf().large, buffer),
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

/// Allocates a receive buffer. Returns `None` if there is too little memory.
pub(super) fn allocate(len: usize) -> Option<Box<[u8]>> {
    headroom::allocate(len, || vec![0; len].into_boxed_slice())
}

/// Puts a buffer on a shelf, or drops it if the shelf is full.
fn keep<T>(shelf: &Mutex<Vec<T>>, buffer: T) {
    if !is_on(Heuristic::BufferPool) {
        return;
    }
    let mut shelf = shelf.lock();
    if shelf.len() < SHELF_BUFFERS {
        shelf.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_the_buffer_that_it_gave_last() {
        let pool = BufferPool::default();
        let [one, other] = [(); 2].map(|()| pool.take(RECEIVE_BUFFER).unwrap());
        let last = other.as_ptr();
        pool.give(one);
        pool.give(other);
        let again = pool.take(RECEIVE_BUFFER).unwrap();
        assert_eq!(again.as_ptr(), last);
    }

    #[test]
    fn what_another_thread_gave_is_used_before_there_is_a_new_one() {
        let pool = BufferPool::default();
        let given = std::thread::scope(|scope| {
            let giving = scope.spawn(|| {
                let buffer = pool.take(RECEIVE_BUFFER).unwrap();
                let address = buffer.as_ptr().addr();
                pool.give(buffer);
                address
            });
            giving.join().unwrap()
        });
        let taken = pool.take(RECEIVE_BUFFER).unwrap();
        assert_eq!(taken.as_ptr().addr(), given);
        assert_eq!(pool.len(), 0);
    }

    #[test]
    fn no_more_are_kept_than_a_thread_needs_and_none_of_another_length() {
        let pool = BufferPool::default();
        pool.give(allocate(100).unwrap());
        assert_eq!(pool.len(), 0);
        for _ in 0..2 * SHELF_BUFFERS {
            pool.give(allocate(RECEIVE_BUFFER).unwrap());
        }
        assert_eq!(pool.len(), SHELF_BUFFERS);
    }

    #[test]
    fn the_two_lengths_lie_apart() {
        let pool = BufferPool::default();
        let [short, long] =
            [RECEIVE_BUFFER, LARGE_RECEIVE_BUFFER].map(|len| pool.take(len).unwrap());
        assert_eq!(
            (short.len(), long.len()),
            (RECEIVE_BUFFER, LARGE_RECEIVE_BUFFER)
        );
        let at = [short.as_ptr(), long.as_ptr()];
        pool.give(short);
        pool.give(long);
        let again = [RECEIVE_BUFFER, LARGE_RECEIVE_BUFFER].map(|len| pool.take(len).unwrap());
        assert_eq!(again.map(|buffer| buffer.as_ptr()), at);
    }
}
