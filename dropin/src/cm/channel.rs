//! Event channels (`rdma_event_channel`).
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::ptr;
use std::os::fd::{AsFd, AsRawFd};

use uwarp_verbs::EventChannel;

use crate::abi::rdma_event_channel;
use crate::object::Object;
use crate::panic_guard::entry;
use crate::{errno, rnic};

type ChannelObject = Object<rdma_event_channel, EventChannel>;

/// Creates a channel.
///
/// # Errors
/// Returns an `errno` value: `ENODEV` without a device.
pub(super) fn create() -> Result<*mut rdma_event_channel, c_int> {
    if rnic::device().is_none() {
        return Err(libc::ENODEV);
    }
    let channel =
        EventChannel::new().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
    let fd = channel.as_fd().as_raw_fd();
    Ok(ChannelObject::allocate(rdma_event_channel { fd }, channel))
}

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Safety
/// `channel` exists during the lifetime of the reference.
pub(super) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a EventChannel {
    // SAFETY: guaranteed by the caller.
    unsafe { ChannelObject::inner(channel) }
}

/// Frees a channel. Ids that still use the channel keep its descriptor open.
///
/// # Safety
/// As for [`of`], and the channel is not used any more.
pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { ChannelObject::free(channel) });
}

/// `rdma_create_event_channel`
pub(crate) unsafe extern "C-unwind" fn create_event_channel() -> *mut rdma_event_channel {
    entry(ptr::null_mut(), || errno::pointer(create()))
}

/// `rdma_destroy_event_channel`
pub(crate) unsafe extern "C-unwind" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    entry((), || {
        if !channel.is_null() {
            // SAFETY: the program passes a channel from `rdma_create_event_channel`.
            unsafe { destroy(channel) };
        }
    });
}
