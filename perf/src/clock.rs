//! Processor time.

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process so far, of all its threads, user and system, in nanoseconds.
pub(crate) fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
