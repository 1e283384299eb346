//! Asynchronous events (`ibv_get_async_event`). Each context delivers the events of its own
//! objects.
//!
//! The events are those that Linux's iWARP drivers report. They include errors of a queue pair, but
//! not the start of a connection, which the connection manager reports.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::Duration;

use uwarp_verbs::{AsyncEvent, EndReason, EventObject};

use crate::abi::{
    self, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_context, ibv_event_type,
};
use crate::context::Context;
use crate::panic_guard::entry;
use crate::rnic::warn;
use crate::warnings::{self, OnceWarning, is_reportable};
use crate::{cancel, errno, registry};

/// Layers and error types of a Terminate for an invalid access (RFC 5040 section 4.8): remote
/// protection errors of RDMAP, and tagged buffer errors of DDP.
const ACCESS: [(u8, u8); 2] = [(0, 1), (1, 1)];

/// Returns true if the event has a number in libibverbs, and is thus delivered to the program. Also
/// prints the first event of a listener that lacks resources, and the first address conflict.
/// libibverbs has no numbers for these two.
pub(crate) fn is_delivered(event: &AsyncEvent) -> bool {
    static SHORT: OnceWarning = OnceWarning::new();
    static CONFLICT: OnceWarning = OnceWarning::new();
    match event {
        AsyncEvent::ListenerShort { .. } => {
            if SHORT.claim() {
                warn(format_args!("{}", event.cause()));
            }
            false
        }
        AsyncEvent::AddressConflict { .. } => {
            if CONFLICT.claim() {
                warn(format_args!("{}", event.cause()));
            }
            false
        }
        other => number(other).is_some(),
    }
}

/// Returns the number of the event in libibverbs, if it has one.
fn number(event: &AsyncEvent) -> Option<ibv_event_type> {
    Some(match event {
        AsyncEvent::CqOverflow { .. } => abi::IBV_EVENT_CQ_ERR,
        AsyncEvent::SrqLimitReached { .. } => abi::IBV_EVENT_SRQ_LIMIT_REACHED,
        AsyncEvent::LastWqeReached { .. } => abi::IBV_EVENT_QP_LAST_WQE_REACHED,
        AsyncEvent::DeviceFatal { .. } => abi::IBV_EVENT_DEVICE_FATAL,
        AsyncEvent::Ended { reason, .. } if !is_reportable(reason) => return None,
        // InfiniBand reports a peer that is gone in the completion alone.
        AsyncEvent::Ended {
            reason: EndReason::PeerGone { .. },
            ..
        } => return None,
        AsyncEvent::Ended {
            reason:
                EndReason::TerminateSent {
                    terminate: Some(terminate),
                    ..
                },
            ..
        } if ACCESS.contains(&(terminate.layer(), terminate.etype())) => {
            abi::IBV_EVENT_QP_ACCESS_ERR
        }
        AsyncEvent::Ended { .. } => abi::IBV_EVENT_QP_FATAL,
        _ => return None,
    })
}

/// Result of one attempt to take an event, without waiting (as in `channel.rs`).
enum Found {
    Event,
    Nothing,
    Error,
}

/// `ibv_get_async_event`: waits unless the program has made the descriptor non-blocking. A
/// cancellation point.
pub(crate) unsafe extern "C-unwind" fn get_async_event(
    context: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    loop {
        // SAFETY: the program passes an open context, and memory for an event.
        match entry(Found::Error, || unsafe { try_get(context, out) }) {
            Found::Event => return 0,
            Found::Error => return -1,
            Found::Nothing => {}
        }
        // SAFETY: the program passes an open context; its descriptor number is never written.
        if !cancel::wait_readable(unsafe { (*context).async_fd }) {
            return -1;
        }
    }
}

