//! Synchronous ids: each call waits for its event, which the id then holds in `event`.
#![expect(
    unsafe_code,
    reason = "waiting, with nothing in the frame: the thread may be cancelled meanwhile"
)]

use core::ffi::c_int;

use super::{event, id};
use crate::abi::{RDMA_CM_EVENT_REJECTED, rdma_cm_id};
use crate::errno;
use crate::panic_guard::entry;

/// What a call ends with that has begun something: `begun` is what it would give. A synchronous id waits for the event, and says
/// what its status says.
///
/// # Safety
/// The id exists.
pub(super) unsafe fn complete(id: *mut rdma_cm_id, begun: c_int) -> c_int {
    if begun != 0 {
        return begun;
    }
    // SAFETY: the promise of the caller.
    if !unsafe { id::of(id) }.own.lock().sync {
        return 0;
    }
    // SAFETY: the promise of the caller.
    entry((), || unsafe { event::ack_held(id) });
    // SAFETY: the promise of the caller. No guard is held here, and nothing is to be dropped: this may not return.
    let got = unsafe { event::get_cm_event((*id).channel, &raw mut (*id).event) };
    if got != 0 {
        return got;
    }
    // SAFETY: the event that was just taken, which the id holds.
    let (kind, status) = unsafe { ((*(*id).event).event, (*(*id).event).status) };
    if status == 0 {
        return 0;
    }
    errno::set(if kind == RDMA_CM_EVENT_REJECTED {
        libc::ECONNREFUSED
    } else {
        status.abs()
    });
    -1
}
