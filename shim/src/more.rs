//! Shared receive queues, memory windows, and state changes.

use core::ffi::c_int;
use std::time::Duration;

use rustix::io::Errno;
use uwarp_verbs::{
    Access, Cq, IbvQpState, MemoryRegion, MemoryWindow, OnNoReceive, Pd, Qp, QpModify, Srq,
    SrqAttr, SrqModify, WindowKind,
};

use crate::error::{end, failed, handle, status};
use crate::post::{CSge, elements, posted};

#[unsafe(no_mangle)]
extern "C" fn uw_create_srq(pd: &Pd, max_wr: u32, max_sge: u32) -> *mut Srq {
    handle(pd.create_srq(SrqAttr::default().max_wr(max_wr).max_sge(max_sge)))
}

#[unsafe(no_mangle)]
extern "C" fn uw_srq_num(srq: &Srq) -> u32 {
    srq.srq_num()
}

/// # Safety
/// `sg_list` has `num_sge` elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_post_srq_recv(
    srq: &Srq,
    wr_id: u64,
    sg_list: *const CSge,
    num_sge: c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let sges = unsafe { elements(sg_list, num_sge) };
    posted(srq.post_recv(&uwarp_verbs::RecvWr::new(wr_id, &sges)))
}

#[unsafe(no_mangle)]
extern "C" fn uw_arm_srq_limit(srq: &Srq, limit: u32) -> c_int {
    let change = SrqModify::default().limit(Some(limit));
    status(srq.modify(change), Errno::INVAL)
}

/// # Safety
/// As for [`end`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_destroy_srq(srq: *mut Srq, timeout_ms: u32) -> c_int {
    let patience = Some(Duration::from_millis(timeout_ms.into()));
    // SAFETY: guaranteed by the caller.
    unsafe { end(srq, |srq| srq.destroy(patience)) }
}

#[unsafe(no_mangle)]
extern "C" fn uw_create_qp_srq(
    pd: &Pd,
    send_cq: &Cq,
    recv_cq: &Cq,
    srq: &Srq,
    hold_ms: u32,
) -> *mut Qp {
    let hold = OnNoReceive::Hold(Duration::from_millis(hold_ms.into()));
    handle(pd.qp().srq(srq).on_no_receive(hold).build(send_cq, recv_cq))
}

#[unsafe(no_mangle)]
extern "C" fn uw_modify_qp(qp: &Qp, state: c_int) -> c_int {
    let wanted = u32::try_from(state).ok().and_then(IbvQpState::from_value);
    let Some(wanted) = wanted else {
        return failed(Errno::INVAL, &format!("no state {state}"));
    };
    status(qp.modify(&QpModify::new().ibv_state(wanted)), Errno::INVAL)
}

#[unsafe(no_mangle)]
extern "C" fn uw_resize_cq(cq: &Cq, cqe: u32) -> c_int {
    status(cq.resize(cqe), Errno::INVAL)
}

#[unsafe(no_mangle)]
extern "C" fn uw_alloc_mw(pd: &Pd) -> *mut MemoryWindow {
    handle(pd.alloc_window(WindowKind::Type1))
}

/// Sets `*key` to the STag that the window has when the request has completed.
#[unsafe(no_mangle)]
extern "C" fn uw_bind_mw(
    qp: &Qp,
    window: &mut MemoryWindow,
    wr_id: u64,
    mr: &MemoryRegion,
    offset: u64,
    length: u64,
    key: &mut u32,
) -> c_int {
    let bind = mr.window(offset, length, Access::REMOTE_WRITE);
    posted(qp.bind_mw(window, wr_id, &bind).map(|rkey| *key = rkey))
}

#[unsafe(no_mangle)]
extern "C" fn uw_dealloc_mw(window: Box<MemoryWindow>) {
    drop(window);
}
