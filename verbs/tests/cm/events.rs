//! Events of a connection, from the request to the end.

use super::*;
use uwarp_verbs::RemoteBuffer;

#[test]
fn a_connection_is_told_on_both_sides_in_order() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 8);
        let ours = a.resolved(listener.local_addr().unwrap());
        let connect = ConnectOptions::default()
            .private_data(b"hello".to_vec())
            .ird(3)
            .ord(40);
        ours.connect(&a.side.qp, &connect).unwrap();
        assert_eq!(ours.qp_num(), Some(a.side.qp.qp_num()));

        let event = b.next(CmEventKind::ConnectRequest);
        assert_eq!(event.private_data(), b"hello");
        // The Request asks the responder to serve 40 Reads, and to have at most 3 Reads of its own
        // outstanding.
        assert_eq!(
            (event.responder_resources(), event.initiator_depth()),
            (40, 3)
        );
        assert!(event.listen_id().unwrap().is(&listener) && !event.is_peer_to_peer());
        let theirs = event.id().clone();
        assert_eq!(
            (theirs.context(), theirs.state()),
            (LISTENER, CmState::Requested)
        );
        theirs.set_context(5);
        drop(event);

        let accept = AcceptOptions::default()
            .private_data(b"welcome".to_vec())
            .ird(20)
            .ord(16);
        theirs.accept(&b.side.qp, &accept).unwrap();
        // The event is available as soon as `accept` returns.
        let event = b.channel.try_get_event().unwrap();
        assert_eq!(
            (event.kind(), event.id().context()),
            (CmEventKind::Established, 5)
        );
        assert_eq!(
            (event.responder_resources(), event.initiator_depth()),
            (40, 3)
        );
        assert_eq!(event.private_data(), b"");

        let event = a.next(CmEventKind::Established);
        assert_eq!(event.private_data(), b"welcome");
        assert_eq!(
            (event.responder_resources(), event.initiator_depth()),
            (3, 40)
        );
        assert_eq!((event.status(), event.reason().is_none()), (0, true));
        assert_eq!(ours.local_addr(), theirs.peer_addr());
        assert_eq!(
            (ours.state(), theirs.state()),
            (CmState::Connected, CmState::Connected)
        );
        both_ways(&a.side, &b.side);

        ours.disconnect().unwrap();
        for (host, id) in [(&a, &ours), (&b, &theirs)] {
            let event = host.next(CmEventKind::Disconnected);
            assert!(event.id().is(id));
            assert!(event.reason().is_some());
            // All requests are flushed and the stream has been released, so the QP is free for
            // another connection.
            assert_eq!(
                (host.side.qp.state(), id.state()),
                (QpState::Error, CmState::Disconnected)
            );
            assert!(host.side.qp.reset());
            host.nothing_waits();
        }
    }
}

#[test]
fn ird_and_ord_are_granted_within_the_limits_of_both_devices() {
    let mut settings = Settings::default();
    (settings.limits.max_ird, settings.limits.max_ord) = (8, 5);
    for (a, b, at) in hosts_with(&settings) {
        for (ird, ord, requested, granted) in [
            // Columns: (ird, ord) of the initiator; (responder_resources, initiator_depth) of the
            // request; (responder_resources, initiator_depth) of the initiator's `Established`
            // event.
            (1, 2, (2, 1), (1, 2)),
            (8, 5, (5, 8), (8, 5)),
            (100, 100, (5, 8), (8, 5)),
            (0, 0, (0, 0), (0, 0)),
        ] {
            let listener = b.listening(at, 1);
            let ours = a.resolved(listener.local_addr().unwrap());
            let (first, second) = (a.side.another_qp(), b.side.another_qp());
            let options = ConnectOptions::default().ird(ird).ord(ord);
            ours.connect(&first, &options).unwrap();
            let event = b.next(CmEventKind::ConnectRequest);
            assert_eq!(
                (event.responder_resources(), event.initiator_depth()),
                requested
            );
            let accept = AcceptOptions::default().ird(0).ord(4);
            event.id().accept(&second, &accept).unwrap();
            let theirs = event.id().clone();
            drop(event);
            let event = b.next(CmEventKind::Established);
            // The responder's ORD is the one that it asked for, limited by the initiator's IRD.
            assert_eq!(
                (event.responder_resources(), event.initiator_depth()),
                (granted.1, granted.0.min(4))
            );
            let event = a.next(CmEventKind::Established);
            assert_eq!(
                (event.responder_resources(), event.initiator_depth()),
                granted
            );
            drop(theirs);
        }
    }
}

