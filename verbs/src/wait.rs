//! Waiting for file descriptors.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::machine_now;

/// Waits until `fd` is readable or `deadline` has passed. Returns false if the deadline passed.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> bool {
    loop {
        let timeout = match deadline.map(|deadline| deadline.checked_duration_since(machine_now()))
        {
            None => None,
            Some(None) => return false,
            Some(Some(left)) => Some(timespec(left)),
        };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}

/// Waits until one of the descriptors is readable or `deadline` has passed. Returns true if the
/// first one is readable. `set` is scratch space that avoids an allocation: it is empty before and
/// after.
///
/// # Safety
/// The descriptors stay open until this returns.
#[expect(
    unsafe_code,
    reason = "the descriptors belong to connections whose lock cannot be held while sleeping"
)]
pub(crate) unsafe fn sleep_on(
    fds: &[RawFd],
    set: &mut Vec<PollFd<'static>>,
    deadline: Option<Instant>,
) -> bool {
    let timeout =
        deadline.map(|deadline| timespec(deadline.saturating_duration_since(machine_now())));
    set.extend(fds.iter().map(|fd| {
        // SAFETY: the caller keeps them open until this returns, and `set` is cleared before that.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        PollFd::from_borrowed_fd(fd, PollFlags::IN)
    }));
    // A signal or an error counts as a wake-up: the caller checks and sleeps again.
    let ready = poll(set, timeout.as_ref());
    let first = set.first().is_some_and(|first| !first.revents().is_empty());
    set.clear();
    ready.is_ok() && first
}

/// Converts a duration to the kernel's type.
pub(crate) fn timespec(duration: std::time::Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
