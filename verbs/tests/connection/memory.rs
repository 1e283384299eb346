//! Memory that is deregistered while requests use it.

use super::*;

#[test]
fn memory_that_the_network_holds_cannot_be_deregistered_yet() {
    // The CRC is off, because with a CRC the payload would have been copied.
    let (a, peer, source) = beside_idle_peer();
    let (source, error) = source.deregister().unwrap_err();
    assert!(
        matches!(error, DeregisterError::Busy { pins } if pins > 0),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains("try again when they are complete"),
        "{error}"
    );
    drop(peer);
    a.wait_end();
    a.send_cq.flushed(1);
    source.deregister().unwrap();
}

/// The peer places bytes that the memory had at some moment during the copy.
#[test]
fn memory_may_change_while_it_is_sent() {
    const LEN: u32 = 1 << 20;
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (source, target) = (a.blank(LEN as usize), b.blank(LEN as usize));
        let remote = target.remote();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..1_000_000 {
                    source
                        .write_at(0, &vec![round as u8; LEN as usize])
                        .unwrap();
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            // Several Writes are posted at once, so that some wait for TCP while the memory
            // changes.
            let statuses = (0..16).flat_map(|round| {
                for wr_id in 0..4 {
                    let sges = [source.sge(0, LEN)];
                    let wr = SendWr::write(
                        4 * round + wr_id,
                        &sges,
                        RemoteBuffer::at(remote.addr, remote.rkey),
                    );
                    a.qp.post_send(&wr).unwrap();
                }
                [0; 4].map(|_| a.send_cq.next().status)
            });
            let failed = statuses
                .into_iter()
                .find(|status| *status != Status::Success);
            over.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
        bell(&a, &b);
    }
}

#[test]
fn a_request_whose_memory_was_deregistered_before_it_was_sent_fails_and_says_so() {
    for wire in Wire::BOTH {
        // The responder's requests wait for the initiator's first FPDU.
        let (a, b) = pair(wire);
        let source = b.filled(1, 100);
        b.qp.post_send(&SendWr::send(1, &[source.sge(0, 100)]))
            .unwrap();
        b.qp.post_send(&SendWr::send(2, &[])).unwrap();
        source.deregister().unwrap();
        b.post_empty(3);
        a.post_empty(4);
        a.qp.post_send(&SendWr::send(5, &[])).unwrap();
        a.send_cq.success(5);
        b.recv_cq.success(3);
        assert_eq!(b.send_cq.next().status, Status::LocalProtection);
        b.send_cq.flushed(2);
        let reason = b.wait_end();
        assert!(matches!(reason, EndReason::LocalError { .. }), "{reason:?}");
        assert!(
            reason
                .to_string()
                .contains("deregistered before it was sent"),
            "{reason}"
        );
        let reason = a.wait_end();
        let EndReason::TerminateReceived { terminate, .. } = &reason else {
            panic!("{reason:?}")
        };
        // The error is RDMAP's local catastrophic error.
        assert_eq!(
            (terminate.layer(), terminate.etype(), terminate.code()),
            (0, 0, 0)
        );
        a.recv_cq.flushed(4);
    }
}

#[test]
fn a_receive_whose_memory_is_gone_fails_when_a_send_comes_for_it() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let sink = b.blank(100);
        b.post_whole(1, &sink);
        b.post_empty(2);
        drop(sink);
        a.qp.post_send(&SendWr::send_inline(3, b"for nobody"))
            .unwrap();
        assert_eq!(b.recv_cq.next().status, Status::LocalProtection);
        b.recv_cq.flushed(2);
        let reason = b.wait_end();
        assert!(
            reason
                .to_string()
                .contains("posted receive was deregistered"),
            "{reason}"
        );
        assert!(
            matches!(a.wait_end(), EndReason::TerminateReceived { .. }),
            "{:?}",
            a.qp.end_reason()
        );
    }
}

#[test]
fn a_read_whose_sink_is_gone_fails_when_the_response_comes() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        let (lent, sink) = (b.filled(1, 100), a.blank(100));
        let remote = lent.remote();
        // The Read is posted while connecting, so it cannot be sent before the sink is dropped.
        std::thread::scope(|scope| {
            let connecting =
                scope.spawn(|| a.qp.connect(ends.listener.local_addr(), &setup.connect));
            let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
            a.qp.post_send(&SendWr::read(
                1,
                &[sink.sge(0, 100)],
                RemoteBuffer::at(remote.addr, remote.rkey),
            ))
            .unwrap();
            a.qp.post_send(&SendWr::send(2, &[]).fence()).unwrap();
            drop(sink);
            request.accept(&b.qp, &setup.accept).unwrap();
            let _ = connecting.join().unwrap();
        });
        let completion = a.send_cq.next();
        assert_eq!(
            (completion.wr_id, completion.status),
            (1, Status::LocalProtection)
        );
        a.send_cq.flushed(2);
        assert!(
            matches!(a.wait_end(), EndReason::LocalError { .. }),
            "{:?}",
            a.qp.end_reason()
        );
        b.wait_end();
    }
}

#[test]
fn a_region_dropped_under_a_write_is_either_sent_whole_or_not_at_all() {
    for wire in Wire::BOTH {
        for _ in 0..4 {
            let (a, b) = pair(wire);
            let (source, target) = (a.filled(1, 4 << 20), b.blank(4 << 20));
            let remote = target.remote();
            a.qp.post_send(&SendWr::write(
                1,
                &[source.sge(0, 4 << 20)],
                RemoteBuffer::at(remote.addr, remote.rkey),
            ))
            .unwrap();
            drop(source);
            // An allocation of the same size is likely to get the old address again.
            let other = vec![0x77_u8; 4 << 20];
            let completion = a.send_cq.next();
            drop(other);
            match completion.status {
                Status::Success => {
                    bell(&a, &b);
                    same(&content(&target), &pattern(1, 4 << 20), "written");
                }
                Status::LocalProtection => {
                    assert!(matches!(a.wait_end(), EndReason::LocalError { .. }));
                    b.wait_end();
                    // The bytes that arrived are correct and start at the beginning.
                    let got = content(&target);
                    let good = pattern(1, 4 << 20);
                    let len = got.iter().zip(&good).take_while(|(a, b)| a == b).count();
                    assert!(
                        got[len..].iter().all(|byte| *byte == common::FILL),
                        "wrong bytes after {len}"
                    );
                }
                status => panic!("{status:?}"),
            }
        }
    }
}

#[test]
fn a_peers_region_that_was_dropped_is_out_of_reach() {
    for wire in Wire::BOTH {
        for read in [false, true] {
            let (a, b) = pair(wire);
            let (lent, local) = (b.filled(1, 100), a.blank(100));
            let remote = lent.remote();
            drop(lent);
            let sges = [local.sge(0, 100)];
            a.qp.post_send(&if read {
                SendWr::read(1, &sges, RemoteBuffer::at(remote.addr, remote.rkey))
            } else {
                SendWr::write(1, &sges, RemoteBuffer::at(remote.addr, remote.rkey))
            })
            .unwrap();
            let status = a.send_cq.next().status;
            // A Write completes when TCP has taken it, long before the peer refuses it.
            assert_eq!(
                status,
                if read {
                    Status::RemoteAccess
                } else {
                    Status::Success
                }
            );
            let reason = a.wait_end();
            assert!(
                matches!(reason, EndReason::TerminateReceived { .. }),
                "{reason:?}"
            );
            assert!(matches!(b.wait_end(), EndReason::TerminateSent { .. }));
            placed_only(&local, 0, &[], "nothing was read");
        }
    }
}
