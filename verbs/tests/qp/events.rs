//! Asynchronous events: their descriptor, their acknowledgement, and the end of the objects that
//! they concern.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

fn readable(device: &Device) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn a_qp_is_destroyed_when_its_events_are_acknowledged() {
    let (a, b) = pair(Wire::MEMORY);
    let qp_num = a.qp.qp_num();
    let event = a.device.get_event(Some(LIMIT)).unwrap();
    assert_eq!(event.object(), EventObject::Qp(qp_num));
    let (qp, error) = a.qp.destroy(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error, DestroyQpError::Unacknowledged { events: 1 });
    assert!(error.to_string().contains("ack_events"), "{error}");
    // The refused `destroy` has not changed the QP.
    assert_eq!(qp.state(), QpState::Rts);
    drop(event);
    qp.destroy(None).map_err(|(_, error)| error).unwrap();
    b.wait_end();
}

#[test]
fn events_that_nobody_fetched_are_taken_back_with_their_qp_and_none_comes_later() {
    let (a, b) = pair(Wire::MEMORY);
    let Side { device, qp, .. } = a;
    until("the event of the connection", || readable(&device));
    qp.destroy(None).map_err(|(_, error)| error).unwrap();
    b.wait_end();
    assert!(!readable(&device));
    assert!(device.poll_event().is_none());
}

#[test]
fn an_event_left_unacknowledged_is_acknowledged_by_its_object() {
    let (a, _b) = pair(Wire::MEMORY);
    let event = a.device.get_event(Some(LIMIT)).unwrap().ack_later();
    assert!(matches!(event, AsyncEvent::Established { .. }), "{event:?}");
    let (qp, _) = a.qp.destroy(Some(Duration::ZERO)).unwrap_err();
    a.device.ack_events(event.object(), 1);
    qp.destroy(Some(Duration::ZERO))
        .map_err(|(_, error)| error)
        .unwrap();
}

/// Another thread holds the event, as the event thread of a program does.
#[test]
fn destroy_waits_for_the_thread_that_has_the_event() {
    let (a, _b) = pair(Wire::MEMORY);
    let event = a.device.get_event(Some(LIMIT)).unwrap();
    std::thread::scope(|scope| {
        let qp = a.qp;
        let destroying = scope.spawn(move || qp.destroy(None).map_err(|(_, error)| error));
        drop(event);
        destroying.join().unwrap().unwrap();
    });
}

/// `ibv_destroy_qp` requires acknowledgements. A drop of the Rust value does not.
#[test]
fn dropping_a_qp_waits_for_no_acknowledgement() {
    let (a, b) = pair(Wire::MEMORY);
    let event = a.device.get_event(Some(LIMIT)).unwrap();
    drop(a.qp);
    b.wait_end();
    drop(event);
}
