//! Sends with Immediate Data.

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{
    AcceptOptions, Completion, OnNoReceive, PairOptions, PeerQp, PostErrorKind, QpCaps, RecvWr,
    RendezvousOptions, SendWr, Settings, Srq, SrqAttr, Status, WcOpcode,
};

use crate::common::{LIMIT, Setup, Wire, until};
use crate::{Host, LOOPBACK, exchange, in_order, meet};

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
    // The first host calls the second one.
    for sender in [0, 1] {
        let mut hosts = in_order::<2>();
        hosts.rotate_left(sender);
        let [(a, x), (b, y)] = &hosts;
        // The first one is posted before it is known what the peer takes.
        x.pair(b.peer(y), &PairOptions::default()).unwrap();
        b.receive(y, 1);
        x.post_send(&SendWr::send_with_immediate_inline(2, b"before", *b"\0imm"))
            .unwrap();
        y.pair(a.peer(x), &PairOptions::default()).unwrap();
        assert_eq!(a.cq.success(2).opcode, WcOpcode::Send);
        assert_eq!(received(b, 1), (6, Some(*b"\0imm\0\0\0\0"), false));

        // Between Sends without, inline and from memory.
        let source = [a.region.sge(0, 32)];
        let payload = b"this is the payload of a message";
        a.region.write_at(0, payload).unwrap();
        for wr_id in 10..13 {
            b.receive(y, wr_id);
        }
        x.post_send_all(&[
            SendWr::send_inline(20, b"plain").unsignaled(),
            SendWr::send_with_immediate(21, &source, [1, 2, 3, 4]).solicited(),
            SendWr::send_inline(22, b""),
        ])
        .unwrap();
        assert_eq!(received(b, 10), (5, None, false));
        assert_eq!(received(b, 11), (32, Some([1, 2, 3, 4, 0, 0, 0, 0]), true));
        assert_eq!(received(b, 12), (0, None, false));
        let mut bytes = [0; 32];
        b.region.read_at(2048, &mut bytes).unwrap();
        assert_eq!(&bytes, payload);
        assert_eq!([a.cq.next().wr_id, a.cq.next().wr_id], [21, 22]);
        exchange([a, b], [x, y]);
    }
}

#[test]
fn a_send_waits_for_a_receive_and_keeps_its_immediate_data() {
    let mut settings = Settings::default();
    settings.on_no_receive = OnNoReceive::Hold(LIMIT);
    let options = RendezvousOptions::default().addr(Some(LOOPBACK));
    let network = std::sync::Arc::<KernelNetwork>::default();
    let (a, b) = (
        Host::here(),
        Host::with(network, LOOPBACK, options, settings),
    );
    let (x, y) = (a.qp(), b.qp());
    meet([&a, &b], [&x, &y]);
    x.post_send_all(&[
        SendWr::send_with_immediate_inline(1, b"one", *b"data").unsignaled(),
        SendWr::send_with_immediate_inline(2, b"other", *b"more"),
    ])
    .unwrap();
    // TCP has taken both, and the first one waits.
    a.cq.success(2);
    b.receive(&y, 3);
    assert_eq!(received(&b, 3), (3, Some(*b"data\0\0\0\0"), false));
    b.receive(&y, 4);
    assert_eq!(received(&b, 4), (5, Some(*b"more\0\0\0\0"), false));
}

#[test]
fn immediate_data_whose_send_was_lost_with_its_stream_is_not_shown_on_the_next_one() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    meet([&a, &b], [&x, &y]);
    // The Send finds no receive, which ends the connection.
    x.post_send(&SendWr::send_with_immediate_inline(1, b"none", *b"lost"))
        .unwrap();
    let _ = a.cq.next();
    for qp in [&x, &y] {
        until("the QP is reset", || qp.reset());
    }
    meet([&a, &b], [&x, &y]);
    b.receive(&y, 2);
    x.post_send(&SendWr::send_inline(3, b"plain")).unwrap();
    assert_eq!(received(&b, 2), (5, None, false));
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
        until("the QP is reset", || x.reset());
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
