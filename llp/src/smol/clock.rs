//! [`Clock`]: the source of time for the stacks in user space. A simulator can provide its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Source of time for a stack in user space. TCP's timers (retransmission, TIME-WAIT ...) and
/// [`Llp::deadline`](crate::Llp::deadline) use it.
pub trait Clock: Send + Sync {
    /// Returns the current time, which must never run backwards.
    fn now(&self) -> Instant;
}

/// Monotonic clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that stands still until the program advances it, for simulations and tests. It starts at
/// the time of the machine, because an [`Instant`] has no other source.
#[derive(Debug)]
pub struct ManualClock {
    start: Instant,
    nanos: AtomicU64,
}

impl ManualClock {
    /// Creates a clock that shows the current time of the machine.
    #[must_use]
    pub fn new() -> Self {
        ManualClock {
            start: Instant::now(),
            nanos: AtomicU64::new(0),
        }
    }

    /// Returns the time that the clock showed at first.
    #[must_use]
    pub fn start(&self) -> Instant {
        self.start
    }

    /// Returns the time by which the clock was advanced.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }

    /// Advances the clock by this time.
    pub fn advance(&self, by: Duration) {
        let later = |now: u64| Some(now.saturating_add(nanos(by)));
        let _ = self
            .nanos
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// Advances the clock to `at`, unless it shows a later time already.
    pub fn set(&self, at: Instant) {
        let elapsed = at.saturating_duration_since(self.start);
        self.nanos.fetch_max(nanos(elapsed), Ordering::AcqRel);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.start + self.elapsed()
    }
}

/// Returns the number of nanoseconds, of which 64 bits hold 584 years; for more, their maximum.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts instants of a [`Clock`] to instants of smoltcp and back. smoltcp counts microseconds
/// since a start that its user chooses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    /// Creates an epoch that starts at `now`, which corresponds to 1 ms of smoltcp's time. smoltcp
    /// uses time 0 for "at once", so no real instant may be 0.
    pub(crate) fn starting(now: Instant) -> Self {
        Self(now)
    }

    /// Converts an instant to an instant of smoltcp.
    pub(crate) fn to_smol(self, at: Instant) -> smoltcp::time::Instant {
        let since = at.saturating_duration_since(self.0) + Duration::from_millis(1);
        smoltcp::time::Instant::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// Converts an instant of smoltcp back.
    pub(crate) fn to_std(self, at: smoltcp::time::Instant) -> Instant {
        let micros = u64::try_from(at.total_micros())
            .unwrap_or(0)
            .saturating_sub(1_000);
        self.0
            .checked_add(Duration::from_micros(micros))
            .unwrap_or(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_still_and_never_goes_back() {
        let clock = ManualClock::new();
        let second = Duration::from_secs(1);
        assert_eq!(clock.now(), clock.start());
        clock.advance(2 * second);
        clock.set(clock.start() + second);
        assert_eq!(clock.elapsed(), 2 * second);
        clock.set(clock.start() + 3 * second);
        assert_eq!(clock.now(), clock.start() + 3 * second);
        for _ in 0..2 {
            clock.advance(Duration::MAX);
            assert_eq!(clock.elapsed(), Duration::from_nanos(u64::MAX));
        }
    }

    #[test]
    fn an_instant_survives_the_way_to_smoltcp_and_back() {
        let start = Instant::now();
        let epoch = Epoch::starting(start);
        let later = start + Duration::from_micros(123_456_789);
        assert_eq!(epoch.to_std(epoch.to_smol(later)), later);
    }

    #[test]
    fn at_once_of_smoltcp_is_not_after_the_start() {
        let start = Instant::now();
        assert!(Epoch::starting(start).to_std(smoltcp::time::Instant::ZERO) <= start);
        assert!(Epoch::starting(start).to_smol(start) > smoltcp::time::Instant::ZERO);
    }
}
