//! How a function says that it is not here. Its arguments are not looked at, so that one serves all signatures.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::errno;

/// The number of the error, as most functions of libibverbs give it.
pub(super) extern "C-unwind" fn errno() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// -1 with `errno`, as functions of librdmacm give it. In the width of `ssize_t` and `off_t`, which some of them give: what gives an
/// `int` is read by its lower half.
pub(super) extern "C-unwind" fn minus_one() -> isize {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// NULL with `errno`.
pub(super) extern "C-unwind" fn null() -> *mut c_void {
    errno::set(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// A function that gives nothing.
pub(super) extern "C-unwind" fn nothing() {}
