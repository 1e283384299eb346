//! Time for the stacks in user space, from one place, so that a simulator can make its own.

use std::time::{Duration, Instant};

/// Where a stack in user space gets the time. Timers of TCP (retransmission, TIME-WAIT ...) run by
/// it, and [`Llp::deadline`](crate::Llp::deadline) is a point of it.
pub trait Clock: Send + Sync {
    /// The time now. It must never run backwards.
    fn now(&self) -> Instant;
}

/// The monotonic clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// Turns instants of a [`Clock`] into smoltcp's and back; smoltcp counts from a start of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    /// Both kinds of instant start here. smoltcp takes its time 0 for "at once", so real times
    /// start a little later.
    pub(crate) fn starting(now: Instant) -> Self {
        Self(now)
    }

    /// smoltcp's name for `at`.
    pub(crate) fn to_smol(self, at: Instant) -> smoltcp::time::Instant {
        let since = at.saturating_duration_since(self.0) + Duration::from_millis(1);
        smoltcp::time::Instant::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// The instant that smoltcp calls `at`.
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
