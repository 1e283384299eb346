//! Devices, protection domains, regions, queue pairs.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::Errno;
use uwarp_verbs::{Access, AsyncEvent, Cq, Device, EndReason, EventObject, MemoryRegion, Pd, Qp};

use crate::error::{end, failed, handle, say};

/// Kind of the event for a connection that ended without an error. libibverbs has no such kind.
const EVENT_NONE: c_int = -1;
const EVENT_QP_FATAL: c_int = 1;
const EVENT_COMM_EST: c_int = 4;
const EVENT_SRQ_LIMIT: c_int = 15;
const EVENT_LAST_WQE: c_int = 16;

/// Has the layout of `struct uw_async_event`.
#[repr(C)]
struct Event {
    kind: c_int,
    /// Number of the queue pair or of the shared receive queue.
    number: u32,
}

#[unsafe(no_mangle)]
extern "C" fn uw_open_device() -> *mut Device {
    handle(Device::tcp())
}

#[unsafe(no_mangle)]
extern "C" fn uw_close_device(device: Box<Device>) {
    drop(device);
}

#[unsafe(no_mangle)]
extern "C" fn uw_async_fd(device: &Device) -> c_int {
    device.as_fd().as_raw_fd()
}

#[unsafe(no_mangle)]
extern "C" fn uw_get_async_event(device: &Device, out: &mut Event) -> c_int {
    let Some(event) = device.get_event(None) else {
        return failed(Errno::AGAIN, &"no event waits");
    };
    let kind = match event.event() {
        AsyncEvent::Established { .. } => EVENT_COMM_EST,
        // A graceful end is not an error. On any RNIC the connection manager reports it.
        AsyncEvent::Ended {
            reason: EndReason::LocalDisconnect | EndReason::PeerDisconnect,
            ..
        } => EVENT_NONE,
        AsyncEvent::Ended { reason, .. } => {
            say(reason);
            EVENT_QP_FATAL
        }
        AsyncEvent::SrqLimitReached { .. } => EVENT_SRQ_LIMIT,
        AsyncEvent::LastWqeReached { .. } => EVENT_LAST_WQE,
        other => return failed(Errno::PROTO, &format!("not expected here: {other:?}")),
    };
    let number = match event.object() {
        EventObject::Qp(number) | EventObject::Srq(number) => number,
        other => return failed(Errno::PROTO, &format!("not expected here: {other:?}")),
    };
    event.ack_later();
    *out = Event { kind, number };
    0
}

#[unsafe(no_mangle)]
extern "C" fn uw_ack_async_event(device: &Device, event: &Event) {
    let object = match event.kind {
        EVENT_SRQ_LIMIT => EventObject::Srq(event.number),
        _ => EventObject::Qp(event.number),
    };
    device.ack_events(object, 1);
}

#[unsafe(no_mangle)]
extern "C" fn uw_alloc_pd(device: &Device) -> *mut Pd {
    handle(device.alloc_pd())
}

#[unsafe(no_mangle)]
extern "C" fn uw_dealloc_pd(pd: Box<Pd>) {
    drop(pd);
}

fn rights(access: c_int) -> Access {
    Access::from_bits(access.unsigned_abs()).0
}

/// # Safety
/// As for `uwarp_verbs::RegionBuilder::in_place`: the memory stays mapped until the region is
/// deregistered.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_reg_mr_iova(
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut MemoryRegion {
    let base = NonNull::new(addr.cast::<u8>()).unwrap_or(NonNull::dangling());
    let region = pd.region().access(rights(access)).iova(iova);
    // SAFETY: guaranteed by the caller.
    handle(unsafe { region.in_place(base, length) })
}

/// # Safety
/// As for `uw_reg_mr_iova`.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_reg_mr_for(
    pd: &Pd,
    qp: &Qp,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut MemoryRegion {
    let base = NonNull::new(addr.cast::<u8>()).unwrap_or(NonNull::dangling());
    let region = pd.region().access(rights(access)).for_qp(qp);
    // SAFETY: guaranteed by the caller.
    handle(unsafe { region.in_place(base, length) })
}

#[unsafe(no_mangle)]
extern "C" fn uw_mr_key(mr: &MemoryRegion) -> u32 {
    mr.rkey()
}

/// # Safety
/// As for [`end`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_dereg_mr(mr: *mut MemoryRegion) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { end(mr, MemoryRegion::deregister) }
}

#[unsafe(no_mangle)]
extern "C" fn uw_create_qp(pd: &Pd, send_cq: &Cq, recv_cq: &Cq) -> *mut Qp {
    handle(pd.qp().build(send_cq, recv_cq))
}

#[unsafe(no_mangle)]
extern "C" fn uw_qp_num(qp: &Qp) -> u32 {
    qp.qp_num()
}

#[unsafe(no_mangle)]
extern "C" fn uw_qp_state(qp: &Qp) -> c_int {
    c_int::try_from(qp.query().ibv_state.value()).unwrap_or(-1)
}

/// # Safety
/// As for [`end`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_destroy_qp(qp: *mut Qp, timeout_ms: u32) -> c_int {
    let patience = Some(Duration::from_millis(timeout_ms.into()));
    // SAFETY: guaranteed by the caller.
    unsafe { end(qp, |qp| qp.destroy(patience)) }
}
