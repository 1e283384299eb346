//! Errors for C: functions return a number, and store a message for the calling thread.

use core::ffi::{c_char, c_int};
use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Display;

use rustix::io::Errno;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Stores a message for `uw_error`.
pub(crate) fn say(words: &dyn Display) {
    let words = CString::new(words.to_string().replace('\0', "\\0")).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = words);
}

/// Stores the message of an error, and returns the number of `errno`.
pub(crate) fn failed(errno: Errno, words: &dyn Display) -> c_int {
    say(words);
    errno.raw_os_error()
}

/// Returns 0 on success. On error, stores its message and returns the number of `errno`.
pub(crate) fn status<E: Display>(result: Result<(), E>, errno: Errno) -> c_int {
    result.map_or_else(|error| failed(errno, &error), |()| 0)
}

/// Returns a handle of the object. On error, stores its message and returns NULL.
pub(crate) fn handle<T, E: Display>(result: Result<T, E>) -> *mut T {
    match result {
        Ok(object) => Box::into_raw(Box::new(object)),
        Err(error) => {
            say(&error);
            core::ptr::null_mut()
        }
    }
}

/// Destroys the object of a handle and returns 0. If that fails, stores the message and returns
/// `EBUSY`; the handle then stays valid.
///
/// # Safety
/// `handle` is from [`handle`] and not in use by another thread; after a result of 0 it is invalid.
pub(crate) unsafe fn end<T, E: Display>(
    handle: *mut T,
    end: impl FnOnce(T) -> Result<(), (T, E)>,
) -> c_int {
    // SAFETY: the object is moved out. Either it is moved back, or the box is freed without
    // dropping it again.
    unsafe {
        match end(handle.read()) {
            Ok(()) => {
                drop(Box::from_raw(handle.cast::<core::mem::ManuallyDrop<T>>()));
                0
            }
            Err((object, error)) => {
                handle.write(object);
                failed(Errno::BUSY, &error)
            }
        }
    }
}

/// Returns the message of this thread's last failed function, or of the last event that reported an
/// error.
#[unsafe(no_mangle)]
extern "C" fn uw_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
