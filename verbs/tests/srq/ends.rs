//! QPs that end, and the effect of their end on the SRQ.

use super::*;

#[track_caller]
fn last_wqe_of(s: &Shared, server: usize) {
    let expected = s.servers[server].qp_num();
    let event = s.queue_event();
    assert!(
        matches!(event, AsyncEvent::LastWqeReached { qp_num } if qp_num == expected),
        "{event:?}"
    );
}

#[test]
fn a_qp_that_fails_takes_its_last_receive_says_so_and_leaves_the_others() {
    for wire in Wire::BOTH {
        let s = shared(wire, 2, 16);
        s.post_empty(0..4);
        s.send(0);
        s.recv_cq.success(0);
        s.servers[0].abort();
        last_wqe_of(&s, 0);
        assert_eq!(s.servers[0].state(), QpState::Error);
        s.recv_cq.assert_empty();
        assert_eq!(s.srq.posted(), 3, "no flush touches them");
        for wr_id in 1..4 {
            s.send(1);
            assert_eq!(s.recv_cq.success(wr_id).qp_num, s.servers[1].qp_num());
        }
        while let Some(event) = s.b.device.poll_event() {
            assert!(matches!(event, AsyncEvent::Established { .. }), "{event:?}");
        }
    }
}

#[test]
fn a_graceful_close_ends_in_error_and_is_told_too() {
    for wire in Wire::BOTH {
        let s = shared(wire, 1, 16);
        s.post_empty(0..2);
        s.clients[0].disconnect();
        assert!(s.servers[0].wait_closed(LIMIT));
        last_wqe_of(&s, 0);
        s.recv_cq.assert_empty();
        assert_eq!(s.srq.posted(), 2);
    }
}

#[test]
fn a_reset_qp_takes_from_the_srq_again() {
    let s = shared(Wire::Kernel, 1, 16);
    s.post_empty(0..2);
    s.servers[0].abort();
    assert!(s.clients[0].wait_closed(LIMIT));
    assert!(s.servers[0].reset() && s.clients[0].reset());
    assert_eq!(s.srq.posted(), 2);
    let setup = Setup::new(Wire::Kernel);
    join(
        &s._listener,
        &s.clients[0],
        &s.servers[0],
        &setup.connect,
        &setup.accept,
    );
    s.send(0);
    assert_eq!(s.recv_cq.success(0).qp_num, s.servers[0].qp_num());
    s.servers[0].abort();
    // Each of the QP's two connections has reported its end.
    last_wqe_of(&s, 0);
    last_wqe_of(&s, 0);
}

#[test]
fn a_dropped_qp_takes_no_more_receives_while_its_connection_closes() {
    for wire in Wire::BOTH {
        let mut s = shared(wire, 2, 16);
        s.post_empty(0..3);
        s.send(0);
        s.recv_cq.success(0);
        drop(s.servers.remove(0));
        // The message on the ending connection must find no receive.
        let _ = s.clients[0].post_send(&SendWr::send(5, &[]));
        assert!(s.clients[0].wait_closed(LIMIT));
        assert_eq!(s.srq.posted(), 2);
        while s.a.send_cq.poll_one().is_some() {}
        s.send(1);
        assert_eq!(s.recv_cq.success(1).qp_num, s.servers[0].qp_num());
    }
}

#[test]
fn an_srq_lives_as_long_as_its_qps_use_it() {
    let Shared {
        a,
        clients,
        b,
        servers,
        recv_cq,
        srq,
        _listener,
    } = shared(Wire::Kernel, 1, 16);
    srq.post_recv(&RecvWr::new(7, &[])).unwrap();
    drop(srq);
    clients[0].post_send(&SendWr::send(1, &[])).unwrap();
    recv_cq.success(7);
    a.send_cq.success(1);
    let srq = servers[0].srq().unwrap().clone();
    drop(servers);
    srq.destroy(None).unwrap();
    drop(b);
}