#[test]
fn a_request_of_revision_1_asks_for_what_the_device_allows() {
    let settings = Settings::default().revision(uwarp_verbs::Revision::One);
    let (a, b, at) = hosts_with(&settings).swap_remove(0);
    let listener = b.listening(at, 1);
    let ours = a.resolved(listener.local_addr().unwrap());
    ours.connect(&a.side.qp, &ConnectOptions::default())
        .unwrap();
    let event = b.next(CmEventKind::ConnectRequest);
    assert_eq!(
        (event.responder_resources(), event.initiator_depth()),
        (128, 128)
    );
}

#[test]
fn a_peer_to_peer_request_says_so_and_the_responder_may_post_first() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 1);
        let ours = a.resolved(listener.local_addr().unwrap());
        let options = ConnectOptions::default().peer_to_peer(true);
        ours.connect(&a.side.qp, &options).unwrap();
        let event = b.next(CmEventKind::ConnectRequest);
        assert!(event.is_peer_to_peer());
        let theirs = event.id().clone();
        theirs
            .accept(&b.side.qp, &AcceptOptions::default())
            .unwrap();
        drop(b.next(CmEventKind::Established));
        both_ways(&b.side, &a.side);
        drop(a.next(CmEventKind::Established));
    }
}

/// A Terminate Message from either side ends a connection like any other reason.
#[test]
fn an_error_of_the_stream_is_told_as_disconnected_with_its_reason() {
    for (a, b, at) in hosts() {
        let _ids = connected(&a, &b, at);
        let source = a.side.filled(1, 8);
        let sges = [source.sge(0, 8)];
        let nowhere = uwarp_verbs::SendWr::write(1, &sges, RemoteBuffer::at(0, 0xDEAD_BEEF));
        a.side.qp.post_send(&nowhere).unwrap();
        let words = b
            .next(CmEventKind::Disconnected)
            .reason()
            .unwrap()
            .to_string();
        assert!(
            words.contains("remote access error, invalid STag"),
            "{words}"
        );
        let words = a
            .next(CmEventKind::Disconnected)
            .reason()
            .unwrap()
            .to_string();
        assert!(
            words.contains("the peer refused a Write of 8 bytes to STag 0xdeadbeef"),
            "{words}"
        );
    }
}

#[test]
fn a_dropped_qp_ends_the_connection_and_the_events_tell() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 1);
        let ours = a.resolved(listener.local_addr().unwrap());
        let qp = a.side.another_qp();
        ours.connect(&qp, &ConnectOptions::default()).unwrap();
        let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
        theirs
            .accept(&b.side.qp, &AcceptOptions::default())
            .unwrap();
        drop(b.next(CmEventKind::Established));
        drop(a.next(CmEventKind::Established));
        drop(qp);
        drop(a.next(CmEventKind::Disconnected));
        drop(b.next(CmEventKind::Disconnected));
        until("the QP to go", || ours.qp_num().is_none());
    }
}

#[test]
fn a_link_that_fails_ends_connections_and_removes_the_device() {
    use uwarp_verbs::llp::ethernet::{EthernetNetwork, LinkSettings};
    let host = |last| LinkSettings::default().addresses(vec![([192, 0, 2, last].into(), 24)]);
    let (first, second, cable) = EthernetNetwork::cable(&host(1), &host(2)).unwrap();
    let host = |network| Host::new(Arc::new(network), Settings::default());
    let (a, b) = (host(first), host(second));
    let ids = connected(&a, &b, "192.0.2.2:0".parse().unwrap());
    cable.unplug();
    for (host, id) in [(&a, ids.0), (&b, ids.1)] {
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let event = host.channel.get_event(Some(LIMIT)).unwrap();
            assert!(
                event.reason().unwrap().to_string().contains("link is down"),
                "{event:?}"
            );
            if event.kind() == CmEventKind::DeviceRemoval {
                assert_eq!(event.status(), status(Errno::NETDOWN));
            }
            kinds.push(event.kind());
        }
        kinds.sort_by_key(|kind| *kind == CmEventKind::DeviceRemoval);
        assert_eq!(
            kinds,
            [CmEventKind::Disconnected, CmEventKind::DeviceRemoval]
        );
        assert_eq!(id.state(), CmState::Disconnected);
        let late = host.id(9);
        late.resolve_addr(None, "192.0.2.1:1").unwrap();
        assert_eq!(
            host.next(CmEventKind::AddrError).status(),
            status(Errno::NETDOWN)
        );
    }
}
