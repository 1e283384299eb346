//! Ids and channels: how long they live, and which calls wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::abi::{IBV_WR_SEND, RDMA_CM_EVENT_REJECTED, RDMA_PS_UDP};
use crate::cm::endpoint;
use crate::tests::{cancelled, post_recv, post_send, send_wr};
use crate::{channel as completions, cq, qp as queue_pair};

#[test]
fn a_port_is_known_when_bind_returns_and_no_device_with_a_loopback_address() {
    let channel = Channel::new();
    let wildcard = channel.id(0);
    assert_eq!(wildcard.bind("0.0.0.0:0"), 0);
    assert_ne!(wildcard.local().port(), 0);
    assert!(wildcard.shown().verbs.is_null());
    let bound = channel.id(0);
    assert_eq!(bound.bind("127.0.0.1:0"), 0);
    // SAFETY: the test passes an id.
    let port = unsafe { address::get_src_port(bound.0) };
    assert_eq!(u16::from_be(port), bound.local().port());
    // As in the kernel, an id with a loopback address has no device. An id with an address of an
    // Ethernet interface has one (`tests/c/bound.c`).
    assert!(bound.shown().verbs.is_null());
    assert_eq!(failed(bound.bind("127.0.0.1:0")), libc::EINVAL);
    let other = channel.id(0);
    assert_eq!(
        failed(other.bind(&bound.local().to_string())),
        libc::EADDRINUSE
    );
    assert_eq!(failed(other.bind("192.0.2.77:0")), libc::EADDRNOTAVAIL);
    for taken in [&wildcard, &bound] {
        let again = format!("0.0.0.0:{}", taken.local().port());
        assert_eq!(failed(other.bind(&again)), libc::EADDRNOTAVAIL);
    }
    for id in [wildcard, bound, other] {
        id.end();
    }
    channel.end();
}

#[test]
fn datagrams_are_not_to_be_had() {
    let channel = Channel::new();
    let mut made = ptr::null_mut();
    // SAFETY: the test passes a channel, and memory for a pointer.
    let status = unsafe { id::create_id(channel.0, &raw mut made, ptr::null_mut(), RDMA_PS_UDP) };
    assert_eq!(failed(status), libc::EPROTONOSUPPORT);
    channel.end();
}

#[test]
fn a_channel_that_does_not_block_says_that_nothing_waits() {
    let channel = Channel::new();
    channel.set_nonblocking();
    let mut event = ptr::null_mut();
    // SAFETY: the test passes a channel, and memory for a pointer.
    let status = unsafe { event::get_cm_event(channel.0, &raw mut event) };
    assert_eq!(failed(status), libc::EAGAIN);
    channel.end();
}

#[test]
fn destroying_an_id_waits_until_its_events_are_acknowledged() {
    let channel = Channel::new();
    let id = channel.id(0);
    assert_eq!(id.resolve("127.0.0.1:1".parse().unwrap()), 0);
    let event = channel.next(RDMA_CM_EVENT_ADDR_RESOLVED);
    let acknowledged = AtomicBool::new(false);
    thread::scope(|scope| {
        let destroying = scope.spawn(|| {
            id.end();
            assert!(acknowledged.load(Ordering::Acquire));
        });
        // The event and its id exist until the program acknowledges the event.
        assert_eq!(event.id().shown().port_num, 1);
        acknowledged.store(true, Ordering::Release);
        event.ack();
        destroying.join().unwrap();
    });
    channel.end();
}

#[test]
fn requests_that_nobody_took_are_rejected_when_the_listener_goes() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = listening(server);
    let ours = ready(client, listener.local());
    assert_eq!(ours.connect(b""), 0);
    // The request has arrived, but the program does not take it.
    assert!(crate::cancel::wait_readable(fd(server)));
    listener.end();
    client.passes(RDMA_CM_EVENT_REJECTED);
    server.set_nonblocking();
    let mut event = ptr::null_mut();
    // SAFETY: the test passes a channel, and memory for a pointer.
    let status = unsafe { event::get_cm_event(server.0, &raw mut event) };
    assert_eq!(failed(status), libc::EAGAIN);
    ours.end();
    client.end();
    server.end();
}

fn fd(channel: Channel) -> c_int {
    // SAFETY: the test passes a channel.
    unsafe { (*channel.0).fd }
}

