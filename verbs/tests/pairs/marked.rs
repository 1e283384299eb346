//! Immediate Data that belongs to a Send, from a peer that does not send it as this library does.

use uwarp_verbs::{
    Completion, IbvQpState, Qp, QpModify, QpState, RecvWr, SrqAttr, Status, WcOpcode,
};

use crate::caller::{
    Caller, SEND_IMMEDIATE, UNRELIABLE, await_caller, host, marked, receive, unreliable,
};
use crate::common::until;
use crate::wire::{
    ATOMIC_REQUEST, ATOMIC_RESPONSE, AtomicHeader, Code, IMMEDIATE, IMMEDIATE_SOLICITED,
    READ_REQUEST, READ_RESPONSE, ReadHeader, SEND, Tagged, Untagged, WRITE,
};
use crate::{Host, exchange, meet};

/// A host whose QP is connected to a raw peer that takes Immediate Data of Sends.
fn connected() -> (Host, Qp, Caller) {
    connected_with(SEND_IMMEDIATE)
}

fn connected_with(flags: u8) -> (Host, Qp, Caller) {
    let host = host();
    let qp = match flags & UNRELIABLE {
        0 => host.qp(),
        _ => unreliable(&host),
    };
    await_caller(&qp);
    let caller = Caller::new(&qp, flags);
    (host, qp, caller)
}

/// Waits for the receive of a Send. Returns its length and its Immediate Data.
#[track_caller]
fn received(host: &Host, wr_id: u64) -> (u32, Option<[u8; 8]>) {
    let done: Completion = host.cq.success(wr_id);
    assert_eq!(done.opcode, WcOpcode::Recv);
    (done.byte_len, done.immediate)
}

fn shown(data: &[u8; 4]) -> Option<[u8; 8]> {
    let [a, b, c, d] = *data;
    Some([a, b, c, d, 0, 0, 0, 0])
}

#[test]
fn of_several_before_one_send_the_last_is_shown_and_none_takes_a_receive() {
    let (host, qp, mut caller) = connected();
    receive(&host, &qp, 1);
    receive(&host, &qp, 2);
    for _ in 0..5000 {
        caller.send_marked(b"many");
    }
    caller.send_marked(b"last");
    caller.send(b"one");
    caller.send(b"other");
    assert_eq!(received(&host, 1), (3, shown(b"last")));
    assert_eq!(received(&host, 2), (5, None));
    host.cq.assert_empty();
}

#[test]
fn it_is_kept_over_a_write_a_read_and_an_atomic_operation() {
    let (host, qp, mut caller) = connected();
    receive(&host, &qp, 1);
    let remote = host.region.remote();
    caller.send_marked(b"kept");
    caller.send_ulpdu(&Tagged::new(WRITE, remote.rkey, remote.addr, b"of Write").bytes());
    let read = ReadHeader {
        sink_stag: 0x5151_5151,
        sink_to: 0x7000,
        len: 8,
        source_stag: remote.rkey,
        source_to: remote.addr,
    };
    caller.send_ulpdu(&Untagged::new(READ_REQUEST, 1, 1, &read.bytes()).bytes());
    let response = Tagged::new(READ_RESPONSE, 0x5151_5151, 0x7000, b"of Write");
    assert_eq!(caller.peer.receive_ulpdu(), response.bytes());
    let atomic = AtomicHeader {
        code: 0,
        id: 7,
        stag: remote.rkey,
        to: remote.addr.next_multiple_of(8) + 8,
        words: [1, 0, 0, u64::MAX],
    };
    caller.send_ulpdu(&Untagged::new(ATOMIC_REQUEST, 1, 2, &atomic.bytes()).bytes());
    let response = caller.peer.receive_ulpdu();
    assert_eq!(response[1] & 0x0F, ATOMIC_RESPONSE);
    host.cq.assert_empty();
    caller.send(b"at last");
    assert_eq!(received(&host, 1), (7, shown(b"kept")));
}

