//! Events (`rdma_cm_event`): functions that take, acknowledge and name them.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{CStr, c_char, c_int};
use core::{mem, ptr};
use std::time::Duration;

use uwarp_verbs::{CmEvent, CmEventKind, CmReason, CmWaitError};

use super::address;
use super::failure;
use super::id::{self, IdState};
use super::{channel, connect, status};
use crate::abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE, rdma_cm_event, rdma_cm_event_type,
    rdma_cm_id, rdma_event_channel,
};
use crate::object::Object;
use crate::panic_guard::entry;
use crate::{cancel, errno, rnic, warnings};

/// Event of the program with the `CmEvent` into which its `private_data` points.
type EventObject = Object<rdma_cm_event, CmEvent>;

/// Result of one attempt to take an event, without waiting.
enum Found {
    /// An event was written to the program's memory.
    Event,
    /// No event is available yet: wait for one.
    Nothing,
    /// Failed; `errno` has the reason.
    Error,
}

fn number(kind: CmEventKind) -> rdma_cm_event_type {
    match kind {
        CmEventKind::AddrResolved => RDMA_CM_EVENT_ADDR_RESOLVED,
        CmEventKind::AddrError => RDMA_CM_EVENT_ADDR_ERROR,
        CmEventKind::RouteResolved => RDMA_CM_EVENT_ROUTE_RESOLVED,
        CmEventKind::RouteError => RDMA_CM_EVENT_ROUTE_ERROR,
        CmEventKind::ConnectRequest => RDMA_CM_EVENT_CONNECT_REQUEST,
        CmEventKind::Unreachable => RDMA_CM_EVENT_UNREACHABLE,
        CmEventKind::Rejected => RDMA_CM_EVENT_REJECTED,
        CmEventKind::Established => RDMA_CM_EVENT_ESTABLISHED,
        CmEventKind::Disconnected => RDMA_CM_EVENT_DISCONNECTED,
        CmEventKind::DeviceRemoval => RDMA_CM_EVENT_DEVICE_REMOVAL,
        // Includes events that the verbs crate may add later.
        _ => RDMA_CM_EVENT_CONNECT_ERROR,
    }
}

/// Returns the numbers of RDMA Reads in an event: as responder, and as initiator. They are limited
/// to what the device supports, because programs pass them on to `rdma_accept`.
fn depths(event: &CmEvent) -> (u8, u8) {
    let most = rnic::device().map_or((u8::MAX, u8::MAX), |device| connect::most(&device));
    let small = |of: u16, most: u8| u8::try_from(of).unwrap_or(u8::MAX).min(most);
    (
        small(event.responder_resources(), most.0),
        small(event.initiator_depth(), most.1),
    )
}

/// Prints the cause of an error, because the program gets only an error number, or only the event
/// `DISCONNECTED`.
fn report_cause(event: &CmEvent) {
    if event.kind() == CmEventKind::Disconnected {
        if let Some(CmReason::Connection { reason }) = event.reason()
            && let Some(number) = event.id().qp_num()
        {
            warnings::end(number, reason);
        }
        return;
    }
    if event.status() == 0 {
        return;
    }
    let Some(cause) = event.cause() else { return };
    let peer = event.id().peer_addr();
    match (peer, event.reason()) {
        (Some(peer), Some(CmReason::Connection { .. })) => {
            rnic::warn_about(Some(peer), format_args!("no connection to {peer}: {cause}"));
        }
        _ => rnic::warn_about(peer, format_args!("{cause}")),
    }
}

/// Creates the event that the program sees.
///
/// # Errors
/// Returns an `errno` value if the id of a connection request cannot be created. The event is then
/// acknowledged, and the request rejected.
///
/// # Safety
/// The ids of the event exist. (Destroying an id waits until its events are acknowledged.)
unsafe fn publish(event: CmEvent) -> Result<*mut rdma_cm_event, c_int> {
    report_cause(&event);
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut shown: rdma_cm_event = unsafe { mem::zeroed() };
    shown.event = number(event.kind());
    shown.status = event.status();
    if let Some(listener) = event.listen_id() {
        shown.listen_id = id::pointer(listener);
        // SAFETY: guaranteed by the caller.
        shown.id = unsafe { requested(&event, shown.listen_id) }?;
    } else {
        shown.id = id::pointer(event.id());
        if matches!(
            event.kind(),
            CmEventKind::AddrResolved | CmEventKind::Established
        ) {
            // SAFETY: guaranteed by the caller.
            if let Err(errno) = unsafe { address::refresh(shown.id) } {
                shown.event = RDMA_CM_EVENT_ADDR_ERROR;
                shown.status = -errno;
            }
        }
    }
    let data = event.private_data();
    // The length field is a `u8`, so longer data is cut at 255 bytes.
    let len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    // SAFETY: the union has only numbers and pointers, so each of its fields may be used.
    let conn = unsafe { &mut shown.param.conn };
    conn.private_data_len = len;
    if len > 0 {
        // The event owns this memory, which does not move until the event is acknowledged.
        conn.private_data = data.as_ptr().cast();
    }
    (conn.responder_resources, conn.initiator_depth) = depths(&event);
    Ok(EventObject::allocate(shown, event))
}

