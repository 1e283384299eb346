//! Synchronous ids: each call waits for its event and stores it in the `event` field of the id.
#![expect(
    unsafe_code,
    reason = "waits with nothing to drop in the frame, because the thread may be cancelled"
)]

use core::ffi::c_int;

use super::{event, id};
use crate::abi::{RDMA_CM_EVENT_REJECTED, rdma_cm_id};
use crate::errno;
use crate::panic_guard::entry;

/// Completes a call whose operation was started with the result `begun`. If that is 0 and the id is
/// synchronous, waits for the event. If the event has an error status, returns -1 and sets `errno`.
///
/// # Safety
/// The id exists.
pub(super) unsafe fn complete(id: *mut rdma_cm_id, begun: c_int) -> c_int {
    if begun != 0 {
        return begun;
    }
    // SAFETY: guaranteed by the caller.
    if !unsafe { id::of(id) }.state.lock().sync {
        return 0;
    }
    // SAFETY: guaranteed by the caller.
    entry((), || unsafe { event::ack_held(id) });
    // SAFETY: guaranteed by the caller. No guard is held here, and nothing needs a drop: a
    // cancellation may unwind this frame.
    let got = unsafe { event::get_cm_event((*id).channel, &raw mut (*id).event) };
    if got != 0 {
        return got;
    }
    // SAFETY: the id holds the event that was just taken.
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