#[test]
fn other_immediate_data_takes_a_receive_and_makes_it_forgotten() {
    for opcode in [IMMEDIATE, IMMEDIATE_SOLICITED] {
        for data in [b"of Write", b"SImm\0\0\0\0"] {
            let (host, qp, mut caller) = connected();
            receive(&host, &qp, 1);
            receive(&host, &qp, 2);
            caller.send_marked(b"lost");
            let ulpdu = caller.next(opcode, data).bytes();
            caller.send_ulpdu(&ulpdu);
            caller.send(b"plain");
            let done = host.cq.success(1);
            assert_eq!(done.opcode, WcOpcode::RecvImmediate);
            assert_eq!(done.immediate, Some(*data));
            assert_eq!(received(&host, 2), (5, None));
        }
    }
}

#[test]
fn with_a_solicited_event_the_marker_is_data() {
    let (host, qp, mut caller) = connected();
    receive(&host, &qp, 1);
    let ulpdu = caller.next(IMMEDIATE_SOLICITED, &marked(b"data")).bytes();
    caller.send_ulpdu(&ulpdu);
    assert_eq!(host.cq.success(1).immediate, Some(*b"dataSImm"));
}

#[test]
fn on_a_connection_that_did_not_offer_it_the_marker_is_data() {
    let (host, qp, mut caller) = connected_with(0);
    receive(&host, &qp, 1);
    receive(&host, &qp, 2);
    caller.send_marked(b"data");
    caller.send(b"plain");
    let done = host.cq.success(1);
    assert_eq!(done.opcode, WcOpcode::RecvImmediate);
    assert_eq!(done.immediate, Some(*b"dataSImm"));
    assert_eq!(received(&host, 2), (5, None));
}

#[test]
fn it_takes_no_receive_of_a_shared_queue_that_has_none() {
    let host = host();
    let srq = host.pd.create_srq(SrqAttr::default()).unwrap();
    let builder = host.pd.qp().rendezvous(&host.rendezvous).srq(&srq);
    let qp = builder.build(&host.cq, &host.cq).unwrap();
    await_caller(&qp);
    let mut caller = Caller::new(&qp, SEND_IMMEDIATE);
    caller.send_marked(b"kept");
    // The Response shows that the message before was handled, without a receive.
    let read = ReadHeader {
        sink_stag: 0x5151_5151,
        sink_to: 0x7000,
        len: 0,
        source_stag: 0,
        source_to: 0,
    };
    caller.send_ulpdu(&Untagged::new(READ_REQUEST, 1, 1, &read.bytes()).bytes());
    let response = Tagged::new(READ_RESPONSE, 0x5151_5151, 0x7000, b"");
    assert_eq!(caller.peer.receive_ulpdu(), response.bytes());
    srq.post_recv(&RecvWr::new(1, &[host.region.sge(0, 16)]))
        .unwrap();
    caller.send(b"shared");
    assert_eq!(received(&host, 1), (6, shown(b"kept")));
}

#[test]
fn that_of_a_dropped_send_of_an_unreliable_peer_is_not_shown_with_the_next() {
    let (host, qp, mut caller) = connected_with(SEND_IMMEDIATE | UNRELIABLE);
    caller.send_marked(b"lost");
    caller.send(b"no receive");
    // The Write is placed after the Send was dropped.
    let remote = host.region.remote();
    caller.send_ulpdu(&Tagged::new(WRITE, remote.rkey, remote.addr, b"placed").bytes());
    let mut found = [0; 6];
    until("the Write is placed", || {
        host.region.read_at(0, &mut found).unwrap();
        &found == b"placed"
    });
    receive(&host, &qp, 1);
    caller.send(b"plain");
    assert_eq!(received(&host, 1), (5, None));
}

