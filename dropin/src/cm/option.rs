//! Options of ids (`rdma_set_option`).
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
)]

use core::ffi::{c_int, c_void};

use super::status;
use crate::abi::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, rdma_cm_id,
};
use crate::boundary::entry;

/// `rdma_set_option`. The options are hints for a network that others serve (a type of service, a timeout of acknowledgements), or
/// for what TCP does here anyhow: a port can be taken again that only old connections have.
///
/// `ENOSYS` for options that librdmacm has not, `EINVAL` for a value of another size.
pub(crate) unsafe extern "C-unwind" fn set_option(
    _id: *mut rdma_cm_id,
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
        0
    })
}
