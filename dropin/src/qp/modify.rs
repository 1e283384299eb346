//! Changing a queue pair and asking for its state (`ibv_modify_qp`, `ibv_query_qp`).
//!
//! On iWARP the connection manager makes a queue pair ready. A program that asks for INIT, RTR or RTS itself, as some do that
//! bring their own queue pair to `rdma_connect`, changes nothing; what it asked for is what it is shown, until there is a
//! connection that has a state.
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
)]

use core::ffi::c_int;
use core::mem;
use std::sync::atomic::Ordering;

use uwarp_verbs::{Access, IbvQpState, QpModify, QpState};

use super::QpKept;
use crate::abi::{
    IBV_MTU_1024, IBV_QP_ACCESS_FLAGS, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN, IBV_QP_STATE,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_state,
};
use crate::boundary::entry;
use crate::rnic::tell;
use crate::{errno, qp};

/// Changes what `mask` says.
///
/// # Errors
/// The `errno`; then nothing has changed.
pub(crate) fn modify(kept: &QpKept, attr: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    let mut change = QpModify::new();
    if mask & IBV_QP_ACCESS_FLAGS != 0 {
        change = change.access(Access::from_bits(attr.qp_access_flags).0);
    }
    let wanted = (mask & IBV_QP_STATE != 0).then_some(attr.qp_state);
    if mask & IBV_QP_DEST_QPN != 0 && wanted == Some(IBV_QPS_RTR) {
        // Without a word the program would wait for ever for the first message.
        if kept.refused.first() {
            tell(format_args!(
                "this program connects queue pairs by their numbers, which iWARP cannot do; if it has an option for librdmacm (-R, \
                 say), use that"
            ));
        }
        return Err(libc::EOPNOTSUPP);
    }
    if mask & IBV_QP_CUR_STATE != 0 {
        let now = shown_state(kept);
        let is_fresh = now == IBV_QPS_INIT && to_reset(attr.cur_qp_state);
        if attr.cur_qp_state != now && !is_fresh {
            return Err(libc::EINVAL);
        }
    }
    if let Some(wanted) = wanted {
        let to = IbvQpState::from_value(wanted).ok_or(libc::EINVAL)?;
        if !is_for_the_manager(kept.qp.state(), wanted) {
            change = change.ibv_state(to);
        }
    }
    kept.qp.modify(&change).map_err(|_| libc::EINVAL)?;
    if let Some(wanted) = wanted {
        kept.asked.store(wanted, Ordering::Relaxed);
        if to_reset(wanted) {
            kept.told.again();
        }
    }
    Ok(())
}

fn to_reset(wanted: ibv_qp_state) -> bool {
    wanted == crate::abi::IBV_QPS_RESET
}

/// Whether a state is one that the connection manager brings about: nothing changes then.
fn is_for_the_manager(now: QpState, wanted: ibv_qp_state) -> bool {
    match now {
        // Of these, the verbs know INIT.
        QpState::Idle => matches!(wanted, IBV_QPS_RTR | IBV_QPS_RTS),
        QpState::Connecting | QpState::Rts => {
            matches!(wanted, IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS)
        }
        QpState::Closing | QpState::Terminate | QpState::Error => false,
    }
}

/// The state that the program is shown.
pub(crate) fn shown_state(kept: &QpKept) -> ibv_qp_state {
    let now = kept.qp.query();
    match now.state {
        // RNICs have no RESET: their IDLE is told as INIT.
        QpState::Idle | QpState::Connecting => {
            let before = now.ibv_state.value().max(IBV_QPS_INIT);
            match kept.asked.load(Ordering::Relaxed) {
                asked @ (IBV_QPS_RTR | IBV_QPS_RTS) => asked.max(before),
                _ => before,
            }
        }
        _ => now.ibv_state.value(),
    }
}

fn attributes(kept: &QpKept) -> ibv_qp_attr {
    let now = kept.qp.query();
    let small = |number: u16| u8::try_from(number).unwrap_or(u8::MAX);
    // SAFETY: numbers, which may all be zero.
    let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
    attr.qp_state = shown_state(kept);
    attr.cur_qp_state = attr.qp_state;
    attr.path_mtu = IBV_MTU_1024;
    attr.qp_access_flags = now.access.bits();
    attr.cap = capacities(kept);
    attr.sq_draining = now.sq_draining.into();
    attr.max_rd_atomic = small(now.ord);
    attr.max_dest_rd_atomic = small(now.ird);
    attr.port_num = 1;
    attr
}

fn capacities(kept: &QpKept) -> ibv_qp_cap {
    let caps = kept.qp.init_attr().caps;
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

/// `ibv_modify_qp`
pub(crate) unsafe extern "C-unwind" fn modify_qp(
    pointer: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    entry(libc::EIO, || {
        let mask = mask.cast_unsigned();
        // SAFETY: a queue pair that exists, and a structure of the program's.
        let (kept, attr) = unsafe { (qp::of(pointer), &*attr) };
        let result = modify(kept, attr, mask);
        if result.is_ok() && mask & IBV_QP_STATE != 0 {
            // SAFETY: a field that libibverbs writes here, too.
            unsafe { (*pointer).state = attr.qp_state };
        }
        errno::status(result)
    })
}

/// `ibv_query_qp`
pub(crate) unsafe extern "C-unwind" fn query_qp(
    pointer: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: a queue pair that exists.
        let kept = unsafe { qp::of(pointer) };
        let now = attributes(kept);
        // SAFETY: the structure of the queue pair, and places for two of the program's.
        unsafe {
            (*pointer).state = now.qp_state;
            attr.write(now);
            init.write(ibv_qp_init_attr {
                qp_context: (*pointer).qp_context,
                send_cq: (*pointer).send_cq,
                recv_cq: (*pointer).recv_cq,
                srq: (*pointer).srq,
                cap: capacities(kept),
                qp_type: (*pointer).qp_type,
                sq_sig_all: kept.qp.init_attr().signal_all.into(),
            });
        }
        0
    })
}
