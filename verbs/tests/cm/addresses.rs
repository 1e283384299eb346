//! `bind_addr`, `resolve_addr` and `resolve_route` of an id.

use uwarp_verbs::llp::LlpError;

use super::*;

#[test]
fn port_0_is_chosen_at_once_and_kept() {
    for (_, b, at) in hosts() {
        let id = b.id(1);
        id.bind_addr(at).unwrap();
        let local = id.local_addr().unwrap();
        assert_eq!((local.ip(), id.state()), (at.ip(), CmState::Bound));
        assert_ne!(local.port(), 0);
        let other = b.id(2);
        let error = other.bind_addr(local).unwrap_err();
        let CmError::Network(LlpError::AddressInUse { addr }) = error else {
            panic!("{error}")
        };
        assert_eq!(addr, local);
        drop(id);
        other.bind_addr(local).unwrap();
        other.listen(1).unwrap();
        assert_eq!(other.local_addr(), Some(local));
    }
}

#[test]
fn an_address_of_one_family_leaves_the_port_of_the_other() {
    let host = Host::kernel();
    let (six, four) = (host.id(6), host.id(4));
    six.bind_addr_of_one_family("[::]:0".parse().unwrap())
        .unwrap();
    let port = six.local_addr().unwrap().port();
    let addr = SocketAddr::from(([0, 0, 0, 0], port));
    four.bind_addr(addr).unwrap();
    six.listen(1).unwrap();
    four.listen(1).unwrap();
    // If an id listens on both families, the port is free for neither.
    let (both, none) = (host.id(0), host.id(0));
    both.bind_addr("[::]:0".parse().unwrap()).unwrap();
    both.listen(1).unwrap();
    let port = both.local_addr().unwrap().port();
    let addr = SocketAddr::from(([0, 0, 0, 0], port));
    let error = none.bind_addr(addr).unwrap_err();
    assert!(
        matches!(error, CmError::Network(LlpError::AddressInUse { .. })),
        "{error}"
    );
}

#[test]
fn addr_resolved_comes_with_the_own_address_and_without_a_wait() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 1);
        let to = listener.local_addr().unwrap();
        let id = a.id(7);
        id.resolve_addr(None, to).unwrap();
        let event = a.channel.try_get_event().unwrap();
        assert_eq!(
            (event.kind(), event.status()),
            (CmEventKind::AddrResolved, 0)
        );
        assert!(event.id().is(&id) && event.listen_id().is_none());
        assert_eq!(event.id().context(), 7);
        let local = id.local_addr().unwrap();
        assert_eq!(local.is_ipv4(), to.is_ipv4());
        assert!(!local.ip().is_unspecified());
        assert_eq!(id.peer_addr(), Some(to));
        id.resolve_route().unwrap();
        let event = a.channel.try_get_event().unwrap();
        assert_eq!(event.kind(), CmEventKind::RouteResolved);
    }
}

#[test]
fn addr_error_says_that_there_is_no_route() {
    let (_, host, _) = hosts().pop().unwrap();
    let id = host.id(1);
    id.resolve_addr(None, "203.0.113.1:5").unwrap();
    let event = host.next(CmEventKind::AddrError);
    assert_eq!(event.status(), status(Errno::NETUNREACH));
    let words = event.reason().unwrap().to_string();
    assert!(words.contains("203.0.113.1:5 cannot be reached"), "{words}");
    // The id may try to resolve another address.
    assert_eq!(id.state(), CmState::Idle);
}

#[test]
fn addr_error_says_that_the_families_do_not_go_together() {
    for (a, b, at) in hosts() {
        let other = if at.is_ipv4() {
            "[::1]:1"
        } else {
            "127.0.0.1:1"
        };
        let id = a.id(1);
        id.resolve_addr(Some(other.parse().unwrap()), at).unwrap();
        let event = a.next(CmEventKind::AddrError);
        assert_eq!(event.status(), status(Errno::INVAL));
        let words = event.reason().unwrap().to_string();
        assert!(words.contains("an IPv6 address"), "{words}");
        drop(b);
    }
}

#[test]
fn a_connection_comes_from_the_address_that_was_bound_or_resolved_from() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 4);
        let to = listener.local_addr().unwrap();
        let id = a.id(1);
        id.resolve_addr(None, to).unwrap();
        drop(a.next(CmEventKind::AddrResolved));
        let from = SocketAddr::new(id.local_addr().unwrap().ip(), 0);
        drop(id);
        let wildcard = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        for bound in [from, wildcard.parse().unwrap()] {
            let id = a.id(1);
            if bound == from {
                id.resolve_addr(Some(bound), to).unwrap();
            } else {
                id.bind_addr(bound).unwrap();
                id.resolve_addr(None, to).unwrap();
            }
            drop(a.next(CmEventKind::AddrResolved));
            let local = id.local_addr().unwrap();
            assert_eq!(local.ip(), from.ip());
            assert_ne!(local.port(), 0);
            id.resolve_route().unwrap();
            drop(a.next(CmEventKind::RouteResolved));
            let qp = a.side.another_qp();
            id.connect(&qp, &ConnectOptions::default()).unwrap();
            let event = b.next(CmEventKind::ConnectRequest);
            assert_eq!(event.id().peer_addr(), Some(local));
            drop(event);
            drop(a.next(CmEventKind::Rejected));
        }
    }
}

#[test]
fn a_call_out_of_order_says_what_it_needs() {
    let host = Host::kernel();
    let id = host.id(1);
    let connect = id.connect(&host.side.qp, &ConnectOptions::default());
    let words = connect.unwrap_err().to_string();
    assert!(
        words.contains("IDLE") && words.contains("resolve_route first"),
        "{words}"
    );
    for refused in [
        id.accept(&host.side.qp, &AcceptOptions::default()),
        id.reject(&RejectOptions::default()),
        id.disconnect(),
        id.resolve_route(),
    ] {
        assert!(
            matches!(refused, Err(CmError::WrongState(_))),
            "{refused:?}"
        );
    }
    let other = Host::kernel();
    let refused = id.connect(&other.side.qp, &ConnectOptions::default());
    assert!(matches!(refused, Err(CmError::OtherDevice)), "{refused:?}");
    host.nothing_waits();
}
