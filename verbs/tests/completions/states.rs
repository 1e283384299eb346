//! Posts in each state of a QP.

use uwarp_oracle::{Crc, Untagged, fpdu};

use super::*;

#[test]
fn an_idle_qp_takes_receives_which_wait_and_no_sends() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    assert_eq!(ends.b.qp.state(), QpState::Idle);
    let sink = ends.b.blank(20);
    ends.b.post_whole(1, &sink);
    let error = ends.b.qp.post_send(&SendWr::send(1, &[])).unwrap_err();
    assert_eq!(
        error.kind,
        PostErrorKind::NotConnected {
            state: QpState::Idle
        }
    );
    assert!(
        error
            .to_string()
            .contains("state IDLE: connect or accept first"),
        "{error}"
    );
    ends.b.recv_cq.assert_empty();

    ends.join();
    assert_eq!(
        (ends.a.qp.state(), ends.b.qp.state()),
        (QpState::Rts, QpState::Rts)
    );
    ends.a
        .qp
        .post_send(&SendWr::send_inline(1, b"early receive"))
        .unwrap();
    assert_eq!(ends.b.recv_cq.success(1).byte_len, 13);
    ends.a.send_cq.success(1);
}

#[test]
fn work_posted_while_connecting_waits_and_is_done() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        std::thread::scope(|scope| {
            let connecting =
                scope.spawn(|| a.qp.connect(ends.listener.local_addr(), &setup.connect));
            let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
            assert_eq!(a.qp.state(), QpState::Connecting);
            let sink = a.blank(10);
            a.post_whole(5, &sink);
            a.qp.post_send(&SendWr::send_inline(6, b"early")).unwrap();
            a.send_cq.assert_empty();
            let early = b.blank(10);
            b.post_whole(7, &early);
            b.qp.post_recv(&RecvWr::new(8, &[])).unwrap();
            request.accept(&b.qp, &setup.accept).unwrap();
            connecting.join().unwrap().unwrap();
            b.recv_cq.success(7);
            assert_eq!(&content(&early)[..5], b"early");
            a.send_cq.success(6);
            b.qp.post_send(&SendWr::send_inline(9, b"answer")).unwrap();
            a.recv_cq.success(5);
            assert_eq!(&content(&sink)[..6], b"answer");
        });
    }
}

#[test]
fn work_outstanding_at_the_end_is_flushed_and_so_is_what_comes_later() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        // The responder's requests cannot start. The end flushes all of them, signaled or not.
        let (local, sink) = (b.filled(1, 100), b.blank(10));
        let sges = [local.sge(0, 100)];
        b.qp.post_send_list(&[
            SendWr::send(1, &sges),
            SendWr::write(2, &sges, RemoteBuffer::at(1, 1)).unsignaled(),
            SendWr::read(3, &sges, RemoteBuffer::at(1, 1)),
        ])
        .unwrap();
        for wr_id in 4..7 {
            b.post_whole(wr_id, &sink);
        }
        a.qp.disconnect();
        b.wait_end();
        for (wr_id, opcode) in [
            (1, WcOpcode::Send),
            (2, WcOpcode::RdmaWrite),
            (3, WcOpcode::RdmaRead),
        ] {
            let completion = b.send_cq.flushed(wr_id);
            assert_eq!(
                (completion.opcode, completion.byte_len, completion.qp_num),
                (opcode, 0, b.qp.qp_num())
            );
        }
        for wr_id in 4..7 {
            assert_eq!(b.recv_cq.flushed(wr_id).opcode, WcOpcode::Recv);
        }
        assert!(Status::WrFlush.to_string().contains("flushed"));

        a.wait_end();
        for side in [&a, &b] {
            side.send_cq.assert_empty();
            side.qp
                .post_send(&SendWr::send(10, &[]).unsignaled())
                .unwrap();
            side.send_cq.flushed(10);
            side.post_empty(11);
            side.recv_cq.flushed(11);
            // An invalid request is refused even in this state.
            let error = side
                .qp
                .post_send(&SendWr::send(
                    1,
                    &[Sge {
                        addr: 1,
                        len: 1,
                        lkey: 1,
                    }],
                ))
                .unwrap_err();
            assert!(matches!(error.kind, PostErrorKind::Memory(_)), "{error:?}");
        }
    }
}

#[test]
fn a_closing_qp_flushes_sends_and_still_receives() {
    let (a, peer) = beside_raw_peer(raw_settings());
    a.post_empty(1);
    a.qp.disconnect();
    assert_eq!(a.qp.state(), QpState::Closing);
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    a.send_cq.flushed(2);
    a.post_empty(3);
    let fpdu = fpdu(&Untagged::send(1).bytes(), Crc::Zero);
    use std::io::Write;
    (&peer.stream).write_all(&fpdu).unwrap();
    assert_eq!(a.recv_cq.success(1).byte_len, 0);
    assert_eq!(a.qp.state(), QpState::Closing);
    drop(peer);
    a.wait_end();
    a.recv_cq.flushed(3);
}
