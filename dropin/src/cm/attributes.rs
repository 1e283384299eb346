//! `rdma_init_qp_attr`: attributes for programs that call `ibv_modify_qp` themselves.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;

use super::status;
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_PORT, IBV_QP_STATE, IBV_QPS_INIT,
    IBV_QPS_RTR, IBV_QPS_RTS, ibv_qp_attr, rdma_cm_id,
};
use crate::panic_guard::entry;

/// `rdma_init_qp_attr`. On iWARP the connection manager moves a queue pair to RTS, so the program
/// needs few attributes besides the state.
pub(crate) unsafe extern "C-unwind" fn init_qp_attr(
    _id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes a structure, in which it sets the state, and memory for a
        // number.
        unsafe {
            let fields = match (*attr).qp_state {
                IBV_QPS_INIT | IBV_QPS_RTR => {
                    (*attr).qp_access_flags = IBV_ACCESS_LOCAL_WRITE
                        | IBV_ACCESS_REMOTE_WRITE
                        | IBV_ACCESS_REMOTE_READ
                        | IBV_ACCESS_REMOTE_ATOMIC;
                    (*attr).port_num = 1;
                    IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT
                }
                IBV_QPS_RTS => IBV_QP_STATE,
                _ => return status(Err(libc::EINVAL)),
            };
            mask.write(fields.cast_signed());
        }
        0
    })
}
