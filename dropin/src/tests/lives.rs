//! Tests that create, change, query and destroy objects.

use super::*;
use crate::qp::modify;

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

fn state_of(qp: *mut ibv_qp) -> (ibv_qp_state, ibv_qp_attr, ibv_qp_init_attr) {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { mem::zeroed() };
    // SAFETY: the test passes an existing queue pair, and memory for two structures.
    let errno = unsafe { modify::query_qp(qp, &raw mut attr, c_int::MAX, &raw mut init) };
    assert_eq!(errno, 0);
    (attr.qp_state, attr, init)
}

fn move_to(qp: *mut ibv_qp, state: ibv_qp_state, mask: ibv_qp_attr_mask) -> c_int {
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
    (attr.qp_state, attr.port_num) = (state, 1);
    let mask = (mask | IBV_QP_STATE).cast_signed();
    // SAFETY: the test passes an existing queue pair.
    unsafe { modify::modify_qp(qp, &raw mut attr, mask) }
}

#[test]
fn a_queue_pair_has_at_least_the_inline_room_that_rsockets_need_and_tells_what_it_was_given() {
    let side = Side::new();
    let mut attr = side.attr();
    // SAFETY: the test passes existing objects.
    let qp = unsafe { qp::create_qp(side.pd, &raw mut attr) };
    assert!(attr.cap.max_inline_data >= 4);
    assert_eq!((attr.cap.max_send_wr, attr.cap.max_recv_sge), (20, 2));
    let (_, now, init) = state_of(qp);
    assert_eq!(now.cap.max_inline_data, attr.cap.max_inline_data);
    assert_eq!((init.send_cq, init.recv_cq), (side.cq, side.cq));
    assert_eq!((init.qp_context.addr(), init.sq_sig_all), (9, 0));
    assert_eq!(
        // SAFETY: the test passes an existing queue pair.
        unsafe { ((*qp).pd, (*qp).context) },
        (side.pd, side.context)
    );
    end_qp(qp);
    side.end();
}

#[test]
fn transports_that_the_device_does_not_have_are_refused() {
    for (side, types) in [
        (Side::new(), &[IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND][..]),
        (Side::iwarp(), &[IBV_QPT_UC, IBV_QPT_UD]),
    ] {
        for qp_type in types {
            let mut attr = side.attr();
            attr.qp_type = *qp_type;
            // SAFETY: the test passes existing objects.
            assert!(unsafe { qp::create_qp(side.pd, &raw mut attr) }.is_null());
            assert_eq!(errno(), Some(libc::EOPNOTSUPP), "type {qp_type}");
        }
        side.end();
    }
}

#[test]
fn sizes_beyond_the_device_are_refused() {
    let side = Side::new();
    let mut attr = side.attr();
    attr.cap.max_send_wr = 1 << 20;
    // SAFETY: the test passes existing objects.
    assert!(unsafe { qp::create_qp(side.pd, &raw mut attr) }.is_null());
    assert_eq!(errno(), Some(libc::EINVAL));
    for (cqe, vector) in [(0, 0), (-1, 0), (i32::MAX, 0), (1, 1), (1, -1)] {
        let none = ptr::null_mut();
        // SAFETY: the test passes an open context.
        let cq = unsafe { cq::create_cq(side.context, cqe, none, none.cast(), vector) };
        assert!(cq.is_null());
        assert_eq!(errno(), Some(libc::EINVAL));
    }
    side.end();
}

/// Programs that create their own queue pair for `rdma_connect` request these states (`rping -q`).
#[test]
fn the_states_of_the_connection_manager_may_be_asked_for_and_are_shown() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp_in_reset(), there.qp_in_reset());
    assert_eq!(state_of(qp).0, IBV_QPS_RESET);
    for (state, mask) in [
        (IBV_QPS_INIT, FOR_INIT),
        (IBV_QPS_RTR, FOR_INIT),
        (IBV_QPS_RTS, 0),
    ] {
        assert_eq!(move_to(qp, state, mask), 0);
        assert_eq!(state_of(qp).0, state);
        // SAFETY: the test passes an existing queue pair.
        assert_eq!(unsafe { (*qp).state }, state);
    }
    connect(qp, peer);
    assert_eq!(
        (state_of(qp).0, state_of(peer).0),
        (IBV_QPS_RTS, IBV_QPS_RTS)
    );
    assert_eq!(move_to(qp, IBV_QPS_RTS, 0), 0);
    post_recv(qp, 5, &mut []);
    assert_eq!(move_to(qp, IBV_QPS_ERR, 0), 0);
    assert_eq!(here.poll(1)[0].status, IBV_WC_WR_FLUSH_ERR);
    assert_eq!(state_of(qp).0, IBV_QPS_ERR);
    assert_eq!(move_to(qp, IBV_QPS_RTS, 0), libc::EINVAL);
    assert_eq!(move_to(qp, IBV_QPS_RESET, 0), 0);
    assert_eq!(state_of(qp).0, IBV_QPS_RESET);
    end_qp(qp);
    end_qp(peer);
    here.end();
    there.end();
}