#[test]
fn one_without_its_send_before_a_fin_or_reset_leaves_the_receives_and_is_forgotten() {
    for is_reset in [false, true] {
        for begins_send in [false, true] {
            let (host, qp, mut caller) = connected();
            receive(&host, &qp, 1);
            caller.send_marked(b"lost");
            if begins_send {
                let begun = Untagged {
                    last: false,
                    ..caller.next(SEND, b"the begin")
                };
                caller.send_ulpdu(&begun.bytes());
            }
            let sent = caller.peer.tx.position as u64;
            until("it is received", || {
                host.device.traffic().received_bytes >= sent
            });
            match is_reset {
                true => caller.peer.reset(),
                false => caller.peer.fin(),
            }
            until("the peer has gone", || qp.state() == QpState::Connecting);
            host.cq.assert_empty();
            assert!(qp.end_reason().is_none());
            qp.modify(
                &QpModify::new()
                    .ibv_state(IbvQpState::Reset)
                    .discard_completions(),
            )
            .unwrap();
            host.cq.assert_empty();
            receive(&host, &qp, 2);
            await_caller(&qp);
            let mut caller = Caller::new(&qp, SEND_IMMEDIATE);
            caller.send(b"plain");
            assert_eq!(received(&host, 2), (5, None));
        }
    }
}

/// Sends this ULPDU after a correct Immediate Data message. The peer must get a Terminate with this
/// code, and the receives are flushed without Immediate Data. `blamed`: status of the first one.
fn refuses(bad: impl Fn(&mut Caller) -> Vec<u8>, code: Code, blamed: Status) {
    let (host, qp, mut caller) = connected();
    receive(&host, &qp, 1);
    receive(&host, &qp, 2);
    caller.send_marked(b"lost");
    let ulpdu = bad(&mut caller);
    caller.send_ulpdu(&ulpdu);
    assert_eq!(caller.peer.receive_ulpdu(), code.about(&ulpdu));
    caller.peer.expect_fin();
    caller.peer.fin();
    for (wr_id, status) in [(1, blamed), (2, Status::WrFlush)] {
        let done = host.cq.next();
        assert_eq!((done.wr_id, done.status), (wr_id, status), "{done:?}");
        assert_eq!(done.immediate, None);
    }
    until("the QP ends", || qp.state() == QpState::Error);
    until("the QP is reset", || qp.reset());
    // Nothing is left: the QP meets another peer.
    let other = Host::here();
    let peer = other.qp();
    meet([&host, &other], [&qp, &peer]);
    exchange([&host, &other], [&qp, &peer]);
}

#[test]
fn one_on_another_queue_or_out_of_turn_is_refused() {
    for (qn, code) in [(1, 0x01), (2, 0x01), (3, 0x01)] {
        let bad = move |caller: &mut Caller| {
            Untagged {
                qn,
                msn: 1,
                ..caller.next(IMMEDIATE, &marked(b"data"))
            }
            .bytes()
        };
        refuses(bad, Code::ddp(2, code), Status::WrFlush);
    }
    for ahead in [1, 1000, u32::MAX] {
        let bad = move |caller: &mut Caller| {
            caller.msn = caller.msn.wrapping_add(ahead);
            caller.next(IMMEDIATE, &marked(b"data")).bytes()
        };
        refuses(bad, Code::ddp(2, 0x03), Status::WrFlush);
    }
    let bad = |caller: &mut Caller| {
        Untagged {
            mo: 8,
            ..caller.next(IMMEDIATE, &marked(b"data"))
        }
        .bytes()
    };
    refuses(bad, Code::ddp(2, 0x04), Status::WrFlush);
}

#[test]
fn one_of_another_length_is_refused_as_other_immediate_data_is() {
    let longer = [&marked(b"data")[..], b"more"].concat();
    for data in [&longer[..], b"dataSIm", b"SImm", b""] {
        let bad = |caller: &mut Caller| caller.next(IMMEDIATE, data).bytes();
        refuses(bad, Code::rdmap(2, 0xFF), Status::LocalLength);
    }
}

#[test]
fn one_in_the_middle_of_a_send_is_refused() {
    let bad = |caller: &mut Caller| {
        let begun = Untagged {
            last: false,
            ..caller.next(SEND, b"the begin")
        };
        caller.send_ulpdu(&begun.bytes());
        caller.next(IMMEDIATE, &marked(b"data")).bytes()
    };
    refuses(bad, Code::ddp(2, 0x03), Status::WrFlush);
}
