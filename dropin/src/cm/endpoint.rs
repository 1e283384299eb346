//! Endpoints (`rdma_create_ep`): one call creates an id with its address and queue pair.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::{ptr, slice};

use super::{address, id, queues, shared, status};
use crate::abi::{
    RAI_PASSIVE, ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_addrinfo, rdma_cm_id, rdma_port_space,
};
use crate::errno;
use crate::panic_guard::entry;

/// Timeout for the resolution of address and route. Both end immediately and ignore it.
const TIMEOUT_MS: c_int = 2000;

/// Prepares an id that will listen.
///
/// # Safety
/// Each pointer points to an object of its type, or is NULL.
unsafe fn passive(
    id: *mut rdma_cm_id,
    of: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *const ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        address::bind(id, of.ai_src_addr)?;
        if !pd.is_null() {
            (*id).pd = pd;
        }
        if let Some(attr) = attr.as_ref() {
            let mut wanted = *attr;
            wanted.qp_type = of.ai_qp_type.cast_unsigned();
            id::of(id).state.lock().queue_pair = Some(wanted);
        }
    }
    Ok(())
}

/// Prepares an id that will connect and whose address is resolved.
///
/// # Safety
/// As for [`passive`].
unsafe fn active(
    id: *mut rdma_cm_id,
    of: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = of.ai_qp_type.cast_unsigned();
            queues::create_plain(id, pd, attr)?;
        }
        if of.ai_connect_len > 0 && !of.ai_connect.is_null() {
            let bytes = slice::from_raw_parts(of.ai_connect.cast::<u8>(), of.ai_connect_len);
            id::of(id).state.lock().connect = bytes.to_vec();
        }
    }
    Ok(())
}

/// `rdma_create_ep`
pub(crate) unsafe extern "C-unwind" fn create_ep(
    out: *mut *mut rdma_cm_id,
    of: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    let mut id = ptr::null_mut();
    let mut made = entry(-1, || {
        // SAFETY: the program passes a result of `rdma_getaddrinfo`, or a structure of its own.
        let of = unsafe { &*of };
        let ps: rdma_port_space = of.ai_port_space.cast_unsigned();
        let qp_type: ibv_qp_type = of.ai_qp_type.cast_unsigned();
        // SAFETY: the channel may be NULL; the id is then synchronous.
        let made = unsafe { id::create(ptr::null_mut(), ptr::null_mut(), ps, qp_type) };
        status(made.map(|made| id = made))
    });
    if made != 0 {
        return made;
    }
    // SAFETY: as above.
    let (flags, from, to) = unsafe { ((*of).ai_flags, (*of).ai_src_addr, (*of).ai_dst_addr) };
    // SAFETY: the id was just created; the other pointers are the program's.
    unsafe {
        if flags.cast_unsigned() & RAI_PASSIVE != 0 {
            made = entry(-1, || status(passive(id, &*of, pd, attr)));
        } else {
            made = address::resolve_addr(id, from, to, TIMEOUT_MS);
            if made == 0 {
                made = address::resolve_route(id, TIMEOUT_MS);
            }
            if made == 0 {
                made = entry(-1, || status(active(id, &*of, pd, attr)));
            }
        }
        if made == 0 {
            out.write(id);
        } else {
            let why = errno::get();
            destroy_ep(id);
            errno::set(why);
        }
    }
    made
}

/// `rdma_destroy_ep`
pub(crate) unsafe extern "C-unwind" fn destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the program passes an id and its objects.
    unsafe {
        // Call this even if the id has no queue pair, because it also destroys completion queues. A
        // thread that was cancelled in this function may have left completion queues.
        queues::destroy_qp(id);
        if !(*id).srq.is_null() {
            shared::destroy_srq(id);
        }
        id::destroy_id(id);
    }
}
