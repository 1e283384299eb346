//! Ends of the connection between the two messages of a Send with Immediate Data: the peer has the
//! Immediate Data, and not all of the Send.

use uwarp_verbs::{
    Access, EndReason, IbvQpState, MemoryRegion, Qp, QpModify, QpState, SendWr, Status,
};

use crate::Host;
use crate::caller::{Caller, SEND_IMMEDIATE, await_caller, host, marked, receive};
use crate::common::until;
use crate::wire::{Code, IMMEDIATE, SEND, Untagged};

/// Number of bytes that TCP does not take if the peer does not read: more than both of its buffers
/// hold (`tcp_wmem` and `tcp_rmem` of Linux allow 4 and 6 MiB).
const LARGE: usize = 32 << 20;

const RECEIVE: u64 = 1;
const SEND_WITH_IMMEDIATE: u64 = 2;
const LATER: u64 = 3;

/// A QP whose peer has received the Immediate Data of a Send, and reads no more.
struct Stuck {
    host: Host,
    qp: Qp,
    caller: Caller,
    /// The Immediate Data that the peer has received.
    immediate: Vec<u8>,
    _source: MemoryRegion,
}

impl Stuck {
    fn new() -> Stuck {
        let host = host();
        let source = host.pd.register(vec![7; LARGE], Access::NONE).unwrap();
        let qp = host.qp();
        await_caller(&qp);
        receive(&host, &qp, RECEIVE);
        let mut caller = Caller::new(&qp, SEND_IMMEDIATE);
        qp.post_send_all(&[
            SendWr::send_with_immediate(
                SEND_WITH_IMMEDIATE,
                &[source.sge(0, LARGE as u32)],
                *b"data",
            ),
            SendWr::send_inline(LATER, b"later"),
        ])
        .unwrap();
        let immediate = caller.peer.receive_ulpdu();
        let due = Untagged::new(IMMEDIATE, 0, 1, &marked(b"data"));
        assert_eq!(immediate, due.bytes());
        host.cq.assert_empty();
        Stuck {
            host,
            qp,
            caller,
            immediate,
            _source: source,
        }
    }

    /// Waits for the completions: the Send with this status, and the others flushed.
    #[track_caller]
    fn completes(&self, status: Status) {
        let mut seen = [(); 3].map(|()| {
            let done = self.host.cq.next();
            (done.wr_id, done.status)
        });
        seen.sort_by_key(|(wr_id, _)| *wr_id);
        let due = [
            (RECEIVE, Status::WrFlush),
            (SEND_WITH_IMMEDIATE, status),
            (LATER, Status::WrFlush),
        ];
        assert_eq!(seen, due);
        self.host.cq.assert_empty();
    }

    /// Checks that a new connection of the QP begins without Immediate Data in either direction.
    fn begins_anew(self) {
        let Stuck { host, qp, .. } = self;
        await_caller(&qp);
        receive(&host, &qp, 4);
        let mut caller = Caller::new(&qp, SEND_IMMEDIATE);
        qp.post_send_all(&[
            SendWr::send_inline(5, b"plain"),
            SendWr::send_with_immediate_inline(6, b"other", *b"more"),
        ])
        .unwrap();
        let mut next = |opcode, msn, payload: &[u8]| {
            let due = Untagged::new(opcode, 0, msn, payload);
            assert_eq!(caller.peer.receive_ulpdu(), due.bytes());
        };
        next(SEND, 1, b"plain");
        next(IMMEDIATE, 2, &marked(b"more"));
        next(SEND, 3, b"other");
        host.done([5, 6]);
        caller.send(b"answer");
        let received = host.cq.success(4);
        assert_eq!((received.byte_len, received.immediate), (6, None));
    }

    fn reset(&self) {
        until("the QP is reset", || self.qp.reset());
    }
}

/// The peer terminates with this code about the Immediate Data. The Send must get this status.
fn terminated(code: Code, status: Status) {
    let mut stuck = Stuck::new();
    stuck.caller.send_ulpdu(&code.about(&stuck.immediate));
    stuck.completes(status);
    let reason = stuck.qp.end_reason().unwrap();
    assert!(
        matches!(
            reason,
            EndReason::TerminateReceived { .. } | EndReason::PeerLacksRfc7306 { .. }
        ),
        "{reason:?}"
    );
    // What follows is flushed.
    receive(&stuck.host, &stuck.qp, 8);
    stuck.host.send(&stuck.qp, 9);
    stuck.host.cq.flushed(8);
    stuck.host.cq.flushed(9);
    stuck.caller.peer.reset();
    until("the QP ends", || stuck.qp.state() == QpState::Error);
    stuck.reset();
    stuck.begins_anew();
}

#[test]
fn a_terminate_about_the_immediate_data_blames_its_send() {
    terminated(Code::ddp(2, 0x02), Status::RemoteOperation);
    terminated(Code::ddp(2, 0x03), Status::RemoteOperation);
}

#[test]
fn a_peer_that_does_not_know_the_message_has_refused_the_send() {
    terminated(Code::rdmap(2, 0x06), Status::RemoteInvalidRequest);
}

#[test]
fn a_terminate_about_nothing_flushes_the_send() {
    terminated(Code::mpa(0x02), Status::WrFlush);
}

#[test]
fn a_terminate_about_the_begin_of_the_payload_blames_the_send() {
    let mut stuck = Stuck::new();
    let begin = stuck.caller.peer.receive_ulpdu();
    stuck.caller.send_ulpdu(&Code::ddp(2, 0x05).about(&begin));
    stuck.completes(Status::RemoteOperation);
}

#[test]
fn a_terminate_about_the_immediate_data_of_a_complete_send_makes_no_second_completion() {
    let host = host();
    let qp = host.qp();
    await_caller(&qp);
    receive(&host, &qp, 1);
    let mut caller = Caller::new(&qp, SEND_IMMEDIATE);
    qp.post_send(&SendWr::send_with_immediate_inline(2, b"small", *b"data"))
        .unwrap();
    host.done([2]);
    let immediate = caller.peer.receive_ulpdu();
    caller.send_ulpdu(&Code::ddp(2, 0x02).about(&immediate));
    host.cq.flushed(1);
    host.cq.assert_empty();
    let reason = qp.end_reason();
    let received = matches!(reason, Some(EndReason::TerminateReceived { .. }));
    assert!(received, "{reason:?}");
}

#[test]
fn a_peer_that_goes_between_the_two_fails_the_send_and_nothing_is_left_after_a_reset() {
    for is_reset in [true, false] {
        let stuck = Stuck::new();
        match is_reset {
            true => stuck.caller.peer.reset(),
            false => stuck.caller.peer.fin(),
        }
        stuck.completes(Status::RetryExceeded);
        assert_eq!(stuck.qp.state(), QpState::Error);
        stuck.reset();
        stuck.begins_anew();
    }
}

#[test]
fn a_reset_between_the_two_leaves_nothing() {
    let stuck = Stuck::new();
    let reset = QpModify::new().ibv_state(IbvQpState::Reset);
    stuck.qp.modify(&reset.discard_completions()).unwrap();
    assert_eq!(stuck.qp.state(), QpState::Idle);
    stuck.host.cq.assert_empty();
    stuck.begins_anew();
}
