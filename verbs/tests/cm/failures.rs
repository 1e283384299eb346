//! Connections that are not established. Each causes the event and status that programs expect.

use std::io::{Read, Write};
use std::net::TcpListener;

use uwarp_verbs::llp::smol::FaultSettings;

use super::*;

/// Connects to a peer that applies `what` to its first connection.
fn attempt(
    settings: Settings,
    what: impl FnOnce(std::net::TcpStream) + Send + 'static,
) -> (Host, CmEvent) {
    let host = Host::new(Arc::new(KernelNetwork::default()), settings);
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let id = host.resolved(tcp.local_addr().unwrap());
    id.connect(&host.side.qp, &ConnectOptions::default())
        .unwrap();
    let peer = std::thread::spawn(move || what(tcp.accept().unwrap().0));
    let event = host.channel.get_event(Some(LIMIT)).unwrap();
    assert!(event.id().is(&id));
    // The id may try again to connect.
    assert_eq!(id.state(), CmState::RouteResolved);
    peer.join().unwrap();
    (host, event)
}

#[track_caller]
fn assert_event(event: &CmEvent, kind: CmEventKind, errno: Errno) {
    assert_eq!(
        (event.kind(), event.status()),
        (kind, status(errno)),
        "{event:?}"
    );
    assert!(event.reason().is_some());
    let cause = event.cause().unwrap();
    assert!(
        !cause.sentence().is_empty() && !cause.is_flush(),
        "{event:?}"
    );
}

#[test]
fn a_reject_of_the_program_brings_its_private_data() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 1);
        let ours = a.resolved(listener.local_addr().unwrap());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
        let options = RejectOptions::default().private_data(b"full up".to_vec());
        theirs.reject(&options).unwrap();
        assert_eq!(theirs.state(), CmState::Rejected);
        let event = a.next(CmEventKind::Rejected);
        assert_event(&event, CmEventKind::Rejected, Errno::CONNREFUSED);
        assert_eq!(event.private_data(), b"full up");
        assert!(matches!(
            theirs.reject(&options),
            Err(CmError::WrongState(_))
        ));
        b.nothing_waits();
    }
}

/// A limit causes no event, because a flood would cause too many events. The listening id records
/// the failure instead.
#[test]
fn who_has_as_many_connections_as_one_peer_may_is_rejected_and_the_listener_tells() {
    let mut settings = Settings::default();
    settings.limits.per_peer.max_qp = 1;
    for (a, b, at) in hosts_with(&settings) {
        let listener = b.listening(at, 0);
        let to = listener.local_addr().unwrap();
        let ours = a.resolved(to);
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
        theirs
            .accept(&b.side.qp, &AcceptOptions::default())
            .unwrap();
        drop(b.next(CmEventKind::Established));
        drop(a.next(CmEventKind::Established));

        let (second, qp) = (a.resolved(to), a.side.another_qp());
        second.connect(&qp, &ConnectOptions::default()).unwrap();
        let event = a.next(CmEventKind::Rejected);
        assert_event(&event, CmEventKind::Rejected, Errno::CONNREFUSED);
        assert!(event.private_data().is_empty());
        let hint = event.cause().unwrap().hint().unwrap();
        assert!(hint.contains("its device has reached a limit"), "{hint}");
        b.nothing_waits();
        let (who, error) = listener.poll_failure().unwrap();
        assert_eq!(who, second.local_addr().unwrap());
        let expected = StartupError::TooManyConnections {
            limit: 1,
            of_peer: true,
        };
        assert_eq!((error, listener.lost_failures()), (expected, 0));
        assert!(listener.poll_failure().is_none());

        // When a connection ends, its place is available again.
        theirs.disconnect().unwrap();
        drop(b.next(CmEventKind::Disconnected));
        drop(a.next(CmEventKind::Disconnected));
        drop(event);
        until("a place for another connection", || {
            if second.state() == CmState::RouteResolved {
                assert!(qp.reset());
                let _ = second.connect(&qp, &ConnectOptions::default());
            }
            let event = b.channel.try_get_event();
            event.is_some_and(|event| event.kind() == CmEventKind::ConnectRequest)
        });
    }
}

