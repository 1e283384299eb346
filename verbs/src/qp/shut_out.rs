//! A thread that polls while another one has the lock of the QP, perhaps without a processor.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often in a row polls find the lock taken until the one that does gives its processor away: some microseconds.
const PATIENCE: u32 = 32;

/// Polls in a row that found the lock taken.
///
/// Where two threads share a processor, the lock may be handed to the background thread, which was waiting for it, while
/// the thread that polls goes on: it keeps busy the very processor that the other one needs to give the lock back, for as long as
/// the scheduler lets it, which is milliseconds. A poll has nothing else to do then, so it stands aside.
#[derive(Default)]
pub(super) struct ShutOut(AtomicU32);

impl ShutOut {
    /// A poll found the lock taken.
    #[cold]
    pub(super) fn found_taken(&self) {
        if self.is_enough() {
            std::thread::yield_now();
        }
    }

    fn is_enough(&self) -> bool {
        let polls = self.0.load(Ordering::Relaxed) + 1;
        self.0.store(polls % PATIENCE, Ordering::Relaxed);
        polls == PATIENCE
    }

    /// A poll has the lock.
    #[inline]
    pub(super) fn got_in(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_stand_aside_after_so_many_in_a_row_and_each_time_again() {
        let shut_out = ShutOut::default();
        for _ in 0..2 {
            assert!((1..PATIENCE).all(|_| !shut_out.is_enough()));
            assert!(shut_out.is_enough());
        }
        assert!((1..PATIENCE).all(|_| !shut_out.is_enough()));
        shut_out.got_in();
        assert!((1..PATIENCE).all(|_| !shut_out.is_enough()));
    }
}
