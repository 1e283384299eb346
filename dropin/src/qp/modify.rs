//! Changes of a queue pair and queries of its state (`ibv_modify_qp`, `ibv_query_qp`).
//!
//! On iWARP the connection manager makes a queue pair ready. Some programs create their own queue
//! pair for `rdma_connect`, and request INIT, RTR and RTS themselves. This does not change the
//! connection. Without a connection these requests must follow the order of InfiniBand's state
//! machine, and queries return the last requested state. A state may be requested again, and RESET
//! and ERR can be reached from every state:
//!
//! ```text
//!   RESET ──► INIT ──► RTR ──► RTS
//! ```
//!
//! INIT needs two attributes: those that `rdma_init_qp_attr` names for iWARP. InfiniBand needs
//! them, too. RTR and RTS need none: InfiniBand's attributes for them describe a path, and a TCP
//! connection has its own. But on a RoCE device, RTR needs the number of the peer, unless the queue
//! pair belongs to an id of librdmacm or the mask is that of `rdma_init_qp_attr`.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::mem;
use std::sync::atomic::Ordering;

use uwarp_verbs::{Access, IbvQpState, QpModify, QpState};

use super::pair::Pairing;
use super::{QpInner, datagram};
use crate::abi::{
    IBV_MTU_1024, IBV_QP_ACCESS_FLAGS, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN, IBV_QP_PORT,
    IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD,
    IBV_QPS_SQE, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
};
use crate::panic_guard::entry;
use crate::rnic::warn;
use crate::{errno, qp};

/// Bits of `ibv_qp_attr_mask` that the kernel accepts in `ibv_modify_qp`
/// (`IB_QP_ATTR_STANDARD_BITS`).
const KNOWN: u32 = 2 * IBV_QP_DEST_QPN - 1;

/// Attributes that the step from RESET to INIT needs.
const FOR_INIT: u32 = IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

/// Changes the attributes in `mask`.
///
/// # Errors
/// Returns an `errno` value; nothing has changed then.
pub(crate) fn modify(inner: &QpInner, attr: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    if mask & !KNOWN != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if mask & IBV_QP_PORT != 0 && attr.port_num != 1 {
        return Err(libc::EINVAL);
    }
    if let Some(pairing) = &inner.pairing
        && inner.sends_datagrams
    {
        return datagram::modify(inner, pairing, attr, mask);
    }
    let mut change = QpModify::new();
    if mask & IBV_QP_ACCESS_FLAGS != 0 {
        change = change.access(Access::from_bits(attr.qp_access_flags).0);
    }
    let wanted = (mask & IBV_QP_STATE != 0).then_some(attr.qp_state);
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != shown_state(inner) {
        return Err(libc::EINVAL);
    }
    if let Some(pairing) = &inner.pairing {
        let paired = pairing.is_paired();
        let now = shown_state(inner);
        let names_peer = wanted == Some(IBV_QPS_RTR) && mask & IBV_QP_DEST_QPN != 0;
        if names_peer || paired && wanted == Some(IBV_QPS_RTS) {
            // Before the peer can use them.
            inner.qp.modify(&change).map_err(|_| libc::EINVAL)?;
        }
        let step = match wanted {
            Some(IBV_QPS_RTR) if names_peer => Some(pairing.to_rtr(&inner.qp, now, attr, mask)),
            Some(IBV_QPS_RTR) if !paired && !may_lack_peer(inner, mask) => {
                let words = "the mask for RTR must contain IBV_QP_DEST_QPN, or be that of \
                             rdma_init_qp_attr if librdmacm connects the queue pair";
                Some(Err((libc::EINVAL, words)))
            }
            Some(IBV_QPS_RTS) if paired => Some(pairing.to_rts(&inner.qp, now, attr, mask)),
            Some(IBV_QPS_SQD) if paired => Some(Err((
                libc::EOPNOTSUPP,
                "uwarp does not drain its send queue",
            ))),
            Some(IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_SQE) if paired => {
                Some(Err((libc::EINVAL, "only RTS, ERR and RESET follow RTR")))
            }
            _ => None,
        };
        if let Some(Err((errno, words))) = step {
            if inner.refusal_warning.claim() {
                let number = inner.qp.qp_num();
                warn(format_args!(
                    "queue pair {number}: ibv_modify_qp was refused: {words}"
                ));
            }
            return Err(errno);
        }
        if step.is_some() {
            inner.asked.store(attr.qp_state, Ordering::Relaxed);
            pairing.record(attr, mask);
            return Ok(());
        }
    } else if mask & IBV_QP_DEST_QPN != 0 && wanted == Some(IBV_QPS_RTR) {
        // Without this message, such a program would wait forever for its first receive, and
        // nothing would show the reason.
        if inner.refusal_warning.claim() {
            warn(format_args!(
                "this program connects queue pairs by number, which the persona iwarp cannot; run it \
                 without UWARP_PERSONA=iwarp, UWARP_PEER=siw and UWARP_MPA=1, or use its option for \
                 librdmacm, if it has one (such as -R)"
            ));
        }
        return Err(libc::EOPNOTSUPP);
    }
    if let Some(wanted) = wanted {
        let to = IbvQpState::from_value(wanted).ok_or(libc::EINVAL)?;
        if is_for_the_manager(inner.qp.state(), wanted) {
            check_step(inner, to, mask)?;
        } else {
            // Drivers of RNICs remove the completions at a reset.
            change = change.ibv_state(to).discard_completions();
        }
    }
    inner.qp.modify(&change).map_err(|_| libc::EINVAL)?;
    if let Some(pairing) = &inner.pairing {
        pairing.record(attr, mask);
    }
    if let Some(wanted) = wanted {
        inner.asked.store(wanted, Ordering::Relaxed);
        if wanted == IBV_QPS_RESET {
            inner.end_warning.rearm();
        }
    }
    Ok(())
}

