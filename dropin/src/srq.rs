//! Shared receive queues (`ibv_srq`).
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_void};
use core::{mem, ptr};

use uwarp_verbs::{DestroySrqError, ModifySrqError, RecvWr, Srq, SrqAttr, SrqModify};

use crate::abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC,
    ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};
use crate::object::{Object, check_handle};
use crate::panic_guard::{entry, quick};
use crate::qp::post;
use crate::registry::SRQS;
use crate::rnic::warn;
use crate::users::User;
use crate::warnings::OnceWarning;
use crate::{cancel, errno, pd};

/// Internal state of an `ibv_srq`, which programs do not see.
pub(crate) struct SrqInner {
    pub(crate) srq: Srq,
    /// Warning about a refused receive, printed once.
    refusal_warning: OnceWarning,
    _in_pd: User,
}

type SrqObject = Object<ibv_srq, SrqInner>;

/// Creates a queue, and writes the granted sizes into `attr`.
///
/// # Errors
/// Returns an `errno` value.
///
/// # Safety
/// `pd` is a domain.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: guaranteed by the caller.
    let domain = unsafe { pd::by_handle(pd) }?;
    let wanted = SrqAttr::default()
        .max_wr(attr.max_wr)
        .max_sge(attr.max_sge.max(1))
        .limit(0);
    let srq = domain.pd.create_srq_with_late_faults(wanted);
    let srq = srq.map_err(|error| errno::of_device(&error))?;
    (attr.max_wr, attr.max_sge) = (wanted.max_wr, wanted.max_sge);
    // SAFETY: all fields may be zero: numbers, pointers, and a mutex and a condition as their
    // initialisers set them.
    let mut shown: ibv_srq = unsafe { mem::zeroed() };
    // SAFETY: the domain exists, and the program does not write this field.
    shown.context = unsafe { (*pd).context };
    shown.srq_context = srq_context;
    shown.pd = pd;
    shown.handle = srq.srq_num();
    let number = srq.srq_num();
    let inner = SrqInner {
        srq,
        refusal_warning: OnceWarning::new(),
        _in_pd: domain.users.add(),
    };
    let made = SrqObject::allocate(shown, inner);
    // SAFETY: the object was just created, and is removed before it is destroyed.
    unsafe { SRQS.add(number, made) };
    Ok(made)
}

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Safety
/// `srq` is a queue that exists during the lifetime of the reference.
pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a SrqInner {
    // SAFETY: guaranteed by the caller.
    unsafe { SrqObject::inner(srq) }
}

/// As [`of`], for a command that names the queue by its handle.
///
/// # Errors
/// As for [`check_handle`].
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn by_handle<'a>(srq: *mut ibv_srq) -> Result<&'a SrqInner, c_int> {
    // SAFETY: guaranteed by the caller.
    let (inner, shown) = unsafe { (of(srq), (*srq).handle) };
    check_handle(shown, inner.srq.srq_num()).map(|()| inner)
}

/// Destroys a queue after all its events are acknowledged. Returns `None` if some are still not
/// acknowledged after [`cancel::SLICE`].
///
/// # Errors
/// `EBUSY` while queue pairs use it, and as for [`by_handle`].
///
/// # Safety
/// As for [`of`]. After `Some(Ok(()))` the queue is not used any more.
pub(crate) unsafe fn try_destroy(srq: *mut ibv_srq) -> Option<Result<(), c_int>> {
    // SAFETY: guaranteed by the caller.
    let inner = match unsafe { by_handle(srq) } {
        Ok(inner) => inner,
        Err(errno) => return Some(Err(errno)),
    };
    match inner.srq.clone().destroy(Some(cancel::SLICE)) {
        Ok(()) => {}
        Err((_, DestroySrqError::InUse { .. })) => return Some(Err(libc::EBUSY)),
        Err((_, DestroySrqError::Unacknowledged { .. })) => return None,
        Err((_, _)) => return Some(Err(libc::EIO)),
    }
    SRQS.remove(inner.srq.srq_num(), srq);
    // SAFETY: guaranteed by the caller.
    drop(unsafe { SrqObject::free(srq) });
    Some(Ok(()))
}

