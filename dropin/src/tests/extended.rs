//! Extended queue pairs and completion queues. Function calls build requests (`ibv_wr_start`), and
//! completions are read in place.

use super::*;
use crate::cq_ex;
use crate::qp::extended::qp_to_qp_ex;

const OPS: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_INV;

fn attr_ex(side: &Side, ops: u32) -> ibv_qp_init_attr_ex {
    let plain = side.attr();
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut attr: ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
    (attr.send_cq, attr.recv_cq) = (plain.send_cq, plain.recv_cq);
    (attr.cap, attr.qp_type) = (plain.cap, plain.qp_type);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    (attr.pd, attr.send_ops_flags) = (side.pd, ops.into());
    attr
}

fn extended(side: &Side, ops: u32) -> *mut ibv_qp {
    let mut attr = attr_ex(side, ops);
    // SAFETY: the test passes existing objects, as the inline function of `verbs.h` does.
    unsafe { qp::create_qp_ex(side.context, &raw mut attr) }
}

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

#[test]
fn requests_built_by_calls_leave_together_and_what_was_aborted_never() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (extended(&here, OPS), there.qp());
    // SAFETY: the test passes existing queue pairs.
    let (plain, ex) = unsafe { (qp_to_qp_ex(peer), qp_to_qp_ex(qp)) };
    assert!(plain.is_null());
    let (mut own, mut lent, mut to) = (*b"abcdefgh", [0_u8; 8], [0_u8; 8]);
    let (source, remote) = (here.mr(&mut own, 0), there.mr(&mut lent, ALL));
    let sink = there.mr(&mut to, ALL);
    post_recv(peer, 10, &mut [sge(sink, 0, 8)]);
    connect(qp, peer);
    let element = sge(source, 0, 8);
    // SAFETY: the test passes an existing region.
    let (addr, rkey) = unsafe { ((*remote).addr.addr() as u64, (*remote).rkey) };
    // SAFETY: the test makes these calls in the same order as the inline functions of `verbs.h`.
    unsafe {
        let calls = &*ex;
        calls.wr_start.unwrap()(ex);
        (*ex).wr_id = 1;
        (*ex).wr_flags = IBV_SEND_SIGNALED;
        calls.wr_send.unwrap()(ex);
        calls.wr_abort.unwrap()(ex);
        calls.wr_start.unwrap()(ex);
        (*ex).wr_id = 2;
        calls.wr_rdma_write.unwrap()(ex, rkey, addr);
        calls.wr_set_sge.unwrap()(ex, element.lkey, element.addr, 8);
        ((*ex).wr_id, (*ex).wr_flags) = (3, 0);
        calls.wr_rdma_write.unwrap()(ex, rkey, addr);
        calls.wr_set_sge_list.unwrap()(ex, 1, &raw const element);
        ((*ex).wr_id, (*ex).wr_flags) = (4, IBV_SEND_SIGNALED);
        calls.wr_send.unwrap()(ex);
        let mut parts = *b"inlined";
        let at: *mut c_void = parts.as_mut_ptr().cast();
        let buffers = [
            ibv_data_buf {
                addr: at,
                length: 3,
            },
            ibv_data_buf {
                addr: at.byte_add(3),
                length: 4,
            },
        ];
        calls.wr_set_inline_data_list.unwrap()(ex, 2, buffers.as_ptr());
        parts.fill(0);
        assert_eq!(calls.wr_complete.unwrap()(ex), 0);
    }
    let sent: Vec<_> = here.poll(2).iter().map(kind).collect();
    let ok = |opcode, wr_id| (IBV_WC_SUCCESS, opcode, wr_id);
    assert_eq!(sent, [ok(IBV_WC_RDMA_WRITE, 2), ok(IBV_WC_SEND, 4)]);
    assert_eq!(kind(&there.poll(1)[0]), ok(IBV_WC_RECV, 10));
    end_qp(qp);
    end_qp(peer);
    end_mr(source);
    end_mr(remote);
    end_mr(sink);
    assert_eq!((&lent, &to[..7]), (b"abcdefgh", &b"inlined"[..]));
    here.end();
    there.end();
}

