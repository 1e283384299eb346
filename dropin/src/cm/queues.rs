//! Queue pairs of ids. If the program passes no completion queues, `rdma_create_qp` creates them as
//! well.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::{mem, ptr};

use super::status;
use crate::abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QPS_INIT, IBV_QPT_RC, ibv_comp_channel, ibv_cq, ibv_pd,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, rdma_cm_id,
};
use crate::panic_guard::entry;
use crate::{cancel, channel, cq, qp};

/// Destroys the completion queues of an id, and their channels. Returns false if events are not
/// acknowledged in time; the remaining objects then stay in the id.
///
/// # Safety
/// The id exists, and nothing else writes it.
pub(super) unsafe fn try_destroy_cqs(id: *mut rdma_cm_id) -> bool {
    // SAFETY: guaranteed by the caller. Both fields of a pair may be the same object, which is
    // destroyed once.
    unsafe {
        if (*id).send_cq == (*id).recv_cq {
            (*id).send_cq = ptr::null_mut();
        }
        if (*id).send_cq_channel == (*id).recv_cq_channel {
            (*id).send_cq_channel = ptr::null_mut();
        }
        for queue in [&raw mut (*id).recv_cq, &raw mut (*id).send_cq] {
            if !(*queue).is_null() {
                // A queue that other queue pairs use is not destroyed; the id only drops its
                // pointer.
                if cq::try_destroy(*queue).is_none() {
                    return false;
                }
                *queue = ptr::null_mut();
            }
        }
        for one in [
            &raw mut (*id).recv_cq_channel,
            &raw mut (*id).send_cq_channel,
        ] {
            if !(*one).is_null() {
                let _ = channel::destroy(*one);
                *one = ptr::null_mut();
            }
        }
    }
    true
}

/// Creates a completion queue with its own channel.
///
/// # Safety
/// As for [`try_destroy_cqs`].
unsafe fn create_cq(
    id: *mut rdma_cm_id,
    size: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if (*id).verbs.is_null() {
            return Err(libc::EINVAL);
        }
        let made = channel::create((*id).verbs)?;
        match cq::create((*id).verbs, size, id.cast(), made, 0) {
            Ok(queue) => Ok((made, queue)),
            Err(errno) => {
                let _ = channel::destroy(made);
                Err(errno)
            }
        }
    }
}

/// Creates the missing completion queues with these sizes; 0 means that none is needed.
///
/// # Safety
/// As for [`try_destroy_cqs`].
unsafe fn create_cqs(id: *mut rdma_cm_id, sends: u32, receives: u32) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if receives > 0 {
            ((*id).recv_cq_channel, (*id).recv_cq) = create_cq(id, receives)?;
        }
        if sends > 0 {
            ((*id).send_cq_channel, (*id).send_cq) = create_cq(id, sends)?;
        }
    }
    Ok(())
}

/// Pointers to the completion queues of an id, and to their channels.
#[derive(Clone, Copy)]
struct OwnCqs {
    recv: (*mut ibv_comp_channel, *mut ibv_cq),
    send: (*mut ibv_comp_channel, *mut ibv_cq),
}

impl OwnCqs {
    /// Copies the pointers.
    ///
    /// # Safety
    /// As for [`try_destroy_cqs`].
    unsafe fn of(id: *mut rdma_cm_id) -> Self {
        // SAFETY: guaranteed by the caller.
        let id = unsafe { &*id };
        OwnCqs {
            recv: (id.recv_cq_channel, id.recv_cq),
            send: (id.send_cq_channel, id.send_cq),
        }
    }
}

/// Destroys those completion queues of an id that it did not have `before`. The older ones are
/// kept, because they may have events that are not acknowledged.
///
/// # Safety
/// As for [`try_destroy_cqs`].
unsafe fn destroy_new_cqs(id: *mut rdma_cm_id, before: OwnCqs) {
    let (no_channel, no_cq) = (ptr::null_mut(), ptr::null_mut());
    let (had_recv, had_send) = (!before.recv.1.is_null(), !before.send.1.is_null());
    // SAFETY: guaranteed by the caller. New queues have no events yet, so that the loop does not
    // wait.
    unsafe {
        if had_recv {
            ((*id).recv_cq_channel, (*id).recv_cq) = (no_channel, no_cq);
        }
        if had_send {
            ((*id).send_cq_channel, (*id).send_cq) = (no_channel, no_cq);
        }
        while !try_destroy_cqs(id) {}
        if had_recv {
            ((*id).recv_cq_channel, (*id).recv_cq) = before.recv;
        }
        if had_send {
            ((*id).send_cq_channel, (*id).send_cq) = before.send;
        }
    }
}

