//! Waiting where the program may cancel the thread (`pthread_cancel`): that unwinds the frames from within the system call (or `pthread_testcancel`), so that
//! there must be nothing to drop in them, and nothing that catches it (`boundary.rs`).
#![expect(unsafe_code, reason = "a function of the C library")]

use core::ffi::c_int;
use std::time::Duration;

use libc::{nfds_t, pollfd};

use crate::{errno, signals};

unsafe extern "C-unwind" {
    // That of the `libc` crate may not unwind.
    fn poll(fds: *mut pollfd, number: nfds_t, timeout: c_int) -> c_int;
    fn pthread_testcancel();
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of the C libraries of Linux.
const DISABLE: c_int = 1;

/// The calling thread is not cancelled while this lives: a cancellation waits until it is gone.
pub(crate) struct Held(c_int);

impl Held {
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: a place for a number.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Held(before)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut before = 0;
        // SAFETY: a place for a number.
        unsafe { pthread_setcancelstate(self.0, &raw mut before) };
    }
}

/// Waits until the descriptor is readable; a point where the thread may be cancelled. False with `errno`: `EINTR` when a signal came
/// whose handler may want that (`signals.rs`), `EBADF` when there is no such descriptor.
///
/// Call it outside of [`entry`](crate::boundary::entry), with nothing in the frame that wants to be dropped.
pub(crate) fn wait_readable(fd: c_int) -> bool {
    let mut one = pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives in this frame.
    while unsafe { poll(&raw mut one, 1, -1) } < 0 {
        if errno::get() != libc::EINTR || !signals::all_restart() {
            return false;
        }
    }
    if one.revents & libc::POLLNVAL != 0 {
        errno::set(libc::EBADF);
        return false;
    }
    true
}

/// So long a wait for acknowledgements goes on before the thread may be cancelled.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Calls an attempt that waits for [`SLICE`] at most, until it gives a result; a point where the thread may be cancelled is behind each
/// attempt. Call it outside of [`entry`](crate::boundary::entry), with nothing in the frame that wants to be dropped.
pub(crate) fn until<R: Copy>(mut attempt: impl FnMut() -> Option<R>) -> R {
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        // SAFETY: nothing is to be dropped here.
        unsafe { pthread_testcancel() };
    }
}

/// Whether the program has made a descriptor non-blocking: then calls that would wait answer `EAGAIN`.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: it takes numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Write, pipe};
    use std::os::fd::AsRawFd;

    #[test]
    fn it_waits_for_something_to_read() {
        let (from, mut to) = pipe().unwrap();
        to.write_all(b"x").unwrap();
        assert!(wait_readable(from.as_raw_fd()));
        assert!(!is_nonblocking(from.as_raw_fd()));
    }

    #[test]
    fn a_descriptor_that_is_not_there_is_no_endless_wait() {
        // No process of this test has so many.
        assert!(!wait_readable(1 << 30));
        let errno = std::io::Error::last_os_error();
        assert_eq!(errno.raw_os_error(), Some(libc::EBADF));
    }
}
