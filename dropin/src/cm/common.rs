//! The context and the domain of librdmacm itself: what ids have in `verbs` and `pd` (and not those that a program has opened).
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
)]

use core::ffi::c_int;
use core::{mem, ptr};

use parking_lot::Mutex;

use crate::abi::{ibv_context, ibv_pd};
use crate::context::Context;
use crate::panic_guard::entry;
use crate::{errno, pd, rnic};

/// What all ids of a process have in common.
#[derive(Clone, Copy)]
pub(super) struct Common {
    pub(super) verbs: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
}

// SAFETY: the objects are made for any number of threads, and are never freed.
unsafe impl Send for Common {}

/// They are kept until the process ends; a fork makes its own.
static COMMON: Mutex<Option<(u32, Common)>> = Mutex::new(None);

/// What ids that are bound to the device have.
///
/// # Errors
/// `ENODEV` without a device, or why they cannot be made.
pub(super) fn get() -> Result<Common, c_int> {
    let mut held = COMMON.lock();
    let here = std::process::id();
    if let Some((process, common)) = *held
        && process == here
    {
        return Ok(common);
    }
    let device = rnic::device().ok_or(libc::ENODEV)?;
    let verbs = Context::open(&device);
    if verbs.is_null() {
        return Err(libc::ENODEV);
    }
    // SAFETY: it was just opened.
    let pd = unsafe { pd::create(verbs) }.inspect_err(|_| {
        // SAFETY: as above, and nobody has it.
        unsafe { Context::close(verbs) };
    })?;
    let common = Common { verbs, pd };
    *held = Some((here, common));
    Ok(common)
}

/// `rdma_get_devices`: one context, and NULL behind it.
pub(crate) unsafe extern "C-unwind" fn get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    entry(ptr::null_mut(), || {
        let list = get().and_then(|common| {
            // SAFETY: it takes numbers.
            let list = unsafe { libc::calloc(2, mem::size_of::<*mut ibv_context>()) };
            let list: *mut *mut ibv_context = list.cast();
            if list.is_null() {
                return Err(libc::ENOMEM);
            }
            // SAFETY: there is room for two.
            unsafe { list.write(common.verbs) };
            Ok(list)
        });
        if !number.is_null() {
            // SAFETY: a place for a number, if it is not NULL.
            unsafe { number.write(list.is_ok().into()) };
        }
        errno::pointer(list)
    })
}

/// `rdma_free_devices`: the list; contexts stay.
pub(crate) unsafe extern "C-unwind" fn free_devices(list: *mut *mut ibv_context) {
    // SAFETY: what `rdma_get_devices` gave, or NULL.
    unsafe { libc::free(list.cast()) };
}