#[test]
fn events_that_wait_move_with_their_id() {
    let (from, to) = (Channel::new(), Channel::new());
    let id = from.id(0);
    assert_eq!(id.resolve("127.0.0.1:1".parse().unwrap()), 0);
    // SAFETY: the test passes an id, and a channel.
    assert_eq!(unsafe { id::migrate_id(id.0, to.0) }, 0);
    assert_eq!(id.shown().channel, to.0);
    to.passes(RDMA_CM_EVENT_ADDR_RESOLVED);
    from.end();
    id.end();
    to.end();
}

#[test]
fn a_thread_that_waits_for_an_event_may_be_cancelled() {
    unsafe extern "C-unwind" fn waits(channel: *mut c_void) -> *mut c_void {
        let mut event = ptr::null_mut();
        // SAFETY: the test passes a channel, and memory for a pointer.
        unsafe { event::get_cm_event(channel.cast(), &raw mut event) };
        ptr::null_mut()
    }
    let channel = Channel::new();
    cancelled(waits, channel.0.cast());
    // The channel still works.
    let id = channel.id(0);
    assert_eq!(id.resolve("127.0.0.1:1".parse().unwrap()), 0);
    channel.passes(RDMA_CM_EVENT_ADDR_RESOLVED);
    id.end();
    channel.end();
}

unsafe extern "C-unwind" fn destroy_queues(id: *mut c_void) -> *mut c_void {
    // SAFETY: the test passes an id whose completion queue has an event that is not acknowledged.
    unsafe { queues::destroy_qp(id.cast()) };
    ptr::null_mut()
}

unsafe extern "C-unwind" fn destroy_endpoint(id: *mut c_void) -> *mut c_void {
    // SAFETY: the test passes an id whose completion queue has an event that is not acknowledged.
    unsafe { endpoint::destroy_ep(id.cast()) };
    ptr::null_mut()
}

/// Returns two connected ids. The receive completion queue of the second has an event that is not
/// acknowledged.
fn unacknowledged(client: Channel, server: Channel) -> (Id, Id) {
    let (ours, theirs) = connected(client, server);
    let queue = theirs.shown().recv_cq;
    let mut wr = send_wr(1, IBV_WR_SEND, &mut []);
    let (mut of, mut context) = (ptr::null_mut(), ptr::null_mut());
    post_recv(theirs.shown().qp, 2, &mut []);
    // SAFETY: the queue and the channel belong to an existing id; the results go to local
    // variables.
    unsafe {
        assert_eq!(cq::req_notify_cq(queue, 0), 0);
        assert_eq!(post_send(ours.shown().qp, &mut wr).0, 0);
        let channel = theirs.shown().recv_cq_channel;
        let got = completions::get_cq_event(channel, &raw mut of, &raw mut context);
        assert_eq!((got, of), (0, queue));
    }
    (ours, theirs)
}

/// Acknowledges the event of [`unacknowledged`]. Checks that the completion queue of `theirs` can
/// then be destroyed, and destroys both ids and channels.
fn end_unacknowledged(ours: Id, theirs: Id, client: Channel, server: Channel) {
    // SAFETY: the test passes an id, and a queue from which an event was taken.
    unsafe {
        completions::ack_cq_events(theirs.shown().recv_cq, 1);
        queues::destroy_qp(theirs.0);
    }
    assert!(theirs.shown().recv_cq.is_null() && theirs.shown().recv_cq_channel.is_null());
    theirs.end();
    ours.end();
    client.end();
    server.end();
}

#[test]
fn what_a_cancelled_thread_has_not_destroyed_of_an_id_is_there_for_another() {
    let (client, server) = (Channel::new(), Channel::new());
    let (ours, theirs) = unacknowledged(client, server);
    let queue = theirs.shown().recv_cq;
    cancelled(destroy_queues, theirs.0.cast());
    assert!(theirs.shown().qp.is_null());
    assert_eq!(theirs.shown().recv_cq, queue);
    end_unacknowledged(ours, theirs, client, server);
}

#[test]
fn what_a_cancelled_rdma_destroy_ep_has_left_goes_with_the_next_one() {
    let (client, server) = (Channel::new(), Channel::new());
    let (ours, theirs) = unacknowledged(client, server);
    let queue = theirs.shown().recv_cq;
    cancelled(destroy_endpoint, theirs.0.cast());
    assert!(theirs.shown().qp.is_null());
    assert_eq!(theirs.shown().recv_cq, queue);
    let (acknowledged, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let id = theirs.0.expose_provenance();
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the test passes an id that is not used any more.
            unsafe { endpoint::destroy_ep(ptr::with_exposed_provenance_mut(id)) };
            ended.store(true, Ordering::SeqCst);
            // The call has waited until the event of the queue was acknowledged.
            assert!(acknowledged.load(Ordering::SeqCst));
        });
        thread::sleep(std::time::Duration::from_millis(50));
        assert!(!ended.load(Ordering::SeqCst));
        acknowledged.store(true, Ordering::SeqCst);
        // SAFETY: the test passes a queue from which an event was taken.
        unsafe { completions::ack_cq_events(queue, 1) };
    });
    assert!(ended.load(Ordering::SeqCst));
    ours.end();
    client.end();
    server.end();
}

