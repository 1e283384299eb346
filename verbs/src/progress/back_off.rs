//! Back-off of the background while a thread of the program polls.

use std::time::Duration;

/// Upper limit of the pause, as a multiple of [`Settings::takeover`](crate::Settings::takeover).
const MOST: u32 = 10;

/// Pause between two looks of the background at polled connections.
///
/// Each look takes the processor from the polling thread if they share one, and a program that has
/// polled for long is likely to go on. Each look therefore lengthens the pause by an eighth. The
/// pause stays below `takeover` plus an eighth of the time spent polling, so that a program that
/// stops polling without notice waits little compared with the time it polled.
///
/// ```text
///             a look finds all polled: longer by an eighth, up to MAX_FACTOR
///                      ┌─────┐
///   ── takeover ──► BackOff ◄┘
///           ▲          │
///           └──────────┘
///   something was ready, due or taken over
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct BackOff {
    least: Duration,
    now: Duration,
}

impl BackOff {
    pub(super) fn new(takeover: Duration) -> Self {
        BackOff {
            least: takeover,
            now: takeover,
        }
    }

    /// Time until the next look.
    pub(super) fn get(self) -> Duration {
        self.now
    }

    /// Updates the pause after a round. `quiet`: the round found all its sources polled, and had
    /// nothing to do.
    pub(super) fn after_round(&mut self, quiet: bool) {
        self.now = if quiet {
            (self.now.saturating_add(self.now / 8)).min(self.least.saturating_mul(MOST))
        } else {
            self.least
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEOVER: Duration = Duration::from_micros(50);

    #[test]
    fn it_stays_below_an_eighth_of_the_time_for_which_there_were_polls() {
        let mut pause = BackOff::new(TAKEOVER);
        let mut polled = Duration::ZERO;
        for look in 0..100 {
            polled += pause.get();
            pause.after_round(true);
            assert!(pause.get() <= TAKEOVER + polled / 8, "look {look}");
        }
        assert_eq!(pause.get(), TAKEOVER * MOST);
    }

    #[test]
    fn it_is_as_short_as_at_first_once_there_was_something_to_do() {
        let mut pause = BackOff::new(TAKEOVER);
        (0..100).for_each(|_| pause.after_round(true));
        pause.after_round(false);
        assert_eq!(pause.get(), TAKEOVER);
    }

    #[test]
    fn a_takeover_without_end_has_no_longer_pause() {
        let mut pause = BackOff::new(Duration::MAX);
        pause.after_round(true);
        assert_eq!(pause.get(), Duration::MAX);
    }
}
