//! Protection domains (`ibv_pd`).
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
)]

use core::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use uwarp_verbs::Pd;

use crate::abi::{ibv_context, ibv_pd};
use crate::context::Context;
use crate::errno;
use crate::object::Object;
use crate::panic_guard::entry;
use crate::users::Users;

/// What is behind an `ibv_pd`.
pub(crate) struct PdKept {
    pub(crate) pd: Pd,
    /// Regions, windows and queues that were made in it.
    pub(crate) users: Users,
}

type PdObject = Object<ibv_pd, PdKept>;

/// The numbers of domains (`handle`), which mean nothing to programs.
static HANDLE: AtomicU32 = AtomicU32::new(1);

/// Makes a domain.
///
/// # Errors
/// The `errno`.
///
/// # Safety
/// `context` is an open context.
pub(crate) unsafe fn create(context: *mut ibv_context) -> Result<*mut ibv_pd, c_int> {
    // SAFETY: the promise of the caller.
    let device = unsafe { Context::of(context) }.device();
    let pd = device
        .alloc_pd()
        .map_err(|error| errno::of_device(&error))?;
    let handle = HANDLE.fetch_add(1, Ordering::Relaxed);
    let kept = PdKept {
        pd,
        users: Users::default(),
    };
    Ok(Object::begin(ibv_pd { context, handle }, kept))
}

/// What is behind a pointer of the program's.
///
/// # Safety
/// `pd` is a domain that exists while the reference lives.
pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a PdKept {
    // SAFETY: the promise of the caller.
    unsafe { PdObject::kept(pd) }
}

/// Ends a domain.
///
/// # Errors
/// `EBUSY` while something is in it.
///
/// # Safety
/// As for [`of`], and with `Ok` it is not used any more.
pub(crate) unsafe fn destroy(pd: *mut ibv_pd) -> Result<(), c_int> {
    // SAFETY: the promise of the caller.
    if unsafe { of(pd) }.users.any() {
        return Err(libc::EBUSY);
    }
    // SAFETY: the promise of the caller.
    drop(unsafe { PdObject::end(pd) });
    Ok(())
}

/// `ibv_alloc_pd`
pub(crate) unsafe extern "C-unwind" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    entry(core::ptr::null_mut(), || {
        // SAFETY: an open context.
        errno::pointer(unsafe { create(context) })
    })
}

/// `ibv_dealloc_pd`
pub(crate) unsafe extern "C-unwind" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: a domain that `ibv_alloc_pd` gave.
        errno::status(unsafe { destroy(pd) })
    })
}
