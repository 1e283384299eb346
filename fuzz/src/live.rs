//! Live devices without threads or a network. The target sets the clock and delivers the bytes of
//! the streams.

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

/// Clock that changes only when the target sets it.
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

    /// Advances the clock.
    pub(crate) fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }

    /// Sets the clock to `at`. Time never goes back.
    pub(crate) fn set(&self, at: Instant) {
        let nanos = at.saturating_duration_since(self.start).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::Relaxed);
    }
}

/// Opens a device with manual progress. Its connections run over `Line`, so the network of the
/// device is never used.
pub(crate) fn device(clock: &Arc<HandClock>, seed: u64) -> Device {
    let settings = Settings::default()
        .progress(Progress::Manual)
        .clock(TimeSource::Given(Arc::<HandClock>::clone(clock)))
        .seed(Some(seed));
    Device::open(Arc::new(KernelNetwork::default()), settings).expect("a device can be opened")
}

/// Drives a device until nothing more happens at this time. Returns the time of its next timer.
///
/// # Panics
/// If the device still has work after 10,000 calls of `progress`.
pub(crate) fn settle(device: &Device, clock: &HandClock) -> Option<Instant> {
    for _ in 0..10_000 {
        let due = device.progress();
        if due.is_none_or(|due| due > clock.now()) {
            return due;
        }
    }
    panic!("the device has work again and again at the same time");
}
