//! Ids (`rdma_cm_id`): making, ending, moving to another channel.
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
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

/// What is behind an `rdma_cm_id`.
pub(crate) struct IdKept {
    pub(super) id: CmId,
    pub(super) own: Mutex<Own>,
}

/// What this library remembers of an id.
#[derive(Default)]
pub(super) struct Own {
    /// It has a channel of its own, and each of its calls waits for its event.
    pub(super) sync: bool,
    /// Of the request that it came with.
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    /// Bytes in front of the private data of `rdma_connect` (`ai_connect`).
    pub(super) connect: Vec<u8>,
    /// The queue pair that each request to it gets (`rdma_create_ep`).
    pub(super) queue_pair: Option<ibv_qp_init_attr>,
    /// An address of IPv6 means no address of IPv4 (`RDMA_OPTION_ID_AFONLY`).
    pub(super) one_family: bool,
    /// It has tried to connect.
    pub(super) tried: bool,
}

type IdObject = Object<rdma_cm_id, IdKept>;

/// What is behind a pointer of the program's.
///
/// # Safety
/// `id` exists while the reference lives.
pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a IdKept {
    // SAFETY: the promise of the caller.
    unsafe { IdObject::kept(id) }
}

/// The pointer that a program has to an id.
pub(super) fn pointer(id: &CmId) -> *mut rdma_cm_id {
    core::ptr::with_exposed_provenance_mut(id.context() as usize)
}

/// Shows an id to the program.
pub(super) fn show(
    id: CmId,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    own: Own,
) -> *mut rdma_cm_id {
    // SAFETY: numbers, pointers, and addresses of no family.
    let mut shown: rdma_cm_id = unsafe { mem::zeroed() };
    shown.channel = channel;
    shown.context = context;
    shown.ps = ps;
    shown.qp_type = qp_type;
    let own = Mutex::new(own);
    let pointer = IdObject::begin(shown, IdKept { id, own });
    // SAFETY: it was just made.
    let kept = unsafe { of(pointer) };
    kept.id.set_context(pointer.expose_provenance() as u64);
    pointer
}

/// Makes an id; without a channel a synchronous one, with a channel of its own.
///
/// # Errors
/// The `errno`: `EPROTONOSUPPORT` for datagrams, which iWARP has not.
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
    let own = Own {
        sync,
        ..Own::default()
    };
    // SAFETY: the promise of the caller, or it was just made.
    let id = unsafe { channel::of(channel) }.create_id(&device, 0);
    Ok(show(id, channel, context, ps, qp_type, own))
}

/// Begins to end an id: its unread events are forgotten, its requests rejected, its connection closed.
///
/// # Safety
/// It exists, and is not used any more.
unsafe fn begin_to_end(id: *mut rdma_cm_id) {
    // SAFETY: the promise of the caller.
    let kept = unsafe { of(id) };
    if kept.id.state() == CmState::Connected
        && let Some(number) = kept.id.qp_num()
    {
        // As the kernel does for iWARP; but what was posted still goes out.
        QPS.with(number, |_, qp| {
            if qp.qp.state() == QpState::Rts {
                qp.qp.disconnect();
            }
        });
    }
    // No event comes from here on. Those that the program has are waited for.
    let _ = kept.id.destroy(Some(Duration::ZERO));
    // SAFETY: the promise of the caller.
    unsafe { event::ack_held(id) };
}

/// Waits a while until the events of an id that [ends](begin_to_end) are acknowledged. Then its memory goes, and the result is true.
///
/// # Safety
/// As [`begin_to_end`].
unsafe fn end(id: *mut rdma_cm_id) -> bool {
    // SAFETY: the promise of the caller.
    let waited = unsafe { of(id) }.id.destroy(Some(cancel::SLICE));
    if matches!(waited, Err(CmError::Unacknowledged { .. })) {
        return false;
    }
    // SAFETY: a field that the program does not write.
    let channel = unsafe { (*id).channel };
    // SAFETY: the promise of the caller.
    let kept = unsafe { IdObject::end(id) };
    if kept.own.lock().sync {
        // SAFETY: it is the id's own, which goes with it.
        unsafe { channel::destroy(channel) };
    }
    true
}

/// Ends an id, as soon as its events are acknowledged.
///
/// # Safety
/// It exists, and is not used any more.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the promise of the caller.
    unsafe {
        begin_to_end(id);
        while !end(id) {}
    }
}

/// Lets the events of an id come to another channel; without one it becomes synchronous, with a channel of its own. The program may
/// still have some that it took from the old one.
///
/// # Errors
/// The `errno`.
///
/// # Safety
/// Both exist.
pub(super) unsafe fn migrate(
    id: *mut rdma_cm_id,
    to: *mut rdma_event_channel,
) -> Result<(), c_int> {
    // SAFETY: the promise of the caller.
    let kept = unsafe { of(id) };
    let was_sync = kept.own.lock().sync;
    let sync = to.is_null();
    if was_sync && sync {
        return Err(libc::EINVAL);
    }
    let to = if sync { channel::create()? } else { to };
    // SAFETY: the promise of the caller, or it was just made.
    if let Err(error) = kept.id.migrate(unsafe { channel::of(to) }) {
        if sync {
            // SAFETY: it was just made, and nobody has it.
            unsafe { channel::destroy(to) };
        }
        return Err(super::failure::errno(&error));
    }
    // SAFETY: the promise of the caller; the fields are this library's to write.
    unsafe {
        if was_sync {
            event::ack_held(id);
            channel::destroy((*id).channel);
        }
        (*id).channel = to;
    }
    kept.own.lock().sync = sync;
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
        // SAFETY: a channel or NULL.
        let made = unsafe { create(channel, context, ps, IBV_QPT_RC) };
        // SAFETY: a place for a pointer.
        status(made.map(|id| unsafe { out.write(id) }))
    })
}

/// `rdma_destroy_id`
pub(crate) unsafe extern "C-unwind" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: an id that this library gave.
    entry((), || unsafe { begin_to_end(id) });
    // SAFETY: as above; after true it is not used any more.
    cancel::until(|| entry(Some(-1), || unsafe { end(id) }.then_some(0)))
}

/// `rdma_migrate_id`
pub(crate) unsafe extern "C-unwind" fn migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: an id, and a channel or NULL.
    let migrated = entry(-1, || status(unsafe { migrate(id, channel) }));
    if migrated != 0 {
        return migrated;
    }
    cancel::until(|| {
        entry(Some(-1), || {
            // SAFETY: an id.
            let waited = unsafe { of(id) }.id.wait_acknowledged(Some(cancel::SLICE));
            (!matches!(waited, Err(CmError::Unacknowledged { .. }))).then_some(0)
        })
    })
}
