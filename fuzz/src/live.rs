//! Live devices without threads or a network. The target sets the clock and delivers the bytes of
//! the streams.

mod end;
mod line;

use std::sync::Arc;
use std::time::Instant;

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::{Clock, ManualClock};
use uwarp_verbs::{Device, Progress, Settings, TimeSource};

pub(crate) use end::End;
pub(crate) use line::{Line, Side};

/// Opens a device with manual progress. Its connections run over `Line`, so the network of the
/// device is never used.
pub(crate) fn device(clock: &Arc<ManualClock>, seed: u64) -> Device {
    let settings = Settings::default()
        .progress(Progress::Manual)
        .clock(TimeSource::Given(Arc::<ManualClock>::clone(clock)))
        .seed(Some(seed));
    Device::open(Arc::new(KernelNetwork::default()), settings).expect("a device can be opened")
}

/// Drives a device until nothing more happens at this time. Returns the time of its next timer.
///
/// # Panics
/// If the device still has work after 10,000 calls of `progress`.
pub(crate) fn settle(device: &Device, clock: &ManualClock) -> Option<Instant> {
    for _ in 0..10_000 {
        let due = device.progress();
        if due.is_none_or(|due| due > clock.now()) {
            return due;
        }
    }
    panic!("the device has work again and again at the same time");
}
