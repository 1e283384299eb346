//! Queue pairs for unreliable datagrams (`IBV_QPT_UD`): their states, and their Sends.
//!
//! ```text
//!   RESET ──► INIT: the Q_Key is known ──► RTR: it receives ──► RTS: it sends
//! ```
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use uwarp_verbs::{DatagramPath, DatagramWr, IbvQpState, QpModify, QpState, SendWr};

use super::QpInner;
use super::modify::{last_step, shown_state};
use super::pair::{Pairing, Refusal};
use super::post::{self, Refused};
use super::room::{Space, aligned};
use crate::abi::{
    IBV_QP_CUR_STATE, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QPS_ERR,
    IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_SEND_INLINE,
    IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_ah, ibv_qp_attr,
    ibv_qp_state, ibv_send_wr,
};
use crate::ah;
use crate::rnic::warn;

/// Attributes that the step from RESET to INIT needs.
const FOR_INIT: u32 = IBV_QP_PORT | IBV_QP_QKEY;

/// Destination of a datagram.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    path: DatagramPath,
    qp_num: u32,
    qkey: u32,
}

impl Destination {
    /// Returns the destination that a request names; `None` without a handle.
    ///
    /// # Safety
    /// `ah` is an existing handle, or NULL.
    pub(super) unsafe fn new(ah: *mut ibv_ah, qp_num: u32, qkey: u32) -> Option<Self> {
        if ah.is_null() {
            return None;
        }
        // SAFETY: guaranteed by the caller.
        let path = unsafe { ah::of(ah) }.path;
        Some(Destination { path, qp_num, qkey })
    }
}

/// Changes the attributes in `mask`.
///
/// # Errors
/// Returns an `errno` value; nothing has changed then.
pub(super) fn modify(
    inner: &QpInner,
    pairing: &Pairing,
    attr: &ibv_qp_attr,
    mask: u32,
) -> Result<(), c_int> {
    let now = shown_state(inner);
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != now {
        return Err(libc::EINVAL);
    }
    let wanted = (mask & IBV_QP_STATE != 0).then_some(attr.qp_state);
    let checked = wanted.map_or(Ok(()), |wanted| check_step(now, wanted, mask));
    checked.map_err(|(errno, words)| {
        if inner.refusal_warning.claim() {
            let number = inner.qp.qp_num();
            warn(format_args!(
                "queue pair {number}: ibv_modify_qp was refused: {words}"
            ));
        }
        errno
    })?;
    match wanted {
        Some(IBV_QPS_RESET | IBV_QPS_ERR) => {
            let to = IbvQpState::from_value(attr.qp_state).ok_or(libc::EINVAL)?;
            let change = QpModify::new().ibv_state(to).discard_completions();
            inner.qp.modify(&change).map_err(|_| libc::EINVAL)?;
            if attr.qp_state == IBV_QPS_RESET {
                inner.end_warning.rearm();
            }
        }
        Some(IBV_QPS_RTR) => {
            if !inner.qp.open_datagrams() {
                return Err(libc::EINVAL);
            }
            pairing.opened();
        }
        _ => {}
    }
    if mask & IBV_QP_QKEY != 0 {
        inner.qp.set_qkey(attr.qkey);
    }
    if let Some(wanted) = wanted {
        inner.asked.store(wanted, Ordering::Relaxed);
    }
    pairing.record(attr, mask);
    Ok(())
}

/// Checks a step between two states, and its attributes.
fn check_step(now: ibv_qp_state, wanted: ibv_qp_state, mask: u32) -> Result<(), Refusal> {
    let lacks = |needs| mask & needs != needs;
    match (now, wanted) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => Ok(()),
        (IBV_QPS_RESET, IBV_QPS_INIT) if lacks(FOR_INIT) => Err((
            libc::EINVAL,
            "the mask for INIT must contain IBV_QP_PORT and IBV_QP_QKEY",
        )),
        (IBV_QPS_RTR, IBV_QPS_RTS) if lacks(IBV_QP_SQ_PSN) => {
            Err((libc::EINVAL, "the mask for RTS must contain IBV_QP_SQ_PSN"))
        }
        (IBV_QPS_RESET | IBV_QPS_INIT, IBV_QPS_INIT)
        | (IBV_QPS_INIT, IBV_QPS_RTR)
        | (IBV_QPS_RTR | IBV_QPS_RTS, IBV_QPS_RTS) => Ok(()),
        (_, IBV_QPS_SQD) => Err((libc::EOPNOTSUPP, "uwarp does not drain its send queue")),
        _ => Err((
            libc::EINVAL,
            "the states must follow in the order RESET, INIT, RTR, RTS",
        )),
    }
}

