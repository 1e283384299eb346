//! Causes for ends of a connection, connection management, and events of the device.

use uwarp_mpa::MpaErrorCode;
use uwarp_rdmap::Opcode;

use super::*;
use crate::event::{AsyncEvent, EndReason};

fn facts() -> Vec<EndFacts> {
    every!(EndFacts {
        EndFacts::LocalDisconnect => [EndFacts::LocalDisconnect],
        EndFacts::PeerDisconnect => [EndFacts::PeerDisconnect],
        EndFacts::Aborted => [EndFacts::Aborted],
        EndFacts::ClosedMidway(_) => [
            EndFacts::ClosedMidway(None),
            EndFacts::ClosedMidway(Some(Opcode::Write)),
        ],
        EndFacts::ConnectTimedOut => [EndFacts::ConnectTimedOut],
        EndFacts::CloseTimedOut { .. } => [
            EndFacts::CloseTimedOut { undelivered: 0 },
            EndFacts::CloseTimedOut { undelivered: 2_694_144 },
        ],
        EndFacts::Stalled { .. } => [
            EndFacts::Stalled { sending: true },
            EndFacts::Stalled { sending: false },
        ],
        EndFacts::Rejected { .. } => [
            EndFacts::Rejected { private_data_len: 0, ord_needed: None },
            EndFacts::Rejected { private_data_len: 7, ord_needed: Some(4) },
        ],
        EndFacts::ReplyRefused(_) => [
            EndFacts::ReplyRefused(MpaErrorCode::InsufficientIrd),
            EndFacts::ReplyRefused(MpaErrorCode::NoMatchingRtr),
        ],
        EndFacts::PeerLacksRfc7306(_) => [
            EndFacts::PeerLacksRfc7306(Opcode::AtomicRequest),
            EndFacts::PeerLacksRfc7306(Opcode::Immediate),
        ],
        EndFacts::CqOverflow { .. } => [EndFacts::CqOverflow { cq_num: 3, depth: 16, wr_id: 42 }],
        EndFacts::PeerGone => [EndFacts::PeerGone],
    })
}

/// Causes without a hint: a `LocalDisconnect` and an open connection.
const NOTHING_WRONG: &[&str] = &["closed by this side", "open in both directions"];

#[test]
fn ends_in_words() {
    let causes = facts().into_iter().map(Cause::end);
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

#[test]
fn a_reason_begins_with_the_sentence_of_its_cause_and_ends_with_the_hint() {
    for reason in super::samples::reasons() {
        let (text, cause) = (reason.to_string(), reason.cause());
        assert!(text.starts_with(&cause.sentence()), "{text}");
        assert!(text.ends_with(cause.hint().unwrap_or("")), "{text}");
    }
}
