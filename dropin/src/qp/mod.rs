//! Queue pairs (`ibv_qp`): making, ending. Changing them is in `modify.rs`, posting in `post.rs` and `room.rs`.
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
)]

pub(crate) mod extended;
pub(crate) mod modify;
pub(crate) mod post;
mod room;

use core::ffi::{c_int, c_void};
use core::mem::{self, ManuallyDrop};
use core::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use uwarp_verbs::{Qp, QpCaps};

use self::extended::{SUPPORTED, Work};
use crate::abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QPS_RESET, IBV_QPT_RC, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_type, ibv_srq,
};
use crate::object::Object;
use crate::panic_guard::entry;
use crate::registry::{ENDING, QPS};
use crate::users::User;
use crate::warnings::OnceWarning;
use crate::{cancel, cq, errno, pd, srq};

/// What is behind an `ibv_qp`.
pub(crate) struct QpKept {
    /// Taken out when the queue pair ends, and not before.
    pub(crate) qp: ManuallyDrop<Qp>,
    /// Why it ended, in words.
    pub(crate) told: OnceWarning,
    /// Why a request of it was not taken, in words.
    refused: OnceWarning,
    /// The state that the program asked for last (`ibv_qp_state`).
    asked: AtomicU32,
    /// Requests that are built by calls, where the program wants to.
    work: Option<Work>,
    _in_pd: User,
}

/// Every queue pair has the room of an extended one, which begins with the plain one.
type QpObject = Object<ibv_qp_ex, QpKept>;

/// Bytes of inline data that every queue pair takes, though a program asks for fewer: there are programs that ask for none and need
/// four (rsockets).
const INLINE: u32 = 64;

/// What a queue pair is made with (`ibv_qp_init_attr`).
pub(crate) struct Wanted {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    /// NULL: it has a receive queue of its own.
    pub(crate) srq: *mut ibv_srq,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) sq_sig_all: bool,
    /// Requests shall be built by calls, too (`ibv_qp_ex`).
    pub(crate) by_calls: bool,
}

impl Wanted {
    pub(crate) fn plain(attr: &ibv_qp_init_attr) -> Self {
        Wanted {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all != 0,
            by_calls: false,
        }
    }

    pub(crate) fn extended(attr: &ibv_qp_init_attr_ex) -> Self {
        Wanted {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all != 0,
            by_calls: attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0,
        }
    }
}

fn caps(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps::default()
        .max_send_wr(cap.max_send_wr)
        .max_recv_wr(cap.max_recv_wr)
        .max_send_sge(cap.max_send_sge.max(1))
        .max_recv_sge(cap.max_recv_sge.max(1))
        .max_inline_data(cap.max_inline_data.max(INLINE))
}

/// Makes a queue pair, and writes what it was given into `cap`.
///
/// # Errors
/// The `errno`: `EOPNOTSUPP` for another type than RC, of which iWARP has none.
///
/// # Safety
/// All pointers are to objects that exist.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    wanted: &Wanted,
    cap: &mut ibv_qp_cap,
) -> Result<*mut ibv_qp, c_int> {
    if wanted.qp_type != IBV_QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    if wanted.send_cq.is_null() || wanted.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the promise of the caller.
    let (domain, send_cq, recv_cq) =
        unsafe { (pd::of(pd), cq::of(wanted.send_cq), cq::of(wanted.recv_cq)) };
    let mut granted = caps(cap);
    let builder = domain.pd.qp().signal_all(wanted.sq_sig_all);
    let mut builder = builder.late_faults(true);
    if !wanted.srq.is_null() {
        // SAFETY: the promise of the caller.
        builder = builder.srq(&unsafe { srq::of(wanted.srq) }.srq);
        (granted.max_recv_wr, granted.max_recv_sge) = (0, 0);
    }
    let builder = builder.caps(granted);
    let qp = builder.build(&send_cq.cq, &recv_cq.cq);
    let qp = qp.map_err(|error| errno::of_device(&error))?;
    *cap = ibv_qp_cap {
        max_send_wr: granted.max_send_wr,
        max_recv_wr: granted.max_recv_wr,
        max_send_sge: granted.max_send_sge,
        max_recv_sge: granted.max_recv_sge,
        max_inline_data: granted.max_inline_data,
    };
    // SAFETY: numbers, pointers, functions that are not there; a mutex and a condition as their initialisers have them.
    let mut shown: ibv_qp_ex = unsafe { mem::zeroed() };
    let base = &mut shown.qp_base;
    // SAFETY: the domain's structure, which the program does not write.
    base.context = unsafe { (*pd).context };
    base.qp_context = wanted.qp_context;
    base.pd = pd;
    base.send_cq = wanted.send_cq;
    base.recv_cq = wanted.recv_cq;
    base.srq = wanted.srq;
    base.handle = qp.qp_num();
    base.qp_num = qp.qp_num();
    base.state = IBV_QPS_RESET;
    base.qp_type = wanted.qp_type;
    if wanted.by_calls {
        extended::fill(&mut shown);
    }
    let number = qp.qp_num();
    let kept = QpKept {
        qp: ManuallyDrop::new(qp),
        told: OnceWarning::new(),
        refused: OnceWarning::new(),
        asked: AtomicU32::new(IBV_QPS_RESET),
        work: wanted.by_calls.then(Work::default),
        _in_pd: domain.users.add(),
    };
    let made: *mut ibv_qp = QpObject::begin(shown, kept).cast();
    // SAFETY: it was just made, and is removed before it ends.
    unsafe { QPS.add(number, made.cast()) };
    Ok(made)
}

