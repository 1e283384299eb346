//! Waits for another thread whose work is short, and which does not signal its end.

use std::thread;

use crate::policy::{WAIT_PAUSE, WAIT_YIELDS};

/// A wait that has begun. It makes pauses between attempts: yields at first, then sleeps.
#[derive(Default)]
pub(crate) struct ShortWait {
    yields: u32,
}

impl ShortWait {
    /// Pauses before the next attempt.
    pub(crate) fn pause(&mut self) {
        if self.yields < WAIT_YIELDS {
            self.yields += 1;
            return thread::yield_now();
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a yield alone lets no thread of a lower real-time priority run, which may \
                      do the work"
        )]
        thread::sleep(WAIT_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn it_ends_after_any_number_of_attempts() {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut other = ShortWait {
                    yields: WAIT_YIELDS,
                };
                other.pause();
                done.store(true, Ordering::Release);
            });
            let mut wait = ShortWait::default();
            while !done.load(Ordering::Acquire) {
                wait.pause();
            }
            assert!(wait.yields <= WAIT_YIELDS);
        });
    }
}
