//! Calls that prepare for a fork. They do nothing (`IBV_FORK_UNNEEDED`), because no hardware writes
//! to the program's memory. Objects that exist at a fork belong to the parent.

use core::ffi::{c_int, c_uint, c_void};

use crate::abi::{IBV_FORK_UNNEEDED, ibv_qp};

/// `ibv_fork_init`
pub(crate) extern "C-unwind" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`
pub(crate) extern "C-unwind" fn is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range` and `ibv_dofork_range`
pub(crate) extern "C-unwind" fn range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_query_qp_data_in_order`: 0, because bytes may become visible in any order.
pub(crate) extern "C-unwind" fn data_in_order(
    _qp: *mut ibv_qp,
    _operation: c_uint,
    _flags: u32,
) -> c_int {
    0
}
