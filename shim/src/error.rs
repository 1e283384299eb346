//! Errors as C has them: a number, and the words for the thread that got it.

use core::ffi::{c_char, c_int};
use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Display;

use rustix::io::Errno;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Remembers words for `uw_error`.
pub(crate) fn say(words: &dyn Display) {
    let words = CString::new(words.to_string().replace('\0', "\\0")).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = words);
}

/// The number of an error, after its words were remembered.
pub(crate) fn failed(errno: Errno, words: &dyn Display) -> c_int {
    say(words);
    errno.raw_os_error()
}

/// 0, or the number of the error.
pub(crate) fn status<E: Display>(result: Result<(), E>, errno: Errno) -> c_int {
    result.map_or_else(|error| failed(errno, &error), |()| 0)
}

/// A handle, or NULL.
pub(crate) fn handle<T, E: Display>(result: Result<T, E>) -> *mut T {
    match result {
        Ok(object) => Box::into_raw(Box::new(object)),
        Err(error) => {
            say(&error);
            core::ptr::null_mut()
        }
    }
}

/// Ends the object of a handle. When that fails, with EBUSY, the handle stays good.
///
/// # Safety
/// `handle` was made by [`handle`], is used by no other thread now, and is none any more when this gives 0.
pub(crate) unsafe fn end<T, E: Display>(
    handle: *mut T,
    end: impl FnOnce(T) -> Result<(), (T, E)>,
) -> c_int {
    // SAFETY: the object is moved out; either it is moved back, or the box is freed without dropping it again.
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

/// What the last function of this thread that failed had to say, or the last event that was an error.
#[unsafe(no_mangle)]
extern "C" fn uw_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
