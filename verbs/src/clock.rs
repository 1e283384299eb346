//! Source of a device's time.
//!
//! The protocols count by `DeviceInner::now`. Only calls that sleep use the clock of the system.
//! With a given clock and seeds ([`Settings::seed`](crate::Settings::seed),
//! [`MemorySettings::seed`](uwarp_llp::smol::MemorySettings::seed)), two runs send the same bytes.
//! So nothing that has an effect may iterate over a `HashMap`, whose order is random.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use uwarp_llp::smol::Clock;

/// Source of a device's time, which measures all its timeouts. A network has its own clock, which
/// drives the retransmissions of TCP. Both should use the same clock.
#[derive(Clone, Default)]
pub enum TimeSource {
    /// The monotonic clock of the system.
    #[default]
    System,
    /// A clock that the program advances, for simulation. Only with
    /// [`Progress::Manual`](crate::Progress::Manual), because no thread can sleep by this clock.
    Given(Arc<dyn Clock>),
}

impl TimeSource {
    /// Returns the current time.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self {
            TimeSource::System => machine_now(),
            TimeSource::Given(clock) => clock.now(),
        }
    }
}

/// Returns the time of the system clock, for calls that sleep. A thread cannot sleep by another
/// clock, so with a given clock no call sleeps (`DeviceInner::patience`). All other code asks the
/// device for the time.
#[inline]
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that asks the machine"
)]
pub(crate) fn machine_now() -> Instant {
    Instant::now()
}

/// Returns the time of the system clock in nanoseconds since some moment that a child of a fork
/// shares.
pub(crate) fn machine_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The clock is never negative.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Calls `is_so` until it returns true. Panics after 60 s, so that a test fails here instead of
/// hanging.
#[cfg(test)]
#[track_caller]
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    let began = machine_now();
    while !is_so() {
        let hangs = began.elapsed() > std::time::Duration::from_secs(60);
        assert!(!hangs, "not so within 60 s");
    }
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeSource::System => "System",
            TimeSource::Given(_) => "Given",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    /// `verbs/clippy.toml` bans each of these calls. If it did not, the expectation would be
    /// unfulfilled, which `./ci.sh clippy` reports as an error.
    #[test]
    fn clippy_bans_every_clock_of_the_machine() {
        #[expect(clippy::disallowed_methods, reason = "banned")]
        let now = Instant::now();
        #[expect(clippy::disallowed_methods, reason = "banned")]
        let elapsed = now.elapsed();
        #[expect(clippy::disallowed_methods, reason = "banned")]
        let date = SystemTime::now();
        #[expect(clippy::disallowed_methods, reason = "banned")]
        let since = date.elapsed();
        // The system time may be set back meanwhile, so the results are not compared.
        drop((elapsed, since));
    }
}