/// Attributes that both InfiniBand and iWARP need for INIT.
const FOR_INIT: ibv_qp_attr_mask = IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

/// An InfiniBand device refuses receives in RESET, and takes them in ERR, where they are flushed.
#[test]
fn a_receive_is_refused_in_reset() {
    let side = Side::new();
    let qp = side.qp_in_reset();
    let post = |wr_id| {
        let mut wr = recv_wr(wr_id, &mut []);
        let mut bad = ptr::null_mut();
        // SAFETY: the test passes an existing queue pair, and a list.
        let errno = unsafe { qp::post::post_recv(qp, &raw mut wr, &raw mut bad) };
        assert_eq!(bad.is_null(), errno == 0);
        errno
    };
    assert_eq!(post(1), libc::EINVAL);
    assert_eq!(move_to(qp, IBV_QPS_INIT, FOR_INIT), 0);
    assert_eq!(post(2), 0);
    assert_eq!(move_to(qp, IBV_QPS_ERR, 0), 0);
    assert_eq!(post(3), 0);
    let flushed = side.poll(2);
    assert_eq!((flushed[0].wr_id, flushed[1].wr_id), (2, 3));
    assert_eq!(move_to(qp, IBV_QPS_RESET, 0), 0);
    assert_eq!(post(4), libc::EINVAL);
    end_qp(qp);
    side.end();
}

#[test]
fn without_a_connection_no_step_and_no_attribute_of_a_step_may_be_left_out() {
    let side = Side::new();
    let qp = side.qp_in_reset();
    let refused = |state, mask, errno| {
        let before = state_of(qp).0;
        assert_eq!(
            move_to(qp, state, mask),
            errno,
            "{before} to {state}, {mask:#x}"
        );
        assert_eq!(state_of(qp).0, before);
    };
    for mask in [0, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX] {
        refused(IBV_QPS_INIT, mask, libc::EINVAL);
    }
    refused(IBV_QPS_INIT, FOR_INIT | IBV_QP_RATE_LIMIT, libc::EOPNOTSUPP);
    for state in [IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, 9] {
        refused(state, FOR_INIT, libc::EINVAL);
    }
    assert_eq!(move_to(qp, IBV_QPS_RESET, 0), 0);
    assert_eq!(move_to(qp, IBV_QPS_INIT, FOR_INIT | IBV_QP_PKEY_INDEX), 0);
    // A repeated move to INIT needs no attributes.
    assert_eq!(move_to(qp, IBV_QPS_INIT, 0), 0);
    refused(IBV_QPS_RTS, 0, libc::EINVAL);
    refused(IBV_QPS_RTR, 0, libc::EINVAL);
    assert_eq!(move_to(qp, IBV_QPS_RTR, FOR_INIT), 0);
    refused(IBV_QPS_INIT, FOR_INIT, libc::EINVAL);
    assert_eq!(move_to(qp, IBV_QPS_RTS, 0), 0);
    refused(IBV_QPS_RTR, 0, libc::EINVAL);
    assert_eq!(move_to(qp, IBV_QPS_ERR, 0), 0);
    refused(IBV_QPS_INIT, FOR_INIT, libc::EINVAL);
    assert_eq!(move_to(qp, IBV_QPS_RESET, 0), 0);
    assert_eq!(state_of(qp).0, IBV_QPS_RESET);
    end_qp(qp);
    side.end();
}