#[test]
fn a_write_with_immediate_data_built_by_calls_arrives_with_its_bytes_in_network_order() {
    let (here, there) = (Side::new(), Side::new());
    let ops = OPS | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let (qp, peer) = (extended(&here, ops), there.qp());
    // SAFETY: the test passes an existing queue pair.
    let ex = unsafe { qp_to_qp_ex(qp) };
    let mut lent = [0_u8; 8];
    let remote = there.mr(&mut lent, ALL);
    post_recv(peer, 30, &mut []);
    post_recv(peer, 31, &mut []);
    connect(qp, peer);
    // SAFETY: the test passes an existing region.
    let (addr, rkey) = unsafe { ((*remote).addr.addr() as u64, (*remote).rkey) };
    let mut bytes = *b"inlined";
    // SAFETY: the test makes these calls in the same order as the inline functions of `verbs.h`.
    unsafe {
        let calls = &*ex;
        calls.wr_start.unwrap()(ex);
        ((*ex).wr_id, (*ex).wr_flags) = (1, IBV_SEND_SIGNALED);
        calls.wr_rdma_write_imm.unwrap()(ex, rkey, addr, 0x0102_0304_u32.to_be());
        calls.wr_set_inline_data.unwrap()(ex, bytes.as_mut_ptr().cast(), 7);
        // An empty Write accesses no memory, so its key is not checked.
        ((*ex).wr_id, (*ex).wr_flags) = (2, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
        calls.wr_rdma_write_imm.unwrap()(ex, 0, 0, 0x0506_0708_u32.to_be());
        assert_eq!(calls.wr_complete.unwrap()(ex), 0);
    }
    let sent: Vec<_> = here.poll(2).iter().map(kind).collect();
    let ok = |opcode, wr_id| (IBV_WC_SUCCESS, opcode, wr_id);
    assert_eq!(sent, [ok(IBV_WC_RDMA_WRITE, 1), ok(IBV_WC_RDMA_WRITE, 2)]);
    let got = there.poll(2);
    for (wc, wr_id, len, imm) in [(got[0], 30, 7, [1, 2, 3, 4]), (got[1], 31, 0, [5, 6, 7, 8])] {
        assert_eq!(kind(&wc), ok(IBV_WC_RECV_RDMA_WITH_IMM, wr_id));
        assert_eq!((wc.wc_flags, wc.byte_len), (IBV_WC_WITH_IMM, len));
        // SAFETY: the flag says that this field is set.
        let data = unsafe { wc.__bindgen_anon_1.imm_data };
        assert_eq!(data.to_ne_bytes(), imm);
    }
    end_qp(qp);
    end_qp(peer);
    end_mr(remote);
    assert_eq!(&lent, b"inlined\0");
    here.end();
    there.end();
}

#[test]
fn requests_that_do_not_all_fit_or_are_not_to_be_had_are_not_posted_at_all() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (extended(&here, OPS), there.qp());
    // SAFETY: the test passes an existing queue pair.
    let ex = unsafe { qp_to_qp_ex(qp) };
    connect(qp, peer);
    // SAFETY: the test makes these calls in the same order as the inline functions of `verbs.h`.
    unsafe {
        let calls = &*ex;
        (*ex).wr_flags = IBV_SEND_SIGNALED;
        calls.wr_start.unwrap()(ex);
        for _ in 0..21 {
            calls.wr_rdma_write.unwrap()(ex, 0, 0);
        }
        assert_eq!(calls.wr_complete.unwrap()(ex), libc::ENOMEM);
        calls.wr_start.unwrap()(ex);
        calls.wr_rdma_write.unwrap()(ex, 0, 0);
        calls.wr_send_imm.unwrap()(ex, 1);
        assert_eq!(calls.wr_complete.unwrap()(ex), libc::EOPNOTSUPP);
        calls.wr_start.unwrap()(ex);
        calls.wr_rdma_write.unwrap()(ex, 0, 0);
        let mut long = [0_u8; 4096];
        calls.wr_set_inline_data.unwrap()(ex, long.as_mut_ptr().cast(), 4096);
        assert_eq!(calls.wr_complete.unwrap()(ex), libc::EINVAL);
        // An earlier failure does not affect the next list.
        (*ex).wr_id = 7;
        calls.wr_start.unwrap()(ex);
        calls.wr_rdma_write.unwrap()(ex, 0, 0);
        assert_eq!(calls.wr_complete.unwrap()(ex), 0);
    }
    assert_eq!(kind(&here.poll(1)[0]).2, 7);
    end_qp(qp);
    end_qp(peer);
    here.end();
    there.end();
}

#[test]
fn an_extended_queue_pair_is_refused_for_what_iwarp_has_not() {
    let side = Side::new();
    assert!(extended(&side, IBV_QP_EX_WITH_TSO).is_null());
    assert_eq!(errno(), Some(libc::EOPNOTSUPP));
    let mut attr = attr_ex(&side, 0);
    attr.comp_mask = 0;
    // SAFETY: the test passes existing objects.
    assert!(unsafe { qp::create_qp_ex(side.context, &raw mut attr) }.is_null());
    assert_eq!(errno(), Some(libc::EINVAL));
    side.end();
}

