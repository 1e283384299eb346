//! A thread that polls while another one has the lock of a connection, perhaps without a processor.
//!
//! Where two threads share a processor, the background may have been interrupted in a turn, or been handed the lock for which it
//! waited: the thread that polls keeps busy the very processor that the other one needs to give the lock back, for as long as the
//! scheduler lets it, which is milliseconds. So a poll that has found nothing gives its processor away once, when a connection was
//! found taken many times in a row. (A thread with a real-time priority gives it to none below it: there nothing is gained.)

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How often in a row polls find a connection taken until they stand aside: some microseconds.
const PATIENCE: u32 = 32;

/// Polls in a row that found the lock of a connection taken.
#[derive(Default)]
pub(crate) struct LockMisses(AtomicU32);

impl LockMisses {
    /// A poll found the lock taken. True when that is enough, and the counting begins anew.
    #[cold]
    pub(crate) fn found_taken(&self) -> bool {
        let polls = self.0.load(Ordering::Relaxed) + 1;
        self.0.store(polls % PATIENCE, Ordering::Relaxed);
        polls == PATIENCE
    }

    /// A poll has the lock.
    #[inline]
    pub(crate) fn got_in(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether the next poll of a device that finds nothing is to stand aside. It does that where no lock is held and nothing is half done.
#[derive(Default)]
pub(crate) struct LockYield {
    due: AtomicBool,
    #[cfg(test)]
    stood: AtomicU32,
}

impl LockYield {
    /// Polls have found a connection taken often enough.
    #[cold]
    pub(crate) fn mark_due(&self) {
        self.due.store(true, Ordering::Relaxed);
    }

    /// A poll has found nothing.
    #[inline]
    pub(crate) fn found_nothing(&self) {
        if self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::Relaxed) {
            #[cfg(test)]
            self.stood.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    #[cfg(test)]
    pub(crate) fn stood(&self) -> u32 {
        self.stood.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_row_are_enough_and_each_time_again() {
        let lock_misses = LockMisses::default();
        for _ in 0..2 {
            assert!((1..PATIENCE).all(|_| !lock_misses.found_taken()));
            assert!(lock_misses.found_taken());
        }
        assert!((1..PATIENCE).all(|_| !lock_misses.found_taken()));
        lock_misses.got_in();
        assert!((1..PATIENCE).all(|_| !lock_misses.found_taken()));
    }

    #[test]
    fn one_poll_stands_aside_for_all() {
        let aside = LockYield::default();
        aside.found_nothing();
        assert_eq!(aside.stood(), 0);
        aside.mark_due();
        aside.found_nothing();
        aside.found_nothing();
        assert_eq!(aside.stood(), 1);
    }
}
