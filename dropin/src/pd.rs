//! Protection domains (`ibv_pd`).
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use uwarp_verbs::Pd;

use crate::abi::{ibv_context, ibv_pd};
use crate::context::Context;
use crate::errno;
use crate::object::{Object, check_handle};
use crate::panic_guard::entry;
use crate::users::Users;

/// Internal state of an `ibv_pd`, which programs do not see.
pub(crate) struct PdInner {
    pub(crate) pd: Pd,
    /// Address of the context, and the handle.
    name: (usize, u32),
    /// Regions, windows and queues in this domain.
    pub(crate) users: Users,
}

type PdObject = Object<ibv_pd, PdInner>;

/// Number (`handle`) of the next domain.
static HANDLE: AtomicU32 = AtomicU32::new(1);

/// Creates a domain.
///
/// # Errors
/// Returns an `errno` value.
///
/// # Safety
/// `context` is an open context.
pub(crate) unsafe fn create(context: *mut ibv_context) -> Result<*mut ibv_pd, c_int> {
    // SAFETY: guaranteed by the caller.
    let device = unsafe { Context::of(context) }.device();
    let pd = device
        .alloc_pd()
        .map_err(|error| errno::of_device(&error))?;
    let handle = HANDLE.fetch_add(1, Ordering::Relaxed);
    let inner = PdInner {
        pd,
        name: (context.addr(), handle),
        users: Users::default(),
    };
    Ok(Object::allocate(ibv_pd { context, handle }, inner))
}

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Safety
/// `pd` is a domain that exists during the lifetime of the reference.
pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a PdInner {
    // SAFETY: guaranteed by the caller.
    unsafe { PdObject::inner(pd) }
}

/// As [`of`], for a command that names the domain by its context and handle.
///
/// # Errors
/// As for [`check_handle`].
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn by_handle<'a>(pd: *mut ibv_pd) -> Result<&'a PdInner, c_int> {
    // SAFETY: guaranteed by the caller.
    let (inner, shown) = unsafe { (of(pd), ((*pd).context.addr(), (*pd).handle)) };
    check_handle(shown, inner.name).map(|()| inner)
}

/// Destroys a domain.
///
/// # Errors
/// `EBUSY` if it still contains objects, and as for [`by_handle`].
///
/// # Safety
/// As for [`of`]. After `Ok` the domain is not used any more.
pub(crate) unsafe fn destroy(pd: *mut ibv_pd) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    if unsafe { by_handle(pd) }?.users.any() {
        return Err(libc::EBUSY);
    }
    // SAFETY: guaranteed by the caller.
    drop(unsafe { PdObject::free(pd) });
    Ok(())
}

/// `ibv_alloc_pd`
pub(crate) unsafe extern "C-unwind" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    entry(core::ptr::null_mut(), || {
        // SAFETY: the program passes an open context.
        errno::pointer(unsafe { create(context) })
    })
}

/// `ibv_dealloc_pd`
pub(crate) unsafe extern "C-unwind" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a domain from `ibv_alloc_pd`.
        errno::status(unsafe { destroy(pd) })
    })
}