#[test]
fn a_queue_pair_that_is_refused_leaves_the_completion_queues_that_the_id_had() {
    let (client, server) = (Channel::new(), Channel::new());
    let (ours, theirs) = unacknowledged(client, server);
    let (queue, channel) = (theirs.shown().recv_cq, theirs.shown().recv_cq_channel);
    cancelled(destroy_queues, theirs.0.cast());
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut attr: crate::abi::ibv_qp_init_attr = unsafe { mem::zeroed() };
    attr.qp_type = crate::abi::IBV_QPT_RC;
    (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, u32::MAX);
    // SAFETY: the test passes an id, and a structure.
    let made = unsafe { queues::create_qp(theirs.0, theirs.shown().pd, &raw mut attr) };
    assert_eq!(made, -1);
    let shown = theirs.shown();
    assert_eq!((shown.recv_cq, shown.recv_cq_channel), (queue, channel));
    end_unacknowledged(ours, theirs, client, server);
}

#[test]
fn a_source_of_ipv4_within_ipv6_is_one_of_ipv4() {
    let channel = Channel::new();
    let id = channel.id(0);
    let (mut from, _) = addresses::write("[::ffff:127.0.0.1]:0".parse().unwrap());
    let (mut to, _) = addresses::write("[::ffff:127.0.0.1]:1".parse().unwrap());
    // SAFETY: the test passes an id and addresses.
    let resolved =
        unsafe { address::resolve_addr(id.0, (&raw mut from).cast(), (&raw mut to).cast(), 1000) };
    assert_eq!(resolved, 0);
    channel.passes(RDMA_CM_EVENT_ADDR_RESOLVED);
    assert!(id.local().is_ipv4());
    id.end();
    channel.end();
}

#[test]
fn an_id_without_a_domain_has_that_of_its_shared_receive_queue() {
    let channel = Channel::new();
    let id = channel.id(0);
    assert!(id.shown().pd.is_null());
    let pd = crate::cm::common::get().unwrap().pd;
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut attr: crate::abi::ibv_srq_init_attr = unsafe { mem::zeroed() };
    attr.attr.max_wr = 4;
    // SAFETY: the test passes an id, a domain, and a structure.
    unsafe {
        assert_eq!(crate::cm::shared::create_srq(id.0, pd, &raw mut attr), 0);
        assert_eq!(id.shown().pd, pd);
        crate::cm::shared::destroy_srq(id.0);
    }
    id.end();
    channel.end();
}

#[test]
fn what_getaddrinfo_has_for_a_connection_is_not_lost_with_a_call_that_fails() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = listening(server);
    let ours = client.id(CLIENT);
    // SAFETY: the test passes an id.
    unsafe { id::of(ours.0) }.state.lock().connect = b"first".to_vec();
    assert_eq!(failed(ours.connect(b"")), libc::EINVAL);
    assert_eq!(ours.resolve(listener.local()), 0);
    client.passes(RDMA_CM_EVENT_ADDR_RESOLVED);
    // SAFETY: the test passes an id.
    assert_eq!(unsafe { address::resolve_route(ours.0, 1000) }, 0);
    client.passes(crate::abi::RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(ours.create_qp(), 0);
    let qp = ours.shown().qp;
    // SAFETY: the queue pair belongs to the id and exists.
    let states = unsafe {
        [
            (*qp).state,
            queue_pair::modify::shown_state(queue_pair::of(qp)),
        ]
    };
    assert_eq!(states, [crate::abi::IBV_QPS_INIT; 2]);
    assert_eq!(ours.connect(b", second"), 0);
    let request = server.next(crate::abi::RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.private_data(), b"first, second");
    let theirs = request.id();
    request.ack();
    theirs.end();
    client.passes(RDMA_CM_EVENT_REJECTED);
    for id in [ours, listener] {
        id.end();
    }
    client.end();
    server.end();
}