#[test]
fn a_port_that_nobody_listens_at_is_rejected_and_the_id_may_try_again() {
    for (a, b, at) in hosts() {
        let holder = b.id(1);
        holder.bind_addr(at).unwrap();
        let to = holder.local_addr().unwrap();
        let ours = a.resolved(to);
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        assert_event(
            &a.next(CmEventKind::Rejected),
            CmEventKind::Rejected,
            Errno::CONNREFUSED,
        );
        // The server starts to listen now.
        holder.listen(1).unwrap();
        assert!(a.side.qp.reset());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
        theirs
            .accept(&b.side.qp, &AcceptOptions::default())
            .unwrap();
        drop(b.next(CmEventKind::Established));
        drop(a.next(CmEventKind::Established));
        both_ways(&a.side, &b.side);
    }
}

/// Returns hosts that retry a refused TCP connection for this time.
fn hosts_that_ask_again(refused: Duration) -> Vec<(Host, Host, SocketAddr)> {
    let mut settings = Settings::default();
    settings.timeouts.refused = refused;
    hosts_with(&settings)
}

#[test]
fn who_was_refused_is_connected_when_somebody_listens_in_time() {
    for (a, b, at) in hosts_that_ask_again(LIMIT) {
        let holder = b.id(LISTENER);
        holder.bind_addr(at).unwrap();
        let ours = a.resolved(holder.local_addr().unwrap());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        // Another id stops its attempt meanwhile.
        let other = a.resolved(holder.local_addr().unwrap());
        let qp = a.side.another_qp();
        other.connect(&qp, &ConnectOptions::default()).unwrap();
        other.disconnect().unwrap();
        let event = a.next(CmEventKind::ConnectError);
        assert_event(&event, CmEventKind::ConnectError, Errno::CONNABORTED);
        drop(event);
        assert_eq!(ours.state(), CmState::Connecting);
        holder.listen(1).unwrap();
        let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
        theirs
            .accept(&b.side.qp, &AcceptOptions::default())
            .unwrap();
        drop(b.next(CmEventKind::Established));
        drop(a.next(CmEventKind::Established));
        assert_eq!(ours.local_addr(), theirs.peer_addr());
        both_ways(&a.side, &b.side);
    }
}

#[test]
fn who_is_refused_for_too_long_is_told_so_once() {
    for (a, b, at) in hosts_that_ask_again(Duration::from_millis(120)) {
        let holder = b.id(LISTENER);
        holder.bind_addr(at).unwrap();
        let ours = a.resolved(holder.local_addr().unwrap());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        assert_event(
            &a.next(CmEventKind::Rejected),
            CmEventKind::Rejected,
            Errno::CONNREFUSED,
        );
        a.nothing_waits();
        assert_eq!(ours.state(), CmState::RouteResolved);
        assert!(a.side.qp.reset());
    }
}

#[test]
fn an_id_and_a_qp_may_go_while_a_refused_connection_is_asked_for_again() {
    for (a, b, at) in hosts_that_ask_again(LIMIT) {
        let holder = b.id(LISTENER);
        holder.bind_addr(at).unwrap();
        let to = holder.local_addr().unwrap();
        let connecting = || {
            let (id, qp) = (a.resolved(to), a.side.another_qp());
            id.connect(&qp, &ConnectOptions::default()).unwrap();
            (id, qp)
        };
        let (id, qp) = connecting();
        id.destroy(None).unwrap();
        drop(qp);
        let (id, qp) = connecting();
        drop(qp);
        id.destroy(None).unwrap();
        a.nothing_waits();
        // A dropped id no longer connects.
        holder.listen(1).unwrap();
        let ours = a.resolved(to);
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
        assert_eq!(theirs.peer_addr(), ours.local_addr());
    }
}

