//! Outstanding requests of every kind at the end of a connection, for every way to end it.

use super::*;
use uwarp_verbs::RemoteBuffer;

/// Ways that end the connection at once. A graceful close carries out the requests instead.
const WAYS: [&str; 5] = ["abort", "modify", "terminate", "peer reset", "drop"];

/// Each request completes once, and in posting order on each queue, signaled or not
/// (5040-6.2.1-02). This includes requests that were not started (5040-5.4-i02). The first Read is
/// not answered, and delays everything after it.
#[test]
fn outstanding_work_is_flushed_in_order_whatever_ends_the_connection() {
    for way in WAYS {
        let (a, stream) = with_peer();
        let memory = a.blank(64);
        let sges = [memory.sge(0, 8)];
        a.qp.post_send_list(&[
            SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 7)),
            SendWr::send(2, &sges).fence(),
            SendWr::write(3, &sges, RemoteBuffer::at(0x1000, 7)).unsignaled(),
            SendWr::read(4, &sges, RemoteBuffer::at(0x1000, 7)),
            SendWr::send_inline(5, b"inline").unsignaled(),
            SendWr::write_inline(6, b"inline", RemoteBuffer::at(0x1000, 7)),
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
        send_cq.assert_empty();
        recv_cq.assert_empty();
    }
}

/// The same holds for requests of RFC 7306 and for local requests, which are also carried out in
/// their order.
#[test]
fn atomics_immediate_data_and_local_requests_are_flushed_in_order_and_not_carried_out() {
    for way in WAYS {
        let (a, stream) = with_peer();
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let memory = a.pd.register(vec![0; 64], access).unwrap();
        let window = a.pd.alloc_window(WindowKind::Type2B).unwrap();
        let buffer = Buffer::zeroed(4096).unwrap();
        let fast = a.pd.alloc_fast_region(buffer).unwrap();
        let sges = [memory.sge(0, 8)];
        let bind = WindowBind {
            lkey: memory.lkey(),
            addr: memory.addr(),
            len: 64,
            access: Access::REMOTE_READ,
            zero_based: true,
        };
        let part = fast.register(inc_rkey(fast.stag()), 0, 4096, Access::LOCAL_WRITE);
        a.qp.post_send_list(&[
            SendWr::fetch_add(1, &sges, RemoteBuffer::at(0x1000, 7), 1),
            SendWr::immediate(2, [7; 8]).fence(),
            SendWr::write_with_immediate(3, &sges, RemoteBuffer::at(0x1000, 7), [7; 8])
                .unsignaled(),
            SendWr::compare_swap(4, &sges, RemoteBuffer::at(0x1000, 7), 1, 2),
            SendWr::bind_window(5, inc_rkey(window.rkey()), &bind),
            SendWr::register(6, &part).unsignaled(),
            SendWr::local_invalidate(7, memory.lkey()),
        ])
        .unwrap();
        let mut stream = Some(stream);
        match way {
            "abort" => a.qp.abort(),
            "modify" => to(&a, QpState::Error),
            "terminate" => to(&a, QpState::Terminate),
            "peer reset" => cut(stream.take().unwrap()),
            _ => {}
        }
        let Side { qp, send_cq, .. } = a;
        let _qp = (way != "drop").then_some(qp);
        let kinds = [
            WcOpcode::FetchAdd,
            WcOpcode::Send,
            WcOpcode::RdmaWrite,
            WcOpcode::CompareSwap,
            WcOpcode::BindWindow,
            WcOpcode::Register,
            WcOpcode::LocalInvalidate,
        ];
        for (wr_id, opcode) in (1..).zip(kinds) {
            assert_eq!(send_cq.flushed(wr_id).opcode, opcode, "{way}");
        }
        send_cq.assert_empty();
        // No window was bound to the region, and the region is still registered.
        memory.deregister().unwrap();
    }
}

/// A graceful close carries out posted requests. It flushes only requests that the peer can no
/// longer answer, and those posted later (5041-6.2.1-02).
#[test]
fn a_graceful_close_completes_what_was_posted_and_flushes_what_comes_later() {
    let (a, b) = pair(Wire::MEMORY);
    let (from, into) = (b.filled(3, 4096), a.blank(4096));
    let sink = b.blank(4096);
    let whole = [into.sge(0, 4096)];
    let read = SendWr::read(1, &whole, RemoteBuffer::at(from.addr(), from.rkey()));
    let write = SendWr::write(2, &whole, RemoteBuffer::at(sink.addr(), sink.rkey())).fence();
    a.qp.post_send_list(&[read, write]).unwrap();
    a.qp.disconnect();
    a.qp.post_send(&SendWr::send(3, &[])).unwrap();
    a.send_cq.successes([1, 2]);
    a.send_cq.flushed(3);
    a.wait_end();
    b.wait_end();
    assert_eq!(content(&sink), content(&from));
}
