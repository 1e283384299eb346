//! Completion queues that are too small, and completion queues that are resized.

use super::*;

#[test]
fn a_lost_completion_ends_its_qp_and_the_event_names_the_cq_once() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        let small = CqHandle(b.device.create_cq(2).unwrap());
        let qp =
            b.pd.create_qp(&b.send_cq, &small, QpCaps::default())
                .unwrap();
        for wr_id in 1..7 {
            qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        }
        join(&ends.listener, &a.qp, &qp, &setup.connect, &setup.accept);
        for wr_id in 1..5 {
            a.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
        }
        assert!(qp.wait_closed(LIMIT));
        let reason = qp.end_reason().unwrap();
        assert!(
            matches!(
                reason,
                EndReason::CqOverflow { cq_num, depth: 2, wr_id: 3 } if cq_num == small.cq_num()
            ),
            "{reason}"
        );
        let words = reason.to_string();
        assert!(
            words.contains("full (2 completions)")
                && words.contains("poll the completion queue more often")
        );
        assert!(matches!(a.wait_end(), EndReason::TerminateReceived { .. }));
        let mut overflows = 0;
        while let Some(event) = b.device.poll_event() {
            match event {
                AsyncEvent::CqOverflow {
                    cq_num,
                    depth,
                    qp_num,
                } => {
                    assert_eq!((cq_num, depth, qp_num), (small.cq_num(), 2, qp.qp_num()));
                    overflows += 1;
                }
                AsyncEvent::Established { .. } | AsyncEvent::Ended { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(overflows, 1);
        // The completions before the lost one can be polled. No completion follows the lost one.
        assert!(small.has_overflowed());
        small.successes([1, 2]);
        small.assert_empty();
        assert!(matches!(
            small.resize(64),
            Err(ResizeCqError::Overflowed { .. })
        ));
    }
}

#[test]
fn under_load_an_overflow_ends_the_qps_of_the_cq_and_no_others() {
    for wire in Wire::BOTH {
        let mut setup = Setup::new(wire);
        // All of a client's Sends may be flushed. Flushed requests have a completion even if they
        // are unsignaled.
        setup.cq_depth = 16 * 100;
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        let small = CqHandle(b.device.create_cq(32).unwrap());
        let pairs: Vec<(Qp, Qp)> = (0..16)
            .map(|_| {
                let client = a.another_qp();
                let server =
                    b.pd.create_qp(&b.send_cq, &small, QpCaps::default())
                        .unwrap();
                for wr_id in 0..100 {
                    server.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
                }
                join(
                    &ends.listener,
                    &client,
                    &server,
                    &setup.connect,
                    &setup.accept,
                );
                (client, server)
            })
            .collect();
        ends.join();
        std::thread::scope(|scope| {
            for (client, _) in &pairs {
                scope.spawn(move || {
                    for wr_id in 0..100 {
                        let wr = SendWr::send(wr_id, &[]).unsignaled();
                        // The connection may have ended already, or the queue may be full.
                        let _ = client.post_send(&wr);
                    }
                });
            }
        });
        for (_, server) in &pairs {
            assert!(server.wait_closed(LIMIT));
            let reason = server.end_reason().unwrap();
            assert!(matches!(reason, EndReason::CqOverflow { .. }), "{reason}");
        }
        // The CQ has 32 completions, which form a sequence without gaps for each QP.
        let mut next = std::collections::HashMap::new();
        for _ in 0..32 {
            let completion = small.poll_one().unwrap();
            assert_eq!(completion.status, Status::Success);
            let expected = next.entry(completion.qp_num).or_insert(0);
            assert_eq!(completion.wr_id, *expected);
            *expected += 1;
        }
        small.assert_empty();
        let mut overflows = 0;
        while let Some(event) = b.device.poll_event() {
            overflows += u32::from(matches!(event, AsyncEvent::CqOverflow { .. }));
        }
        assert_eq!(overflows, 1);
        while a.send_cq.poll_one().is_some() {}
        assert!(!a.send_cq.has_overflowed());
        both_ways(a, b);
    }
}

#[test]
fn a_cq_is_resized_while_a_connection_completes_to_it() {
    for wire in Wire::BOTH {
        let (a, b) = common::pair(wire);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut depth = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    depth = (depth + 37) % 300;
                    b.recv_cq.resize(128 + depth).unwrap();
                }
            });
            for wr_id in 0..2000 {
                b.post_empty(wr_id);
                a.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
                a.send_cq.success(wr_id);
                b.recv_cq.success(wr_id);
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
