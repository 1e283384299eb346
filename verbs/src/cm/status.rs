//! Mapping from the reason of a failure to the event and the error number that programs know.

use rustix::io::Errno;
use uwarp_llp::LlpError;
use uwarp_mpa::StartupError;

use super::event::CmEventKind;
use uwarp_engine::event::EndReason;

/// Returns the best matching error number of `errno.h`, negated as in `rdma_cm_event.status`.
pub(super) fn of_llp(error: &LlpError) -> i32 {
    let errno = match error {
        LlpError::Refused { .. } => Errno::CONNREFUSED,
        LlpError::Unreachable { .. } => Errno::NETUNREACH,
        LlpError::TimedOut { .. } => Errno::TIMEDOUT,
        LlpError::Reset { .. } => Errno::CONNRESET,
        LlpError::Broken { .. } => Errno::NOTCONN,
        LlpError::AddressInUse { .. } => Errno::ADDRINUSE,
        LlpError::AddressUnavailable { .. } => Errno::ADDRNOTAVAIL,
        LlpError::PermissionDenied { .. } => Errno::ACCESS,
        LlpError::Exhausted { .. } => Errno::NOBUFS,
        LlpError::LinkDown { .. } => Errno::NETDOWN,
        LlpError::KernelHasAddress { .. } | LlpError::DuplicateAddress { .. } => Errno::ADDRINUSE,
        LlpError::Io { errno, .. } => return -errno.abs(),
        LlpError::Misuse { .. }
        | LlpError::FamilyMismatch { .. }
        | LlpError::ZoneMissing { .. } => Errno::INVAL,
    };
    -errno.raw_os_error()
}

/// Returns the event and the status of a connection that was not established. A refusal or reset is
/// `Rejected`. Silence or a missing route is `Unreachable`. Everything else is `ConnectError`.
pub(crate) fn of_failure(reason: &EndReason) -> (CmEventKind, i32) {
    let known = |kind, errno: Errno| (kind, -errno.raw_os_error());
    match reason {
        EndReason::Rejected { .. } => known(CmEventKind::Rejected, Errno::CONNREFUSED),
        EndReason::ConnectTimedOut => known(CmEventKind::Unreachable, Errno::TIMEDOUT),
        EndReason::ConnectFailed { error } | EndReason::LlpLost { error } => {
            let kind = match error {
                LlpError::Refused { .. } | LlpError::Reset { .. } => CmEventKind::Rejected,
                LlpError::TimedOut { .. } | LlpError::Unreachable { .. } => {
                    CmEventKind::Unreachable
                }
                LlpError::Broken { .. }
                | LlpError::AddressInUse { .. }
                | LlpError::AddressUnavailable { .. }
                | LlpError::FamilyMismatch { .. }
                | LlpError::ZoneMissing { .. }
                | LlpError::PermissionDenied { .. }
                | LlpError::Exhausted { .. }
                | LlpError::Misuse { .. }
                | LlpError::LinkDown { .. }
                | LlpError::KernelHasAddress { .. }
                | LlpError::DuplicateAddress { .. }
                | LlpError::Io { .. } => CmEventKind::ConnectError,
            };
            (kind, of_llp(error))
        }
        EndReason::StartupFailed { error } => match error {
            StartupError::Closed { .. } => known(CmEventKind::Rejected, Errno::CONNRESET),
            StartupError::TimedOut { .. } => known(CmEventKind::Unreachable, Errno::TIMEDOUT),
            StartupError::NotMpa { .. }
            | StartupError::RequestInsteadOfReply
            | StartupError::ReplyInsteadOfRequest
            | StartupError::UnsupportedRevision { .. }
            | StartupError::PrivateDataTooLong { .. }
            | StartupError::EnhancedDataMissing { .. }
            | StartupError::EnhancedMismatch { .. }
            | StartupError::TrailingBytes { .. }
            | StartupError::RtrMissing
            | StartupError::NoPlace { .. }
            | StartupError::Displaced { .. }
            | StartupError::TooManyConnections { .. }
            | StartupError::TooManyStagErrors { .. } => {
                known(CmEventKind::ConnectError, Errno::PROTO)
            }
        },
        EndReason::LocalDisconnect | EndReason::Aborted => {
            known(CmEventKind::ConnectError, Errno::CONNABORTED)
        }
        // A test lists all reasons with their events.
        _ => known(CmEventKind::ConnectError, Errno::PROTO),
    }
}

