//! Replacements for functions that are not implemented. They ignore their arguments, so one
//! replacement is enough for all signatures with the same result.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::errno;

/// Returns `EOPNOTSUPP` and sets `errno`, because most functions of libibverbs return error
/// numbers.
pub(super) extern "C-unwind" fn errno() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Returns -1 and sets `errno`, as functions of librdmacm do. Some of them return an `ssize_t` or
/// an `off_t`, so the result has that width. A caller that expects an `int` reads its lower half.
pub(super) extern "C-unwind" fn minus_one() -> isize {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// Returns NULL and sets `errno`.
pub(super) extern "C-unwind" fn null() -> *mut c_void {
    errno::set(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// Does nothing. For functions without a result.
pub(super) extern "C-unwind" fn nothing() {}
