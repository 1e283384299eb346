//! Ids (`rdma_cm_id`): creation, destruction, and migration to another channel.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_void};
use core::mem;
use std::time::Duration;

use parking_lot::Mutex;
use uwarp_verbs::{CmError, CmId, CmState, QpState};

use super::{channel, event, status};
use crate::abi::{
    IBV_QPT_RC, RDMA_PS_IB, RDMA_PS_TCP, ibv_qp_init_attr, ibv_qp_type, rdma_cm_id,
    rdma_event_channel, rdma_port_space,
};
use crate::object::Object;
use crate::panic_guard::entry;
use crate::registry::QPS;
use crate::{cancel, rnic};

/// Internal state of an `rdma_cm_id`, which programs do not see.
pub(crate) struct IdInner {
    pub(super) id: CmId,
    pub(super) state: Mutex<IdState>,
}

/// Part of the state that changes during the life of an id.
#[derive(Default)]
pub(super) struct IdState {
    /// The id is synchronous: it has its own channel, and each of its calls waits for its event.
    pub(super) sync: bool,
    /// Default for `rdma_accept`: number of outstanding RDMA Reads of this side, as the request
    /// proposed.
    pub(super) initiator_depth: u8,
    /// Default for `rdma_accept`: number of outstanding RDMA Reads of the peer, as the request
    /// proposed.
    pub(super) responder_resources: u8,
    /// Bytes (`ai_connect`) that precede the private data from `rdma_connect`.
    pub(super) connect: Vec<u8>,
    /// Attributes of the queue pair that each request to this id gets (`rdma_create_ep`).
    pub(super) queue_pair: Option<ibv_qp_init_attr>,
    /// Binding the id to an IPv6 address excludes IPv4 (`RDMA_OPTION_ID_AFONLY`).
    pub(super) one_family: bool,
    /// The program has called `rdma_connect`, successfully or not.
    pub(super) connect_called: bool,
}

type IdObject = Object<rdma_cm_id, IdInner>;

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Safety
/// `id` exists during the lifetime of the reference.
pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a IdInner {
    // SAFETY: guaranteed by the caller.
    unsafe { IdObject::inner(id) }
}

/// Returns the program's pointer to an id.
pub(super) fn pointer(id: &CmId) -> *mut rdma_cm_id {
    core::ptr::with_exposed_provenance_mut(id.context() as usize)
}

/// Creates the C structure of an id.
pub(super) fn publish(
    id: CmId,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    state: IdState,
) -> *mut rdma_cm_id {
    // SAFETY: all fields may be zero: numbers, pointers, and addresses without a family.
    let mut shown: rdma_cm_id = unsafe { mem::zeroed() };
    shown.channel = channel;
    shown.context = context;
    shown.ps = ps;
    shown.qp_type = qp_type;
    let state = Mutex::new(state);
    let pointer = IdObject::allocate(shown, IdInner { id, state });
    // SAFETY: the object was just created.
    let inner = unsafe { of(pointer) };
    inner.id.set_context(pointer.expose_provenance() as u64);
    pointer
}

/// Creates an id. If `channel` is NULL, the id is synchronous and gets its own channel.
///
/// # Errors
/// Returns an `errno` value: `EPROTONOSUPPORT` for datagrams, which iWARP does not have.
///
/// # Safety
/// `channel` is NULL or a channel.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, c_int> {
    if !matches!(ps, RDMA_PS_TCP | RDMA_PS_IB) || qp_type != IBV_QPT_RC {
        return Err(libc::EPROTONOSUPPORT);
    }
    let device = rnic::device().ok_or(libc::ENODEV)?;
    let sync = channel.is_null();
    let channel = if sync { channel::create()? } else { channel };
    let state = IdState {
        sync,
        ..IdState::default()
    };
    // SAFETY: guaranteed by the caller, or just created.
    let id = unsafe { channel::of(channel) }.create_id(&device, 0);
    Ok(publish(id, channel, context, ps, qp_type, state))
}