/// Creates the queue pair of an id.
///
/// # Errors
/// Returns an `errno` value; the id then has the same completion queues as before. Ids only have
/// queue pairs of the type RC.
///
/// # Safety
/// The id and all objects in `attr` exist.
unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    if attr.qp_type != IBV_QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !(*id).qp.is_null() {
            return Err(libc::EINVAL);
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
            attr.pd = (*id).pd;
        }
        let other = |own: *mut ibv_cq, given: *mut ibv_cq| {
            !own.is_null() && !given.is_null() && own != given
        };
        if attr.pd.is_null()
            || other((*id).recv_cq, attr.recv_cq)
            || other((*id).send_cq, attr.send_cq)
        {
            return Err(libc::EINVAL);
        }
        let missing = |own: *mut ibv_cq, given: *mut ibv_cq, size: u32| {
            if own.is_null() && given.is_null() {
                size
            } else {
                0
            }
        };
        let before = OwnCqs::of(id);
        let sends = missing((*id).send_cq, attr.send_cq, attr.cap.max_send_wr);
        let receives = missing((*id).recv_cq, attr.recv_cq, attr.cap.max_recv_wr);
        let made = create_cqs(id, sends, receives).and_then(|()| {
            if attr.send_cq.is_null() {
                attr.send_cq = (*id).send_cq;
            }
            if attr.recv_cq.is_null() {
                attr.recv_cq = (*id).recv_cq;
            }
            if attr.srq.is_null() {
                attr.srq = (*id).srq;
            }
            qp::create_extended(attr)
        });
        match made {
            Ok(qp) => {
                // rdma-core also returns a queue pair in the state INIT.
                qp::modify::initialize(qp::of(qp));
                (*qp).state = IBV_QPS_INIT;
                (*id).pd = (*qp).pd;
                (*id).qp = qp;
                Ok(())
            }
            Err(errno) => {
                destroy_new_cqs(id, before);
                Err(errno)
            }
        }
    }
}

/// As [`create`], with the plain structure, which is the start of the extended one.
///
/// # Errors
/// As for [`create`].
///
/// # Safety
/// As for [`create`]; `pd` may be NULL.
pub(super) unsafe fn create_plain(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: all fields may be zero: numbers, pointers, and absent functions.
    let mut whole: ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
    let begins = (&raw mut whole).cast::<ibv_qp_init_attr>();
    // SAFETY: guaranteed by the caller; the structure begins with the plain one (checked below).
    unsafe {
        begins.write(*attr);
        whole.comp_mask = IBV_QP_INIT_ATTR_PD;
        whole.pd = if pd.is_null() { (*id).pd } else { pd };
        let made = create(id, &mut whole);
        *attr = (&raw const whole).cast::<ibv_qp_init_attr>().read();
        made
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(
        offset_of!(ibv_qp_init_attr_ex, sq_sig_all) == offset_of!(ibv_qp_init_attr, sq_sig_all)
            && offset_of!(ibv_qp_init_attr_ex, cap) == offset_of!(ibv_qp_init_attr, cap)
            && offset_of!(ibv_qp_init_attr_ex, comp_mask) <= size_of::<ibv_qp_init_attr>()
    );
};

/// `rdma_create_qp`
pub(crate) unsafe extern "C-unwind" fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program passes an id, a domain or NULL, and a structure.
    entry(-1, || status(unsafe { create_plain(id, pd, &mut *attr) }))
}

/// `rdma_create_qp_ex`
pub(crate) unsafe extern "C-unwind" fn create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the program passes an id, and a structure.
    entry(-1, || status(unsafe { create(id, &mut *attr) }))
}

/// `rdma_destroy_qp`
pub(crate) unsafe extern "C-unwind" fn destroy_qp(id: *mut rdma_cm_id) {
    cancel::retry(|| {
        entry(Some(()), || {
            // SAFETY: the program passes an id, whose fields nothing else writes. Objects that are
            // not destroyed yet stay there.
            unsafe {
                if !(*id).qp.is_null() {
                    if !qp::try_destroy((*id).qp) {
                        return None;
                    }
                    (*id).qp = ptr::null_mut();
                }
                try_destroy_cqs(id).then_some(())
            }
        })
    });
}