/// Creates the id of a request, with attributes of the listening id.
///
/// # Safety
/// `listener` exists.
unsafe fn requested(event: &CmEvent, listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, c_int> {
    let (responder_resources, initiator_depth) = depths(event);
    let own = IdState {
        initiator_depth,
        responder_resources,
        ..IdState::default()
    };
    // SAFETY: guaranteed by the caller; of these fields the program writes only `context`.
    let made = unsafe {
        let (channel, context) = ((*listener).channel, (*listener).context);
        let (ps, qp_type) = ((*listener).ps, (*listener).qp_type);
        id::publish(event.id().clone(), channel, context, ps, qp_type, own)
    };
    // SAFETY: guaranteed by the caller; the new id is not shared yet.
    unsafe {
        let sync = id::of(listener).state.lock().sync;
        let migrated = if sync {
            id::migrate(made, ptr::null_mut())
        } else {
            // The listening id may have migrated since the request arrived.
            let channel = channel::of((*listener).channel);
            let migrated = event.id().migrate(channel);
            migrated.map_err(|error| failure::errno(&error))
        };
        let ready = migrated.and_then(|()| address::refresh(made));
        ready.map(|()| made).inspect_err(|_| id::destroy(made))
    }
}

/// Takes the next event.
///
/// # Safety
/// `channel` is a channel, and `out` has memory for a pointer.
unsafe fn take(channel: *mut rdma_event_channel, out: *mut *mut rdma_cm_event) -> Found {
    loop {
        // SAFETY: guaranteed by the caller.
        match unsafe { channel::of(channel) }.get_event(Some(Duration::ZERO)) {
            // SAFETY: guaranteed by the caller; an id with an event exists.
            Ok(event) => match unsafe { publish(event) } {
                Ok(event) => {
                    // SAFETY: guaranteed by the caller.
                    unsafe { out.write(event) };
                    return Found::Event;
                }
                Err(_) => rnic::warn(format_args!(
                    "a connection request was rejected because its id could not be created"
                )),
            },
            Err(CmWaitError::TimedOut(_)) => return Found::Nothing,
            Err(CmWaitError::WouldBlock) => {
                errno::set(libc::EAGAIN);
                return Found::Error;
            }
            Err(_) => {
                errno::set(libc::EIO);
                return Found::Error;
            }
        }
    }
}

/// `rdma_get_cm_event`: waits unless the program has made the descriptor non-blocking. A
/// cancellation point.
pub(crate) unsafe extern "C-unwind" fn get_cm_event(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_event,
) -> c_int {
    if out.is_null() {
        errno::set(libc::EINVAL);
        return -1;
    }
    loop {
        // SAFETY: the program passes a channel, and memory for a pointer.
        match entry(Found::Error, || unsafe { take(channel, out) }) {
            Found::Event => return 0,
            Found::Error => return -1,
            Found::Nothing => {}
        }
        // SAFETY: the program passes a channel; its descriptor number is never written.
        if !cancel::wait_readable(unsafe { (*channel).fd }) {
            return -1;
        }
    }
}

/// Acknowledges an event and frees its memory.
///
/// # Safety
/// The event is from [`get_cm_event`], and is not used any more.
pub(super) unsafe fn ack(event: *mut rdma_cm_event) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { EventObject::free(event) });
}

/// Acknowledges the event that a synchronous id holds, if it holds one.
///
/// # Safety
/// The id exists, and the program does not use its event any more.
pub(super) unsafe fn ack_held(id: *mut rdma_cm_id) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let held = mem::replace(&mut (*id).event, ptr::null_mut());
        if !held.is_null() {
            ack(held);
        }
    }
}

/// `rdma_ack_cm_event`
pub(crate) unsafe extern "C-unwind" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    entry(-1, || {
        if event.is_null() {
            return status(Err(libc::EINVAL));
        }
        // SAFETY: the program passes an event that the program has taken.
        unsafe { ack(event) };
        0
    })
}

/// `rdma_event_str`: the name in the header file.
pub(crate) extern "C-unwind" fn event_str(event: rdma_cm_event_type) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    let found = usize::try_from(event).ok().and_then(|at| NAMES.get(at));
    found.unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}