#[test]
fn completions_are_read_one_by_one_between_start_and_end() {
    let (here, there) = (Side::new(), Side::new());
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut attr: ibv_cq_init_attr_ex = unsafe { mem::zeroed() };
    attr.cqe = 8;
    attr.wc_flags = IBV_WC_STANDARD_FLAGS.into();
    // SAFETY: the test passes an open context.
    let cq = unsafe { cq_ex::create_cq_ex(there.context, &raw mut attr) };
    assert!(!cq.is_null());
    let mut with = there.attr();
    with.recv_cq = cq.cast();
    // SAFETY: the test passes existing objects.
    let peer = unsafe { qp::create_qp(there.pd, &raw mut with) };
    initialize(peer);
    let qp = here.qp();
    let (mut lent, mut own) = ([0_u8; 8], *b"12345678");
    let (remote, source) = (there.mr(&mut lent, ALL), here.mr(&mut own, 0));
    post_recv(peer, 10, &mut [sge(remote, 0, 8)]);
    post_recv(peer, 11, &mut []);
    connect(qp, peer);
    let mut poll = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: the test makes these calls in the same order as the inline functions of `verbs.h`.
    unsafe {
        let calls = &*cq;
        assert_eq!(calls.start_poll.unwrap()(cq, &raw mut poll), libc::ENOENT);
        let mut list = [sge(source, 0, 6)];
        let mut send = send_wr(1, IBV_WR_SEND, &mut list);
        assert_eq!(post_send(qp, &mut send).0, 0);
        let mut write = rdma_wr(2, IBV_WR_RDMA_WRITE_WITH_IMM, &mut [], remote);
        write.__bindgen_anon_1.imm_data = 77;
        assert_eq!(post_send(qp, &mut write).0, 0);
        here.poll(2);
        while calls.start_poll.unwrap()(cq, &raw mut poll) != 0 {}
        assert_eq!(((*cq).wr_id, (*cq).status), (10, IBV_WC_SUCCESS));
        assert_eq!(calls.read_opcode.unwrap()(cq), IBV_WC_RECV);
        assert_eq!(calls.read_byte_len.unwrap()(cq), 6);
        assert_eq!(calls.read_qp_num.unwrap()(cq), (*peer).qp_num);
        assert_eq!(calls.read_wc_flags.unwrap()(cq), 0);
        while calls.next_poll.unwrap()(cq) != 0 {}
        assert_eq!((*cq).wr_id, 11);
        assert_eq!(calls.read_opcode.unwrap()(cq), IBV_WC_RECV_RDMA_WITH_IMM);
        assert_eq!(calls.read_wc_flags.unwrap()(cq), IBV_WC_WITH_IMM);
        assert_eq!(calls.read_imm_data.unwrap()(cq), 77);
        assert_eq!(calls.next_poll.unwrap()(cq), libc::ENOENT);
        calls.end_poll.unwrap()(cq);
        assert_eq!(calls.start_poll.unwrap()(cq, &raw mut poll), libc::ENOENT);
    }
    end_qp(qp);
    end_qp(peer);
    end_mr(remote);
    end_mr(source);
    // SAFETY: the test passes a queue that is not used any more.
    assert_eq!(unsafe { cq::destroy_cq(cq.cast()) }, 0);
    here.end();
    there.end();
}

#[test]
fn a_completion_queue_with_timestamps_is_refused() {
    let side = Side::new();
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut attr: ibv_cq_init_attr_ex = unsafe { mem::zeroed() };
    attr.cqe = 8;
    attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.into();
    // SAFETY: the test passes an open context.
    assert!(unsafe { cq_ex::create_cq_ex(side.context, &raw mut attr) }.is_null());
    assert_eq!(errno(), Some(libc::EOPNOTSUPP));
    side.end();
}

#[test]
fn of_requests_built_by_calls_all_are_taken_or_none() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (extended(&here, OPS), there.qp());
    // SAFETY: the test passes an existing queue pair.
    let ex = unsafe { qp_to_qp_ex(qp) };
    connect(qp, peer);
    let mut own = *b"abcdefgh";
    let source = here.mr(&mut own, 0);
    let element = sge(source, 0, 2);
    // Three elements are one more than a request of this queue pair may have.
    let elements = [element; 3];
    for (count, expected) in [(3, libc::EINVAL), (2, 0)] {
        // SAFETY: the test makes these calls in the same order as the inline functions of
        // `verbs.h`.
        unsafe {
            let calls = &*ex;
            calls.wr_start.unwrap()(ex);
            ((*ex).wr_id, (*ex).wr_flags) = (count, IBV_SEND_SIGNALED);
            calls.wr_rdma_write.unwrap()(ex, 0, 0);
            (*ex).wr_id = 10 + count;
            calls.wr_rdma_write.unwrap()(ex, 0, 0);
            calls.wr_set_sge_list.unwrap()(ex, count as usize, elements.as_ptr());
            assert_eq!(calls.wr_complete.unwrap()(ex), expected);
        }
    }
    let posted: Vec<_> = here.poll(2).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(posted, [2, 12]);
    end_qp(qp);
    end_qp(peer);
    end_mr(source);
    here.end();
    there.end();
}
