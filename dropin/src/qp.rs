//! Queue pairs (`ibv_qp`): creation and destruction. `modify.rs` changes them; `post.rs` and
//! `room.rs` post to them.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

mod datagram;
pub(crate) mod extended;
pub(crate) mod modify;
pub(crate) mod pair;
pub(crate) mod post;
mod room;

use core::ffi::{c_int, c_void};
use core::mem::{self, ManuallyDrop};
use core::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{DeviceError, Qp, QpCaps};

use self::extended::Work;
use self::pair::{Pairing, Service};
use crate::abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QPS_RESET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_context, ibv_cq, ibv_pd, ibv_qp,
    ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_type, ibv_srq,
};
use crate::context::Context;
use crate::object::{Object, check_handle};
use crate::panic_guard::entry;
use crate::registry::{self, QPS};
use crate::users::User;
use crate::warnings::OnceWarning;
use crate::{cancel, cq, errno, pd, query, srq};

/// Internal state of an `ibv_qp`, which programs do not see.
pub(crate) struct QpInner {
    /// Moved out when the queue pair is destroyed.
    pub(crate) qp: ManuallyDrop<Qp>,
    /// Warning about the end of the connection, printed once per connection.
    pub(crate) end_warning: OnceWarning,
    /// Warning about a refused request or change of state, printed once.
    refusal_warning: OnceWarning,
    /// State that the program requested last (`ibv_qp_state`).
    asked: AtomicU32,
    /// The queue pair belongs to an id of librdmacm.
    is_of_id: AtomicBool,
    /// Attributes of a queue pair that can be connected by its number; `None` on an iWARP device.
    pairing: Option<Pairing>,
    /// The queue pair has the type UD.
    sends_datagrams: bool,
    /// Drafts of requests, if the program asked for the interface `ibv_qp_ex`.
    work: Option<Work>,
    _in_pd: User,
}

/// Every queue pair is allocated as an extended one, whose structure begins with the plain one.
type QpObject = Object<ibv_qp_ex, QpInner>;

/// Smallest inline capacity of a queue pair in bytes, even if a program asks for less. Some
/// programs ask for none and need four (rsockets).
const INLINE: u32 = 64;

/// Attributes of a new queue pair (`ibv_qp_init_attr`).
pub(crate) struct Wanted {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    /// NULL if the queue pair has its own receive queue.
    pub(crate) srq: *mut ibv_srq,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) sq_sig_all: bool,
    /// True if requests can also be built with function calls (`ibv_qp_ex`).
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

/// Creates a queue pair, and writes the granted sizes into `cap`.
///
/// # Errors
/// Returns an `errno` value: `EOPNOTSUPP` for types that the device does not have. It has RC, and
/// UC and UD if queue pairs can be connected by their numbers.
///
/// # Safety
/// All pointers point to existing objects.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    wanted: &Wanted,
    cap: &mut ibv_qp_cap,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: the domain exists, and the program does not write this field.
    let context = unsafe { Context::of((*pd).context) };
    let service = match (wanted.qp_type, context.rendezvous()) {
        (IBV_QPT_RC, _) => Service::Reliable,
        (IBV_QPT_UC, Some(_)) => Service::Unreliable,
        (IBV_QPT_UD, Some(_)) => Service::Datagrams,
        _ => return Err(libc::EOPNOTSUPP),
    };
    if wanted.send_cq.is_null() || wanted.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller.
    let (domain, send_cq, recv_cq) = unsafe {
        (
            pd::by_handle(pd)?,
            cq::by_handle(wanted.send_cq)?,
            cq::by_handle(wanted.recv_cq)?,
        )
    };
    let mut granted = caps(cap);
    let builder = domain.pd.qp().signal_all(wanted.sq_sig_all);
    let mut builder = builder
        .late_faults(true)
        .unreliable(service == Service::Unreliable);
    if !wanted.srq.is_null() {
        // SAFETY: guaranteed by the caller.
        builder = builder.srq(&unsafe { srq::by_handle(wanted.srq) }?.srq);
        (granted.max_recv_wr, granted.max_recv_sge) = (0, 0);
    }
    if let Some(rendezvous) = context.rendezvous() {
        builder = match service {
            Service::Datagrams => builder.datagrams(rendezvous, query::mtu(context)?),
            Service::Reliable | Service::Unreliable => builder.rendezvous(rendezvous),
        };
    }
    let builder = builder.caps(granted);
    let qp = builder.build(&send_cq.cq, &recv_cq.cq);
    let qp = qp.map_err(|error| match error {
        DeviceError::Network(LlpError::Misuse { .. }) => libc::EOPNOTSUPP,
        error => errno::of_device(&error),
    })?;
    *cap = ibv_qp_cap {
        max_send_wr: granted.max_send_wr,
        max_recv_wr: granted.max_recv_wr,
        max_send_sge: granted.max_send_sge,
        max_recv_sge: granted.max_recv_sge,
        max_inline_data: granted.max_inline_data,
    };
    // SAFETY: all fields may be zero: numbers, pointers, absent functions, and a mutex and a
    // condition as their initialisers set them.
    let mut shown: ibv_qp_ex = unsafe { mem::zeroed() };
    let base = &mut shown.qp_base;
    // SAFETY: the domain exists, and the program does not write this field.
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
        extended::fill(&mut shown, service);
    }
    let number = qp.qp_num();
    let inner = QpInner {
        qp: ManuallyDrop::new(qp),
        end_warning: OnceWarning::new(),
        refusal_warning: OnceWarning::new(),
        asked: AtomicU32::new(IBV_QPS_RESET),
        is_of_id: AtomicBool::new(false),
        pairing: context.pairing(service),
        sends_datagrams: service == Service::Datagrams,
        work: wanted.by_calls.then(Work::default),
        _in_pd: domain.users.add(),
    };
    let made: *mut ibv_qp = QpObject::allocate(shown, inner).cast();
    // SAFETY: the object was just created, and is removed before it is destroyed.
    unsafe { QPS.add(number, made.cast()) };
    Ok(made)
}

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Safety
/// `qp` is a queue pair that exists during the lifetime of the reference.
pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a QpInner {
    // SAFETY: guaranteed by the caller.
    unsafe { QpObject::inner(qp.cast()) }
}

