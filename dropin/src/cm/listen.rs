//! Listening, and requests of synchronous ids.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::ptr;

use super::failure;
use super::{address, event, id, queues, status};
use crate::abi::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED, rdma_cm_event, rdma_cm_id,
};
use crate::errno;
use crate::panic_guard::entry;

/// `rdma_listen`. Ignores the backlog; the settings limit pending requests.
///
/// The kernel's backlog counts requests that the program has not fetched. The backlog of the verbs
/// crate counts requests that were neither accepted nor rejected. With the latter, a program that
/// fetches two requests before it accepts one could wait forever.
pub(crate) unsafe extern "C-unwind" fn listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes an id.
        let inner = unsafe { id::of(id) };
        let listening = inner.id.listen(0);
        let listening = listening.map_err(|error| failure::errno(&error));
        // SAFETY: as above.
        status(listening.and_then(|()| unsafe { address::refresh(id) }))
    })
}

/// Creates the queue pair of a request, if the endpoint was created with attributes for it, and
/// stores the event in the request's id.
///
/// # Errors
/// Returns an `errno` value; the event is then stored in the listening id.
///
/// # Safety
/// The listening id exists, and the event belongs to it.
unsafe fn requested(
    listener: *mut rdma_cm_id,
    event: *mut rdma_cm_event,
) -> Result<*mut rdma_cm_id, c_int> {
    // SAFETY: guaranteed by the caller.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    let ready = match (kind, status) {
        (RDMA_CM_EVENT_REJECTED, _) => Err(libc::ECONNREFUSED),
        (_, failed) if failed != 0 => Err(failed.abs()),
        (RDMA_CM_EVENT_CONNECT_REQUEST, _) => {
            // SAFETY: guaranteed by the caller.
            let wanted = unsafe { id::of(listener) }.state.lock().queue_pair;
            wanted.map_or(Ok(()), |mut wanted| {
                // SAFETY: guaranteed by the caller; the request's id is new.
                unsafe { queues::create_plain((*event).id, (*listener).pd, &mut wanted) }
            })
        }
        _ => Err(libc::EINVAL),
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match ready {
            Ok(()) => {
                let id = (*event).id;
                (*id).event = event;
                Ok(id)
            }
            Err(errno) => {
                (*listener).event = event;
                Err(errno)
            }
        }
    }
}

/// `rdma_get_request`: waits for a request to a synchronous id. A cancellation point.
pub(crate) unsafe extern "C-unwind" fn get_request(
    listener: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: the program passes an id.
    let is_sync = entry(false, || unsafe {
        event::ack_held(listener);
        id::of(listener).state.lock().sync
    });
    if !is_sync {
        errno::set(libc::EINVAL);
        return -1;
    }
    let mut event = ptr::null_mut();
    // SAFETY: the channel is that of the id, and the pointer lives in this frame.
    let got = unsafe { event::get_cm_event((*listener).channel, &raw mut event) };
    if got != 0 {
        return got;
    }
    entry(-1, || {
        // SAFETY: the event was just taken, and the program passes memory for a pointer.
        status(unsafe { requested(listener, event).map(|id| out.write(id)) })
    })
}
