//! Waiting on an epoll set, with a timeout in nanoseconds if the kernel supports it.

#![expect(
    unsafe_code,
    reason = "rustix has one of the two system calls, and which one is decided when it is compiled"
)]

use std::ffi::{c_int, c_long};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::io::{Errno, Result};

/// Set once the kernel has refused `epoll_pwait2`: Linux before 5.11, some sandboxes, valgrind
/// 3.19, QEMU 7.2.
static IS_MISSING: AtomicBool = AtomicBool::new(false);

/// Waits until a descriptor of `set` is ready, for at most `timeout`, and returns the events.
/// Without `epoll_pwait2` the timeout is rounded up to milliseconds.
pub(super) fn wait<'a>(
    set: impl AsFd,
    room: &'a mut [MaybeUninit<Event>],
    timeout: Option<&Timespec>,
) -> Result<&'a mut [Event]> {
    if !IS_MISSING.load(Ordering::Relaxed) {
        match epoll::wait(&set, &mut *room, timeout) {
            Ok((events, _)) => {
                let count = events.len();
                // SAFETY: the kernel has initialized the first `count` events.
                return Ok(unsafe { filled(room, count) });
            }
            // Sandboxes refuse an unknown system call with EPERM, which `epoll_wait` never returns.
            Err(Errno::NOSYS | Errno::PERM) => IS_MISSING.store(true, Ordering::Relaxed),
            Err(error) => return Err(error),
        }
    }
    wait_by_milliseconds(set, room, timeout)
}

/// Does [`wait`] with `epoll_pwait`, which every kernel has.
fn wait_by_milliseconds<'a>(
    set: impl AsFd,
    room: &'a mut [MaybeUninit<Event>],
    timeout: Option<&Timespec>,
) -> Result<&'a mut [Event]> {
    let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
    // Called by number, because the function of the C library is a cancellation point.
    // SAFETY: the set stays open for the time of the borrow. The kernel writes at most `most`
    // events to `room`, and `Event` has the kernel's layout. A null signal mask is not read.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            set.as_fd().as_raw_fd(),
            room.as_mut_ptr(),
            most,
            milliseconds(timeout),
            ptr::null::<libc::sigset_t>(),
            0 as c_long,
        )
    };
    match usize::try_from(count) {
        // SAFETY: the kernel has initialized the first `count` events.
        Ok(count) => Ok(unsafe { filled(room, count) }),
        Err(_) => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Returns the first `count` events of `room`.
///
/// # Safety
/// The first `count` elements exist and are initialized.
unsafe fn filled(room: &mut [MaybeUninit<Event>], count: usize) -> &mut [Event] {
    // SAFETY: guaranteed by the caller; the slice is borrowed from `room`.
    unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), count) }
}

/// Returns the timeout for `epoll_pwait`. It is rounded up, because a wait that ends too early
/// would have to be repeated.
fn milliseconds(timeout: Option<&Timespec>) -> c_int {
    let Some(timeout) = timeout else {
        return -1;
    };
    let nanoseconds = i128::from(timeout.tv_sec) * 1_000_000_000 + i128::from(timeout.tv_nsec);
    let milliseconds = (nanoseconds.max(0) + 999_999) / 1_000_000;
    c_int::try_from(milliseconds).unwrap_or(c_int::MAX)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn timeout(tv_sec: i64, tv_nsec: i64) -> Option<Timespec> {
        Some(Timespec { tv_sec, tv_nsec })
    }

    #[test]
    fn milliseconds_are_rounded_up_and_bounded() {
        let of = |timeout: Option<Timespec>| milliseconds(timeout.as_ref());
        assert_eq!(of(None), -1);
        assert_eq!(of(timeout(0, 0)), 0);
        assert_eq!(of(timeout(0, 1)), 1);
        assert_eq!(of(timeout(0, 1_000_000)), 1);
        assert_eq!(of(timeout(1, 1_000_001)), 1002);
        assert_eq!(of(timeout(i64::MAX, 0)), c_int::MAX);
    }

    #[test]
    fn both_system_calls_report_the_same_events() {
        let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let ready = [3, 5].map(|token| {
            let fd = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            epoll::add(&set, &fd, EventData::new_u64(token), EventFlags::IN).unwrap();
            fd
        });
        let idle = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        epoll::add(&set, &idle, EventData::new_u64(7), EventFlags::IN).unwrap();
        let mut room = [const { MaybeUninit::uninit() }; 8];
        for way in [wait, wait_by_milliseconds] {
            let events = way(&set, &mut room, None).unwrap();
            let mut tokens: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, [3, 5]);
        }
        drop(ready);
    }

    #[test]
    fn nothing_ready_is_no_event_with_either_system_call() {
        let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let mut room = [const { MaybeUninit::uninit() }; 8];
        for way in [wait, wait_by_milliseconds] {
            for timeout in [timeout(0, 0), timeout(0, 1)] {
                assert!(way(&set, &mut room, timeout.as_ref()).unwrap().is_empty());
            }
        }
    }
}
