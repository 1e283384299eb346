//! Time that goes on when the simulator says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use uwarp_verbs::llp::smol::Clock;

/// The time of one run. It begins at 0.
pub(crate) struct VirtualClock {
    /// Instants cannot be made up, so time begins at some real one, which nobody looks at.
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

    /// The time since the beginning of the run.
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    /// What a time of a device is since the beginning of the run.
    pub(crate) fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    /// It is `at` now. Time never goes back.
    pub(crate) fn set(&self, at: Duration) {
        let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::Relaxed);
    }
}