/// Starts to destroy an id: drops its events that were not taken, rejects its requests and closes
/// its connection.
///
/// # Safety
/// The id exists, and is not used any more.
unsafe fn start_destroy(id: *mut rdma_cm_id) {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { of(id) };
    if inner.id.state() == CmState::Connected
        && let Some(number) = inner.id.qp_num()
    {
        // As the kernel does for iWARP, close the connection gracefully: posted requests are still
        // sent.
        QPS.with(number, |_, qp| {
            if qp.qp.state() == QpState::Rts {
                qp.qp.disconnect();
            }
        });
    }
    // After this call the id gets no more events. [`try_destroy`] waits for events that the program
    // has taken.
    let _ = inner.id.destroy(Some(Duration::ZERO));
    // SAFETY: guaranteed by the caller.
    unsafe { event::ack_held(id) };
}

/// Waits for at most [`cancel::SLICE`] until the events of an id are acknowledged, after
/// [`start_destroy`]. If they are, frees the id and returns true.
///
/// # Safety
/// As for [`start_destroy`].
unsafe fn try_destroy(id: *mut rdma_cm_id) -> bool {
    // SAFETY: guaranteed by the caller.
    let waited = unsafe { of(id) }.id.destroy(Some(cancel::SLICE));
    if matches!(waited, Err(CmError::Unacknowledged { .. })) {
        return false;
    }
    // SAFETY: the program does not write this field.
    let channel = unsafe { (*id).channel };
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { IdObject::free(id) };
    if inner.state.lock().sync {
        // SAFETY: the channel belongs to the id, and ends with it.
        unsafe { channel::destroy(channel) };
    }
    true
}

/// Waits until the events of an id are acknowledged, and destroys it.
///
/// # Safety
/// The id exists, and is not used any more.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        start_destroy(id);
        while !try_destroy(id) {}
    }
}

/// Moves an id to another channel. If `to` is NULL, the id becomes synchronous and gets its own
/// channel. The program may still have events that it took from the old channel.
///
/// # Errors
/// Returns an `errno` value.
///
/// # Safety
/// The id and the channel exist; `to` may be NULL.
pub(super) unsafe fn migrate(
    id: *mut rdma_cm_id,
    to: *mut rdma_event_channel,
) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { of(id) };
    let was_sync = inner.state.lock().sync;
    let sync = to.is_null();
    if was_sync && sync {
        return Err(libc::EINVAL);
    }
    let to = if sync { channel::create()? } else { to };
    // SAFETY: guaranteed by the caller, or just created.
    if let Err(error) = inner.id.migrate(unsafe { channel::of(to) }) {
        if sync {
            // SAFETY: the channel was just created, and is not shared.
            unsafe { channel::destroy(to) };
        }
        return Err(super::failure::errno(&error));
    }
    // SAFETY: guaranteed by the caller; only this library writes these fields.
    unsafe {
        if was_sync {
            event::ack_held(id);
            channel::destroy((*id).channel);
        }
        (*id).channel = to;
    }
    inner.state.lock().sync = sync;
    Ok(())
}

/// `rdma_create_id`
pub(crate) unsafe extern "C-unwind" fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes a channel or NULL.
        let made = unsafe { create(channel, context, ps, IBV_QPT_RC) };
        // SAFETY: the program passes memory for a pointer.
        status(made.map(|id| unsafe { out.write(id) }))
    })
}

/// `rdma_destroy_id`
pub(crate) unsafe extern "C-unwind" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes an id from this library.
    entry((), || unsafe { start_destroy(id) });
    // SAFETY: as above; after `Some` the id is not used any more.
    cancel::retry(|| entry(Some(-1), || unsafe { try_destroy(id) }.then_some(0)))
}

/// `rdma_migrate_id`
pub(crate) unsafe extern "C-unwind" fn migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the program passes an id, and a channel or NULL.
    let migrated = entry(-1, || status(unsafe { migrate(id, channel) }));
    if migrated != 0 {
        return migrated;
    }
    cancel::retry(|| {
        entry(Some(-1), || {
            // SAFETY: the program passes an id.
            let waited = unsafe { of(id) }.id.wait_acknowledged(Some(cancel::SLICE));
            (!matches!(waited, Err(CmError::Unacknowledged { .. }))).then_some(0)
        })
    })
}
