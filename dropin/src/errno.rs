//! The calling thread's `errno`.

use core::ffi::c_int;
use core::ptr;

use uwarp_verbs::{DeviceError, PostErrorKind, RegisterError};

/// Sets `errno`.
#[expect(unsafe_code, reason = "errno is a memory location")]
pub(crate) fn set(errno: c_int) {
    // SAFETY: the C library returns the address of the calling thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns `errno`.
#[expect(unsafe_code, reason = "errno is a memory location")]
pub(crate) fn get() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Converts a result to 0 or the error number. On error, also sets `errno`.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            errno
        }
    }
}

/// Converts a result to a pointer. On error, returns NULL and sets `errno`.
pub(crate) fn pointer<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set(errno);
        ptr::null_mut()
    })
}

/// Returns the error number for an object that could not be created.
pub(crate) fn of_device(error: &DeviceError) -> c_int {
    match error {
        DeviceError::Limit { .. }
        | DeviceError::PdLimit { .. }
        | DeviceError::PdReceives { .. } => libc::ENOMEM,
        DeviceError::System { error, .. } => error.raw_os_error().unwrap_or(libc::ENOMEM),
        DeviceError::Memory(error) => of_register(error),
        DeviceError::Inherited(_) => libc::EIO,
        _ => libc::EINVAL,
    }
}

/// Returns the error number for memory that could not be registered.
pub(crate) fn of_register(error: &RegisterError) -> c_int {
    match error {
        RegisterError::TooMany { .. } | RegisterError::TooManyInPd { .. } => libc::ENOMEM,
        RegisterError::ReadOnly { .. } => libc::EFAULT,
        RegisterError::NoRandomness { errno } => *errno,
        RegisterError::Inherited(_) => libc::EIO,
        _ => libc::EINVAL,
    }
}

/// Returns the error number for a work request that was refused.
pub(crate) fn of_post(error: PostErrorKind) -> c_int {
    match error {
        PostErrorKind::SendQueueFull { .. }
        | PostErrorKind::RecvQueueFull { .. }
        | PostErrorKind::SrqFull { .. } => libc::ENOMEM,
        PostErrorKind::ImmediateUnfit { .. } | PostErrorKind::NoSendWithImmediate => {
            libc::EOPNOTSUPP
        }
        PostErrorKind::Inherited(_) => libc::EIO,
        _ => libc::EINVAL,
    }
}
