//! Immediate Data: alone and after a Write, with and without a solicited event.

use std::time::Duration;

use uwarp_verbs::{EndReason, Notify, QpCaps, RecvWr, RemoteBuffer, SendWr, Status, WcOpcode};

use crate::common::{
    CqHandle, LIMIT, Setup, Wire, bell, brief, content, join, pair, peers, placed_only,
};

#[test]
fn a_write_with_immediate_is_one_request_and_one_completion_on_each_side() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        for len in [0u32, 1, 1448, 100_000] {
            let (source, target, unused) = (a.filled(1, 100_000), b.blank(100_000), b.blank(16));
            let remote = target.remote();
            b.post_whole(7, &unused);
            let sges = [source.sge(0, len)];
            let imm = *b"12345678";
            let wr = SendWr::write_with_immediate(
                1,
                &sges,
                RemoteBuffer::at(remote.addr, remote.rkey),
                imm,
            );
            a.qp.post_send(&wr).unwrap();
            assert_eq!(
                brief(&a.send_cq.next()),
                (1, Status::Success, WcOpcode::RdmaWrite, 0)
            );
            a.send_cq.assert_empty();
            // When the Immediate Data is received, the bytes of the Write must have been placed.
            let done = b.recv_cq.next();
            assert_eq!(
                brief(&done),
                (7, Status::Success, WcOpcode::RecvImmediate, 0)
            );
            assert_eq!(done.written, len);
            assert_eq!(done.immediate, Some(imm));
            assert_eq!((done.solicited, done.invalidated), (false, None));
            let bytes = &content(&source)[..len as usize];
            placed_only(&target, 0, bytes, "target");
            // 7306-6.3-02: the receive is consumed, and its memory is unchanged.
            placed_only(&unused, 0, &[], "receive");
            b.recv_cq.assert_empty();
        }
    }
}

#[test]
fn inline_data_goes_with_immediate_as_well() {
    let (a, b) = pair(Wire::MEMORY);
    let target = b.blank(16);
    let remote = target.remote();
    b.post_empty(7);
    let wr = SendWr::write_with_immediate_inline(
        1,
        b"inline",
        RemoteBuffer::at(remote.addr + 3, remote.rkey),
        [9; 8],
    );
    a.qp.post_send(&wr).unwrap();
    a.send_cq.success(1);
    assert_eq!(b.recv_cq.success(7).immediate, Some([9; 8]));
    placed_only(&target, 3, b"inline", "target");
}

#[test]
fn immediate_data_alone_completes_as_a_send_and_in_order_with_the_sends() {
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        for (from, to) in [(&a, &b), (&b, &a)] {
            let memory = to.blank(5);
            for wr_id in 0..4 {
                to.post_whole(wr_id, &memory);
            }
            let imm = |value: u64| value.to_be_bytes();
            for wr in [
                SendWr::send_inline(0, b"first"),
                SendWr::immediate(1, imm(1)),
                SendWr::immediate(2, imm(2)).solicited(),
                SendWr::send_inline(3, b"last"),
            ] {
                from.qp.post_send(&wr).unwrap();
            }
            let sent: Vec<_> = (0..4).map(|_| brief(&from.send_cq.next())).collect();
            let as_send = |wr_id| (wr_id, Status::Success, WcOpcode::Send, 0);
            assert_eq!(sent, [0, 1, 2, 3].map(as_send));
            // 7306-6.3-03
            let got: Vec<_> = (0..4)
                .map(|wr_id| {
                    let done = to.recv_cq.success(wr_id);
                    (done.opcode, done.byte_len, done.immediate, done.solicited)
                })
                .collect();
            assert_eq!(
                got,
                [
                    (WcOpcode::Recv, 5, None, false),
                    (WcOpcode::RecvImmediate, 0, Some(imm(1)), false),
                    (WcOpcode::RecvImmediate, 0, Some(imm(2)), true),
                    (WcOpcode::Recv, 4, None, false),
                ]
            );
        }
    }
}

