//! Shared receive queues, and resized completion queues.

use super::*;
use crate::{events, srq};

fn srq_attr(max_wr: u32) -> ibv_srq_init_attr {
    ibv_srq_init_attr {
        srq_context: ptr::without_provenance_mut(3),
        attr: ibv_srq_attr {
            max_wr,
            max_sge: 1,
            srq_limit: 0,
        },
    }
}

#[test]
fn queue_pairs_share_receives_and_the_limit_is_an_event_of_the_context() {
    let (here, there) = (Side::new(), Side::new());
    let mut attr = srq_attr(8);
    // SAFETY: the test passes existing objects.
    let shared = unsafe { srq::create_srq(there.pd, &raw mut attr) };
    assert!(!shared.is_null());
    let mut with = there.attr();
    with.srq = shared;
    // SAFETY: the test passes existing objects.
    let peer = unsafe { qp::create_qp(there.pd, &raw mut with) };
    assert_eq!(with.cap.max_recv_wr, 0);
    let mut to = [0_u8; 8];
    let sink = there.mr(&mut to, ALL);
    let mut lists = [[sge(sink, 0, 4)], [sge(sink, 4, 4)]];
    let [first, second] = &mut lists;
    let mut last = recv_wr(21, second);
    let mut wr = recv_wr(20, first);
    wr.next = &raw mut last;
    let mut bad = ptr::null_mut();
    // SAFETY: the test passes an existing queue, and a list.
    unsafe {
        assert_eq!(srq::post_srq_recv(shared, &raw mut wr, &raw mut bad), 0);
        assert_eq!(srq::destroy_srq(shared), libc::EBUSY);
    }
    let mut change = ibv_srq_attr {
        max_wr: 0,
        max_sge: 0,
        srq_limit: 2,
    };
    let (limit, mut now) = (IBV_SRQ_LIMIT.cast_signed(), change);
    // SAFETY: the test passes an existing queue.
    unsafe {
        assert_eq!(srq::modify_srq(shared, &raw mut change, limit), 0);
        assert_eq!(srq::query_srq(shared, &raw mut now), 0);
    }
    assert_eq!((now.max_wr, now.max_sge, now.srq_limit), (8, 1, 2));
    let qp = here.qp();
    connect(qp, peer);
    let mut wr = send_wr(1, IBV_WR_SEND, &mut []);
    assert_eq!(post_send(qp, &mut wr).0, 0);
    assert_eq!(kind(&there.poll(1)[0]).2, 20);
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event: ibv_async_event = unsafe { mem::zeroed() };
    assert_eq!(
        // SAFETY: the test passes an open context.
        unsafe { events::get_async_event(there.context, &raw mut event) },
        0
    );
    assert_eq!(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    // SAFETY: the type says that this field is set.
    assert_eq!(unsafe { event.element.srq }, shared);
    // SAFETY: the test passes the event that was just taken.
    unsafe { events::ack_async_event(&raw mut event) };
    here.poll(1);
    end_qp(qp);
    end_qp(peer);
    // SAFETY: the test passes a queue that is not used any more.
    assert_eq!(unsafe { srq::destroy_srq(shared) }, 0);
    end_mr(sink);
    here.end();
    there.end();
}

#[test]
fn a_completion_queue_takes_another_size_and_says_which() {
    let side = Side::new();
    // SAFETY: the test passes an existing queue.
    unsafe {
        assert_eq!((*side.cq).cqe, 64);
        assert_eq!(cq::resize_cq(side.cq, 100), 0);
        assert_eq!((*side.cq).cqe, 128);
        assert_eq!(cq::resize_cq(side.cq, 0), libc::EINVAL);
        assert_eq!(cq::resize_cq(side.cq, i32::MAX), libc::EINVAL);
        assert_eq!((*side.cq).cqe, 128);
    }
    side.end();
}
