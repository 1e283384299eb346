//! Negotiation of CRC, Markers, revision, IRD and ORD, and which side may send first.

use super::*;

#[test]
fn crc_is_on_when_either_side_wants_it() {
    for wire in Wire::BOTH {
        for (rev, _) in REVISIONS {
            for (ours, theirs) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut setup = revision(wire, rev);
                (setup.settings[0].crc, setup.settings[1].crc) = (ours, theirs);
                let (a, b) = setup.connected();
                assert_eq!(a.qp.connection().unwrap().crc, ours || theirs);
                assert_eq!(b.qp.connection().unwrap().crc, ours || theirs);
                exchange(&a, &b);
            }
        }
    }
}

#[test]
fn each_side_gets_markers_if_it_wants_them() {
    for wire in Wire::BOTH {
        for (rev, _) in REVISIONS {
            for (ours, theirs) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut setup = revision(wire, rev);
                (setup.settings[0].markers, setup.settings[1].markers) = (ours, theirs);
                // Without a CRC, nothing but a comparison of the data detects a misplaced Marker.
                (setup.settings[0].crc, setup.settings[1].crc) = (ours, ours);
                let (a, b) = setup.connected();
                let (at_a, at_b) = (a.qp.connection().unwrap(), b.qp.connection().unwrap());
                assert_eq!((at_a.rx_markers, at_a.tx_markers), (ours, theirs));
                assert_eq!((at_b.rx_markers, at_b.tx_markers), (theirs, ours));
                exchange(&a, &b);
            }
        }
    }
}

#[test]
fn both_revisions_work_and_show() {
    for wire in Wire::BOTH {
        for (rev, _) in REVISIONS {
            let (a, b) = revision(wire, rev).connected();
            assert_eq!(a.qp.connection().unwrap().revision, rev);
            assert_eq!(b.qp.connection().unwrap().revision, rev);
            exchange(&a, &b);
        }
    }
}

#[test]
fn small_and_large_mtus_and_buffers_work() {
    for (mtu, buffer) in [
        (576, 2048),
        (1280, 100_000),
        (9000, 20_000),
        (65_535, 1 << 20),
    ] {
        for markers in [false, true] {
            let mut setup = Setup::new(Wire::Memory { mtu, buffer });
            setup.settings[0].markers = markers;
            let (a, b) = setup.connected();
            exchange(&a, &b);
        }
    }
}

#[test]
fn ird_and_ord_meet_as_rfc_6581_says() {
    // 6581-9.1-01, 6581-9.1-09: the peer's values are reported. 5040-6.1-02, 5040-6.1-03: the
    // negotiated values are reported as well. Columns: (IRD, ORD) of the initiator, (IRD, ORD) and
    // `max_ird` of the responder, then the negotiated (IRD, ORD) at the initiator and at the
    // responder.
    let cases = [
        ((16, 16), (16, 16), 128, (16, 16), (16, 16)),
        // The responder raises its IRD to the initiator's ORD. It lowers its ORD to the initiator's
        // IRD.
        ((4, 8), (2, 16), 128, (4, 8), (8, 4)),
        ((1, 1), (1, 1), 128, (1, 1), (1, 1)),
        ((0, 0), (16, 16), 128, (0, 0), (16, 0)),
        // The responder raises its IRD only to its `max_ird`. The initiator then lowers its ORD.
        ((16, 32), (4, 2), 8, (16, 8), (8, 2)),
        ((16, 32), (4, 2), 0, (16, 0), (0, 2)),
    ];
    for wire in Wire::BOTH {
        for ((ird_a, ord_a), (ird_b, ord_b), max_ird, at_a, at_b) in cases {
            let mut setup = Setup::new(wire);
            (setup.connect.ird, setup.connect.ord) = (ird_a, ord_a);
            (setup.accept.ird, setup.accept.ord) = (ird_b, ord_b);
            setup.settings[1].limits.max_ird = max_ird;
            let ends = setup.unconnected();
            let connected = ends.join();
            let what = format!("{:?}", (ird_a, ord_a, ird_b, ord_b, max_ird));
            assert_eq!((connected.ird, connected.ord), at_a, "{what}");
            let (a, b) = (
                ends.a.qp.connection().unwrap(),
                ends.b.qp.connection().unwrap(),
            );
            assert_eq!(((a.ird, a.ord), (b.ird, b.ord)), (at_a, at_b), "{what}");
            assert_eq!(
                (b.peer_ird, b.peer_ord),
                (Some(ird_a), Some(ord_a)),
                "{what}"
            );
            assert_eq!(
                (a.peer_ird, a.peer_ord),
                (Some(at_b.0), Some(at_b.1)),
                "{what}"
            );
            both_ways(&ends.a, &ends.b);
        }
    }
}

