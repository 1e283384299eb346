//! Where a device gets the time.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use uwarp_llp::smol::Clock;

/// Where a device gets the time: every timeout of it counts by this. (A network has a clock of its own, by which TCP
/// sends again: give both the same one.)
#[derive(Clone, Default)]
pub enum TimeSource {
    /// The monotonic clock of the machine.
    #[default]
    System,
    /// A clock of the program's, for simulation: it goes on when the program says so. Only with
    /// [`Progress::Manual`](crate::Progress::Manual), because nobody can sleep by it.
    Given(Arc<dyn Clock>),
}

impl TimeSource {
    /// The time now.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self {
            TimeSource::System => machine_now(),
            TimeSource::Given(clock) => clock.now(),
        }
    }
}

/// The time of the machine: for calls that sleep, because nobody can sleep by another clock (and none does where one was
/// given: `DeviceInner::patience`). Everything else asks the device.
#[inline]
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that asks the machine"
)]
pub(crate) fn machine_now() -> Instant {
    Instant::now()
}

/// Asks until it is so. A test that would hang fails here, and its backtrace says where.
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

    /// `verbs/clippy.toml` bans each of these. Where it did not, an expectation would not be met, which `./ci.sh clippy`
    /// takes for an error.
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
        // The date may be set back meanwhile.
        drop((elapsed, since));
    }
}
