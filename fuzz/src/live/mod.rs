//! Live devices without threads or a network: time that stands still, and streams that it carries.

mod end;
mod line;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::Clock;
use uwarp_verbs::{Device, Progress, Settings, TimeSource};

pub(crate) use end::End;
pub(crate) use line::{Line, Side};

/// Time that stands still unless it is set: what needs time does not happen.
pub(crate) struct HandClock {
    start: Instant,
    nanos: AtomicU64,
}

impl Clock for HandClock {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

impl HandClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            nanos: AtomicU64::new(0),
        })
    }

    /// Time goes on by this much.
    pub(crate) fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }

    /// It is `at` now. Time never goes back.
    pub(crate) fn set(&self, at: Instant) {
        let nanos = at.saturating_duration_since(self.start).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::Relaxed);
    }
}

/// A device that is driven by hand. Its streams are lines; it never asks its network for one.
pub(crate) fn device(clock: &Arc<HandClock>, seed: u64) -> Device {
    let settings = Settings::default()
        .progress(Progress::Manual)
        .clock(TimeSource::Given(Arc::<HandClock>::clone(clock)))
        .seed(Some(seed));
    Device::open(Arc::new(KernelNetwork::default()), settings).expect("a device can be opened")
}

/// Drives a device until nothing more happens at this time; says when something will.
///
/// # Panics
/// If it never comes to rest.
pub(crate) fn settle(device: &Device, clock: &HandClock) -> Option<Instant> {
    for _ in 0..10_000 {
        let due = device.progress();
        if due.is_none_or(|due| due > clock.now()) {
            return due;
        }
    }
    panic!("something happens again and again without time going on");
}
