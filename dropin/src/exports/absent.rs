//! Functions for names that are not implemented. They ignore their arguments, so that one function
//! serves all signatures.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::errno;

/// Returns `EOPNOTSUPP`, as most functions of libibverbs return errors.
pub(super) extern "C-unwind" fn errno() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Returns -1 and sets `errno`, as functions of librdmacm do. The result has the width of `ssize_t`
/// and `off_t`, which some of them return. A caller that expects an `int` reads the lower half.
pub(super) extern "C-unwind" fn minus_one() -> isize {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// Returns NULL and sets `errno`.
pub(super) extern "C-unwind" fn null() -> *mut c_void {
    errno::set(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// Stands for a function without a result.
pub(super) extern "C-unwind" fn nothing() {}