/// Returns true if a step to RTR may leave out the number of the peer, because librdmacm connects
/// the queue pair.
fn may_lack_peer(inner: &QpInner, mask: u32) -> bool {
    inner.is_of_id.load(Ordering::Relaxed)
        || inner.qp.state() != QpState::Idle
        || mask & FOR_INIT == FOR_INIT
}

/// Records a step to INIT, and that the queue pair belongs to an id of librdmacm. `rdma_create_qp`
/// does this for the program.
pub(crate) fn initialize(inner: &QpInner) {
    inner.is_of_id.store(true, Ordering::Relaxed);
    inner.asked.store(IBV_QPS_INIT, Ordering::Relaxed);
}

/// Checks a step to a state that the connection manager handles. Prints the first refusal.
///
/// # Errors
/// `EINVAL` if a step or an attribute is missing.
fn check_step(inner: &QpInner, to: IbvQpState, mask: u32) -> Result<(), c_int> {
    if inner.qp.state() != QpState::Idle {
        // The connection manager has already taken all steps.
        return Ok(());
    }
    let now = last_step(inner);
    let is_next = to.value() == now || to.value() == now + 1;
    let lacks = now == IBV_QPS_RESET && mask & FOR_INIT != FOR_INIT;
    if is_next && !lacks {
        return Ok(());
    }
    if inner.refusal_warning.claim() {
        let reason = match is_next {
            true => "the mask must contain IBV_QP_PORT and IBV_QP_ACCESS_FLAGS",
            false => "the states must follow in the order RESET, INIT, RTR, RTS",
        };
        let number = inner.qp.qp_num();
        warn(format_args!(
            "queue pair {number}: ibv_modify_qp to {to} was refused: {reason} (rdma_init_qp_attr \
             returns the mask of each step; rdma_connect and rdma_accept need none of these steps)"
        ));
    }
    Err(libc::EINVAL)
}

/// Returns true if the connection manager handles the wanted state. The program's request then
/// changes nothing in the queue pair.
fn is_for_the_manager(now: QpState, wanted: ibv_qp_state) -> bool {
    match now {
        QpState::Idle | QpState::Connecting | QpState::Rts => {
            matches!(wanted, IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS)
        }
        QpState::Closing | QpState::Terminate | QpState::Error => false,
    }
}

/// Returns the state that the program sees.
pub(crate) fn shown_state(inner: &QpInner) -> ibv_qp_state {
    let now = inner.qp.query();
    match now.state {
        QpState::Idle => last_step(inner),
        QpState::Connecting => last_step(inner).max(IBV_QPS_INIT),
        QpState::Rts if is_paired(inner) => last_step(inner),
        // InfiniBand has no Terminate Message: a queue pair has failed, or not.
        QpState::Terminate if inner.pairing.is_some() => IBV_QPS_ERR,
        _ => now.ibv_state.value(),
    }
}

fn is_paired(inner: &QpInner) -> bool {
    inner.pairing.as_ref().is_some_and(Pairing::is_paired)
}

/// Returns the state that the program requested last, if that is INIT, RTR or RTS, and RESET
/// otherwise.
pub(super) fn last_step(inner: &QpInner) -> ibv_qp_state {
    match inner.asked.load(Ordering::Relaxed) {
        asked @ (IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS) => asked,
        _ => IBV_QPS_RESET,
    }
}

fn attributes(inner: &QpInner) -> ibv_qp_attr {
    let now = inner.qp.query();
    let small = |number: u16| u8::try_from(number).unwrap_or(u8::MAX);
    let mut attr = match &inner.pairing {
        Some(pairing) => pairing.attributes(),
        // SAFETY: all bytes may be zero: the structure has only numbers.
        None => unsafe { mem::zeroed() },
    };
    attr.qp_state = shown_state(inner);
    attr.cur_qp_state = attr.qp_state;
    attr.qp_access_flags = now.access.bits();
    attr.cap = capacities(inner);
    attr.sq_draining = now.sq_draining.into();
    attr.port_num = 1;
    if !is_paired(inner) {
        attr.path_mtu = IBV_MTU_1024;
        attr.max_rd_atomic = small(now.ord);
        attr.max_dest_rd_atomic = small(now.ird);
    }
    attr
}

fn capacities(inner: &QpInner) -> ibv_qp_cap {
    let caps = inner.qp.init_attr().caps;
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
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
        // SAFETY: the program passes an existing queue pair, and a structure.
        let (inner, attr) = unsafe { (qp::by_handle(pointer), &*attr) };
        let result = inner.and_then(|inner| modify(inner, attr, mask));
        if result.is_ok() && mask & IBV_QP_STATE != 0 {
            // SAFETY: libibverbs writes this field here, too.
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
        // SAFETY: the program passes an existing queue pair.
        let inner = match unsafe { qp::by_handle(pointer) } {
            Ok(inner) => inner,
            Err(errno) => return errno::status(Err(errno)),
        };
        let now = attributes(inner);
        // SAFETY: the program passes an existing queue pair, and memory for two structures.
        unsafe {
            (*pointer).state = now.qp_state;
            attr.write(now);
            init.write(ibv_qp_init_attr {
                qp_context: (*pointer).qp_context,
                send_cq: (*pointer).send_cq,
                recv_cq: (*pointer).recv_cq,
                srq: (*pointer).srq,
                cap: capacities(inner),
                qp_type: (*pointer).qp_type,
                sq_sig_all: inner.qp.init_attr().signal_all.into(),
            });
        }
        0
    })
}
