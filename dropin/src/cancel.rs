//! Waits during which the program may cancel the calling thread (`pthread_cancel`). A cancellation
//! unwinds the stack from within the system call (or `pthread_testcancel`). So the frames of these
//! functions must hold nothing that needs a drop, and nothing that catches the unwinding
//! (`panic_guard.rs`).
#![expect(unsafe_code, reason = "a function of the C library")]

use core::ffi::c_int;
use std::time::Duration;

use libc::{nfds_t, pollfd};

use crate::{errno, signals};

unsafe extern "C-unwind" {
    // The declaration in the `libc` crate may not unwind.
    fn poll(fds: *mut pollfd, number: nfds_t, timeout: c_int) -> c_int;
    fn pthread_testcancel();
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` in the C libraries of Linux.
const DISABLE: c_int = 1;

/// Defers a cancellation of the calling thread until this value is dropped.
pub(crate) struct Deferred(c_int);

impl Deferred {
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: the pointer is that of a local variable.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Deferred(before)
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        let mut before = 0;
        // SAFETY: the pointer is that of a local variable.
        unsafe { pthread_setcancelstate(self.0, &raw mut before) };
    }
}

/// Waits until the descriptor is readable. This is a cancellation point. On error, returns false
/// and sets `errno`: `EINTR` after a signal, unless all handlers restart system calls
/// (`signals.rs`); `EBADF` if the descriptor does not exist.
///
/// Call it outside of [`entry`](crate::panic_guard::entry), with nothing in the frame that needs a
/// drop.
pub(crate) fn wait_readable(fd: c_int) -> bool {
    let mut one = pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is that of one structure in this frame.
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

/// Longest wait for acknowledgements between two cancellation points.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Calls `attempt`, which waits for at most [`SLICE`], until it returns a result. A cancellation
/// point follows each attempt. Call it outside of [`entry`](crate::panic_guard::entry), with
/// nothing in the frame that needs a drop.
pub(crate) fn retry<R: Copy>(mut attempt: impl FnMut() -> Option<R>) -> R {
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        // SAFETY: nothing in this frame needs a drop.
        unsafe { pthread_testcancel() };
    }
}

/// Returns true if the program has made a descriptor non-blocking. Calls that would wait then
/// return `EAGAIN`.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: the call takes only numbers.
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
        // The number is far above those of open descriptors.
        assert!(!wait_readable(1 << 30));
        let errno = std::io::Error::last_os_error();
        assert_eq!(errno.raw_os_error(), Some(libc::EBADF));
    }
}