/// Posts a list of requests.
///
/// # Safety
/// `wr` is a list or NULL, and everything that it points to exists.
pub(super) unsafe fn send(
    inner: &QpInner,
    mut wr: *mut ibv_send_wr,
) -> Result<(), Refused<ibv_send_wr>> {
    while !wr.is_null() {
        let mut copy = MaybeUninit::uninit();
        // SAFETY: guaranteed by the caller.
        let one = unsafe { aligned(wr, &mut copy) };
        // SAFETY: guaranteed by the caller.
        unsafe { send_one(inner, one) }.map_err(|errno| Refused { at: wr, errno })?;
        wr = one.next;
    }
    Ok(())
}

/// Posts a request.
///
/// # Safety
/// Everything that `wr` points to exists, and does not change during the call.
unsafe fn send_one(inner: &QpInner, wr: &ibv_send_wr) -> Result<(), c_int> {
    let mut space = Space::new();
    let mut room = space.room();
    // SAFETY: all fields of these unions are numbers or pointers; the opcode determines which one
    // is set.
    let (extra, ud) = unsafe { (wr.__bindgen_anon_1.imm_data, wr.wr.ud) };
    let imm = match wr.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(extra.to_ne_bytes()),
        // SAFETY: guaranteed by the caller.
        _ => return unsafe { send_other(inner, wr) },
    };
    // SAFETY: guaranteed by the caller.
    let to = unsafe { Destination::new(ud.ah, ud.remote_qpn, ud.remote_qkey) };
    let to = to.ok_or(libc::EINVAL)?;
    // A request that does not fit into `room` is larger than any queue pair accepts. SAFETY:
    // guaranteed by the caller.
    let sges = unsafe { room.elements(wr.sg_list, wr.num_sge) }?.ok_or(libc::EINVAL)?;
    let mut request = match wr.send_flags & IBV_SEND_INLINE {
        0 => SendWr::send(wr.wr_id, sges),
        _ => {
            // SAFETY: guaranteed by the caller.
            let bytes = unsafe { room.gather(sges) }.ok_or(libc::EINVAL)?;
            SendWr::send_inline(wr.wr_id, bytes)
        }
    };
    if wr.send_flags & IBV_SEND_SOLICITED != 0 {
        request = request.solicited();
    }
    if wr.send_flags & IBV_SEND_SIGNALED == 0 {
        request = request.unsignaled();
    }
    post(inner, [to.request(request, imm)])
}

/// Posts a request that is no datagram, which completes with `IBV_WC_LOC_QP_OP_ERR`. Only its form
/// is checked when it is posted, as by adapters. Its fields for a destination are not used, because
/// those of the operation share their place.
///
/// # Safety
/// As for [`send_one`].
unsafe fn send_other(inner: &QpInner, wr: &ibv_send_wr) -> Result<(), c_int> {
    check_state(inner)?;
    let mut space = Space::new();
    // SAFETY: guaranteed by the caller.
    let request = unsafe { post::request(wr, &mut space.room()) }?.ok_or(libc::EINVAL)?;
    post::result(inner, inner.qp.post_send(&request)).map_err(|(_, errno)| errno)
}

/// Checks that the queue pair sends. In RTR it only receives.
fn check_state(inner: &QpInner) -> Result<(), c_int> {
    match inner.qp.state() == QpState::Rts && last_step(inner) != IBV_QPS_RTS {
        true => Err(libc::EINVAL),
        false => Ok(()),
    }
}

impl Destination {
    /// Creates a request to send a datagram there.
    pub(super) fn request(self, send: SendWr<'_>, imm: Option<[u8; 4]>) -> DatagramWr<'_> {
        let wr = DatagramWr::new(send, self.path, self.qp_num, self.qkey);
        match imm {
            Some(imm) => wr.immediate(imm),
            None => wr,
        }
    }
}

/// Posts all datagrams, or none if one of them is refused.
///
/// # Errors
/// Returns an `errno` value.
pub(super) fn post<'a, I>(inner: &QpInner, wrs: I) -> Result<(), c_int>
where
    I: IntoIterator<Item = DatagramWr<'a>>,
    I::IntoIter: Clone,
{
    check_state(inner)?;
    let posted = inner.qp.post_datagrams(wrs);
    post::result(inner, posted).map_err(|(_, errno)| errno)
}
