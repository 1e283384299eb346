//! Sends with Immediate Data.

use uwarp_verbs::{
    AcceptOptions, Completion, PairOptions, PeerQp, PostErrorKind, QpCaps, RecvWr, SendWr, Srq,
    SrqAttr, Status, WcOpcode,
};

use crate::common::{LIMIT, Setup, Wire};
use crate::{Host, LOOPBACK, exchange, meet};

/// Waits for a receive with this number. Returns its length, its Immediate Data and its flag for a
/// solicited event.
#[track_caller]
fn received(host: &Host, wr_id: u64) -> (u32, Option<[u8; 8]>, bool) {
    let Completion {
        opcode,
        byte_len,
        immediate,
        solicited,
        ..
    } = host.cq.success(wr_id);
    assert_eq!(opcode, WcOpcode::Recv);
    (byte_len, immediate, solicited)
}

#[test]
fn a_send_with_immediate_data_takes_one_receive_and_completes_once_on_each_side() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    // The first one is posted before it is known what the peer takes.
    x.pair(b.peer(&y), &PairOptions::default()).unwrap();
    b.receive(&y, 1);
    x.post_send(&SendWr::send_with_immediate_inline(2, b"before", *b"\0imm"))
        .unwrap();
    y.pair(a.peer(&x), &PairOptions::default()).unwrap();
    assert_eq!(a.cq.success(2).opcode, WcOpcode::Send);
    assert_eq!(received(&b, 1), (6, Some(*b"\0imm\0\0\0\0"), false));

    // Between Sends without, in both directions, inline and from memory.
    let source = [a.region.sge(0, 32)];
    a.region
        .write_at(0, b"this is the payload of a message")
        .unwrap();
    for wr_id in 10..13 {
        b.receive(&y, wr_id);
    }
    x.post_send_all(&[
        SendWr::send_inline(20, b"plain").unsignaled(),
        SendWr::send_with_immediate(21, &source, [1, 2, 3, 4]).solicited(),
        SendWr::send_inline(22, b""),
    ])
    .unwrap();
    assert_eq!(received(&b, 10), (5, None, false));
    assert_eq!(received(&b, 11), (32, Some([1, 2, 3, 4, 0, 0, 0, 0]), true));
    assert_eq!(received(&b, 12), (0, None, false));
    let mut bytes = [0; 32];
    b.region.read_at(2048, &mut bytes).unwrap();
    assert_eq!(&bytes, b"this is the payload of a message");
    assert_eq!([a.cq.next().wr_id, a.cq.next().wr_id], [21, 22]);
    exchange([&a, &b], [&x, &y]);
}

#[test]
fn immediate_data_without_payload_takes_a_receive_without_elements() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    meet([&a, &b], [&x, &y]);
    y.post_recv(&RecvWr::new(1, &[])).unwrap();
    x.post_send(&SendWr::send_with_immediate(2, &[], *b"3fs!"))
        .unwrap();
    a.cq.success(2);
    assert_eq!(received(&b, 1), (0, Some(*b"3fs!\0\0\0\0"), false));
}

#[test]
fn a_write_with_immediate_data_before_such_a_send_keeps_its_own() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    meet([&a, &b], [&x, &y]);
    b.receive(&y, 1);
    b.receive(&y, 2);
    let remote = b.region.remote().slice(0, 4).unwrap();
    x.post_send_all(&[
        SendWr::write_with_immediate_inline(3, b"four", remote, *b"of write").unsignaled(),
        SendWr::send_with_immediate_inline(4, b"send", *b"send"),
    ])
    .unwrap();
    let first = b.cq.success(1);
    assert_eq!(first.opcode, WcOpcode::RecvImmediate);
    assert_eq!((first.immediate, first.written), (Some(*b"of write"), 4));
    assert_eq!(received(&b, 2), (4, Some(*b"send\0\0\0\0"), false));
    a.cq.success(4);
}