#[test]
fn revision_1_leaves_ird_and_ord_to_the_consumers() {
    let mut setup = revision(Wire::MEMORY, Revision::One);
    (setup.connect.ird, setup.connect.ord) = (3, 4);
    (setup.accept.ird, setup.accept.ord) = (5, 6);
    let (a, b) = setup.connected();
    let (a, b) = (a.qp.connection().unwrap(), b.qp.connection().unwrap());
    assert_eq!(((a.ird, a.ord), (b.ird, b.ord)), ((3, 4), (5, 6)));
    assert_eq!(
        (a.peer_ird, a.peer_ord, b.peer_ird, b.peer_ord),
        (None, None, None, None)
    );
}

#[test]
fn an_ird_or_ord_left_to_the_consumers_is_bounded_by_the_limits() {
    const NO_AUTO: u16 = 0x3FFF;
    let mut setup = Setup::new(Wire::MEMORY);
    (setup.connect.ird, setup.connect.ord) = (NO_AUTO, NO_AUTO);
    (
        setup.settings[0].limits.max_ird,
        setup.settings[0].limits.max_ord,
    ) = (20, 30);
    let ends = setup.unconnected();
    let connected = ends.join();
    assert_eq!((connected.ird, connected.ord), (20, 30));
    let info = ends.a.qp.connection().unwrap();
    assert_eq!((info.ird, info.ord), (20, 30));
}

#[test]
fn limits_on_reads_hold_with_revision_1_too() {
    let mut setup = revision(Wire::MEMORY, Revision::One);
    (setup.connect.ird, setup.connect.ord) = (300, 300);
    (setup.accept.ird, setup.accept.ord) = (300, 300);
    let (a, b) = setup.connected();
    for side in [&a, &b] {
        let info = side.qp.connection().unwrap();
        assert_eq!((info.ird, info.ord), (128, 128));
    }
}

#[test]
fn a_read_on_a_connection_without_reads_fails_and_does_not_wait_for_ever() {
    let mut setup = Setup::new(Wire::MEMORY);
    setup.connect.ord = 0;
    let (a, b) = setup.connected();
    let (lent, sink) = (b.filled(1, 8), a.blank(8));
    let remote = lent.remote();
    match a.qp.post_send(&SendWr::read(
        1,
        &[sink.sge(0, 8)],
        RemoteBuffer::at(remote.addr, remote.rkey),
    )) {
        Err(error) => assert!(error.to_string().contains("ORD"), "{error}"),
        Ok(()) => {
            let completion = a.send_cq.next();
            assert_ne!(completion.status, Status::Success, "{completion:?}");
        }
    }
}

const SEND: RtrKinds = RtrKinds {
    send: true,
    ..RtrKinds::NONE
};
const WRITE: RtrKinds = RtrKinds {
    write: true,
    ..RtrKinds::NONE
};
const READ: RtrKinds = RtrKinds {
    read: true,
    ..RtrKinds::NONE
};

#[test]
fn the_responder_may_send_first_in_the_peer_to_peer_model() {
    let send_or_read = RtrKinds {
        send: true,
        read: true,
        write: false,
    };
    for wire in Wire::BOTH {
        for (ours, theirs) in [
            (SEND, SEND),
            (WRITE, WRITE),
            (READ, READ),
            (RtrKinds::ALL, RtrKinds::ALL),
            (RtrKinds::ALL, SEND),
            (send_or_read, RtrKinds::ALL),
        ] {
            for depth in [0, 1, 16] {
                let mut setup = Setup::new(wire).peer_to_peer();
                (setup.settings[0].rtr, setup.settings[1].rtr) = (ours, theirs);
                (setup.connect.ird, setup.connect.ord) = (depth, depth);
                (setup.accept.ird, setup.accept.ord) = (depth, depth);
                let ends = setup.unconnected();
                let (a, b) = (&ends.a, &ends.b);
                let (early, lent) = (a.blank(5000), b.filled(1, 5000));
                a.post_whole(1, &early);
                ends.join();
                // The RTR indication consumes no receive of the responder and causes no completion.
                b.post_empty(2);
                b.qp.post_send(&SendWr::send(3, &[lent.sge(0, 5000)]))
                    .unwrap();
                b.send_cq.success(3);
                assert_eq!(
                    a.recv_cq.success(1).byte_len,
                    5000,
                    "{ours:?} {theirs:?} {depth}"
                );
                same(
                    &content(&early),
                    &content(&lent),
                    "the responder's first Send",
                );
                a.send_cq.assert_empty();
                a.qp.post_send(&SendWr::send(4, &[])).unwrap();
                a.send_cq.success(4);
                b.recv_cq.success(2);
                if depth > 0 {
                    exchange(a, b);
                }
                b.recv_cq.assert_empty();
            }
        }
    }
}

