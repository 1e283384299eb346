//! Options of ids (`rdma_set_option`).
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_void};

use super::{id, status};
use crate::abi::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, rdma_cm_id,
};
use crate::panic_guard::entry;

/// `rdma_set_option`.
///
/// * `RDMA_OPTION_ID_AFONLY` affects `rdma_bind_addr`.
/// * `REUSEADDR` has no effect: a port that only old connections use can always be bound.
/// * Type of service and acknowledgement timeout are accepted without effect: TCP has its own.
///
/// Sets `errno` to `ENOSYS` for options that librdmacm does not have, and to `EINVAL` for a value
/// of the wrong size.
pub(crate) unsafe extern "C-unwind" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    entry(-1, || {
        let (level, option) = (level.cast_unsigned(), option.cast_unsigned());
        let size = match option {
            RDMA_OPTION_ID_TOS | RDMA_OPTION_ID_ACK_TIMEOUT => size_of::<u8>(),
            RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY => size_of::<c_int>(),
            _ => return status(Err(libc::ENOSYS)),
        };
        if level != RDMA_OPTION_ID {
            return status(Err(libc::ENOSYS));
        }
        if len != size || value.is_null() {
            return status(Err(libc::EINVAL));
        }
        if option == RDMA_OPTION_ID_AFONLY {
            // SAFETY: the program passes an id, and a number whose size was checked above.
            unsafe {
                let only = value.cast::<c_int>().read_unaligned() != 0;
                id::of(id).state.lock().one_family = only;
            }
        }
        0
    })
}
