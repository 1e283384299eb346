//! The send queue: entries that become free without completions, and waits until it is empty.

use super::*;

use std::time::Duration;

/// Connects two sides whose send queues have four entries.
fn narrow(wire: Wire) -> (Side, Side) {
    let mut setup = Setup::new(wire);
    setup.caps.max_send_wr = 4;
    setup.settings[1].on_no_receive = OnNoReceive::Hold(LIMIT);
    setup.connected()
}

#[test]
fn unsignaled_requests_without_any_signaled_one_keep_their_places() {
    for wire in Wire::BOTH {
        let (a, b) = narrow(wire);
        let lent = b.blank(8);
        let remote = lent.remote();
        let write = |number: u64| {
            let bytes = number.to_be_bytes();
            let target = RemoteBuffer::at(remote.addr, remote.rkey);
            let wr = SendWr::write_inline(number, &bytes, target).unsignaled();
            a.qp.post_send(&wr)
        };
        for number in 0..4 {
            write(number).unwrap();
        }
        assert!(a.qp.drain_sends(LIMIT));
        a.send_cq.assert_empty();
        assert_eq!(a.qp.send_room(), 0);
        let error = write(4).unwrap_err();
        assert_eq!(error.kind, PostErrorKind::SendQueueFull { depth: 4 });
        a.qp.disconnect();
        b.wait_end();
        a.wait_end();
        assert_eq!(common::content(&lent), 3u64.to_be_bytes());
        // After the reset the queue is empty for the next connection.
        assert!(a.qp.reset());
        assert_eq!(a.qp.send_room(), 4);
    }
}

#[test]
fn a_signaled_request_completes_behind_all_unsignaled_ones_and_frees_their_places() {
    for wire in Wire::BOTH {
        let (a, b) = narrow(wire);
        for round in 0..100 {
            for wr_id in 0..4 {
                b.post_empty(wr_id);
                let wr = SendWr::send(round * 4 + wr_id, &[]);
                let wr = if wr_id < 3 { wr.unsignaled() } else { wr };
                a.qp.post_send(&wr).unwrap();
            }
            a.send_cq.success(round * 4 + 3);
            b.recv_cq.successes(0..4);
        }
        a.send_cq.assert_empty();
    }
}

#[test]
fn unsignaled_requests_that_fail_complete_and_free_their_places() {
    for wire in Wire::BOTH {
        let (a, b) = narrow(wire);
        // A Read delays the completions of the requests after it.
        let sink = a.blank(8);
        let sges = [sink.sge(0, 8)];
        let wrong = SendWr::read(1, &sges, RemoteBuffer::at(0, 0xDEAD_BE00)).unsignaled();
        a.qp.post_send(&wrong).unwrap();
        for wr_id in 2..4 {
            a.qp.post_send(&SendWr::send(wr_id, &[]).unsignaled())
                .unwrap();
        }
        a.wait_end();
        let failed = a.send_cq.next();
        assert_eq!((failed.wr_id, failed.status), (1, Status::RemoteAccess));
        a.send_cq.flushed(2);
        a.send_cq.flushed(3);
        for wr_id in 4..12 {
            a.qp.post_send(&SendWr::send(wr_id, &[]).unsignaled())
                .unwrap();
            a.send_cq.flushed(wr_id);
        }
        drop(b);
    }
}

#[test]
fn a_drain_waits_for_what_was_posted_before() {
    for wire in Wire::BOTH {
        let (a, b) = narrow(wire);
        assert!(a.qp.drain_sends(Duration::ZERO), "nothing was posted");
        let lent = b.filled(1, 1 << 20);
        let sink = a.blank(1 << 20);
        let remote = lent.remote();
        for wr_id in 0..4 {
            let sges = [sink.sge(0, 1 << 20)];
            let wr = SendWr::read(wr_id, &sges, RemoteBuffer::at(remote.addr, remote.rkey));
            a.qp.post_send(&wr).unwrap();
        }
        // Nothing is polled here. The background receives the responses.
        assert!(a.qp.drain_sends(LIMIT));
        assert_eq!(common::content(&sink), common::content(&lent));
        a.send_cq.successes(0..4);
    }
}

#[test]
fn a_drain_that_takes_too_long_says_so_and_an_end_drains() {
    for wire in Wire::BOTH {
        let (a, b) = narrow(wire);
        // The Send waits for a receive, so the Read after it is not answered.
        let (lent, sink) = (b.filled(1, 8), a.blank(8));
        let remote = lent.remote();
        a.qp.post_send(&SendWr::send(0, &[])).unwrap();
        let sges = [sink.sge(0, 8)];
        a.qp.post_send(&SendWr::read(
            1,
            &sges,
            RemoteBuffer::at(remote.addr, remote.rkey),
        ))
        .unwrap();
        assert!(!a.qp.drain_sends(Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| a.qp.drain_sends(LIMIT));
            a.qp.abort();
            assert!(drain.join().unwrap());
        });
        a.send_cq.success(0);
        a.send_cq.flushed(1);
    }
}

#[test]
fn receives_are_drained_when_the_connection_has_ended() {
    for wire in Wire::BOTH {
        let (a, b) = narrow(wire);
        assert!(b.qp.drain_receives(Duration::ZERO), "nothing was posted");
        for wr_id in 0..5 {
            b.post_empty(wr_id);
        }
        assert!(!b.qp.drain_receives(Duration::from_millis(1)));
        a.qp.disconnect();
        assert!(b.qp.drain_receives(LIMIT));
        for wr_id in 0..5 {
            b.recv_cq.flushed(wr_id);
        }
    }
}

#[test]
fn a_reset_leaves_nothing_to_drain_and_the_next_life_is_drained_too() {
    let (a, b) = common::pair(Wire::Kernel);
    b.post_empty(1);
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    b.recv_cq.success(1);
    a.qp.abort();
    b.wait_end();
    assert!(a.qp.reset());
    assert!(a.qp.drain_sends(Duration::ZERO) && a.qp.drain_receives(Duration::ZERO));
    a.post_empty(2);
    assert!(!a.qp.drain_receives(Duration::from_millis(1)));
    assert!(a.qp.reset());
    assert!(a.qp.drain_receives(Duration::ZERO));
}