/// `ibv_create_srq`
pub(crate) unsafe extern "C-unwind" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes a domain, and a structure that nothing else uses during the
        // call.
        let made = unsafe {
            let attr = &mut *attr;
            create(pd, attr.srq_context, &mut attr.attr)
        };
        errno::pointer(made)
    })
}

/// Creates a queue from the attributes that `comp_mask` marks as present.
///
/// # Errors
/// As for [`create`]; `EINVAL` without a domain, `EOPNOTSUPP` for other types of queues.
///
/// # Safety
/// As for [`create`].
pub(crate) unsafe fn create_extended(
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, c_int> {
    let mask = attr.comp_mask;
    let other = mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && attr.srq_type != IBV_SRQT_BASIC;
    if other || mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { create(attr.pd, attr.srq_context, &mut attr.attr) }
}

/// `ibv_create_srq_ex`
pub(crate) unsafe extern "C-unwind" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes existing objects, and a structure that nothing else uses
        // during the call.
        errno::pointer(unsafe { create_extended(&mut *attr) })
    })
}

/// `ibv_destroy_srq`
pub(crate) unsafe extern "C-unwind" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    cancel::retry(|| {
        entry(Some(libc::EIO), || {
            // SAFETY: the program passes a queue from `ibv_create_srq`; after `Some(0)` it is not
            // used any more.
            unsafe { try_destroy(srq) }.map(errno::status)
        })
    })
}

/// `ibv_modify_srq`
pub(crate) unsafe extern "C-unwind" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    entry(libc::EIO, || {
        let mask = mask.cast_unsigned();
        // SAFETY: the program passes an existing queue.
        let (inner, attr) = match unsafe { by_handle(srq) } {
            // SAFETY: the program passes a structure.
            Ok(inner) => (inner, unsafe { &*attr }),
            Err(errno) => return errno::status(Err(errno)),
        };
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return errno::status(Err(libc::EINVAL));
        }
        let result = inner.srq.modify(
            SrqModify::default()
                .max_wr((mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr))
                .limit((mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit)),
        );
        errno::status(result.map_err(|error| match error {
            ModifySrqError::PdReceives { .. } => libc::ENOMEM,
            _ => libc::EINVAL,
        }))
    })
}

/// `ibv_query_srq`
pub(crate) unsafe extern "C-unwind" fn query_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes an existing queue.
        let inner = unsafe { by_handle(srq) };
        errno::status(inner.map(|inner| {
            let now = inner.srq.query();
            // SAFETY: the program passes memory for a structure.
            unsafe {
                attr.write(ibv_srq_attr {
                    max_wr: now.max_wr,
                    max_sge: now.max_sge,
                    srq_limit: now.limit,
                });
            }
        }))
    })
}

/// `ibv_get_srq_num`
pub(crate) unsafe extern "C-unwind" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes an existing queue, and memory for a number.
        unsafe { number.write(of(srq).srq.srq_num()) };
        0
    })
}

fn post_receives(inner: &SrqInner, wrs: &[RecvWr<'_>]) -> Result<(), (usize, c_int)> {
    inner.srq.post_recv_list(wrs).map_err(|error| {
        let errno = errno::of_post(error.kind);
        if errno != libc::ENOMEM && inner.refusal_warning.claim() {
            let (number, kind) = (inner.srq.srq_num(), error.kind);
            warn(format_args!(
                "shared receive queue {number}: a receive was refused: {kind}"
            ));
        }
        (error.index, errno)
    })
}

/// `ibv_post_srq_recv`
pub(crate) unsafe extern "C-unwind" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    quick(libc::EIO, || {
        // SAFETY: the program passes an existing queue.
        let inner = unsafe { of(srq) };
        // SAFETY: the program passes a list, and memory for a pointer.
        unsafe { post::return_bad(post::receive(wr, |wrs| post_receives(inner, wrs)), bad) }
    })
}
