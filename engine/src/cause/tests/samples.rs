//! Samples of every error of TCP, of MPA startup, and of every reason for the end of a connection.
//! The tests of `uwarp-verbs` include this file, too.

use std::net::{IpAddr, SocketAddr};

use uwarp_engine::cause::{Cause, LocalProblem};
use uwarp_engine::event::EndReason;
use uwarp_engine::llp::LlpError;
use uwarp_mpa::{Responder, ResponderConfig, Revision, Role, RtrKinds, StartupError};
use uwarp_rdmap::{Opcode, StreamError, Terminate};

use super::every_sample;

pub(super) fn addr() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 2], 7174))
}

pub(super) fn llp() -> Vec<LlpError> {
    let (addr, op) = (addr(), "connect");
    let ip = IpAddr::from([192, 0, 2, 2]);
    every_sample!(LlpError {
        LlpError::Refused { .. } => [LlpError::Refused { addr }],
        LlpError::Unreachable { .. } => [LlpError::Unreachable { addr }],
        LlpError::TimedOut { .. } => [LlpError::TimedOut { addr }],
        LlpError::Reset { .. } => [LlpError::Reset { addr }],
        LlpError::Broken { .. } => [LlpError::Broken { addr }],
        LlpError::AddressInUse { .. } => [LlpError::AddressInUse { addr }],
        LlpError::AddressUnavailable { .. } => [LlpError::AddressUnavailable { addr }],
        LlpError::FamilyMismatch { .. } => [
            LlpError::FamilyMismatch { local: "::1".parse().unwrap(), peer: ip }
        ],
        LlpError::ZoneMissing { .. } => [LlpError::ZoneMissing { addr: "fe80::1".parse().unwrap() }],
        LlpError::PermissionDenied { .. } => [LlpError::PermissionDenied { op: "listen" }],
        LlpError::Exhausted { .. } => [LlpError::Exhausted { op, what: "file descriptors" }],
        LlpError::Misuse { .. } => [LlpError::Misuse { op, why: "the families of the two addresses differ" }],
        LlpError::LinkDown { .. } => [LlpError::LinkDown { why: "the other end has gone", errno: 32 }],
        LlpError::KernelHasAddress { .. } => [LlpError::KernelHasAddress { addr: ip }],
        LlpError::DuplicateAddress { .. } => [
            LlpError::DuplicateAddress { addr: ip, mac: [2, 0, 0, 0, 0, 1] }
        ],
        LlpError::Io { .. } => [LlpError::Io { op, errno: 22 }],
    })
}

pub(super) fn startup() -> Vec<StartupError> {
    let (initiator, responder) = (Role::Initiator, Role::Responder);
    let closed = |received, enhanced| StartupError::Closed {
        reset: false,
        received,
        enhanced,
        peer: responder,
    };
    every_sample!(StartupError {
        StartupError::NotMpa { .. } => [not_mpa()],
        StartupError::RequestInsteadOfReply => [StartupError::RequestInsteadOfReply],
        StartupError::ReplyInsteadOfRequest => [StartupError::ReplyInsteadOfRequest],
        StartupError::UnsupportedRevision { .. } => [
            StartupError::UnsupportedRevision { revision: 3, highest: 2 },
            StartupError::UnsupportedRevision { revision: 2, highest: 1 },
        ],
        StartupError::PrivateDataTooLong { .. } => [StartupError::PrivateDataTooLong { len: 513 }],
        StartupError::EnhancedDataMissing { .. } => [StartupError::EnhancedDataMissing { len: 3 }],
        StartupError::EnhancedMismatch { .. } => [
            StartupError::EnhancedMismatch { reply_enhanced: true },
            StartupError::EnhancedMismatch { reply_enhanced: false },
        ],
        StartupError::TrailingBytes { .. } => [StartupError::TrailingBytes { count: 4 }],
        StartupError::RtrMissing => [StartupError::RtrMissing],
        StartupError::NoPlace { .. } => [
            StartupError::NoPlace { limit: 8, of_peer: true },
            StartupError::NoPlace { limit: 64, of_peer: false },
        ],
        StartupError::Displaced { .. } => [
            StartupError::Displaced { limit: 64, of_listener: true },
            StartupError::Displaced { limit: 64, of_listener: false },
        ],
        StartupError::TooManyConnections { .. } => [
            StartupError::TooManyConnections { limit: 8, of_peer: true },
            StartupError::TooManyConnections { limit: 64, of_peer: false },
        ],
        StartupError::TooManyStagErrors { .. } => [
            StartupError::TooManyStagErrors { limit: 256, wait_ms: 800 },
        ],
        StartupError::Closed { .. } => [closed(0, true), closed(0, false), closed(7, true)],
        StartupError::TimedOut { .. } => [
            StartupError::TimedOut { received: 0, peer: responder },
            StartupError::TimedOut { received: 0, peer: initiator },
            StartupError::TimedOut { received: 19, peer: initiator },
        ],
    })
}

