//! Completion channels and their events.

use super::*;

fn get(side: &Side) -> (c_int, *mut ibv_cq, *mut c_void) {
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the test passes a channel, and memory for two pointers.
    let result = unsafe { channel::get_cq_event(side.channel, &raw mut cq, &raw mut context) };
    (result, cq, context)
}

fn nonblocking(fd: c_int) {
    assert_eq!(
        // SAFETY: the call takes only numbers.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) },
        0
    );
}

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

#[test]
fn an_event_names_the_queue_and_its_context_and_a_queue_ends_when_it_is_acknowledged() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    post_recv(peer, 1, &mut []);
    connect(qp, peer);
    // SAFETY: the test passes an existing queue.
    assert_eq!(unsafe { cq::req_notify_cq(there.cq, 0) }, 0);
    let mut wr = send_wr(1, IBV_WR_SEND, &mut []);
    assert_eq!(post_send(qp, &mut wr).0, 0);
    let (result, source, context) = get(&there);
    assert_eq!((result, source, context.addr()), (0, there.cq, 7));
    there.poll(1);
    here.poll(1);
    end_qp(qp);
    end_qp(peer);
    // Acknowledge more events than were taken, as fio does. SAFETY: the test passes an existing
    // queue.
    unsafe { channel::ack_cq_events(there.cq, 5) };
    here.end();
    there.end();
}

#[test]
fn a_channel_that_was_made_non_blocking_says_eagain() {
    let side = Side::new();
    // SAFETY: the test passes a channel.
    nonblocking(unsafe { (*side.channel).fd });
    assert_eq!((get(&side).0, errno()), (-1, Some(libc::EAGAIN)));
    // SAFETY: the test passes an open context.
    nonblocking(unsafe { (*side.context).async_fd });
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event = unsafe { mem::zeroed() };
    // SAFETY: the test passes an open context, and memory for an event.
    let result = unsafe { crate::events::get_async_event(side.context, &raw mut event) };
    assert_eq!((result, errno()), (-1, Some(libc::EAGAIN)));
    side.end();
}

#[test]
fn a_channel_and_a_domain_are_busy_while_something_uses_them() {
    let side = Side::new();
    let qp = side.qp();
    // SAFETY: the test passes existing objects.
    unsafe {
        assert_eq!(channel::destroy_comp_channel(side.channel), libc::EBUSY);
        assert_eq!(cq::destroy_cq(side.cq), libc::EBUSY);
        assert_eq!(pd::dealloc_pd(side.pd), libc::EBUSY);
    }
    end_qp(qp);
    let mut memory = [0; 8];
    let mr = side.mr(&mut memory, 0);
    // SAFETY: the test passes an existing domain.
    assert_eq!(unsafe { pd::dealloc_pd(side.pd) }, libc::EBUSY);
    end_mr(mr);
    side.end();
}

unsafe extern "C-unwind" fn wait_for_ever(channel: *mut c_void) -> *mut c_void {
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the test passes a channel, and memory for two pointers.
    unsafe { channel::get_cq_event(channel.cast(), &raw mut cq, &raw mut context) };
    ptr::null_mut()
}

/// When rping ends, it cancels a thread that waits for an event.
#[test]
fn a_thread_that_waits_for_an_event_can_be_cancelled() {
    let side = Side::new();
    cancelled(wait_for_ever, side.channel.cast());
    side.end();
}

/// fio acknowledges events in this way: as many as it has polled completions.
#[test]
fn a_queue_ends_when_as_many_events_are_acknowledged_as_were_taken_in_whatever_order() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    connect(qp, peer);
    for (event, acknowledged) in [(1, 2), (2, 0), (3, 0)] {
        post_recv(peer, event, &mut []);
        // SAFETY: the test passes an existing queue.
        assert_eq!(unsafe { cq::req_notify_cq(there.cq, 0) }, 0);
        let mut wr = send_wr(event, IBV_WR_SEND, &mut []);
        assert_eq!(post_send(qp, &mut wr).0, 0);
        assert_eq!(get(&there).0, 0);
        // SAFETY: the test passes an existing queue.
        unsafe { channel::ack_cq_events(there.cq, acknowledged) };
        there.poll(1);
        here.poll(1);
    }
    end_qp(qp);
    end_qp(peer);
    // SAFETY: the test passes an existing queue; one of its three events is not acknowledged.
    let inner = unsafe { &cq::of(there.cq).cq };
    assert!(inner.clone().destroy(Some(Duration::ZERO)).is_err());
    // SAFETY: as above.
    unsafe { channel::ack_cq_events(there.cq, 1) };
    here.end();
    there.end();
}

unsafe extern "C-unwind" fn destroy_queue(cq: *mut c_void) -> *mut c_void {
    // SAFETY: the test passes a queue with an event that is not acknowledged.
    unsafe { cq::destroy_cq(cq.cast()) };
    ptr::null_mut()
}

#[test]
fn a_thread_that_waits_for_acknowledgements_can_be_cancelled() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    connect(qp, peer);
    post_recv(peer, 1, &mut []);
    // SAFETY: the test passes an existing queue.
    assert_eq!(unsafe { cq::req_notify_cq(there.cq, 0) }, 0);
    let mut wr = send_wr(1, IBV_WR_SEND, &mut []);
    assert_eq!(post_send(qp, &mut wr).0, 0);
    assert_eq!(get(&there).0, 0);
    end_qp(qp);
    end_qp(peer);
    cancelled(destroy_queue, there.cq.cast());
    // SAFETY: the test passes a queue from which an event was taken.
    unsafe { channel::ack_cq_events(there.cq, 1) };
    here.end();
    there.end();
}
