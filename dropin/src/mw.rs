//! Memory windows (`ibv_mw`).
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::ptr;

use parking_lot::Mutex;
use uwarp_verbs::{BindWr, MemoryWindow, WindowKind};

use crate::abi::{
    IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_SEND_FENCE, IBV_SEND_SIGNALED, ibv_mw, ibv_mw_bind,
    ibv_mw_type, ibv_pd, ibv_qp,
};
use crate::object::{Object, check_handle};
use crate::panic_guard::entry;
use crate::qp::post;
use crate::users::User;
use crate::{errno, pd, qp};

/// Internal state of an `ibv_mw`, which programs do not see.
struct MwInner {
    handle: u32,
    window: Mutex<MemoryWindow>,
    _in_pd: User,
}

type MwObject = Object<ibv_mw, MwInner>;

unsafe fn create(pd: *mut ibv_pd, kind: ibv_mw_type) -> Result<*mut ibv_mw, c_int> {
    let wanted = match kind {
        IBV_MW_TYPE_1 => WindowKind::Type1,
        // Of the two kinds of type 2, the device has type 2B, as `ibv_query_device` reports.
        IBV_MW_TYPE_2 => WindowKind::Type2B,
        _ => return Err(libc::EINVAL),
    };
    // SAFETY: guaranteed by the caller.
    let domain = unsafe { pd::by_handle(pd) }?;
    let window = domain.pd.alloc_window(wanted);
    let window = window.map_err(|error| errno::of_register(&error))?;
    let handle = window.rkey() >> 8;
    let shown = ibv_mw {
        // SAFETY: the domain exists, and the program does not write this field.
        context: unsafe { (*pd).context },
        pd,
        rkey: window.rkey(),
        handle,
        type_: kind,
    };
    let inner = MwInner {
        handle,
        window: Mutex::new(window),
        _in_pd: domain.users.add(),
    };
    Ok(Object::allocate(shown, inner))
}

/// `ibv_alloc_mw`
pub(crate) unsafe extern "C-unwind" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes an existing domain.
        errno::pointer(unsafe { create(pd, kind) })
    })
}

/// Destroys a window, also a bound one.
///
/// # Errors
/// As for [`check_handle`].
///
/// # Safety
/// `mw` is an existing window. After `Ok` it is not used any more.
unsafe fn destroy(mw: *mut ibv_mw) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let (inner, shown) = unsafe { (MwObject::inner(mw), (*mw).handle) };
    check_handle(shown, inner.handle)?;
    // SAFETY: guaranteed by the caller.
    drop(unsafe { MwObject::free(mw) });
    Ok(())
}

/// `ibv_dealloc_mw`: also unbinds a bound window.
pub(crate) unsafe extern "C-unwind" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a window from `ibv_alloc_mw`, and does not use it any more.
        errno::status(unsafe { destroy(mw) })
    })
}

/// `ibv_bind_mw`, for windows of type 1.
pub(crate) unsafe extern "C-unwind" fn bind_mw(
    pointer: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes existing objects, and a structure.
        let (inner, window, bind) =
            unsafe { (qp::of(pointer), MwObject::inner(mw), bind.read_unaligned()) };
        // SAFETY: the program passes an existing region, if any.
        let mut request = BindWr::new(bind.wr_id, &unsafe { post::window(&bind.bind_info) });
        if bind.send_flags & IBV_SEND_FENCE != 0 {
            request = request.fence();
        }
        if bind.send_flags & IBV_SEND_SIGNALED == 0 {
            request = request.unsignaled();
        }
        let result = inner.qp.post_bind(&mut window.window.lock(), &request);
        errno::status(post::result(inner, result).map_or_else(
            |(_, errno)| Err(errno),
            |rkey| {
                // SAFETY: the program passes an existing window, whose key a bind changes.
                unsafe { (*mw).rkey = rkey };
                Ok(())
            },
        ))
    })
}