#[test]
fn the_responders_work_waits_for_the_initiators_first_fpdu_in_the_client_server_model() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        a.post_empty(1);
        b.qp.post_send(&SendWr::send(2, &[])).unwrap();
        b.send_cq.assert_empty();
        a.recv_cq.assert_empty();
        bell(&a, &b);
        b.send_cq.success(2);
        a.recv_cq.success(1);
    }
}

#[test]
fn without_an_rtr_kind_in_common_the_initiator_terminates() {
    for wire in Wire::BOTH {
        let mut setup = Setup::new(wire).peer_to_peer();
        (setup.settings[0].rtr, setup.settings[1].rtr) = (SEND, WRITE);
        let ends = setup.unconnected();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
                assert!(request.is_peer_to_peer());
                request.accept(&ends.b.qp, &setup.accept)
            });
            let error = ends
                .a
                .qp
                .connect(ends.listener.local_addr(), &setup.connect)
                .unwrap_err();
            let ConnectError::Ended { reason, .. } = &error else {
                panic!("{error:?}")
            };
            let EndReason::TerminateSent {
                terminate: Some(sent),
                ..
            } = &**reason
            else {
                panic!("{error:?}")
            };
            // RFC 6581 section 9.2: the error is LLP, MPA, no matching RTR option.
            assert_eq!((sent.layer(), sent.etype(), sent.code()), (2, 0, 7));
            assert!(error.to_string().contains("RTR"), "{error}");
            accepting.join().unwrap().unwrap();
        });
        for side in [&ends.a, &ends.b] {
            let events = std::iter::from_fn(|| side.device.poll_event());
            let events: Vec<_> = events.collect();
            let established = |event: &AsyncEvent| matches!(event, AsyncEvent::Established { .. });
            assert!(!events.iter().any(established), "{events:?}");
        }
        let EndReason::TerminateReceived { terminate, .. } = ends.b.wait_end() else {
            panic!("{:?}", ends.b.qp.end_reason());
        };
        assert_eq!(
            (terminate.layer(), terminate.etype(), terminate.code()),
            (2, 0, 7)
        );
        ends.a.wait_end();
    }
}

#[test]
fn a_peer_that_knows_revision_1_only_is_named_and_a_retry_can_be_asked_for() {
    for wire in Wire::BOTH {
        let mut setup = Setup::new(wire);
        setup.settings[1].accept_revision = Revision::One;
        setup.connect.private_data = b"again".to_vec();
        setup.accept.private_data = b"yes".to_vec();
        let ends = setup.unconnected();
        let error = ends
            .a
            .qp
            .connect(ends.listener.local_addr(), &setup.connect)
            .unwrap_err();
        assert!(
            matches!(
                error,
                ConnectError::Startup {
                    error: StartupError::Closed { enhanced: true, .. },
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("try again with MPA revision 1"),
            "{error}"
        );
        until("the failure at the listener", || {
            ends.listener.poll_failure().is_some_and(|(_, error)| {
                assert!(error.to_string().contains("revision 2"), "{error}");
                true
            })
        });

        setup.settings[0].retry_with_revision_1 = true;
        let ends = setup.unconnected();
        assert_eq!(ends.join().private_data, b"yes");
        let info = ends.b.qp.connection().unwrap();
        assert_eq!(
            (info.revision, &info.private_data[..]),
            (Revision::One, &b"again"[..])
        );
        assert_eq!(ends.a.qp.connection().unwrap().revision, Revision::One);
        exchange(&ends.a, &ends.b);
    }
}
