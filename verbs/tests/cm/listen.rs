//! Listening ids: their backlog, many of them at once, and late decisions.

use super::*;

#[test]
fn beyond_the_backlog_requests_wait_in_tcp_and_are_not_rejected() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 2);
        let to = listener.local_addr().unwrap();
        let qps: Vec<Qp> = (0..3).map(|_| a.side.another_qp()).collect();
        let ids: Vec<CmId> = qps
            .iter()
            .map(|qp| {
                let id = a.resolved(to);
                id.connect(qp, &ConnectOptions::default()).unwrap();
                id
            })
            .collect();
        let first = b.next(CmEventKind::ConnectRequest);
        let second = b.next(CmEventKind::ConnectRequest);
        assert_eq!((b.channel.waiting(), a.channel.waiting()), (0, 0));
        // A decision makes room for one more Request.
        first.id().reject(&RejectOptions::default()).unwrap();
        drop(a.next(CmEventKind::Rejected));
        let third = b.next(CmEventKind::ConnectRequest);
        drop((first, second, third));
        for _ in 0..2 {
            drop(a.next(CmEventKind::Rejected));
        }
        drop(ids);
    }
}

#[test]
fn many_listeners_have_one_channel() {
    for (a, b, at) in hosts() {
        let listeners: Vec<CmId> = (0..10)
            .map(|context| {
                let id = b.id(context);
                id.bind_addr(at).unwrap();
                id.listen(1).unwrap();
                id
            })
            .collect();
        for (context, listener) in (0..10_u32).zip(&listeners).rev() {
            let ours = a.resolved(listener.local_addr().unwrap());
            let qp = a.side.another_qp();
            ours.connect(&qp, &ConnectOptions::default()).unwrap();
            let event = b.next(CmEventKind::ConnectRequest);
            assert_eq!(event.id().context(), u64::from(context));
            assert!(event.listen_id().unwrap().is(listener));
            drop(event);
            drop(a.next(CmEventKind::Rejected));
        }
    }
}

#[test]
fn an_id_that_was_not_bound_listens_at_all_addresses_at_a_port_of_its_own() {
    let (a, b, _) = hosts().swap_remove(0);
    let listener = b.id(1);
    listener.listen(0).unwrap();
    let local = listener.local_addr().unwrap();
    assert!(local.ip().is_unspecified() && local.port() != 0);
    let ours = a.resolved(([127, 0, 0, 1], local.port()).into());
    ours.connect(&a.side.qp, &ConnectOptions::default())
        .unwrap();
    let event = b.next(CmEventKind::ConnectRequest);
    // The request has the local address that the connection arrived at.
    assert_eq!(
        event.id().local_addr().unwrap().to_string(),
        format!("127.0.0.1:{}", local.port())
    );
}

#[test]
fn a_decision_that_comes_too_late_finds_the_request_rejected() {
    let mut settings = Settings::default();
    settings.timeouts.decision = Duration::from_millis(10);
    for (a, b, at) in hosts_with(&settings) {
        let listener = b.listening(at, 1);
        let ours = a.resolved(listener.local_addr().unwrap());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
        drop(a.next(CmEventKind::Rejected));
        let late = theirs
            .accept(&b.side.qp, &AcceptOptions::default())
            .unwrap_err();
        assert!(late.to_string().contains("came too late"), "{late}");
        assert_eq!(
            (theirs.state(), b.side.qp.state()),
            (CmState::Rejected, QpState::Idle)
        );
    }
}

#[test]
fn who_brings_no_request_is_nobodys_event_and_holds_no_place() {
    let (a, b, at) = hosts().swap_remove(0);
    let listener = b.listening(at, 1);
    let to = listener.local_addr().unwrap();
    for _ in 0..3 {
        drop(std::net::TcpStream::connect(to).unwrap());
    }
    let ours = a.resolved(to);
    ours.connect(&a.side.qp, &ConnectOptions::default())
        .unwrap();
    drop(b.next(CmEventKind::ConnectRequest));
    b.nothing_waits();
}
