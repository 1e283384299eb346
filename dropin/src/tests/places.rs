//! Tests of the places in queues. A place becomes free when its completion is polled or its queue
//! pair is destroyed.

use super::*;
use crate::srq;

/// Creates a shared receive queue for `max_wr` receives.
fn shared(side: &Side, max_wr: u32) -> *mut ibv_srq {
    let mut attr = ibv_srq_init_attr {
        srq_context: ptr::null_mut(),
        attr: ibv_srq_attr {
            max_wr,
            max_sge: 1,
            srq_limit: 0,
        },
    };
    // SAFETY: the test passes existing objects.
    let shared = unsafe { srq::create_srq(side.pd, &raw mut attr) };
    assert!(!shared.is_null());
    shared
}

/// Posts an empty receive to a shared queue. Returns the `errno`.
fn post_shared(shared: *mut ibv_srq) -> c_int {
    let (mut wr, mut bad) = (recv_wr(1, &mut []), ptr::null_mut());
    // SAFETY: the test passes an existing queue, and a list.
    unsafe { srq::post_srq_recv(shared, &raw mut wr, &raw mut bad) }
}

/// Returns true if an event waits in the channel of a side.
fn has_event(side: &Side) -> bool {
    // SAFETY: the test passes a channel.
    let fd = unsafe { (*side.channel).fd };
    let mut fds = [libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }];
    // SAFETY: the pointer points to one structure.
    unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) == 1 }
}

/// Waits for an event of the completion queue of `side`, and acknowledges the event.
fn pass_event(side: &Side) {
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the test passes a channel, memory for two pointers, and the queue of the event.
    unsafe {
        let failed = channel::get_cq_event(side.channel, &raw mut cq, &raw mut context);
        assert_eq!(failed, 0);
        channel::ack_cq_events(cq, 1);
    }
}

#[test]
fn a_receive_of_a_shared_queue_has_its_place_until_its_completion_is_gone() {
    let (here, there) = (Side::new(), Side::new());
    let shared = shared(&there, 2);
    let mut with = there.attr();
    with.srq = shared;
    // SAFETY: the test passes existing objects.
    let peer = unsafe { qp::create_qp(there.pd, &raw mut with) };
    let qp = here.qp();
    connect(qp, peer);
    let mut send = send_wr(1, IBV_WR_SEND, &mut []);
    // In the first round the completion is polled. In the second, the queue pair is destroyed,
    // which removes the completion.
    for is_polled in [true, false] {
        while post_shared(shared) == 0 {}
        // SAFETY: the test passes an existing queue.
        assert_eq!(unsafe { cq::req_notify_cq(there.cq, 0) }, 0);
        assert_eq!(post_send(qp, &mut send).0, 0);
        here.poll(1);
        pass_event(&there);
        assert_eq!(post_shared(shared), libc::ENOMEM);
        if is_polled {
            there.poll(1);
        } else {
            end_qp(peer);
        }
        assert_eq!(post_shared(shared), 0);
        assert_eq!(post_shared(shared), libc::ENOMEM);
    }
    end_qp(qp);
    // SAFETY: the test passes a queue that is not used any more.
    assert_eq!(unsafe { srq::destroy_srq(shared) }, 0);
    here.end();
    there.end();
}

#[test]
fn a_queue_pair_that_is_destroyed_with_requests_outstanding_makes_no_event() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    connect(qp, peer);
    for side in [&here, &there] {
        // SAFETY: the test passes an existing queue.
        assert_eq!(unsafe { cq::req_notify_cq(side.cq, 0) }, 0);
    }
    for wr_id in 0..20 {
        post_recv(qp, wr_id, &mut []);
        post_recv(peer, wr_id, &mut []);
    }
    end_qp(qp);
    assert!(!has_event(&here));
    // The end of the connection flushes the other queue pair, which raises an event.
    pass_event(&there);
    there.poll(20);
    end_qp(peer);
    assert!(!has_event(&there));
    here.end();
    there.end();
}

#[test]
fn a_queue_pair_with_more_outstanding_than_its_completion_queue_holds_is_destroyed_without_an_error()
 {
    let (here, there) = (Side::new(), Side::new());
    let mut attr = there.attr();
    attr.cap.max_recv_wr = 100;
    // SAFETY: the test passes existing objects.
    let (qp, peer) = (here.qp(), unsafe { qp::create_qp(there.pd, &raw mut attr) });
    connect(qp, peer);
    for wr_id in 0..100 {
        post_recv(peer, wr_id, &mut []);
    }
    end_qp(peer);
    // SAFETY: the test passes an existing queue.
    assert!(!unsafe { cq::of(there.cq) }.cq.has_overflowed());
    end_qp(qp);
    here.end();
    there.end();
}
