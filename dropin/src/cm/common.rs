//! librdmacm's own context and protection domain, to which the fields `verbs` and `pd` of ids
//! point. Contexts and domains that the program creates are separate.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::ptr;

use crate::abi::{ibv_context, ibv_pd};
use crate::context::Context;
use crate::panic_guard::entry;
use crate::per_process::PerProcess;
use crate::{errno, list, pd, rnic};

/// Objects that all ids of a process share.
#[derive(Clone, Copy)]
pub(super) struct Common {
    /// Context of the first device, which all ids use.
    pub(super) verbs: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    /// Contexts of all devices, the first one included.
    contexts: &'static [*mut ibv_context],
}

// SAFETY: these objects may be used by any number of threads, and are never freed.
unsafe impl Send for Common {}
// SAFETY: as above.
unsafe impl Sync for Common {}

/// The objects. They live until the process ends.
static COMMON: PerProcess<Common> = PerProcess::new();

/// Returns the objects of this process, and creates them at the first call.
///
/// # Errors
/// `ENODEV` without a device, or the reason why they cannot be created.
pub(super) fn get() -> Result<Common, c_int> {
    COMMON.get_or_make(|_| create()).copied()
}

fn create() -> Result<Common, c_int> {
    let rnic = rnic::get().ok_or(libc::ENODEV)?;
    let contexts: Vec<_> = (0..rnic.devices.len())
        .map(|index| Context::open(&rnic, index))
        .take_while(|context| !context.is_null())
        .collect();
    let pd = match contexts.first() {
        // SAFETY: the context was just opened.
        Some(first) if contexts.len() == rnic.devices.len() => unsafe { pd::create(*first) },
        _ => Err(libc::ENODEV),
    };
    let pd = pd.inspect_err(|_| {
        for context in &contexts {
            // SAFETY: as above, and the context is not shared.
            unsafe { Context::close(*context) };
        }
    })?;
    let contexts = Vec::leak(contexts);
    Ok(Common {
        verbs: contexts[0],
        pd,
        contexts,
    })
}

/// `rdma_get_devices`: a context of each device, followed by NULL.
pub(crate) unsafe extern "C-unwind" fn get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    entry(ptr::null_mut(), || {
        let contexts = get().map(|common| common.contexts);
        let list = contexts.and_then(|contexts| list::create(contexts).ok_or(libc::ENOMEM));
        if !number.is_null() {
            let count = list.and(contexts).map_or(0, <[_]>::len);
            // SAFETY: not NULL, so it points to an `int`.
            unsafe { number.write(count as c_int) };
        }
        errno::pointer(list)
    })
}

/// `rdma_free_devices`: frees the list, but no contexts.
pub(crate) unsafe extern "C-unwind" fn free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the program passes a result of `rdma_get_devices`, or NULL.
    unsafe { list::free(list) };
}
