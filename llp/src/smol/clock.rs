//! [`Clock`]: the source of time for the stacks in user space. A simulator can provide its own.

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