#[test]
fn a_port_that_the_device_has_not_and_a_state_that_is_not_the_one_are_refused() {
    let side = Side::new();
    let qp = side.qp_in_reset();
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
    (attr.qp_state, attr.port_num) = (IBV_QPS_INIT, 2);
    let mask = (IBV_QP_STATE | FOR_INIT).cast_signed();
    // SAFETY: the test passes an existing queue pair, and a structure.
    let modify = |attr: &mut ibv_qp_attr, mask| unsafe { modify::modify_qp(qp, attr, mask) };
    assert_eq!(modify(&mut attr, mask), libc::EINVAL);
    (attr.port_num, attr.cur_qp_state) = (1, IBV_QPS_INIT);
    let with_state = mask | IBV_QP_CUR_STATE.cast_signed();
    assert_eq!(modify(&mut attr, with_state), libc::EINVAL);
    attr.cur_qp_state = IBV_QPS_RESET;
    assert_eq!(modify(&mut attr, with_state), 0);
    end_qp(qp);
    side.end();
}

#[test]
fn a_connection_by_queue_pair_numbers_is_refused_by_an_iwarp_device() {
    let side = Side::iwarp();
    let qp = side.qp_in_reset();
    assert_eq!(move_to(qp, IBV_QPS_INIT, FOR_INIT), 0);
    assert_eq!(move_to(qp, IBV_QPS_RTR, IBV_QP_DEST_QPN), libc::EOPNOTSUPP);
    end_qp(qp);
    side.end();
}

#[test]
fn a_region_registered_anew_has_another_key_other_rights_and_another_domain() {
    let (side, mut memory, mut other) = (Side::new(), [0_u8; 64], [0_u8; 32]);
    let mr = side.mr(&mut memory, 1);
    // SAFETY: the test passes an open context.
    let pd = unsafe { pd::alloc_pd(side.context) };
    // SAFETY: the test passes existing objects.
    let rereg = |flags: u32, memory: &mut [u8], access| unsafe {
        let at = memory.as_mut_ptr().cast();
        mr::rereg_mr(mr, flags.cast_signed(), pd, at, memory.len(), access)
    };
    // SAFETY: the test passes an existing region.
    let key = || unsafe { (*mr).lkey };
    let before = key();
    assert_eq!(rereg(IBV_REREG_MR_CHANGE_ACCESS, &mut [], 5), 0);
    assert_ne!(key(), before);
    assert_eq!(rereg(IBV_REREG_MR_CHANGE_PD, &mut [], 0), 0);
    // SAFETY: the test passes existing domains: the old one is unused now, and the new one in use.
    unsafe {
        assert_eq!(pd::dealloc_pd(pd), libc::EBUSY);
        assert_eq!(pd::dealloc_pd(side.pd), 0);
    }
    assert_eq!(rereg(IBV_REREG_MR_CHANGE_TRANSLATION, &mut other, 0), 0);
    // SAFETY: the test passes an existing region.
    let (at, length) = unsafe { ((*mr).addr, (*mr).length) };
    assert_eq!((at.cast(), length), (other.as_mut_ptr(), 32));
    let now = key();
    assert!(rereg(0, &mut [], 0) < 0 && rereg(8, &mut [], 0) < 0);
    // Access 2 is remote write without local write, which is invalid.
    assert!(rereg(IBV_REREG_MR_CHANGE_ACCESS, &mut [], 2) < 0);
    assert_eq!(key(), now);
    end_mr(mr);
    Side { pd, ..side }.end();
}

#[test]
fn registration_refuses_no_memory_at_all_and_rights_that_contradict_each_other() {
    let (side, mut memory) = (Side::new(), [0_u8; 8]);
    let at: *mut c_void = memory.as_mut_ptr().cast();
    for (addr, length, access, number) in [
        (ptr::null_mut(), 8, 1, libc::EINVAL),
        (at, 8, 2, libc::EINVAL),
        (at, 8, 64, libc::EOPNOTSUPP),
    ] {
        // SAFETY: the test passes an existing domain.
        let mr = unsafe { mr::reg_mr(side.pd, addr, length, access) };
        assert!(mr.is_null());
        assert_eq!(errno(), Some(number));
    }
    // SAFETY: the test passes existing objects.
    let mr = unsafe { mr::reg_mr_iova2(side.pd, at, 8, 0x1000, 1 | IBV_ACCESS_RELAXED_ORDERING) };
    end_mr(mr);
    side.end();
}

