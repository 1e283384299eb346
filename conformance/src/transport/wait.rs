//! Waits for readiness of a descriptor.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits until the descriptor is readable (writable, if `write`), or the timeout expires.
pub(super) fn wait_for(fd: impl AsFd, write: bool, timeout: Duration) -> io::Result<()> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let events = if write {
        PollFlags::IN | PollFlags::OUT
    } else {
        PollFlags::IN
    };
    match poll(&mut [PollFd::new(&fd, events)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
