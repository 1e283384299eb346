//! Causes for ends of a connection, connection management, and events of the device.

use uwarp_engine::fork_guard::Inherited;
use uwarp_mpa::MpaErrorCode;
use uwarp_rdmap::{Opcode, StreamError};

use super::*;
use crate::cm::{
    AcceptError, Attempt, CmReason, ConnectError, RequestError, ResolveError, of_failure,
};
use crate::event::{AsyncEvent, EndReason};
use crate::limits::What;
use crate::progress::WouldWait;

fn kinds() -> Vec<EndKind> {
    every!(EndKind {
        EndKind::LocalDisconnect => [EndKind::LocalDisconnect],
        EndKind::PeerDisconnect => [EndKind::PeerDisconnect],
        EndKind::Aborted => [EndKind::Aborted],
        EndKind::ClosedMidway(_) => [
            EndKind::ClosedMidway(None),
            EndKind::ClosedMidway(Some(Opcode::Write)),
        ],
        EndKind::ConnectTimedOut => [EndKind::ConnectTimedOut],
        EndKind::CloseTimedOut { .. } => [
            EndKind::CloseTimedOut { undelivered: 0 },
            EndKind::CloseTimedOut { undelivered: 2_694_144 },
        ],
        EndKind::Stalled { .. } => [
            EndKind::Stalled { sending: true },
            EndKind::Stalled { sending: false },
        ],
        EndKind::Rejected { .. } => [
            EndKind::Rejected { private_data_len: 0, ord_needed: None },
            EndKind::Rejected { private_data_len: 7, ord_needed: Some(4) },
        ],
        EndKind::ReplyRefused(_) => [
            EndKind::ReplyRefused(MpaErrorCode::InsufficientIrd),
            EndKind::ReplyRefused(MpaErrorCode::NoMatchingRtr),
        ],
        EndKind::PeerLacksRfc7306(_) => [
            EndKind::PeerLacksRfc7306(Opcode::AtomicRequest),
            EndKind::PeerLacksRfc7306(Opcode::Immediate),
        ],
        EndKind::Inherited => [EndKind::Inherited],
        EndKind::WouldWait => [EndKind::WouldWait],
        EndKind::CqOverflow { .. } => [EndKind::CqOverflow { cq_num: 3, depth: 16, wr_id: 42 }],
        EndKind::DecisionTooLate => [EndKind::DecisionTooLate],
        EndKind::PeerGone => [EndKind::PeerGone],
    })
}