#[test]
fn two_contexts_have_numbers_of_their_own_for_nothing_but_their_events() {
    let (one, other) = (Side::new(), Side::new());
    let (here, there) = (one.qp(), other.qp());
    // SAFETY: the test passes existing objects.
    unsafe {
        assert_ne!((*here).qp_num, (*there).qp_num);
        assert_ne!((*one.context).async_fd, (*other.context).async_fd);
    }
    end_qp(here);
    end_qp(there);
    one.end();
    other.end();
}

#[test]
fn memory_that_is_not_there_or_not_for_writing_is_not_registered() {
    if madvise_is_emulated("MADV_POPULATE_WRITE") {
        return;
    }
    const PAGE: usize = 4096;
    let side = Side::new();
    // SAFETY: the call maps new memory.
    let pages = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_READ, flags, -1, 0)
    };
    assert_ne!(pages, libc::MAP_FAILED);
    // SAFETY: the second of the two pages is not used.
    let gone = unsafe { libc::munmap(pages.wrapping_byte_add(PAGE), PAGE) };
    assert_eq!(gone, 0);
    // SAFETY: the test passes an existing domain, and the call checks the memory.
    let register = |length, access| unsafe { mr::reg_mr(side.pd, pages, length, access) };
    for (length, access) in [(PAGE, ALL), (PAGE + 1, 0)] {
        assert!(register(length, access).is_null());
        assert_eq!(errno(), Some(libc::EFAULT));
    }
    let source = register(PAGE, 0);
    assert!(!source.is_null());
    end_mr(source);
    // SAFETY: the page is not used any more.
    assert_eq!(unsafe { libc::munmap(pages, PAGE) }, 0);
    side.end();
}

#[test]
fn the_error_of_a_completion_queue_is_told_on_its_own_context() {
    let (here, there, third) = (Side::new(), Side::new(), Side::new());
    let none = ptr::null_mut();
    // SAFETY: the test passes an open context.
    let small = unsafe { cq::create_cq(third.context, 1, none, none.cast(), 0) };
    let mut attr = here.attr();
    attr.send_cq = small;
    // SAFETY: the test passes existing objects.
    let qp = unsafe { qp::create_qp(here.pd, &raw mut attr) };
    let peer = there.qp();
    connect(qp, peer);
    let mut second = send_wr(2, IBV_WR_RDMA_WRITE, &mut []);
    let mut first = send_wr(1, IBV_WR_RDMA_WRITE, &mut []);
    first.next = &raw mut second;
    assert_eq!(post_send(qp, &mut first).0, 0);
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event: ibv_async_event = unsafe { mem::zeroed() };
    // SAFETY: the test passes an open context, and memory for an event, which the call fills in.
    // The type of the event says which field is set.
    unsafe {
        let mut told = libc::pollfd {
            fd: (*third.context).async_fd,
            events: libc::POLLIN,
            revents: 0,
        };
        assert_eq!(libc::poll(&raw mut told, 1, 60_000), 1);
        assert_eq!(
            crate::events::get_async_event(third.context, &raw mut event),
            0
        );
        assert_eq!(
            (event.event_type, event.element.cq),
            (IBV_EVENT_CQ_ERR, small)
        );
        crate::events::ack_async_event(&raw mut event);
    }
    end_qp(qp);
    end_qp(peer);
    // SAFETY: the queue is not used any more.
    assert_eq!(unsafe { cq::destroy_cq(small) }, 0);
    for side in [here, there, third] {
        side.end();
    }
}

#[test]
fn a_child_does_not_wait_for_events_of_its_parents_context() {
    if madvise_is_emulated("MADV_WIPEONFORK") {
        return;
    }
    let side = Side::new();
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event: ibv_async_event = unsafe { mem::zeroed() };
    // SAFETY: the child calls only the tested function. It exits, or a signal ends it after 30 s.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the test passes a context, and memory for an event.
        unsafe {
            libc::alarm(30);
            let got = crate::events::get_async_event(side.context, &raw mut event);
            let told = got == -1 && errno() == Some(libc::EIO);
            libc::_exit(if told { 0 } else { 1 });
        }
    }
    let mut status = -1;
    // SAFETY: the call waits for the child and writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    side.end();
}