/// Returns the status of the event of an ended connection. As in the drivers of RNICs, it is an
/// error only if the TCP connection was lost. Sent data may then not have arrived.
pub(super) fn of_end(reason: &EndReason) -> i32 {
    match reason {
        EndReason::LlpLost { error } | EndReason::ConnectFailed { error } => of_llp(error),
        EndReason::ConnectTimedOut
        | EndReason::PeerGone { .. }
        | EndReason::CloseTimedOut { .. }
        | EndReason::Stalled { .. } => -Errno::TIMEDOUT.raw_os_error(),
        // A FIN within a message or an FPDU means that a process or host has ended. It is not a
        // graceful close (5041-6.2.2-01).
        EndReason::ClosedMidway { .. } => -Errno::CONNRESET.raw_os_error(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uwarp_mpa::Role;

    #[test]
    fn only_the_loss_of_tcp_is_an_error_of_a_connection_that_is_over() {
        let error = LlpError::Reset {
            addr: "127.0.0.1:1".parse().unwrap(),
        };
        for (reason, errno) in [
            (EndReason::LocalDisconnect, 0),
            (EndReason::PeerDisconnect, 0),
            (EndReason::Aborted, 0),
            (
                EndReason::ClosedMidway { message: None },
                Errno::CONNRESET.raw_os_error(),
            ),
            (
                EndReason::CloseTimedOut { undelivered: 1 },
                Errno::TIMEDOUT.raw_os_error(),
            ),
            (
                EndReason::Stalled { sending: true },
                Errno::TIMEDOUT.raw_os_error(),
            ),
            (
                EndReason::LlpLost { error },
                Errno::CONNRESET.raw_os_error(),
            ),
        ] {
            assert_eq!(of_end(&reason), -errno, "{reason}");
        }
    }

    #[test]
    fn each_failure_has_the_event_that_programs_expect() {
        let addr = "127.0.0.1:1".parse().unwrap();
        let llp = |error| EndReason::ConnectFailed { error };
        let startup = |error| EndReason::StartupFailed { error };
        let closed = StartupError::Closed {
            reset: false,
            received: 0,
            enhanced: true,
            peer: Role::Responder,
        };
        let silent = StartupError::TimedOut {
            received: 0,
            peer: Role::Responder,
        };
        let rejected = EndReason::Rejected {
            private_data: Vec::new(),
            peer_ird: None,
            peer_ord: None,
            ord_needed: None,
        };
        for (reason, kind, errno) in [
            (rejected, CmEventKind::Rejected, Errno::CONNREFUSED),
            (
                llp(LlpError::Refused { addr }),
                CmEventKind::Rejected,
                Errno::CONNREFUSED,
            ),
            (
                llp(LlpError::Reset { addr }),
                CmEventKind::Rejected,
                Errno::CONNRESET,
            ),
            (startup(closed), CmEventKind::Rejected, Errno::CONNRESET),
            (
                llp(LlpError::TimedOut { addr }),
                CmEventKind::Unreachable,
                Errno::TIMEDOUT,
            ),
            (
                llp(LlpError::Unreachable { addr }),
                CmEventKind::Unreachable,
                Errno::NETUNREACH,
            ),
            (
                EndReason::ConnectTimedOut,
                CmEventKind::Unreachable,
                Errno::TIMEDOUT,
            ),
            (startup(silent), CmEventKind::Unreachable, Errno::TIMEDOUT),
            (
                startup(StartupError::RtrMissing),
                CmEventKind::ConnectError,
                Errno::PROTO,
            ),
            (
                llp(LlpError::AddressInUse { addr }),
                CmEventKind::ConnectError,
                Errno::ADDRINUSE,
            ),
            (
                EndReason::LocalDisconnect,
                CmEventKind::ConnectError,
                Errno::CONNABORTED,
            ),
        ] {
            let told = of_failure(&reason);
            assert_eq!(told, (kind, -errno.raw_os_error()), "{reason}");
        }
    }
}
