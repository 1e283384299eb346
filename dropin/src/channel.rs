//! Completion channels (`ibv_comp_channel`).
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
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

/// What a look for an event has found.
enum Found {
    /// One, which the program has now.
    Event,
    /// None: wait for one.
    Nothing,
    /// `errno` says why there will be none.
    Error,
}

/// Makes a channel.
///
/// # Errors
/// The `errno`.
///
/// # Safety
/// `context` is an open context.
pub(crate) unsafe fn create(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, c_int> {
    // SAFETY: the promise of the caller.
    let device = unsafe { Context::of(context) }.device();
    let channel = device
        .create_channel()
        .map_err(|error| errno::of_device(&error))?;
    let shown = ibv_comp_channel {
        context,
        fd: channel.as_fd().as_raw_fd(),
        refcnt: 0,
    };
    Ok(Object::begin(shown, channel))
}

/// What is behind a pointer of the program's.
///
/// # Safety
/// `channel` is a channel that exists while the reference lives.
pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a CompletionChannel {
    // SAFETY: the promise of the caller.
    unsafe { ChannelObject::kept(channel) }
}

/// Ends a channel.
///
/// # Errors
/// `EBUSY` while completion queues send to it.
///
/// # Safety
/// As for [`of`], and with `Ok` it is not used any more.
pub(crate) unsafe fn destroy(channel: *mut ibv_comp_channel) -> Result<(), c_int> {
    // SAFETY: the promise of the caller.
    if unsafe { of(channel) }.cq_count() > 0 {
        return Err(libc::EBUSY);
    }
    // SAFETY: the promise of the caller.
    drop(unsafe { ChannelObject::end(channel) });
    Ok(())
}

/// `ibv_create_comp_channel`
pub(crate) unsafe extern "C-unwind" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    entry(ptr::null_mut(), || {
        // SAFETY: an open context.
        errno::pointer(unsafe { create(context) })
    })
}

/// `ibv_destroy_comp_channel`
pub(crate) unsafe extern "C-unwind" fn destroy_comp_channel(
    channel: *mut ibv_comp_channel,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: a channel that `ibv_create_comp_channel` gave.
        errno::status(unsafe { destroy(channel) })
    })
}

/// `ibv_get_cq_event`: waits unless the program has made the descriptor non-blocking. A point where a thread may be cancelled.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        // SAFETY: a channel, and places for two pointers.
        match entry(Found::Error, || unsafe { look(channel, cq, cq_context) }) {
            Found::Event => return 0,
            Found::Error => return -1,
            Found::Nothing => {}
        }
        // SAFETY: a channel; its descriptor is never written.
        if !cancel::wait_readable(unsafe { (*channel).fd }) {
            return -1;
        }
    }
}

unsafe fn look(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Found {
    // SAFETY: the promise of the caller.
    let kept = unsafe { of(channel) };
    let event = match kept.get_event(Some(Duration::ZERO)) {
        Ok(event) => event,
        Err(ChannelError::TimedOut(_)) => return Found::Nothing,
        Err(error) => {
            // Of a parent's channel nothing comes here, and its descriptor may be readable for ever.
            errno::set(match error {
                ChannelError::WouldBlock => libc::EAGAIN,
                _ => libc::EIO,
            });
            return Found::Error;
        }
    };
    let source = cq::from_event(event.context());
    event.ack_later();
    // SAFETY: two places of the program's. The queue exists: its destruction waits until this event is acknowledged.
    unsafe {
        cq.write(source);
        cq_context.write((*source).cq_context);
    }
    Found::Event
}

/// `ibv_ack_cq_events`
pub(crate) unsafe extern "C-unwind" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    entry((), || {
        // SAFETY: a queue that exists.
        unsafe { cq::of(cq) }.cq.ack_events(count.into());
    });
}
