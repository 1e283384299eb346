//! Clock that advances only when the simulator sets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use uwarp_verbs::llp::smol::Clock;

/// Virtual time of one run. It begins at 0.
pub(crate) struct VirtualClock {
    /// Real time at creation, because an `Instant` can only come from the real clock. The run
    /// depends only on differences from `start`.
    start: Instant,
    nanos: AtomicU64,
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.start + self.elapsed()
    }
}

impl VirtualClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(VirtualClock {
            start: Instant::now(),
            nanos: AtomicU64::new(0),
        })
    }

    /// Returns the time since the beginning of the run.
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    /// Converts an `Instant` of a device to the time since the beginning of the run.
    pub(crate) fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    /// Advances the time to `at`. Time never goes back.
    pub(crate) fn set(&self, at: Duration) {
        let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::Relaxed);
    }
}
