//! Functions that post work requests.

use core::ffi::c_int;

use rustix::io::Errno;
use uwarp_verbs::{PostError, PostErrorKind, Qp, RecvWr, RemoteBuffer, SendWr, Sge};

use crate::error::failed;

const FENCE: c_int = 1;
const SIGNALED: c_int = 2;
const SOLICITED: c_int = 4;
const INLINE: c_int = 8;

/// Has the layout of `struct uw_sge`.
#[repr(C)]
pub(crate) struct CSge {
    addr: u64,
    length: u32,
    lkey: u32,
}

/// Has the layout of `struct uw_send_wr`.
#[repr(C)]
struct CSendWr {
    wr_id: u64,
    sg_list: *const CSge,
    num_sge: c_int,
    opcode: c_int,
    flags: c_int,
    imm_data: u32,
    remote_addr: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
}

/// Copies a scatter/gather list.
///
/// # Safety
/// `list` has `count` elements; it may be NULL if `count` is 0.
pub(crate) unsafe fn elements(list: *const CSge, count: c_int) -> Vec<Sge> {
    let count = usize::try_from(count).unwrap_or(0);
    (0..count)
        .map(|at| {
            // SAFETY: `at` is below `count`.
            let CSge { addr, length, lkey } = unsafe { list.add(at).read() };
            Sge {
                addr,
                len: length,
                lkey,
            }
        })
        .collect()
}

/// Copies the inline data that the elements point to.
///
/// # Safety
/// The data may be read.
unsafe fn gather(sges: &[Sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // An empty element may have a null address, which a slice may not have.
    for sge in sges.iter().filter(|sge| sge.len > 0) {
        let from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: guaranteed by the caller.
        bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(from, sge.len as usize) });
    }
    bytes
}

/// Converts the four bytes of Immediate Data in the ABI to the eight on the wire. The first four
/// are the same, in the same order (network byte order). The others are zero.
fn immediate(data: u32) -> [u8; 8] {
    let [a, b, c, d] = data.to_ne_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

pub(crate) fn posted(result: Result<(), PostError>) -> c_int {
    let Err(error) = result else { return 0 };
    let errno = match error.kind {
        PostErrorKind::SendQueueFull { .. }
        | PostErrorKind::RecvQueueFull { .. }
        | PostErrorKind::SrqFull { .. } => Errno::NOMEM,
        PostErrorKind::ImmediateUnfit { .. } | PostErrorKind::NoSendWithImmediate => {
            Errno::OPNOTSUPP
        }
        _ => Errno::INVAL,
    };
    failed(errno, &error)
}

/// # Safety
/// The list of the request has `num_sge` elements; inline data may be read.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_post_send(qp: &Qp, wr: &CSendWr) -> c_int {
    // SAFETY: guaranteed by the caller.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge) };
    let inline = if wr.flags & INLINE == 0 {
        None
    } else {
        // SAFETY: guaranteed by the caller.
        Some(unsafe { gather(&sges) })
    };
    let (id, to, key) = (wr.wr_id, wr.remote_addr, wr.rkey);
    let imm = immediate(wr.imm_data);
    let mut request = match (wr.opcode, &inline) {
        (0, None) => SendWr::write(id, &sges, RemoteBuffer::at(to, key)),
        (0, Some(bytes)) => SendWr::write_inline(id, bytes, RemoteBuffer::at(to, key)),
        (1, None) => SendWr::write_with_immediate(id, &sges, RemoteBuffer::at(to, key), imm),
        (1, Some(bytes)) => {
            SendWr::write_with_immediate_inline(id, bytes, RemoteBuffer::at(to, key), imm)
        }
        (2, None) => SendWr::send(id, &sges),
        (2, Some(bytes)) => SendWr::send_inline(id, bytes),
        (3, _) => SendWr::send(id, &sges).with_immediate(imm),
        (4, None) => SendWr::read(id, &sges, RemoteBuffer::at(to, key)),
        (5, None) => SendWr::compare_swap(
            id,
            &sges,
            RemoteBuffer::at(to, key),
            wr.compare_add,
            wr.swap,
        ),
        (6, None) => SendWr::fetch_add(id, &sges, RemoteBuffer::at(to, key), wr.compare_add),
        (7, None) => SendWr::local_invalidate(id, key),
        (9, None) => SendWr::send(id, &sges).invalidate(key),
        (9, Some(bytes)) => SendWr::send_inline(id, bytes).invalidate(key),
        (opcode, _) => return failed(Errno::INVAL, &format!("no opcode {opcode} here")),
    };
    if wr.flags & FENCE != 0 {
        request = request.fence();
    }
    if wr.flags & SOLICITED != 0 {
        request = request.solicited();
    }
    if wr.flags & SIGNALED == 0 {
        request = request.unsignaled();
    }
    posted(qp.post_send(&request))
}

/// # Safety
/// `sg_list` has `num_sge` elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_post_recv(
    qp: &Qp,
    wr_id: u64,
    sg_list: *const CSge,
    num_sge: c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let sges = unsafe { elements(sg_list, num_sge) };
    posted(qp.post_recv(&RecvWr::new(wr_id, &sges)))
}
