//! Pauses of the background while threads of the program poll.

use std::time::Duration;

use crate::policy::progress::{BACK_OFF_FACTOR, BACK_OFF_PART};
use crate::policy::{Heuristic, is_on};

/// Pause of the background between two checks. A check finds out whether connections are still
/// polled.
///
/// A check takes the processor from the polling thread if they share one, and a program that has
/// polled for long is likely to continue. Therefore each check lengthens the pause by an eighth.
/// The pause stays below `takeover` plus an eighth of the time spent polling. A program that stops
/// polling without notice thus waits a short time compared with the time that it polled.
///
/// ```text
///             a check finds all polled: longer by an eighth, up to BACK_OFF_FACTOR
///                      ┌─────┐
///   ── takeover ──► BackOff ◄┘
///           ▲          │
///           └──────────┘
///   something was ready, due or taken over
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct BackOff {
    min: Duration,
    current: Duration,
}

impl BackOff {
    pub(super) fn new(takeover: Duration) -> Self {
        BackOff {
            min: takeover,
            current: takeover,
        }
    }

    /// Returns the pause until the next check.
    pub(super) fn get(self) -> Duration {
        self.current
    }

    /// Updates the pause after a round. `quiet`: all sources of the round are polled by other
    /// threads, so the round left them alone.
    pub(super) fn after_round(&mut self, quiet: bool) {
        self.current = if quiet && is_on(Heuristic::BackOff) {
            let longer = self.current.saturating_add(self.current / BACK_OFF_PART);
            longer.min(self.min.saturating_mul(BACK_OFF_FACTOR))
        } else {
            self.min
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEOVER: Duration = Duration::from_micros(50);

    #[test]
    fn it_stays_below_an_eighth_of_the_time_for_which_there_were_polls() {
        let mut back_off = BackOff::new(TAKEOVER);
        let mut polled = Duration::ZERO;
        for look in 0..100 {
            polled += back_off.get();
            back_off.after_round(true);
            assert!(back_off.get() <= TAKEOVER + polled / 8, "look {look}");
        }
        assert_eq!(back_off.get(), TAKEOVER * BACK_OFF_FACTOR);
    }

    #[test]
    fn it_is_as_short_as_at_first_once_there_was_something_to_do() {
        let mut back_off = BackOff::new(TAKEOVER);
        (0..100).for_each(|_| back_off.after_round(true));
        back_off.after_round(false);
        assert_eq!(back_off.get(), TAKEOVER);
    }

    #[test]
    fn a_takeover_without_end_has_no_longer_pause() {
        let mut back_off = BackOff::new(Duration::MAX);
        back_off.after_round(true);
        assert_eq!(back_off.get(), Duration::MAX);
    }
}
