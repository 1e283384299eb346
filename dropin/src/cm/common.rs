//! librdmacm's own context and protection domain, to which the fields `verbs` and `pd` of ids
//! point. Contexts and domains that the program creates are separate.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::{mem, ptr};

use parking_lot::Mutex;

use crate::abi::{ibv_context, ibv_pd};
use crate::context::Context;
use crate::panic_guard::entry;
use crate::{errno, pd, rnic};

/// Objects that all ids of a process share.
#[derive(Clone, Copy)]
pub(super) struct Common {
    pub(super) verbs: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
}

// SAFETY: these objects may be used by any number of threads, and are never freed.
unsafe impl Send for Common {}

/// The objects, with the id of the process that created them. They live until the process ends; a
/// forked child creates its own.
static COMMON: Mutex<Option<(u32, Common)>> = Mutex::new(None);

/// Returns the objects of this process, and creates them at the first call.
///
/// # Errors
/// `ENODEV` without a device, or the reason why they cannot be created.
pub(super) fn get() -> Result<Common, c_int> {
    let mut held = COMMON.lock();
    let here = std::process::id();
    if let Some((process, common)) = *held
        && process == here
    {
        return Ok(common);
    }
    let rnic = rnic::get().ok_or(libc::ENODEV)?;
    let verbs = Context::open(&rnic);
    if verbs.is_null() {
        return Err(libc::ENODEV);
    }
    // SAFETY: the context was just opened.
    let pd = unsafe { pd::create(verbs) }.inspect_err(|_| {
        // SAFETY: as above, and the context is not shared.
        unsafe { Context::close(verbs) };
    })?;
    let common = Common { verbs, pd };
    *held = Some((here, common));
    Ok(common)
}

/// `rdma_get_devices`: one context, followed by NULL.
pub(crate) unsafe extern "C-unwind" fn get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    entry(ptr::null_mut(), || {
        let list = get().and_then(|common| {
            // SAFETY: the call takes only numbers.
            let list = unsafe { libc::calloc(2, mem::size_of::<*mut ibv_context>()) };
            let list: *mut *mut ibv_context = list.cast();
            if list.is_null() {
                return Err(libc::ENOMEM);
            }
            // SAFETY: the list has two entries.
            unsafe { list.write(common.verbs) };
            Ok(list)
        });
        if !number.is_null() {
            // SAFETY: not NULL, so it points to an `int`.
            unsafe { number.write(list.is_ok().into()) };
        }
        errno::pointer(list)
    })
}

/// `rdma_free_devices`: frees the list, but no contexts.
pub(crate) unsafe extern "C-unwind" fn free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the program passes a result of `rdma_get_devices`, or NULL.
    unsafe { libc::free(list.cast()) };
}
