//! Tests of the asynchronous events that each side gets, and of the calls that wait until events
//! are acknowledged.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{events, qp::modify, srq};

/// Waits for an event, and returns it with the queue pair that it names.
fn next(side: &Side) -> (ibv_async_event, ibv_event_type, *mut ibv_qp) {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event: ibv_async_event = unsafe { mem::zeroed() };
    // SAFETY: the test passes an open context, and memory for an event; every event of these tests
    // belongs to a queue pair.
    unsafe {
        assert_eq!(events::get_async_event(side.context, &raw mut event), 0);
        (event, event.event_type, event.element.qp)
    }
}

fn ack(mut event: ibv_async_event) {
    // SAFETY: the test passes an event that was taken and not acknowledged.
    unsafe { events::ack_async_event(&raw mut event) };
}

/// Asserts that no event is available.
fn none(side: &Side) {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event: ibv_async_event = unsafe { mem::zeroed() };
    // SAFETY: the descriptor of an open context, and memory for an event.
    unsafe {
        let fd = (*side.context).async_fd;
        let flags = libc::fcntl(fd, libc::F_GETFL);
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        let got = events::get_async_event(side.context, &raw mut event);
        assert_eq!(got, -1, "event {}", event.event_type);
        assert_eq!(crate::errno::get(), libc::EAGAIN);
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags), 0);
    }
}

/// Creates a queue pair with a shared receive queue that has `receives` receives.
fn sharing(side: &Side, receives: u64) -> (*mut ibv_qp, *mut ibv_srq) {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut attr: ibv_srq_init_attr = unsafe { mem::zeroed() };
    attr.attr.max_wr = 8;
    // SAFETY: the test passes existing objects.
    let shared = unsafe { srq::create_srq(side.pd, &raw mut attr) };
    assert!(!shared.is_null());
    for wr_id in 0..receives {
        post_shared(shared, wr_id);
    }
    (taking(side, shared), shared)
}

/// Creates a queue pair that takes its receives from `shared`.
fn taking(side: &Side, shared: *mut ibv_srq) -> *mut ibv_qp {
    let mut with = side.attr();
    with.srq = shared;
    // SAFETY: the test passes existing objects.
    let qp = unsafe { qp::create_qp(side.pd, &raw mut with) };
    assert!(!qp.is_null());
    qp
}

fn post_shared(shared: *mut ibv_srq, wr_id: u64) {
    let (mut wr, mut bad) = (recv_wr(wr_id, &mut []), ptr::null_mut());
    // SAFETY: the test passes an existing queue, and a request.
    let errno = unsafe { srq::post_srq_recv(shared, &raw mut wr, &raw mut bad) };
    assert_eq!(errno, 0);
}

fn end_srq(shared: *mut ibv_srq) {
    // SAFETY: the test passes a queue that is not used any more.
    assert_eq!(unsafe { srq::destroy_srq(shared) }, 0);
}

fn to_error(qp: *mut ibv_qp) {
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
    attr.qp_state = IBV_QPS_ERR;
    let mask = IBV_QP_STATE.cast_signed();
    // SAFETY: the test passes an existing queue pair, and a structure.
    assert_eq!(unsafe { modify::modify_qp(qp, &raw mut attr, mask) }, 0);
}

/// Posts a Read with an unknown key. The peer ends the connection with a Terminate.
fn read_what_is_refused(here: &Side, qp: *mut ibv_qp) {
    let mut read = send_wr(1, IBV_WR_RDMA_READ, &mut []);
    let mut own = [0_u8; 8];
    let local = here.mr(&mut own, ALL);
    let mut list = [sge(local, 0, 8)];
    (read.sg_list, read.num_sge) = (list.as_mut_ptr(), 1);
    (read.wr.rdma.remote_addr, read.wr.rdma.rkey) = (4096, 0x1234_5678);
    assert_eq!(post_send(qp, &mut read).0, 0);
    assert_eq!(here.poll(1)[0].status, IBV_WC_REM_ACCESS_ERR);
    end_mr(local);
}

#[test]
fn a_terminate_is_an_access_error_for_who_sends_it_and_fatal_for_who_gets_it() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    connect(qp, peer);
    read_what_is_refused(&here, qp);
    let (event, kind, element) = next(&there);
    assert_eq!((kind, element), (IBV_EVENT_QP_ACCESS_ERR, peer));
    ack(event);
    let (event, kind, element) = next(&here);
    assert_eq!((kind, element), (IBV_EVENT_QP_FATAL, qp));
    ack(event);
    // No event is repeated. A queue pair with its own receive queue has no LAST_WQE_REACHED event.
    none(&here);
    none(&there);
    end_qp(qp);
    end_qp(peer);
    here.end();
    there.end();
}

