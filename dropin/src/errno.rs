//! The calling thread's `errno`.

use core::ffi::c_int;

/// Sets it.
#[expect(unsafe_code, reason = "errno is a place in memory")]
pub(crate) fn set(errno: c_int) {
    // SAFETY: the C library gives the calling thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
}
