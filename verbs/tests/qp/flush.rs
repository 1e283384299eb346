//! What becomes of work that is outstanding: every kind of request, every way to end.

use super::*;

/// Ways to end at once; a graceful close carries the work out instead.
const WAYS: [&str; 5] = ["abort", "modify", "terminate", "peer reset", "drop"];

/// Requests complete in the order in which they were posted, on each queue, signaled or not, and each
/// once (5040-6.2.1-02). The first Read cannot be answered, and holds up all that is behind it.
#[test]
fn outstanding_work_is_flushed_in_order_whatever_ends_the_connection() {
    for way in WAYS {
        let (a, stream) = with_peer();
        let memory = a.blank(64);
        let sges = [memory.sge(0, 8)];
        a.qp.post_send_list(&[
            SendWr::read(1, &sges, 0x1000, 7),
            SendWr::send(2, &sges).fence(),
            SendWr::write(3, &sges, 0x1000, 7).unsignaled(),
            SendWr::read(4, &sges, 0x1000, 7),
            SendWr::send_inline(5, b"inline").unsignaled(),
            SendWr::write_inline(6, b"inline", 0x1000, 7),
        ])
        .unwrap();
        for wr_id in 11..14 {
            a.post_empty(wr_id);
        }
        let Side {
            qp,
            send_cq,
            recv_cq,
            device: _device,
            ..
        } = a;
        let mut stream = Some(stream);
        match way {
            "abort" => qp.abort(),
            "modify" => qp.modify(&QpModify::new().state(QpState::Error)).unwrap(),
            "terminate" => qp
                .modify(&QpModify::new().state(QpState::Terminate))
                .unwrap(),
            "peer reset" => cut(stream.take().unwrap()),
            _ => {}
        }
        let _qp = (way != "drop").then_some(qp);
        let kinds = [
            WcOpcode::RdmaRead,
            WcOpcode::Send,
            WcOpcode::RdmaWrite,
            WcOpcode::RdmaRead,
            WcOpcode::Send,
            WcOpcode::RdmaWrite,
        ];
        for (wr_id, opcode) in (1..).zip(kinds) {
            assert_eq!(send_cq.flushed(wr_id).opcode, opcode, "{way}");
        }
        for wr_id in 11..14 {
            assert_eq!(recv_cq.flushed(wr_id).opcode, WcOpcode::Recv, "{way}");
        }
        send_cq.is_empty();
        recv_cq.is_empty();
    }
}

/// A graceful close carries out what was posted; only what the peer can no more answer is flushed.
#[test]
fn a_graceful_close_completes_what_was_posted_and_flushes_what_comes_later() {
    let (a, b) = pair(Wire::MEMORY);
    let (from, into) = (b.filled(3, 4096), a.blank(4096));
    let sink = b.blank(4096);
    let whole = [into.sge(0, 4096)];
    let read = SendWr::read(1, &whole, from.addr(), from.rkey());
    let write = SendWr::write(2, &whole, sink.addr(), sink.rkey()).fence();
    a.qp.post_send_list(&[read, write]).unwrap();
    a.qp.disconnect();
    a.qp.post_send(&SendWr::send(3, &[])).unwrap();
    a.send_cq.successes([1, 2]);
    a.send_cq.flushed(3);
    a.wait_end();
    b.wait_end();
    assert_eq!(content(&sink), content(&from));
}