/// After a graceful close the queue pair is in Error, so it takes no more receives from the shared
/// queue.
#[test]
fn a_connection_that_ends_in_order_has_no_event_but_that_of_a_shared_queue() {
    let (here, there) = (Side::new(), Side::new());
    let qp = here.qp();
    let (peer, shared) = sharing(&there, 1);
    connect(qp, peer);
    // SAFETY: the test passes existing queue pairs.
    let (mine, theirs) = unsafe { (&qp::of(qp).qp, &qp::of(peer).qp) };
    mine.disconnect();
    while theirs.end_reason().is_none() || mine.end_reason().is_none() {
        thread::yield_now();
    }
    none(&here);
    let (event, kind, element) = next(&there);
    assert_eq!((kind, element), (IBV_EVENT_QP_LAST_WQE_REACHED, peer));
    ack(event);
    none(&there);
    end_qp(qp);
    end_qp(peer);
    end_srq(shared);
    here.end();
    there.end();
}

/// The event LAST_WQE_REACHED tells the program that the queue pair takes no more receives. The
/// remaining receives stay in the shared queue for other queue pairs.
#[test]
fn a_queue_pair_moved_to_error_tells_that_it_takes_nothing_more_from_its_shared_queue() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, again) = (here.qp(), here.qp());
    let (peer, shared) = sharing(&there, 2);
    connect(qp, peer);
    let mut send = send_wr(1, IBV_WR_SEND, &mut []);
    assert_eq!(post_send(qp, &mut send).0, 0);
    let taken = there.poll(1)[0];
    assert_eq!(kind(&taken), (IBV_WC_SUCCESS, IBV_WC_RECV, 0));
    here.poll(1);
    to_error(peer);
    let (event, kind_of, element) = next(&there);
    assert_eq!((kind_of, element), (IBV_EVENT_QP_LAST_WQE_REACHED, peer));
    // No event reports the state Error, because the program itself has requested this state.
    none(&there);
    to_error(peer);
    none(&there);
    ack(event);
    end_qp(peer);
    // The second receive was not lost.
    let other = taking(&there, shared);
    connect(again, other);
    let mut send = send_wr(2, IBV_WR_SEND, &mut []);
    assert_eq!(post_send(again, &mut send).0, 0);
    assert_eq!(kind(&there.poll(1)[0]), (IBV_WC_SUCCESS, IBV_WC_RECV, 1));
    here.poll(1);
    for one in [qp, again, other] {
        end_qp(one);
    }
    end_srq(shared);
    here.end();
    there.end();
}

/// Returns two queue pairs and a shared queue. The second queue pair, which uses the shared queue,
/// has two events that the program has not taken yet: an access error, and LAST_WQE_REACHED.
fn failed(here: &Side, there: &Side) -> (*mut ibv_qp, *mut ibv_qp, *mut ibv_srq) {
    let qp = here.qp();
    let (peer, shared) = sharing(there, 1);
    connect(qp, peer);
    read_what_is_refused(here, qp);
    (qp, peer, shared)
}

#[test]
fn a_queue_pair_ends_when_each_of_its_events_is_acknowledged() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer, shared) = failed(&here, &there);
    let (first, kind, _) = next(&there);
    assert_eq!(kind, IBV_EVENT_QP_ACCESS_ERR);
    let (second, kind, element) = next(&there);
    assert_eq!((kind, element), (IBV_EVENT_QP_LAST_WQE_REACHED, peer));
    ack(second);
    let acknowledged = AtomicBool::new(false);
    let address = peer.expose_provenance();
    thread::scope(|scope| {
        let destroying = scope.spawn(|| {
            end_qp(ptr::with_exposed_provenance_mut(address));
            assert!(acknowledged.load(Ordering::Acquire));
        });
        // The queue pair exists until its events are acknowledged. SAFETY: the test checks exactly
        // this.
        assert_ne!(unsafe { (*peer).qp_num }, 0);
        acknowledged.store(true, Ordering::Release);
        ack(first);
        destroying.join().unwrap();
    });
    end_qp(qp);
    end_srq(shared);
    here.end();
    there.end();
}

/// Returns true if a thread of this process waits in the kernel (the state in proc_pid_stat(5)).
fn sleeps(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.starts_with(" S "))
}

/// The program can take an event while it destroys the queue pair. The queue pair then exists until
/// this event is acknowledged, too.
#[test]
fn an_event_that_is_taken_while_its_queue_pair_is_being_destroyed_is_not_lost() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer, shared) = failed(&here, &there);
    let (first, ..) = next(&there);
    let address = peer.expose_provenance();
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let destroying = scope.spawn(move || {
            // SAFETY: the call takes no arguments and cannot fail.
            tell.send(unsafe { libc::gettid() }).unwrap();
            end_qp(ptr::with_exposed_provenance_mut(address));
        });
        // The thread waits for the acknowledgement of the first event.
        let thread = told.recv().unwrap();
        while !sleeps(thread) {
            thread::yield_now();
        }
        let (second, kind, element) = next(&there);
        assert_eq!((kind, element), (IBV_EVENT_QP_LAST_WQE_REACHED, peer));
        ack(first);
        ack(second);
        destroying.join().unwrap();
    });
    none(&there);
    end_qp(qp);
    end_srq(shared);
    here.end();
    there.end();
}