#[test]
fn a_receive_of_an_srq_takes_a_send_with_immediate_data() {
    let [a, b] = [Host::here(), Host::here()];
    let srq: Srq = b.pd.create_srq(SrqAttr::default()).unwrap();
    let x = a.qp();
    let builder = b.pd.qp().rendezvous(&b.rendezvous).srq(&srq);
    let y = builder.build(&b.cq, &b.cq).unwrap();
    meet([&a, &b], [&x, &y]);
    srq.post_recv(&RecvWr::new(1, &[b.region.sge(0, 8)]))
        .unwrap();
    x.post_send(&SendWr::send_with_immediate_inline(2, b"shared", *b"data"))
        .unwrap();
    assert_eq!(received(&b, 1), (6, Some(*b"data\0\0\0\0"), false));
}

#[test]
fn a_qp_connected_to_itself_takes_them() {
    let a = Host::here();
    let x = a.qp();
    x.pair(a.peer(&x), &PairOptions::default()).unwrap();
    a.receive(&x, 1);
    x.post_send(&SendWr::send_with_immediate_inline(2, b"self", *b"data").unsignaled())
        .unwrap();
    assert_eq!(received(&a, 1), (4, Some(*b"data\0\0\0\0"), false));
}

#[test]
fn what_cannot_be_sent_is_refused_at_the_post() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    meet([&a, &b], [&x, &y]);
    exchange([&a, &b], [&x, &y]);
    let refused = |wr: &SendWr<'_>| x.post_send(wr).unwrap_err().kind;
    let long = SendWr::send_inline(1, b"").with_immediate(*b"eight of");
    assert_eq!(refused(&long), PostErrorKind::LongImmediate);
    // The marker of the Immediate Data of a Send.
    let reserved = SendWr::immediate(2, *b"1234SImm");
    assert_eq!(refused(&reserved), PostErrorKind::ReservedImmediate);
    exchange([&a, &b], [&x, &y]);
}

#[test]
fn on_a_connection_by_address_they_are_refused_and_the_marker_is_data() {
    let (a, b) = Setup::new(Wire::Kernel).connected();
    let wr = SendWr::send_with_immediate_inline(1, b"data", *b"data");
    let error = a.qp.post_send(&wr).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::NoSendWithImmediate);
    b.qp.post_recv(&RecvWr::new(2, &[])).unwrap();
    a.qp.post_send(&SendWr::immediate(3, *b"1234SImm")).unwrap();
    let done = b.recv_cq.success(2);
    assert_eq!(done.immediate, Some(*b"1234SImm"));
}

#[test]
fn a_peer_of_another_release_that_takes_none_fails_what_was_posted_and_refuses_the_rest() {
    let (host, listener, x, number) = loop {
        let host = Host::here();
        let listener = host.device.listen((LOOPBACK, 0).into()).unwrap();
        let x = host.qp();
        let number = u32::from(listener.local_addr().port()) << 8;
        // The smaller number calls.
        if x.qp_num() < number {
            break (host, listener, x, number);
        }
    };
    for posted_before in [true, false] {
        let _ = x.reset();
        x.pair(PeerQp::new(LOOPBACK, number), &PairOptions::default())
            .unwrap();
        let send = SendWr::send_with_immediate_inline(7, b"data", *b"data");
        if posted_before {
            host.send(&x, 6);
            x.post_send(&send).unwrap();
        }
        let request = listener.wait_request(Some(LIMIT)).unwrap();
        let cq = host.device.create_cq(16).unwrap();
        let y = host.pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        host.receive(&y, 1);
        // The Reply of a rendezvous without the flag.
        let reply = AcceptOptions::default().private_data(*b"uwQP\x01\0\0\0");
        request.accept(&y, &reply).unwrap();
        if posted_before {
            host.done([6]);
            let failed = host.cq.next();
            let seen = (failed.wr_id, failed.status);
            assert_eq!(seen, (7, Status::LocalQpOperation), "{failed:?}");
        } else {
            host.send(&x, 8);
            host.done([8]);
            let error = x.post_send(&send).unwrap_err();
            assert_eq!(error.kind, PostErrorKind::NoSendWithImmediate);
        }
    }
}
