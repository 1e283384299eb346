//! A QP that was reset behaves like a new one.

use super::*;

/// The QP is connected many times in both roles, and either side ends the connection in every way.
#[test]
fn a_qp_is_connected_again_and_again_in_both_roles() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire).peer_to_peer();
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        // On the in-memory link the second listener needs another address.
        let addr = match wire {
            Wire::Kernel => "127.0.0.1:0",
            Wire::Memory { .. } => "192.0.2.1:7175",
        };
        let other = a.device.listen(addr.parse().unwrap()).unwrap();
        for round in 0..24 {
            let (first, second) = if round % 2 == 0 { (a, b) } else { (b, a) };
            let listener = if round % 2 == 0 {
                &ends.listener
            } else {
                &other
            };
            join(
                listener,
                &first.qp,
                &second.qp,
                &setup.connect,
                &setup.accept,
            );
            both_ways(first, second);
            match round % 4 {
                0 => first.qp.disconnect(),
                1 => second.qp.disconnect(),
                2 => first.qp.abort(),
                _ => to(second, QpState::Terminate),
            }
            for side in [a, b] {
                side.wait_end();
                assert!(side.qp.reset(), "round {round}");
                assert_eq!(side.qp.state(), QpState::Idle);
                assert!(side.qp.end_reason().is_none());
                assert!(side.qp.connection().is_none());
                assert_eq!(side.qp.query().ord, 0);
            }
        }
    }
}

/// Completions of the previous connection stay in the CQ, before those of the next one.
#[test]
fn completions_of_the_life_before_stay_until_they_are_polled() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    let (a, b) = (&ends.a, &ends.b);
    ends.join();
    b.post_empty(1);
    b.post_empty(2);
    a.qp.post_send(&SendWr::send(3, &[])).unwrap();
    a.qp.disconnect();
    for side in [a, b] {
        side.wait_end();
        assert!(side.qp.reset());
    }
    b.post_empty(4);
    ends.join();
    a.qp.post_send(&SendWr::send(5, &[])).unwrap();
    a.send_cq.successes([3, 5]);
    b.recv_cq.success(1);
    b.recv_cq.flushed(2);
    b.recv_cq.success(4);
}

#[test]
fn receives_posted_to_an_idle_qp_are_flushed_by_a_reset() {
    let a = side();
    a.post_empty(1);
    assert!(a.qp.reset());
    a.recv_cq.flushed(1);
    a.post_empty(2);
    a.recv_cq.assert_empty();
}

#[test]
fn a_qp_in_use_is_not_reset() {
    let (a, b) = pair(Wire::MEMORY);
    assert!(!a.qp.reset());
    both_ways(&a, &b);
    a.qp.disconnect();
    a.wait_end();
    assert!(a.qp.reset());
}