#[test]
fn only_immediate_data_with_a_solicited_event_wakes_who_waits_for_one() {
    let setup = Setup::new(Wire::Kernel);
    let ends = setup.unconnected();
    let channel = ends.b.device.create_channel().unwrap();
    let cq = CqHandle(ends.b.device.create_cq_on(16, &channel, 1).unwrap());
    let qp = ends.b.pd.create_qp(&ends.b.send_cq, &cq, QpCaps::default());
    let qp = qp.unwrap();
    for wr_id in 0..8 {
        qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
    join(
        &ends.listener,
        &ends.a.qp,
        &qp,
        &setup.connect,
        &setup.accept,
    );
    let target = ends.b.blank(8);
    let (to, rkey) = (target.remote().addr, target.remote().rkey);
    let with_write = |wr_id| {
        SendWr::write_with_immediate_inline(wr_id, b"data", RemoteBuffer::at(to, rkey), [2; 8])
    };
    let mut wr_id = 0;
    for (quiet, loud) in [
        (
            SendWr::immediate(0, [1; 8]),
            SendWr::immediate(1, [1; 8]).solicited(),
        ),
        (with_write(0), with_write(1).solicited()),
    ] {
        cq.req_notify(Notify::Solicited);
        ends.a.qp.post_send(&quiet).unwrap();
        ends.a.send_cq.success(0);
        // The message has arrived without an event.
        let done = cq.success(wr_id);
        assert_eq!((done.solicited, channel.waiting()), (false, 0));
        assert!(channel.get_event(Some(Duration::ZERO)).is_err());
        ends.a.qp.post_send(&loud).unwrap();
        ends.a.send_cq.success(1);
        drop(channel.get_event(Some(LIMIT)).expect("a solicited event"));
        assert!(cq.success(wr_id + 1).solicited);
        wr_id += 2;
    }
}

#[test]
fn without_a_receive_the_connection_ends_as_with_a_send() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let target = b.blank(8);
        let (to, rkey) = (target.remote().addr, target.remote().rkey);
        // The Write itself needs no receive.
        let wr =
            SendWr::write_with_immediate_inline(1, b"octets", RemoteBuffer::at(to, rkey), [3; 8]);
        a.qp.post_send(&wr).unwrap();
        let reason = b.wait_end();
        assert!(
            matches!(reason, EndReason::TerminateSent { .. }),
            "{reason}"
        );
        assert!(
            reason.to_string().contains("no receive is posted"),
            "{reason}"
        );
        let requester = a.wait_end();
        let EndReason::TerminateReceived { terminate, .. } = &requester else {
            panic!("{requester}")
        };
        assert_eq!(
            terminate.to_string().find("Immediate Data refused"),
            Some(0)
        );
        placed_only(&target, 0, b"octets", "target");
    }
}

#[test]
fn receives_that_are_flushed_carry_no_immediate_data() {
    let (a, b) = pair(Wire::MEMORY);
    b.post_empty(1);
    bell_and_close(&a, &b);
    let done = b.recv_cq.flushed(1);
    assert_eq!((done.immediate, done.opcode), (None, WcOpcode::Recv));
}

fn bell_and_close(a: &crate::common::Side, b: &crate::common::Side) {
    a.qp.disconnect();
    b.wait_end();
}

#[test]
fn an_immediate_behind_a_write_is_fenced_with_it() {
    let (a, b) = pair(Wire::MEMORY);
    let (source, out, target) = (b.filled(3, 1 << 20), a.blank(1 << 20), b.blank(8));
    b.post_empty(7);
    let sges = [out.sge(0, 1 << 20)];
    let from = source.remote();
    a.qp.post_send(&SendWr::read(
        1,
        &sges,
        RemoteBuffer::at(from.addr, from.rkey),
    ))
    .unwrap();
    let to = target.remote();
    let wr =
        SendWr::write_with_immediate_inline(2, b"go", RemoteBuffer::at(to.addr, to.rkey), [5; 8])
            .fence();
    a.qp.post_send(&wr).unwrap();
    a.send_cq.successes([1, 2]);
    assert_eq!(b.recv_cq.success(7).immediate, Some([5; 8]));
    bell(&a, &b);
}