unsafe fn try_get(context: *mut ibv_context, out: *mut ibv_async_event) -> Found {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { Context::of(context) };
    if inner.is_inherited() {
        errno::set(libc::EIO);
        return Found::Error;
    }
    // While this lock is held, no queue pair can be destroyed between taking its event and looking
    // up its pointer.
    let _taking = registry::taking_event();
    while let Some(event) = inner.device().get_event(Some(Duration::ZERO)) {
        // Drops events without a number, and events whose object is being destroyed or is of a kind
        // that C programs do not have.
        let (Some(event_type), Some(element)) = (number(&event), element(event.object())) else {
            continue;
        };
        if let AsyncEvent::Ended { qp_num, reason } = &*event {
            warnings::end(*qp_num, reason);
        }
        if event.object() != EventObject::Device {
            event.ack_later();
        }
        // SAFETY: the program passes memory for an event.
        unsafe {
            out.write(ibv_async_event {
                element,
                event_type,
            });
        }
        return Found::Event;
    }
    if !cancel::is_nonblocking(inner.events().as_raw_fd()) {
        return Found::Nothing;
    }
    errno::set(libc::EAGAIN);
    Found::Error
}

/// Returns the program's pointer to the object of an event. Returns `None` if the object is being
/// destroyed, or is of a kind that C programs do not have.
fn element(object: EventObject) -> Option<ibv_async_event__bindgen_ty_1> {
    Some(match object {
        EventObject::Device => ibv_async_event__bindgen_ty_1 { port_num: 1 },
        EventObject::Qp(number) => ibv_async_event__bindgen_ty_1 {
            qp: registry::QPS.with(number, |qp, _| qp)?.cast(),
        },
        EventObject::Cq(number) => ibv_async_event__bindgen_ty_1 {
            cq: registry::CQS.with(number, |cq, _| cq)?.cast(),
        },
        EventObject::Srq(number) => ibv_async_event__bindgen_ty_1 {
            srq: registry::SRQS.with(number, |srq, _| srq)?,
        },
        _ => return None,
    })
}

/// `ibv_ack_async_event`
pub(crate) unsafe extern "C-unwind" fn ack_async_event(event: *mut ibv_async_event) {
    entry((), || {
        // SAFETY: the program passes an event from `ibv_get_async_event`; its object exists until
        // the acknowledgement.
        let found = unsafe { object(&*event) };
        if let Some((context, object)) = found {
            // SAFETY: the context is that of the object.
            let device = unsafe { Context::of(context) }.device();
            device.ack_events(object, 1);
        }
    });
}

/// Returns the context and the object of an event. Returns `None` for an event of the device, which
/// needs no acknowledgement.
unsafe fn object(event: &ibv_async_event) -> Option<(*mut ibv_context, EventObject)> {
    // SAFETY: the type determines which field of the union is set.
    unsafe {
        let element = &event.element;
        Some(match event.event_type {
            abi::IBV_EVENT_CQ_ERR => {
                let cq = element.cq;
                ((*cq).context, EventObject::Cq((*cq).handle))
            }
            abi::IBV_EVENT_SRQ_LIMIT_REACHED | abi::IBV_EVENT_SRQ_ERR => {
                let srq = element.srq;
                ((*srq).context, EventObject::Srq((*srq).handle))
            }
            abi::IBV_EVENT_QP_FATAL
            | abi::IBV_EVENT_QP_ACCESS_ERR
            | abi::IBV_EVENT_QP_REQ_ERR
            | abi::IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = element.qp;
                ((*qp).context, EventObject::Qp((*qp).qp_num))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_queue_pair_is_told_and_an_orderly_end_is_not() {
        let ended = |reason| number(&AsyncEvent::Ended { qp_num: 2, reason });
        assert_eq!(ended(EndReason::PeerDisconnect), None);
        assert_eq!(ended(EndReason::Aborted), None);
        let stalled = EndReason::Stalled { sending: true };
        assert_eq!(ended(stalled), Some(abi::IBV_EVENT_QP_FATAL));
        assert_eq!(number(&AsyncEvent::Established { qp_num: 2 }), None);
    }
}
