//! Completion channels (`ibv_comp_channel`).
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use uwarp_verbs::{ChannelError, CompletionChannel};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::context::Context;
use crate::object::Object;
use crate::panic_guard::entry;
use crate::{cancel, cq, errno};

type ChannelObject = Object<ibv_comp_channel, CompletionChannel>;

/// Result of one attempt to take an event, without waiting.
enum Found {
    /// An event was written to the program's memory.
    Event,
    /// No event is available yet: wait for one.
    Nothing,
    /// Failed; `errno` has the reason.
    Error,
}

/// Creates a channel.
///
/// # Errors
/// Returns an `errno` value.
///
/// # Safety
/// `context` is an open context.
pub(crate) unsafe fn create(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, c_int> {
    // SAFETY: guaranteed by the caller.
    let device = unsafe { Context::of(context) }.device();
    let channel = device
        .create_channel()
        .map_err(|error| errno::of_device(&error))?;
    let shown = ibv_comp_channel {
        context,
        fd: channel.as_fd().as_raw_fd(),
        refcnt: 0,
    };
    Ok(Object::allocate(shown, channel))
}

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Safety
/// `channel` is a channel that exists during the lifetime of the reference.
pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a CompletionChannel {
    // SAFETY: guaranteed by the caller.
    unsafe { ChannelObject::inner(channel) }
}

/// Destroys a channel.
///
/// # Errors
/// `EBUSY` while completion queues use the channel.
///
/// # Safety
/// As for [`of`]. After `Ok` the channel is not used any more.
pub(crate) unsafe fn destroy(channel: *mut ibv_comp_channel) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    if unsafe { of(channel) }.cq_count() > 0 {
        return Err(libc::EBUSY);
    }
    // SAFETY: guaranteed by the caller.
    drop(unsafe { ChannelObject::free(channel) });
    Ok(())
}

/// `ibv_create_comp_channel`
pub(crate) unsafe extern "C-unwind" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes an open context.
        errno::pointer(unsafe { create(context) })
    })
}

/// `ibv_destroy_comp_channel`
pub(crate) unsafe extern "C-unwind" fn destroy_comp_channel(
    channel: *mut ibv_comp_channel,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a channel from `ibv_create_comp_channel`.
        errno::status(unsafe { destroy(channel) })
    })
}

/// `ibv_get_cq_event`: waits unless the program has made the descriptor non-blocking. A
/// cancellation point.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        // SAFETY: the program passes a channel, and memory for two pointers.
        match entry(Found::Error, || unsafe { try_get(channel, cq, cq_context) }) {
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

unsafe fn try_get(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Found {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { of(channel) };
    let event = match inner.get_event(Some(Duration::ZERO)) {
        Ok(event) => event,
        Err(ChannelError::TimedOut(_)) => return Found::Nothing,
        Err(error) => {
            // In a forked child the call must fail: the parent's channel delivers no events to the
            // child, but the descriptor may stay readable forever.
            errno::set(match error {
                ChannelError::WouldBlock => libc::EAGAIN,
                _ => libc::EIO,
            });
            return Found::Error;
        }
    };
    let source = cq::from_event(event.context());
    event.ack_later();
    // SAFETY: the program passes memory for two pointers. The queue exists, because its destruction
    // waits until this event is acknowledged.
    unsafe {
        cq.write(source);
        cq_context.write((*source).cq_context);
    }
    Found::Event
}

/// `ibv_ack_cq_events`
pub(crate) unsafe extern "C-unwind" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    entry((), || {
        // SAFETY: the program passes an existing queue.
        unsafe { cq::of(cq) }.cq.ack_events(count.into());
    });
}