/// Returns the error of a responder that reads something other than a Request.
fn not_mpa() -> StartupError {
    let config = ResponderConfig {
        crc: true,
        markers: false,
        max_revision: Revision::One,
        max_ird: 0,
        rtr: RtrKinds::NONE,
    };
    let mut responder = Responder::new(config).unwrap();
    let sent = b"GET / HTTP/1.1\r\nHost: example\r\n\r\n";
    responder.receive(sent).unwrap_err()
}

/// Every kind of reason, and also `ConnectFailed` and `StartupFailed` with every kind of error that
/// they can hold.
pub(super) fn reasons() -> Vec<EndReason> {
    let terminate = Terminate::parse(&[0x11, 0, 0, 0]).unwrap();
    let error = StreamError::LocalCatastrophic;
    let cause = Cause::local(LocalProblem::NoReads);
    let rejected = |private_data: &[u8], ord_needed: Option<u16>| EndReason::Rejected {
        private_data: private_data.to_vec(),
        peer_ird: ord_needed,
        peer_ord: ord_needed,
        ord_needed,
    };
    let mut reasons = every_sample!(EndReason {
        EndReason::LocalDisconnect => [EndReason::LocalDisconnect],
        EndReason::PeerDisconnect => [EndReason::PeerDisconnect],
        EndReason::Aborted => [EndReason::Aborted],
        EndReason::TerminateSent { .. } => [
            EndReason::TerminateSent { error, terminate: Some(terminate), cause },
            EndReason::TerminateSent { error, terminate: None, cause },
        ],
        EndReason::LocalError { .. } => [EndReason::LocalError { cause }],
        EndReason::CqOverflow { .. } => [
            EndReason::CqOverflow { cq_num: 3, depth: 16, wr_id: 42 }
        ],
        EndReason::TerminateReceived { .. } => [
            EndReason::TerminateReceived { terminate, cause: Cause::from(terminate) }
        ],
        EndReason::PeerLacksRfc7306 { .. } => [
            EndReason::PeerLacksRfc7306 { message: Opcode::AtomicRequest, terminate }
        ],
        EndReason::LlpLost { .. } => [EndReason::LlpLost { error: LlpError::Reset { addr: addr() } }],
        EndReason::ClosedMidway { .. } => [
            EndReason::ClosedMidway { message: None },
            EndReason::ClosedMidway { message: Some(Opcode::ReadResponse) },
        ],
        EndReason::ConnectTimedOut => [EndReason::ConnectTimedOut],
        EndReason::CloseTimedOut { .. } => [EndReason::CloseTimedOut { undelivered: 1 }],
        EndReason::Stalled { .. } => [
            EndReason::Stalled { sending: true },
            EndReason::Stalled { sending: false },
        ],
        EndReason::StartupFailed { .. } => [
            EndReason::StartupFailed { error: StartupError::RtrMissing }
        ],
        EndReason::ConnectFailed { .. } => [
            EndReason::ConnectFailed { error: LlpError::Refused { addr: addr() } }
        ],
        EndReason::Rejected { .. } => [rejected(b"", None), rejected(b"no room", Some(4))],
        EndReason::PeerGone { .. } => [
            EndReason::PeerGone { last: None },
            EndReason::PeerGone { last: Some(Box::new(EndReason::PeerDisconnect)) },
        ],
    });
    for error in llp() {
        reasons.push(EndReason::ConnectFailed { error });
    }
    for error in startup() {
        reasons.push(EndReason::StartupFailed { error });
    }
    reasons
}
