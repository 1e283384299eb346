//! `errno` values of calls that the connection manager refused.

use core::ffi::c_int;

use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{AcceptError, CmError, ConnectError, RequestError};

use crate::{errno, rnic};

/// Returns the `errno` value. If the private data is longer than the configured peer accepts, also
/// prints that limit, because it comes from a setting that the program does not know.
pub(super) fn errno(error: &CmError) -> c_int {
    if let CmError::Connect(ConnectError::PrivateData(limit))
    | CmError::Accept(AcceptError::PrivateData(limit)) = error
    {
        rnic::warn(format_args!("{limit}"));
    }
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
        // The kernel returns this if one of the two addresses is a wildcard (`cma_check_port`).
        LlpError::AddressInUse { addr } if addr.ip().is_unspecified() => libc::EADDRNOTAVAIL,
        LlpError::AddressInUse { .. } => libc::EADDRINUSE,
        LlpError::AddressUnavailable { .. } => libc::EADDRNOTAVAIL,
        LlpError::PermissionDenied { .. } => libc::EACCES,
        LlpError::Exhausted { .. } => libc::ENOBUFS,
        LlpError::LinkDown { .. } => libc::ENETDOWN,
        LlpError::Io { errno, .. } => errno.abs(),
        LlpError::Misuse { .. }
        | LlpError::FamilyMismatch { .. }
        | LlpError::ZoneMissing { .. } => libc::EINVAL,
        LlpError::Broken { .. } => libc::ECONNABORTED,
        LlpError::Refused { .. } => libc::ECONNREFUSED,
        LlpError::Reset { .. } => libc::ECONNRESET,
        LlpError::TimedOut { .. } => libc::ETIMEDOUT,
        _ => libc::EIO,
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

    #[test]
    fn a_peer_that_refuses_is_not_a_device_that_is_missing() {
        let addr = ([127, 0, 0, 1], 1).into();
        let of = |error| errno(&CmError::from(error));
        assert_eq!(of(LlpError::Refused { addr }), libc::ECONNREFUSED);
        assert_eq!(of(LlpError::TimedOut { addr }), libc::ETIMEDOUT);
        assert_eq!(of(LlpError::Reset { addr }), libc::ECONNRESET);
    }
}