#[test]
fn a_completion_queue_ends_when_its_asynchronous_event_is_acknowledged() {
    let side = Side::new();
    let none = ptr::null_mut();
    // SAFETY: the test passes an open context.
    let small = unsafe { cq::create_cq(side.context, 1, none, none.cast(), 0) };
    let mut attr = side.attr();
    attr.recv_cq = small;
    // SAFETY: the test passes existing objects.
    let qp = unsafe { qp::create_qp(side.pd, &raw mut attr) };
    initialize(qp);
    // The completion queue has room for only one completion.
    for wr_id in 0..3 {
        post_recv(qp, wr_id, &mut []);
    }
    to_error(qp);
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event: ibv_async_event = unsafe { mem::zeroed() };
    // SAFETY: the test passes an open context, and memory for an event.
    let got = unsafe { events::get_async_event(side.context, &raw mut event) };
    assert_eq!((got, event.event_type), (0, IBV_EVENT_CQ_ERR));
    // SAFETY: the type says that this field is set.
    assert_eq!(unsafe { event.element.cq }, small);
    end_qp(qp);
    // SAFETY: the queue exists until its event is acknowledged.
    assert_eq!(unsafe { cq::try_destroy(small) }, None, "it waits");
    ack(event);
    // SAFETY: the queue exists until this call.
    assert_eq!(unsafe { cq::try_destroy(small) }, Some(Ok(())));
    side.end();
}

#[test]
fn events_that_nobody_took_go_with_their_queue_pair() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer, shared) = failed(&here, &there);
    let (first, ..) = next(&there);
    ack(first);
    // `destroy_qp` does not wait for the event LAST_WQE_REACHED, which the program has not taken.
    end_qp(peer);
    none(&there);
    end_qp(qp);
    none(&here);
    end_srq(shared);
    here.end();
    there.end();
}

unsafe extern "C-unwind" fn destroy_queue_pair(qp: *mut c_void) -> *mut c_void {
    // SAFETY: the test passes a queue pair with an event that is not acknowledged.
    unsafe { qp::destroy_qp(qp.cast()) };
    ptr::null_mut()
}

unsafe extern "C-unwind" fn destroy_shared_queue(srq: *mut c_void) -> *mut c_void {
    // SAFETY: the test passes a queue with an event that is not acknowledged.
    unsafe { srq::destroy_srq(srq.cast()) };
    ptr::null_mut()
}

#[test]
fn a_queue_pair_whose_destroying_thread_was_cancelled_is_as_it_was() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer, shared) = failed(&here, &there);
    let (first, ..) = next(&there);
    cancelled(destroy_queue_pair, peer.cast());
    // The queue pair still exists, and its events name it.
    let (second, kind, element) = next(&there);
    assert_eq!((kind, element), (IBV_EVENT_QP_LAST_WQE_REACHED, peer));
    ack(first);
    ack(second);
    end_qp(peer);
    end_qp(qp);
    end_srq(shared);
    here.end();
    there.end();
}

#[test]
fn a_shared_queue_whose_destroying_thread_was_cancelled_is_as_it_was() {
    let there = Side::new();
    let (peer, shared) = sharing(&there, 1);
    end_qp(peer);
    let mut change = ibv_srq_attr {
        max_wr: 0,
        max_sge: 0,
        srq_limit: 2,
    };
    let limit = IBV_SRQ_LIMIT.cast_signed();
    // SAFETY: the test passes an existing queue, with fewer receives than the new limit.
    let changed = unsafe { srq::modify_srq(shared, &raw mut change, limit) };
    assert_eq!(changed, 0);
    let (event, kind, _) = next(&there);
    assert_eq!(kind, IBV_EVENT_SRQ_LIMIT_REACHED);
    cancelled(destroy_shared_queue, shared.cast());
    ack(event);
    post_shared(shared, 7);
    end_srq(shared);
    there.end();
}

unsafe extern "C-unwind" fn wait_for_event(context: *mut c_void) -> *mut c_void {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event: ibv_async_event = unsafe { mem::zeroed() };
    // SAFETY: the test passes an open context, and memory for an event.
    unsafe { events::get_async_event(context.cast(), &raw mut event) };
    ptr::null_mut()
}

#[test]
fn a_thread_that_waits_for_an_asynchronous_event_can_be_cancelled_and_the_event_is_for_the_next() {
    let there = Side::new();
    let (peer, shared) = sharing(&there, 0);
    cancelled(wait_for_event, there.context.cast());
    let here = Side::new();
    let qp = here.qp();
    connect(qp, peer);
    to_error(peer);
    let (event, kind, element) = next(&there);
    assert_eq!((kind, element), (IBV_EVENT_QP_LAST_WQE_REACHED, peer));
    ack(event);
    end_qp(peer);
    end_qp(qp);
    end_srq(shared);
    here.end();
    there.end();
}
