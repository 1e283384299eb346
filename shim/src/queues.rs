//! Completion channels and completion queues.

use core::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use uwarp_verbs::{Completion, CompletionChannel, Cq, Device, Notify};

use crate::error::{end, failed, handle};

const WITH_IMM: c_int = 2;
const WITH_INV: c_int = 8;

/// Has the layout of `struct uw_wc`.
#[repr(C)]
struct Wc {
    wr_id: u64,
    status: c_int,
    opcode: c_int,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    flags: c_int,
}

impl From<Completion> for Wc {
    fn from(done: Completion) -> Self {
        let (imm_data, flags) = match (done.immediate, done.invalidated) {
            // The four bytes of the ABI are the first four on the wire, in the same order
            // (`immediate` in `post.rs`).
            (Some([a, b, c, d, ..]), _) => (u32::from_ne_bytes([a, b, c, d]), WITH_IMM),
            (None, Some(stag)) => (stag, WITH_INV),
            (None, None) => (0, 0),
        };
        Wc {
            wr_id: done.wr_id,
            status: done.status.code() as c_int,
            opcode: done.opcode.code() as c_int,
            byte_len: done.byte_len,
            imm_data,
            qp_num: done.qp_num,
            flags,
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn uw_create_comp_channel(device: &Device) -> *mut CompletionChannel {
    handle(device.create_channel())
}

#[unsafe(no_mangle)]
extern "C" fn uw_comp_fd(channel: &CompletionChannel) -> c_int {
    channel.as_fd().as_raw_fd()
}

#[unsafe(no_mangle)]
extern "C" fn uw_destroy_comp_channel(channel: Box<CompletionChannel>) {
    drop(channel);
}

#[unsafe(no_mangle)]
extern "C" fn uw_create_cq(
    device: &Device,
    cqe: c_int,
    context: u64,
    channel: Option<&CompletionChannel>,
) -> *mut Cq {
    let depth = u32::try_from(cqe).unwrap_or(0);
    handle(match channel {
        Some(channel) => device.create_cq_on(depth, channel, context),
        None => device.create_cq(depth),
    })
}

/// # Safety
/// As for [`end`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { end(cq, |cq| cq.destroy(None)) }
}

#[unsafe(no_mangle)]
extern "C" fn uw_req_notify_cq(cq: &Cq, solicited_only: c_int) -> c_int {
    cq.req_notify(if solicited_only == 0 {
        Notify::Any
    } else {
        Notify::Solicited
    });
    0
}

#[unsafe(no_mangle)]
extern "C" fn uw_get_cq_event(channel: &CompletionChannel, context: &mut u64) -> c_int {
    match channel.get_event(None) {
        Ok(event) => {
            *context = event.context();
            event.ack_later();
            0
        }
        Err(error) => failed(Errno::AGAIN, &error),
    }
}

#[unsafe(no_mangle)]
extern "C" fn uw_ack_cq_events(cq: &Cq, count: c_uint) {
    cq.ack_events(count.into());
}

/// # Safety
/// `out` has room for `count` completions.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_poll_cq(cq: &Cq, count: c_int, out: *mut Wc) -> c_int {
    let mut taken = [Completion::default(); 16];
    let wanted = usize::try_from(count).unwrap_or(0).min(taken.len());
    let got = cq.poll(&mut taken[..wanted]);
    for (at, done) in taken.iter().take(got).enumerate() {
        // SAFETY: `at` is below `count`.
        unsafe { out.add(at).write(Wc::from(*done)) };
    }
    // The number is at most 16.
    c_int::try_from(got).unwrap_or(c_int::MAX)
}
