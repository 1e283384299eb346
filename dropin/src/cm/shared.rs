//! Shared receive queues of ids. The queue pairs of an id take their receives from its shared
//! queue.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::ptr;

use super::{queues, status};
use crate::abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, ibv_pd, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::panic_guard::entry;
use crate::{cancel, srq};

/// Stores the queue in the id, and its domain if the id had none.
///
/// # Safety
/// The id and the queue exist, and nothing else writes the id.
unsafe fn store(id: *mut rdma_cm_id, made: *mut ibv_srq) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*id).srq = made;
        if (*id).pd.is_null() {
            (*id).pd = (*made).pd;
        }
    }
}

/// `rdma_create_srq`
pub(crate) unsafe extern "C-unwind" fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes an id, a domain or NULL, and a structure.
        let made = unsafe {
            let pd = if pd.is_null() { (*id).pd } else { pd };
            if pd.is_null() || !(*id).srq.is_null() {
                return status(Err(libc::EINVAL));
            }
            srq::create(pd, (*attr).srq_context, &mut (*attr).attr)
        };
        // SAFETY: as above.
        status(made.map(|made| unsafe { store(id, made) }))
    })
}

/// `rdma_create_srq_ex`
pub(crate) unsafe extern "C-unwind" fn create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes an id, and a structure.
        let made = unsafe {
            let attr = &mut *attr;
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || !(*id).srq.is_null() {
                return status(Err(libc::EINVAL));
            }
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
                attr.pd = (*id).pd;
                attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            }
            srq::create_extended(attr)
        };
        // SAFETY: as above.
        status(made.map(|made| unsafe { store(id, made) }))
    })
}

/// `rdma_destroy_srq`
pub(crate) unsafe extern "C-unwind" fn destroy_srq(id: *mut rdma_cm_id) {
    cancel::retry(|| {
        entry(Some(()), || {
            // SAFETY: the program passes an id, whose fields nothing else writes. Objects that are
            // not destroyed yet stay there.
            unsafe {
                if !(*id).srq.is_null() {
                    // A queue that queue pairs use is not destroyed; the id only drops its pointer.
                    let _ = srq::try_destroy((*id).srq)?;
                    (*id).srq = ptr::null_mut();
                }
                queues::try_destroy_cqs(id).then_some(())
            }
        })
    });
}