#[test]
fn a_bound_id_tries_again_from_its_port() {
    let (a, b, at) = hosts().swap_remove(0);
    let holder = b.id(1);
    holder.bind_addr(at).unwrap();
    let ours = a.id(1);
    ours.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    let from = ours.local_addr();
    ours.resolve_addr(None, holder.local_addr().unwrap())
        .unwrap();
    drop(a.next(CmEventKind::AddrResolved));
    ours.resolve_route().unwrap();
    drop(a.next(CmEventKind::RouteResolved));
    for _ in 0..3 {
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        assert_event(
            &a.next(CmEventKind::Rejected),
            CmEventKind::Rejected,
            Errno::CONNREFUSED,
        );
        assert_eq!(ours.local_addr(), from);
        assert!(a.side.qp.reset());
    }
}

#[test]
fn a_peer_that_closes_in_startup_has_rejected() {
    let (_host, event) = attempt(Settings::default(), drop);
    assert_event(&event, CmEventKind::Rejected, Errno::CONNRESET);
}

#[test]
fn a_peer_that_is_silent_is_unreachable() {
    let mut settings = Settings::default();
    settings.timeouts.reply = Duration::from_millis(20);
    let (_host, event) = attempt(settings, |mut stream| {
        // Reads until the initiator gives up.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_event(&event, CmEventKind::Unreachable, Errno::TIMEDOUT);
}

#[test]
fn a_peer_that_is_no_rnic_is_a_connect_error() {
    let (_host, event) = attempt(Settings::default(), |mut stream| {
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_event(&event, CmEventKind::ConnectError, Errno::PROTO);
    let words = event.reason().unwrap().to_string();
    assert!(words.contains("HTTP"), "{words}");
}

#[test]
fn a_host_that_does_not_answer_is_unreachable() {
    let mut settings = Settings::default();
    settings.timeouts.connect = Duration::from_millis(20);
    // The link loses every packet.
    let (network, _peer) = MemoryNetwork::pair(
        &MemorySettings::default().faults(Some(FaultSettings::default().loss(1.0))),
    )
    .unwrap();
    let host = Host::new(Arc::new(network), settings);
    let ours = host.resolved("192.0.2.2:1".parse().unwrap());
    ours.connect(&host.side.qp, &ConnectOptions::default())
        .unwrap();
    assert_event(
        &host.next(CmEventKind::Unreachable),
        CmEventKind::Unreachable,
        Errno::TIMEDOUT,
    );
}

#[test]
fn what_cannot_be_begun_is_refused_at_once_and_the_id_stays_as_it_was() {
    for (a, b, at) in hosts() {
        let (ours, _theirs) = connected(&a, &b, at);
        drop(ours);
        let listener = b.listening(at, 1);
        let again = a.resolved(listener.local_addr().unwrap());
        let refused = again.connect(&a.side.qp, &ConnectOptions::default());
        let words = refused.unwrap_err().to_string();
        assert!(words.contains("RTS"), "{words}");
        let qp = a.side.another_qp();
        let options = ConnectOptions::default().private_data(vec![0; 600]);
        assert!(matches!(
            again.connect(&qp, &options),
            Err(CmError::Connect(_))
        ));
        assert_eq!(again.state(), CmState::RouteResolved);
        a.nothing_waits();
        again.connect(&qp, &ConnectOptions::default()).unwrap();
        let event = b.next(CmEventKind::ConnectRequest);
        // A QP in use cannot accept the request, which is therefore rejected.
        let refused = event.id().accept(&b.side.qp, &AcceptOptions::default());
        assert!(matches!(refused, Err(CmError::Accept(_))), "{refused:?}");
        assert_eq!(event.id().state(), CmState::Rejected);
        drop(a.next(CmEventKind::Rejected));
    }
}
