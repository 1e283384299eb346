//! `disconnect`, and the end of an id, in each state.

use super::*;

#[test]
fn disconnect_while_connecting_gives_the_attempt_up() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 1);
        let ours = a.resolved(listener.local_addr().unwrap());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        let request = b.next(CmEventKind::ConnectRequest);
        assert_eq!(ours.state(), CmState::Connecting);
        ours.disconnect().unwrap();
        let event = a.next(CmEventKind::ConnectError);
        assert_eq!(event.status(), status(Errno::CONNABORTED));
        assert_eq!(
            event.reason().unwrap().to_string(),
            "the connection was closed by this side"
        );
        assert_eq!(
            (ours.state(), a.side.qp.state()),
            (CmState::RouteResolved, QpState::Error)
        );
        drop(request);
    }
}

#[test]
fn a_second_disconnect_and_one_of_an_ended_connection_do_nothing() {
    for (a, b, at) in hosts() {
        let (ours, theirs) = connected(&a, &b, at);
        ours.disconnect().unwrap();
        ours.disconnect().unwrap();
        drop(a.next(CmEventKind::Disconnected));
        drop(b.next(CmEventKind::Disconnected));
        ours.disconnect().unwrap();
        theirs.disconnect().unwrap();
        a.nothing_waits();
        b.nothing_waits();
    }
}

#[test]
fn both_sides_may_disconnect_at_once() {
    for (a, b, at) in hosts() {
        let (ours, theirs) = connected(&a, &b, at);
        std::thread::scope(|scope| {
            scope.spawn(|| ours.disconnect().unwrap());
            scope.spawn(|| theirs.disconnect().unwrap());
        });
        drop(a.next(CmEventKind::Disconnected));
        drop(b.next(CmEventKind::Disconnected));
    }
}

#[test]
fn what_was_posted_before_disconnect_arrives() {
    for (a, b, at) in hosts() {
        let (ours, _theirs) = connected(&a, &b, at);
        let (source, sink) = (a.side.filled(3, 200_000), b.side.blank(200_000));
        b.side.post_whole(1, &sink);
        let sges = [source.sge(0, 200_000)];
        let send = uwarp_verbs::SendWr::send(2, &sges);
        a.side.qp.post_send(&send).unwrap();
        ours.disconnect().unwrap();
        drop(a.next(CmEventKind::Disconnected));
        a.side.send_cq.success(2);
        drop(b.next(CmEventKind::Disconnected));
        b.side.recv_cq.success(1);
        common::same(&common::content(&sink), &common::content(&source), "sent");
    }
}

#[test]
fn disconnect_where_there_is_no_connection_is_refused() {
    let (a, b, at) = hosts().swap_remove(0);
    let listener = b.listening(at, 1);
    let resolved = a.resolved(listener.local_addr().unwrap());
    for id in [&listener, &resolved, &a.id(1)] {
        assert!(matches!(id.disconnect(), Err(CmError::WrongState(_))));
    }
    resolved
        .connect(&a.side.qp, &ConnectOptions::default())
        .unwrap();
    let request = b.next(CmEventKind::ConnectRequest);
    assert!(matches!(
        request.id().disconnect(),
        Err(CmError::WrongState(_))
    ));
}

#[test]
fn an_id_that_goes_while_connecting_gives_the_attempt_up_without_an_event() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 1);
        let ours = a.resolved(listener.local_addr().unwrap());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        let request = b.next(CmEventKind::ConnectRequest);
        drop(ours);
        assert!(a.side.qp.wait_closed(LIMIT));
        a.nothing_waits();
        assert!(a.side.qp.reset());
        drop(request);
    }
}

#[test]
fn a_connection_outlives_its_ids() {
    for (a, b, at) in hosts() {
        drop(connected(&a, &b, at));
        both_ways(&a.side, &b.side);
        a.side.qp.disconnect();
        assert!(a.side.qp.wait_closed(LIMIT) && b.side.qp.wait_closed(LIMIT));
        a.nothing_waits();
        b.nothing_waits();
    }
}

/// Operation that ends the connection of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Close {
    Disconnect,
    Abort,
    Modify(QpState),
    IbvReset,
    Drop,
}

const CLOSES: [Close; 5] = [
    Close::Disconnect,
    Close::Abort,
    Close::Modify(QpState::Error),
    Close::IbvReset,
    Close::Drop,
];

impl Close {
    /// Performs the operation. Returns the QP unless the operation dropped it.
    fn close(self, qp: Qp) -> Option<Qp> {
        match self {
            Close::Disconnect => qp.disconnect(),
            Close::Abort => qp.abort(),
            Close::Modify(state) => qp.modify(&QpModify::new().state(state)).unwrap(),
            Close::IbvReset => {
                let reset = QpModify::new().ibv_state(IbvQpState::Reset);
                qp.modify(&reset).unwrap();
            }
            Close::Drop => return None,
        }
        Some(qp)
    }
}

#[test]
fn every_close_of_a_qp_that_connects_gives_the_attempt_up_and_its_id_may_try_again() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 1);
        let to = listener.local_addr().unwrap();
        for close in CLOSES {
            let ours = a.resolved(to);
            let qp = a.side.another_qp();
            qp.post_recv(&RecvWr::new(1, &[])).unwrap();
            ours.connect(&qp, &ConnectOptions::default()).unwrap();
            let request = b.next(CmEventKind::ConnectRequest);
            assert_eq!(qp.state(), QpState::Connecting);
            let qp = close.close(qp);
            let state = qp.map_or(QpState::Error, |qp| qp.state());
            let expected = if close == Close::IbvReset {
                QpState::Idle
            } else {
                QpState::Error
            };
            assert_eq!(state, expected, "{close:?}");
            a.side.recv_cq.flushed(1);
            let event = a.next(CmEventKind::ConnectError);
            assert_eq!(event.status(), status(Errno::CONNABORTED), "{close:?}");
            assert_eq!(ours.state(), CmState::RouteResolved);
            drop(request);
            // The same id may connect another QP.
            let again = a.side.another_qp();
            ours.connect(&again, &ConnectOptions::default()).unwrap();
            let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
            let answers = b.side.another_qp();
            theirs.accept(&answers, &AcceptOptions::default()).unwrap();
            drop(b.next(CmEventKind::Established));
            drop(a.next(CmEventKind::Established));
            // Each operation also ends an established connection, and both sides report that.
            let again = close.close(again);
            drop(a.next(CmEventKind::Disconnected));
            drop(b.next(CmEventKind::Disconnected));
            drop(again);
            a.nothing_waits();
            b.nothing_waits();
        }
    }
}
