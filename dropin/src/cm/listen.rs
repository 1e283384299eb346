//! Listening, and requests of synchronous ids.
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
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

/// `rdma_listen`
///
/// The kernel's backlog counts requests that the program has not fetched, and gives a place back with the event; ours counts those
/// that are not decided, with which a program that fetches two before it accepts one would wait for ever. So the settings bound it alone.
pub(crate) unsafe extern "C-unwind" fn listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    entry(-1, || {
        // SAFETY: an id.
        let kept = unsafe { id::of(id) };
        let listening = kept.id.listen(0);
        let listening = listening.map_err(|error| failure::errno(&error));
        // SAFETY: as above.
        status(listening.and_then(|()| unsafe { address::refresh(id) }))
    })
}

/// Gives a request its queue pair, if each is to have one, and the event that it holds from then on.
///
/// # Errors
/// The `errno`; the event is then with the id that listens.
///
/// # Safety
/// The id that listens exists, and the event is one of it.
unsafe fn requested(
    listener: *mut rdma_cm_id,
    event: *mut rdma_cm_event,
) -> Result<*mut rdma_cm_id, c_int> {
    // SAFETY: the promise of the caller.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    let ready = match (kind, status) {
        (RDMA_CM_EVENT_REJECTED, _) => Err(libc::ECONNREFUSED),
        (_, failed) if failed != 0 => Err(failed.abs()),
        (RDMA_CM_EVENT_CONNECT_REQUEST, _) => {
            // SAFETY: the promise of the caller.
            let wanted = unsafe { id::of(listener) }.own.lock().queue_pair;
            wanted.map_or(Ok(()), |mut wanted| {
                // SAFETY: the promise of the caller; the request's id is new.
                unsafe { queues::create_plain((*event).id, (*listener).pd, &mut wanted) }
            })
        }
        _ => Err(libc::EINVAL),
    };
    // SAFETY: the promise of the caller.
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

/// `rdma_get_request`: waits for a request to a synchronous id. A point where the thread may be cancelled.
pub(crate) unsafe extern "C-unwind" fn get_request(
    listener: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: an id.
    let is_sync = entry(false, || unsafe {
        event::ack_held(listener);
        id::of(listener).own.lock().sync
    });
    if !is_sync {
        errno::set(libc::EINVAL);
        return -1;
    }
    let mut event = ptr::null_mut();
    // SAFETY: the channel of the id, and a place in this frame.
    let got = unsafe { event::get_cm_event((*listener).channel, &raw mut event) };
    if got != 0 {
        return got;
    }
    entry(-1, || {
        // SAFETY: the event that was just taken, and a place for a pointer.
        status(unsafe { requested(listener, event).map(|id| out.write(id)) })
    })
}
