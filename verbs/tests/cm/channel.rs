//! Event channels: their descriptor, acknowledgement of events, migration of ids, and the end of
//! ids with pending events.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::*;

fn readable(channel: &EventChannel) -> bool {
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .unwrap()
        == 1
}

/// Creates an id whose `AddrResolved` event is queued.
fn event(host: &Host, context: u64) -> CmId {
    let id = host.id(context);
    id.resolve_addr(None, "127.0.0.1:1").unwrap();
    id
}

#[test]
fn the_descriptor_is_readable_while_events_wait() {
    let host = Host::kernel();
    assert!(!readable(&host.channel));
    let ids = [event(&host, 1), event(&host, 2)];
    for id in &ids {
        assert!(readable(&host.channel));
        assert!(host.next(CmEventKind::AddrResolved).id().is(id));
    }
    assert!(!readable(&host.channel));
    let error = host
        .channel
        .get_event(Some(Duration::from_millis(1)))
        .unwrap_err();
    assert!(matches!(error, CmWaitError::TimedOut(_)), "{error:?}");
}

#[test]
fn a_descriptor_that_was_made_non_blocking_makes_get_event_so() {
    let host = Host::kernel();
    let fd = host.channel.as_fd();
    fcntl_setfl(fd, fcntl_getfl(fd).unwrap() | OFlags::NONBLOCK).unwrap();
    let error = host.channel.get_event(None).unwrap_err();
    assert!(matches!(error, CmWaitError::WouldBlock), "{error:?}");
    let _id = event(&host, 1);
    drop(host.channel.get_event(None).unwrap());
}

#[test]
fn a_wait_ends_when_an_event_comes() {
    let host = Host::kernel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| host.channel.get_event(None).unwrap().id().context());
        let _id = event(&host, 0x77);
        assert_eq!(waiting.join().unwrap(), 0x77);
    });
}

#[test]
fn a_migrated_id_takes_its_waiting_events_along_and_no_others() {
    let host = Host::kernel();
    let other = EventChannel::new().unwrap();
    let (stays, moves) = (event(&host, 1), event(&host, 2));
    moves.migrate(&other).unwrap();
    assert_eq!((host.channel.waiting(), other.waiting()), (1, 1));
    assert!(readable(&host.channel) && readable(&other));
    assert!(next(&other, CmEventKind::AddrResolved).id().is(&moves));
    assert!(host.next(CmEventKind::AddrResolved).id().is(&stays));
    assert!(!readable(&host.channel) && !readable(&other));
    // Later events are queued in the new channel as well.
    moves.resolve_route().unwrap();
    drop(next(&other, CmEventKind::RouteResolved));
    assert_eq!(host.channel.waiting(), 0);
}

#[test]
fn a_request_that_waits_moves_with_its_listener_and_a_child_moves_alone() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 4);
        let ours = a.resolved(listener.local_addr().unwrap());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        until("the request", || b.channel.waiting() == 1);
        let (second, third) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
        listener.migrate(&second).unwrap();
        b.nothing_waits();
        let request = next(&second, CmEventKind::ConnectRequest);
        let theirs = request.id().clone();
        theirs.migrate(&third).unwrap();
        // The unacknowledged event counts for the listener, whichever channel the listener has now.
        assert!(matches!(
            listener.wait_acknowledged(Some(Duration::ZERO)),
            Err(CmError::Unacknowledged { events: 1 })
        ));
        drop(request);
        listener.wait_acknowledged(None).unwrap();
        theirs
            .accept(&b.side.qp, &AcceptOptions::default())
            .unwrap();
        drop(next(&third, CmEventKind::Established));
        drop(a.next(CmEventKind::Established));
        ours.disconnect().unwrap();
        drop(next(&third, CmEventKind::Disconnected));
        assert_eq!((b.channel.waiting(), second.waiting()), (0, 0));
    }
}

#[test]
fn destroy_waits_for_acknowledgement_and_a_drop_does_not() {
    let host = Host::kernel();
    let id = event(&host, 1);
    let fetched = host.next(CmEventKind::AddrResolved);
    let error = id.destroy(Some(Duration::ZERO)).unwrap_err();
    assert!(
        matches!(error, CmError::Unacknowledged { events: 1 }),
        "{error:?}"
    );
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| id.destroy(None));
        drop(fetched);
        destroying.join().unwrap().unwrap();
    });
    assert_eq!(id.state(), CmState::Destroyed);
    assert!(matches!(
        id.bind_addr("127.0.0.1:0".parse().unwrap()),
        Err(CmError::WrongState(_))
    ));

    let id = event(&host, 2);
    let fetched = host.next(CmEventKind::AddrResolved);
    drop(id);
    assert_eq!(fetched.id().context(), 2);
}

#[test]
fn events_may_be_acknowledged_later_by_number() {
    let host = Host::kernel();
    let id = event(&host, 1);
    host.next(CmEventKind::AddrResolved).ack_later();
    id.resolve_route().unwrap();
    host.next(CmEventKind::RouteResolved).ack_later();
    id.ack_events(1);
    let error = id.wait_acknowledged(Some(Duration::ZERO)).unwrap_err();
    assert!(
        matches!(error, CmError::Unacknowledged { events: 1 }),
        "{error:?}"
    );
    id.ack_events(1);
    id.destroy(None).unwrap();
}

#[test]
fn a_destroyed_id_takes_its_events_back() {
    let host = Host::kernel();
    let (first, second, third) = (event(&host, 1), event(&host, 2), event(&host, 3));
    first.destroy(None).unwrap();
    drop(third);
    assert_eq!(host.channel.waiting(), 1);
    assert!(host.next(CmEventKind::AddrResolved).id().is(&second));
    assert!(!readable(&host.channel));
}

#[test]
fn a_listener_that_goes_rejects_requests_that_nobody_has_fetched_and_leaves_the_others() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 8);
        let to = listener.local_addr().unwrap();
        let ids: Vec<CmId> = (0..3).map(|_| a.resolved(to)).collect();
        let qps: Vec<Qp> = (0..3).map(|_| a.side.another_qp()).collect();
        for (id, qp) in ids.iter().zip(&qps) {
            id.connect(qp, &ConnectOptions::default()).unwrap();
        }
        until("the requests", || b.channel.waiting() == 3);
        let kept = b.next(CmEventKind::ConnectRequest).id().clone();
        listener.destroy(None).unwrap();
        b.nothing_waits();
        for _ in 0..2 {
            drop(a.next(CmEventKind::Rejected));
        }
        kept.accept(&b.side.qp, &AcceptOptions::default()).unwrap();
        drop(b.next(CmEventKind::Established));
        drop(a.next(CmEventKind::Established));
        // The listener no longer exists.
        let late = a.resolved(to);
        assert!(a.side.qp.state() == QpState::Idle);
        late.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        assert_eq!(
            a.next(CmEventKind::Rejected).status(),
            status(Errno::CONNREFUSED)
        );
    }
}

#[test]
fn a_request_that_is_dropped_is_rejected() {
    for (a, b, at) in hosts() {
        let listener = b.listening(at, 8);
        let ours = a.resolved(listener.local_addr().unwrap());
        ours.connect(&a.side.qp, &ConnectOptions::default())
            .unwrap();
        drop(b.next(CmEventKind::ConnectRequest));
        drop(a.next(CmEventKind::Rejected));
    }
}