/// What is behind a pointer of the program's.
///
/// # Safety
/// `qp` is a queue pair that exists while the reference lives.
pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a QpKept {
    // SAFETY: the promise of the caller.
    unsafe { QpObject::kept(qp.cast()) }
}

/// Ends a queue pair, once all its asynchronous events are acknowledged, and takes its completions out of its queues. A connection that
/// stands ends with it: gracefully when nothing is under way. False when events are not acknowledged after a while: it is as it was.
///
/// # Safety
/// As for [`of`], and with true it is not used any more.
pub(crate) unsafe fn end(qp: *mut ibv_qp) -> bool {
    // SAFETY: the promise of the caller.
    let kept = unsafe { of(qp) };
    if kept.qp.wait_acknowledged(Some(cancel::SLICE)).is_err() {
        return false;
    }
    let ending = ENDING.write();
    let number = kept.qp.qp_num();
    QPS.remove(number, qp.cast());
    // Who acknowledges its events meanwhile looks at the structure, which is still there, and not at what is taken out here.
    // SAFETY: with `Ok` nobody uses the old place again, otherwise the other one is forgotten.
    let taken = unsafe { ptr::read(&*kept.qp) };
    if let Err((same, _)) = taken.destroy_with_completions(Some(Duration::ZERO)) {
        // An event was taken just now.
        mem::forget(same);
        // SAFETY: it goes on.
        unsafe { QPS.add(number, qp.cast()) };
        return false;
    }
    drop(ending);
    // SAFETY: the promise of the caller. What was taken out is not dropped again.
    drop(unsafe { QpObject::end(qp.cast()) });
    true
}

/// `ibv_create_qp`
pub(crate) unsafe extern "C-unwind" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    entry(ptr::null_mut(), || {
        // SAFETY: a structure of the program's, which nobody else uses meanwhile.
        let attr = unsafe { &mut *attr };
        let wanted = Wanted::plain(attr);
        // SAFETY: objects that exist.
        errno::pointer(unsafe { create(pd, &wanted, &mut attr.cap) })
    })
}

/// `ibv_create_qp_ex`
pub(crate) unsafe extern "C-unwind" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    entry(ptr::null_mut(), || {
        // SAFETY: a structure of the program's, which nobody else uses meanwhile.
        let attr = unsafe { &mut *attr };
        // SAFETY: objects that exist.
        errno::pointer(unsafe { create_extended(attr) })
    })
}

/// Makes a queue pair with what `comp_mask` says is there.
///
/// # Errors
/// As [`create`]; `EINVAL` without a domain, `EOPNOTSUPP` for what only other transports have.
///
/// # Safety
/// As [`create`].
pub(crate) unsafe fn create_extended(attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, c_int> {
    let known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let has = |field| attr.comp_mask & field != 0;
    if attr.comp_mask & !known != 0
        || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0
        || has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && attr.send_ops_flags & !SUPPORTED != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        return Err(libc::EINVAL);
    }
    let wanted = Wanted::extended(attr);
    // SAFETY: the promise of the caller.
    unsafe { create(attr.pd, &wanted, &mut attr.cap) }
}

/// `ibv_destroy_qp`
pub(crate) unsafe extern "C-unwind" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a queue pair that `ibv_create_qp` gave; after true it is not used any more.
    cancel::until(|| entry(Some(libc::EIO), || unsafe { end(qp) }.then_some(0)))
}
