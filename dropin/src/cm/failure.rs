//! The `errno` of a call that the connection manager refused.

use core::ffi::c_int;

use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{AcceptError, CmError, ConnectError, RequestError};

use crate::errno;

pub(super) fn errno(error: &CmError) -> c_int {
    match error {
        CmError::Network(error) => of_llp(error),
        CmError::Device(error) => errno::of_device(error),
        CmError::Connect(ConnectError::Llp { error })
        | CmError::Accept(AcceptError::Llp(error))
        | CmError::Request(RequestError::Llp(error)) => of_llp(error),
        CmError::Accept(AcceptError::TooLate { .. }) => libc::ECONNABORTED,
        CmError::Accept(AcceptError::Limit(_)) => libc::ENOMEM,
        CmError::Unacknowledged { .. } => libc::EBUSY,
        CmError::Inherited(_) => libc::EIO,
        _ => libc::EINVAL,
    }
}

fn of_llp(error: &LlpError) -> c_int {
    match error {
        LlpError::Unreachable { .. } => libc::ENETUNREACH,
        LlpError::AddressInUse { .. } => libc::EADDRINUSE,
        LlpError::AddressUnavailable { .. } => libc::EADDRNOTAVAIL,
        LlpError::PermissionDenied { .. } => libc::EACCES,
        LlpError::Exhausted { .. } => libc::ENOBUFS,
        LlpError::LinkDown { .. } => libc::ENETDOWN,
        LlpError::Io { errno, .. } => errno.abs(),
        LlpError::Misuse { .. } => libc::EINVAL,
        LlpError::Broken { .. } => libc::ECONNABORTED,
        _ => libc::ENODEV,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_told_as_such() {
        let addr = ([127, 0, 0, 1], 1).into();
        let error = CmError::from(LlpError::AddressInUse { addr });
        assert_eq!(errno(&error), libc::EADDRINUSE);
    }
}