/// Every kind of reason, and also `ConnectFailed` and `StartupFailed` with every kind of error that
/// they can hold.
fn reasons() -> Vec<EndReason> {
    let terminate = Terminate::parse(&[0x11, 0, 0, 0]).unwrap();
    let error = StreamError::LocalCatastrophic;
    let cause = Cause::local(LocalProblem::NoReads);
    let rejected = |private_data: &[u8], ord_needed: Option<u16>| EndReason::Rejected {
        private_data: private_data.to_vec(),
        peer_ird: ord_needed,
        peer_ord: ord_needed,
        ord_needed,
    };
    let mut reasons = every!(EndReason {
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
    for error in super::transport::llp() {
        reasons.push(EndReason::ConnectFailed { error });
    }
    for error in super::transport::startup() {
        reasons.push(EndReason::StartupFailed { error });
    }
    reasons
}

/// Causes without a hint: a `LocalDisconnect` and an open connection.
const NOTHING_WRONG: &[&str] = &["closed by this side", "open in both directions"];

#[test]
fn ends_in_words() {
    let causes = kinds().into_iter().map(Cause::end);
    insta::assert_snapshot!(table("ends of a connection", causes, NOTHING_WRONG));
}

#[test]
fn events_of_the_device_in_words() {
    let (qp_num, cq_num, srq_num, depth) = (5, 3, 2, 16);
    let events = every!(AsyncEvent {
        AsyncEvent::Established { .. } => [AsyncEvent::Established { qp_num }],
        AsyncEvent::Ended { .. } => [
            AsyncEvent::Ended { qp_num, reason: EndReason::PeerDisconnect }
        ],
        AsyncEvent::CqOverflow { .. } => [AsyncEvent::CqOverflow { cq_num, depth, qp_num }],
        AsyncEvent::SrqLimitReached { .. } => [AsyncEvent::SrqLimitReached { srq_num }],
        AsyncEvent::LastWqeReached { .. } => [AsyncEvent::LastWqeReached { qp_num }],
        AsyncEvent::DeviceFatal { .. } => [
            AsyncEvent::DeviceFatal {
                error: LlpError::LinkDown { why: "the interface is gone", errno: 0 }
            }
        ],
        AsyncEvent::AddressConflict { .. } => [
            AsyncEvent::AddressConflict {
                error: LlpError::KernelHasAddress { addr: addr().ip() }
            }
        ],
        AsyncEvent::ListenerShort { .. } => [
            AsyncEvent::ListenerShort {
                local: addr(),
                error: LlpError::Exhausted { op: "accept a connection", what: "file descriptors" }
            }
        ],
    });
    let causes = events.iter().map(AsyncEvent::cause);
    insta::assert_snapshot!(table("events of the device", causes, NOTHING_WRONG));
}

/// Kind and status of the event that an id gets, and the words of its [`CmReason`].
#[test]
fn failures_of_connection_management_in_words() {
    let mut text = String::from("# events of an id whose connection does not come about\n");
    for reason in reasons() {
        let (kind, status) = of_failure(&reason);
        let cause = CmReason::Connection {
            reason: reason.clone(),
        }
        .cause();
        assert_eq!(cause, reason.cause());
        text += &format!("{kind:?}, status {status}\n  {reason}\n");
    }
    insta::assert_snapshot!(text);
}

/// Every other error of connection management has the cause of the error that it contains.
#[test]
fn errors_of_connection_management_have_the_cause_of_what_is_in_them() {
    let (addr, error) = (addr(), LlpError::Reset { addr: addr() });
    let startup = StartupError::RtrMissing;
    let (options, state) = (ConfigError::NoRtrKind, QpState::Rts);
    let limit = LimitReached::new(What::Connections, 8, None);
    let (got, max, peer) = (300, 252, uwarp_rdmap::Peer::Siw);
    let data = PrivateDataLimit { got, max, peer };
    let rejected = EndReason::Rejected {
        private_data: b"no".to_vec(),
        peer_ird: None,
        peer_ord: None,
        ord_needed: None,
    };
    let connect = every!(ConnectError {
        ConnectError::Llp { .. } => [ConnectError::Llp { error }],
        ConnectError::NoneConnected { .. } => [ConnectError::NoneConnected {
            tried: vec![Attempt { addr, error: Box::new(ConnectError::Llp { error }) }],
        }],
        ConnectError::Resolve(_) => [ConnectError::Resolve(ResolveError::NoAddress)],
        ConnectError::Startup { .. } => [ConnectError::Startup { addr, error: startup }],
        ConnectError::Rejected { .. } => [
            ConnectError::Rejected {
                addr, private_data: b"no".to_vec(), peer_ird: None, peer_ord: None, ord_needed: None
            }
        ],
        ConnectError::QpInUse { .. } => [ConnectError::QpInUse { state }],
        ConnectError::Inherited(_) => [ConnectError::Inherited(Inherited)],
        ConnectError::WouldWait(_) => [ConnectError::WouldWait(WouldWait)],
        ConnectError::Options(_) => [ConnectError::Options(options)],
        ConnectError::PrivateData(_) => [ConnectError::PrivateData(data)],
        ConnectError::Ended { .. } => [
            ConnectError::Ended { addr, reason: Box::new(EndReason::ConnectTimedOut) }
        ],
    });
    let no_address = LlpError::Misuse {
        op: "resolve the address",
        why: "the name has no address",
    };
    let meant = [
        Cause::from(error),
        Cause::from(error),
        Cause::from(no_address),
        Cause::from(startup),
        rejected.cause(),
        Cause::from(state),
        Cause::end(EndKind::Inherited),
        Cause::end(EndKind::WouldWait),
        Cause::from(options),
        Cause::from(data),
        EndReason::ConnectTimedOut.cause(),
    ];
    assert!(connect.iter().map(Cause::from).eq(meant));

    let accept = every!(AcceptError {
        AcceptError::TooLate { .. } => [AcceptError::TooLate { peer: addr }],
        AcceptError::QpInUse { .. } => [AcceptError::QpInUse { state }],
        AcceptError::Options(_) => [AcceptError::Options(options)],
        AcceptError::PrivateData(_) => [AcceptError::PrivateData(data)],
        AcceptError::Inherited(_) => [AcceptError::Inherited(Inherited)],
        AcceptError::Llp(_) => [AcceptError::Llp(error)],
        AcceptError::Limit(_) => [AcceptError::Limit(limit)],
    });
    let meant = [
        Cause::end(EndKind::DecisionTooLate),
        Cause::from(state),
        Cause::from(options),
        Cause::from(data),
        Cause::end(EndKind::Inherited),
        Cause::from(error),
        Cause::from(limit),
    ];
    assert!(accept.iter().map(Cause::from).eq(meant));

    let request = every!(RequestError {
        RequestError::Startup { .. } => [RequestError::Startup { peer: addr, error: startup }],
        RequestError::Settings(_) => [RequestError::Settings(options)],
        RequestError::Inherited(_) => [RequestError::Inherited(Inherited)],
        RequestError::WouldWait(_) => [RequestError::WouldWait(WouldWait)],
        RequestError::Llp(_) => [RequestError::Llp(error)],
        RequestError::Limit(_) => [RequestError::Limit(limit)],
    });
    let meant = [
        Cause::from(startup),
        Cause::from(options),
        Cause::end(EndKind::Inherited),
        Cause::end(EndKind::WouldWait),
        Cause::from(error),
        Cause::from(limit),
    ];
    assert!(request.iter().map(Cause::from).eq(meant));

    let reasons = every!(CmReason {
        CmReason::Network { .. } => [CmReason::Network { error }],
        CmReason::Connection { .. } => [CmReason::Connection { reason: EndReason::Aborted }],
        CmReason::Startup { .. } => [CmReason::Startup { peer: addr, error: startup }],
    });
    let meant = [
        Cause::from(error),
        EndReason::Aborted.cause(),
        Cause::from(startup),
    ];
    assert!(reasons.iter().map(CmReason::cause).eq(meant));
}
