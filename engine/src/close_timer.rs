//! Time limit of a close. It restarts whenever the peer's TCP has acknowledged enough bytes
//! ([`LEAST`]).

use std::time::{Duration, Instant};

use crate::policy::CLOSE_CHECKS;
use crate::times::after;

/// Number of bytes that must be acknowledged within the limit for a close to continue, unless fewer
/// are left. Otherwise a peer that takes one byte at a time would hold a full send buffer for
/// months. With the default limit of 5 s this is 0.8 kB/s. A close with the 4 MiB that Linux lets
/// TCP queue (`tcp_wmem`) then ends within an hour and a half.
pub const LEAST: u64 = 4 * 1024;

/// Ends a close in which the peer makes no progress.
///
/// TCP does not report acknowledgements, so the owner checks from time to time. All positions are
/// those of one byte stream.
#[derive(Debug)]
pub struct CloseTimer {
    limit: Duration,
    until: Instant,
    /// Position that the peer had acknowledged at the last progress; `None` before the first check.
    acknowledged: Option<u64>,
}

impl CloseTimer {
    /// Starts the limit of a close that begins at `from`.
    pub fn new(from: Instant, limit: Duration) -> Self {
        CloseTimer {
            limit,
            until: after(from, limit),
            acknowledged: None,
        }
    }

    /// Restarts the limit after progress other than acknowledgements.
    pub fn restart(&mut self, from: Instant) {
        self.until = after(from, self.limit);
    }

    /// Returns when the first check after a start or restart at `from` is due.
    pub fn first_check(&self, from: Instant) -> Instant {
        self.until.min(after(from, self.limit / CLOSE_CHECKS))
    }

    /// Records the position that the peer has acknowledged. `goal` is the end of the bytes that
    /// must be acknowledged. Returns when the next check is due, or `None` if the close has to end
    /// without success.
    pub fn look(&mut self, now: Instant, acknowledged: u64, goal: u64) -> Option<Instant> {
        let acknowledged = acknowledged.min(goal);
        let before = *self.acknowledged.get_or_insert(acknowledged);
        let least = goal.saturating_sub(before).clamp(1, LEAST);
        if acknowledged.saturating_sub(before) >= least {
            self.acknowledged = Some(acknowledged);
            self.until = after(now, self.limit);
        }
        if self.until <= now {
            return None;
        }
        let is_draining = acknowledged < goal;
        Some(if is_draining {
            self.first_check(now)
        } else {
            self.until
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Checks whenever a check is due. `acknowledged` maps the elapsed time to the acknowledged
    /// position. Returns the elapsed time at which the close was given up, or `None` if the close
    /// continued for two hours.
    fn given_up_after(goal: u64, acknowledged: impl Fn(Duration) -> u64) -> Option<Duration> {
        let start = Instant::now();
        let mut timer = CloseTimer::new(start, LIMIT);
        let mut now = timer.first_check(start);
        while now - start < Duration::from_secs(2 * 3600) {
            match timer.look(now, acknowledged(now - start), goal) {
                Some(next) => {
                    assert!(next > now && next <= now + LIMIT);
                    now = next;
                }
                None => return Some(now - start),
            }
        }
        None
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up_at_the_limit() {
        assert_eq!(given_up_after(1000, |_| 0), Some(LIMIT));
        assert_eq!(given_up_after(1000, |_| 999), Some(LIMIT));
    }

    #[test]
    fn a_peer_that_has_everything_has_the_limit_for_its_own_close() {
        assert_eq!(given_up_after(0, |_| 0), Some(LIMIT));
        assert_eq!(given_up_after(1000, |_| 1000), Some(LIMIT));
        // The last bytes were acknowledged between two checks.
        let late = given_up_after(1000, |passed| if passed > LIMIT / 2 { 1000 } else { 0 });
        let late = late.unwrap();
        assert!(
            late > LIMIT && late <= LIMIT + LIMIT / 2 + LIMIT / CLOSE_CHECKS,
            "{late:?}"
        );
    }

    #[test]
    fn a_slow_peer_is_waited_for() {
        let goal = 4 << 20;
        let rate = |passed: Duration| 300_000 * passed.as_millis() as u64 / 1000;
        let over = given_up_after(goal, rate).unwrap();
        let drained = Duration::from_secs(goal / 300_000);
        assert!(
            over >= drained + LIMIT && over < drained + 2 * LIMIT,
            "{over:?}"
        );
    }

    #[test]
    fn a_peer_that_takes_a_byte_at_a_time_is_not() {
        assert_eq!(
            given_up_after(4 << 20, |passed| passed.as_secs()),
            Some(LIMIT)
        );
        // The slowest peer that is tolerated still finishes within a bound.
        let slowest = |passed: Duration| LEAST * (passed.as_secs() / 4);
        let over = given_up_after(4 << 20, slowest).unwrap();
        assert!(over < Duration::from_secs(90 * 60), "{over:?}");
    }

    #[test]
    fn no_limit_is_no_limit() {
        let start = Instant::now();
        let mut timer = CloseTimer::new(start, Duration::MAX);
        assert!(
            timer
                .look(start + Duration::from_secs(1 << 30), 0, 1)
                .is_some()
        );
    }
}