/// As [`of`], for a command that names the queue pair by its handle.
///
/// # Errors
/// As for [`check_handle`].
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn by_handle<'a>(qp: *mut ibv_qp) -> Result<&'a QpInner, c_int> {
    // SAFETY: guaranteed by the caller.
    let (inner, shown) = unsafe { (of(qp), (*qp).handle) };
    check_handle(shown, inner.qp.qp_num()).map(|()| inner)
}

/// Waits until all asynchronous events of a queue pair are acknowledged. Then destroys it, removes
/// its completions from the completion queues, and returns true. An open connection is closed, and
/// gracefully if no request is outstanding. Returns false and changes nothing if events are still
/// not acknowledged after [`cancel::SLICE`].
///
/// # Safety
/// As for [`of`]. After true the queue pair is not used any more.
pub(crate) unsafe fn try_destroy(qp: *mut ibv_qp) -> bool {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { of(qp) };
    if inner.qp.wait_acknowledged(Some(cancel::SLICE)).is_err() {
        return false;
    }
    let destroying = registry::destroying();
    let number = inner.qp.qp_num();
    QPS.remove(number, qp.cast());
    // A thread that acknowledges events at the same time reads only the C structure, which still
    // exists, and not the part that is moved out here. SAFETY: after `Ok` the old value is not used
    // again; otherwise the copy is forgotten.
    let taken = unsafe { ptr::read(&*inner.qp) };
    if let Err((same, _)) = taken.destroy_with_completions(Some(Duration::ZERO)) {
        // The program has taken an event since the check above.
        mem::forget(same);
        // SAFETY: the queue pair still exists.
        unsafe { QPS.add(number, qp.cast()) };
        return false;
    }
    drop(destroying);
    // SAFETY: guaranteed by the caller. The value that was moved out is not dropped again.
    drop(unsafe { QpObject::free(qp.cast()) });
    true
}

/// `ibv_create_qp`
pub(crate) unsafe extern "C-unwind" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes a structure that nothing else uses during the call.
        let attr = unsafe { &mut *attr };
        let wanted = Wanted::plain(attr);
        // SAFETY: the program passes existing objects.
        errno::pointer(unsafe { create(pd, &wanted, &mut attr.cap) })
    })
}

/// `ibv_create_qp_ex`
pub(crate) unsafe extern "C-unwind" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes a structure that nothing else uses during the call.
        let attr = unsafe { &mut *attr };
        // SAFETY: the program passes existing objects.
        errno::pointer(unsafe { create_extended(attr) })
    })
}

/// Creates a queue pair from the attributes that `comp_mask` marks as present.
///
/// # Errors
/// As for [`create`]; `EINVAL` without a domain, `EOPNOTSUPP` for features of other transports.
///
/// # Safety
/// As for [`create`].
pub(crate) unsafe fn create_extended(attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, c_int> {
    let known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let has = |field| attr.comp_mask & field != 0;
    if attr.comp_mask & !known != 0
        || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0
        || has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
            && attr.send_ops_flags & !extended::supported(attr.qp_type) != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        return Err(libc::EINVAL);
    }
    let wanted = Wanted::extended(attr);
    // SAFETY: guaranteed by the caller.
    unsafe { create(attr.pd, &wanted, &mut attr.cap) }
}

/// `ibv_destroy_qp`
pub(crate) unsafe extern "C-unwind" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    cancel::retry(|| {
        entry(Some(libc::EIO), || {
            // SAFETY: the program passes a queue pair from `ibv_create_qp`; after `Some(0)` it is
            // not used any more.
            match unsafe { by_handle(qp) } {
                // SAFETY: as above.
                Ok(_) => unsafe { try_destroy(qp) }.then_some(0),
                Err(errno) => Some(errno::status(Err(errno))),
            }
        })
    })
}
