//! Yields the processor when polls keep finding the lock of a connection taken.
//!
//! Two threads may share a processor. The holder of a connection's lock can then be preempted in
//! the middle of a turn, or get the lock while it sleeps. A polling thread occupies the processor
//! that the holder needs to release the lock, until the scheduler intervenes after some
//! milliseconds. Therefore, once many consecutive polls have found a connection locked, the next
//! poll that finds nothing yields. (A thread with a real-time priority does not yield to threads of
//! lower priority, so it gains nothing.)

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::policy::progress::LOCK_MISSES;

/// Number of consecutive polls that found the lock of a connection taken.
#[derive(Default)]
pub(crate) struct LockMisses(AtomicU32);

impl LockMisses {
    /// Counts a poll that found the lock taken. At the limit, returns true and restarts the count.
    #[cold]
    pub(crate) fn count_miss(&self) -> bool {
        let polls = self.0.load(Ordering::Relaxed) + 1;
        self.0.store(polls % LOCK_MISSES, Ordering::Relaxed);
        polls == LOCK_MISSES
    }

    /// Records a poll that got the lock.
    #[inline]
    pub(crate) fn reset(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Decides whether the next poll of a device that finds nothing yields its processor. The poll
/// yields when it holds no lock and has no unfinished work.
#[derive(Default)]
pub(crate) struct LockYield {
    due: AtomicBool,
    #[cfg(test)]
    yields: AtomicU32,
}

impl LockYield {
    /// Makes the next poll that finds nothing yield.
    #[cold]
    pub(crate) fn mark_due(&self) {
        self.due.store(true, Ordering::Relaxed);
    }

    /// Yields the processor if that is due. Call it after a poll that found nothing.
    #[inline]
    pub(crate) fn yield_if_due(&self) {
        if self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::Relaxed) {
            #[cfg(test)]
            self.yields.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    #[cfg(test)]
    pub(crate) fn yields(&self) -> u32 {
        self.yields.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_in_a_row_reach_the_limit_each_time_again() {
        let lock_misses = LockMisses::default();
        for _ in 0..2 {
            assert!((1..LOCK_MISSES).all(|_| !lock_misses.count_miss()));
            assert!(lock_misses.count_miss());
        }
        assert!((1..LOCK_MISSES).all(|_| !lock_misses.count_miss()));
        lock_misses.reset();
        assert!((1..LOCK_MISSES).all(|_| !lock_misses.count_miss()));
    }

    #[test]
    fn one_poll_yields_for_all() {
        let lock_yield = LockYield::default();
        lock_yield.yield_if_due();
        assert_eq!(lock_yield.yields(), 0);
        lock_yield.mark_due();
        lock_yield.yield_if_due();
        lock_yield.yield_if_due();
        assert_eq!(lock_yield.yields(), 1);
    }
}
