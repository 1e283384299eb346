//! Lists of requests that the program posts (`ibv_post_send`, `ibv_post_recv`). They are converted
//! without an allocation. Scatter/gather elements are copied only if they are unaligned.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;

use uwarp_verbs::{Access, PostError, Qp, RecvWr, RemoteBuffer, SendWr, WindowBind};

use super::room::{Room, Space, aligned};
use super::{QpInner, datagram, modify};
use crate::abi::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    IBV_ACCESS_ZERO_BASED, IBV_QPS_RESET, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_recv_wr,
    ibv_send_wr,
};
use crate::panic_guard::quick;
use crate::rnic::warn;
use crate::{errno, qp, wc};

/// Maximum number of requests that are converted and posted at once.
const BATCH: usize = 16;

/// Position of a refused request in the program's list, and the `errno` value.
pub(crate) struct Refused<W> {
    pub(crate) at: *mut W,
    pub(crate) errno: c_int,
}

/// Rights that a peer may have through a window. Some programs pass all rights of their region.
/// Local rights are ignored, as adapters do.
const WINDOW_RIGHTS: c_uint =
    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// Converts the attributes of a window bind.
///
/// # Safety
/// The region in `info` exists, or is NULL.
pub(crate) unsafe fn window(info: &ibv_mw_bind_info) -> WindowBind {
    let flags = info.mw_access_flags;
    let (access, _) = Access::from_bits(flags & WINDOW_RIGHTS);
    // SAFETY: guaranteed by the caller.
    let lkey = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    WindowBind {
        lkey,
        addr: info.addr,
        len: info.length,
        access,
        zero_based: flags & IBV_ACCESS_ZERO_BASED != 0,
    }
}

/// Converts a request that concerns only local memory, and returns `None` for other requests. The
/// scatter/gather elements of such a request are ignored.
///
/// # Safety
/// Everything that `wr` points to exists.
unsafe fn local(wr: &ibv_send_wr) -> Option<SendWr<'static>> {
    // SAFETY: the opcode determines which field of each union is set; otherwise guaranteed by the
    // caller.
    unsafe {
        match wr.opcode {
            IBV_WR_LOCAL_INV => {
                let stag = wr.__bindgen_anon_1.imm_data;
                Some(SendWr::local_invalidate(wr.wr_id, stag))
            }
            IBV_WR_BIND_MW => {
                let bind = &wr.__bindgen_anon_2.bind_mw;
                let shown = window(&bind.bind_info);
                let rkey = key_of_window(bind.mw, bind.rkey);
                Some(SendWr::bind_window(wr.wr_id, rkey, &shown))
            }
            _ => None,
        }
    }
}

/// Converts a request. Returns `Ok(None)` if `room` is too small for its inline data or unaligned
/// elements.
///
/// # Safety
/// Everything that `wr` points to exists, and does not change during the call.
pub(super) unsafe fn request<'a>(
    wr: &ibv_send_wr,
    room: &mut Room<'a>,
) -> Result<Option<SendWr<'a>>, c_int> {
    let id = wr.wr_id;
    // SAFETY: guaranteed by the caller.
    if let Some(request) = unsafe { local(wr) } {
        return Ok(Some(flagged(request, wr.send_flags)));
    }
    // SAFETY: guaranteed by the caller.
    let Some(sges) = unsafe { room.elements(wr.sg_list, wr.num_sge) }? else {
        return Ok(None);
    };
    // SAFETY: all fields of these unions are numbers; the opcode determines which one is set.
    let (extra, rdma, atomic) = unsafe { (wr.__bindgen_anon_1.imm_data, wr.wr.rdma, wr.wr.atomic) };
    let inline = if wr.send_flags & IBV_SEND_INLINE == 0 {
        None
    } else {
        // SAFETY: guaranteed by the caller.
        match unsafe { room.gather(sges) } {
            Some(bytes) => Some(bytes),
            None => return Ok(None),
        }
    };
    let (to, key, imm) = (rdma.remote_addr, rdma.rkey, wc::immediate(extra));
    let request = match (wr.opcode, inline) {
        (IBV_WR_SEND, None) => SendWr::send(id, sges),
        (IBV_WR_SEND, Some(bytes)) => SendWr::send_inline(id, bytes),
        (IBV_WR_RDMA_WRITE, None) => SendWr::write(id, sges, RemoteBuffer::at(to, key)),
        (IBV_WR_RDMA_WRITE, Some(bytes)) => {
            SendWr::write_inline(id, bytes, RemoteBuffer::at(to, key))
        }
        (IBV_WR_RDMA_READ, None) => SendWr::read(id, sges, RemoteBuffer::at(to, key)),
        (IBV_WR_RDMA_WRITE_WITH_IMM, None) => {
            SendWr::write_with_immediate(id, sges, RemoteBuffer::at(to, key), imm)
        }
        (IBV_WR_RDMA_WRITE_WITH_IMM, Some(bytes)) => {
            SendWr::write_with_immediate_inline(id, bytes, RemoteBuffer::at(to, key), imm)
        }
        (IBV_WR_SEND_WITH_INV, None) => SendWr::send(id, sges).invalidate(extra),
        (IBV_WR_SEND_WITH_INV, Some(bytes)) => SendWr::send_inline(id, bytes).invalidate(extra),
        (IBV_WR_ATOMIC_CMP_AND_SWP, None) => {
            let (compare, swap) = (atomic.compare_add, atomic.swap);
            SendWr::compare_swap(
                id,
                sges,
                RemoteBuffer::at(atomic.remote_addr, atomic.rkey),
                compare,
                swap,
            )
        }
        (IBV_WR_ATOMIC_FETCH_AND_ADD, None) => {
            let add = atomic.compare_add;
            SendWr::fetch_add(
                id,
                sges,
                RemoteBuffer::at(atomic.remote_addr, atomic.rkey),
                add,
            )
        }
        (IBV_WR_SEND_WITH_IMM, None) => SendWr::send(id, sges).with_immediate(imm),
        (IBV_WR_SEND_WITH_IMM, Some(bytes)) => SendWr::send_inline(id, bytes).with_immediate(imm),
        _ => return Err(libc::EINVAL),
    };
    Ok(Some(flagged(request, wr.send_flags)))
}

/// Applies the flags to the request.
pub(crate) fn flagged(mut request: SendWr<'_>, flags: c_uint) -> SendWr<'_> {
    if flags & IBV_SEND_FENCE != 0 {
        request = request.fence();
    }
    if flags & IBV_SEND_SOLICITED != 0 {
        request = request.solicited();
    }
    if flags & IBV_SEND_SIGNALED == 0 {
        request = request.unsignaled();
    }
    request
}

/// Posts a list of requests, in batches.
///
/// # Safety
/// `wr` is a list or NULL, and everything that it points to exists.
unsafe fn send(inner: &QpInner, mut wr: *mut ibv_send_wr) -> Result<(), Refused<ibv_send_wr>> {
    if inner.sends_datagrams {
        // SAFETY: guaranteed by the caller.
        return unsafe { datagram::send(inner, wr) };
    }
    while !wr.is_null() {
        // SAFETY: guaranteed by the caller.
        wr = unsafe { send_some(inner, wr) }?;
    }
    Ok(())
}

/// Posts the first requests of a list, at most [`BATCH`], and returns the rest of the list.
///
/// # Safety
/// As for [`send`].
unsafe fn send_some(
    inner: &QpInner,
    first: *mut ibv_send_wr,
) -> Result<*mut ibv_send_wr, Refused<ibv_send_wr>> {
    let mut space = Space::new();
    let mut room = space.room();
    let mut copy = MaybeUninit::uninit();
    // SAFETY: guaranteed by the caller.
    let head = unsafe { aligned(first, &mut copy) };
    let second = head.next;
    let mut request_of = |wr: &ibv_send_wr| {
        // SAFETY: guaranteed by the caller.
        unsafe { request(wr, &mut room) }
    };
    // A single request that does not fit into `room` is larger than any queue pair accepts.
    let single = request_of(head)
        .and_then(|single| single.ok_or(libc::EINVAL))
        .map_err(|errno| Refused { at: first, errno })?;
    if second.is_null() {
        result(inner, inner.qp.post_send(&single))
            .map_err(|(_, errno)| Refused { at: first, errno })?;
        // SAFETY: guaranteed by the caller.
        unsafe { update_window_keys(first, 1) };
        return Ok(second);
    }
    let mut batch = [single; BATCH];
    let (mut count, mut next, mut refused) = (1, second, None);
    while count < BATCH && !next.is_null() {
        let mut copy = MaybeUninit::uninit();
        // SAFETY: guaranteed by the caller.
        let wr = unsafe { aligned(next, &mut copy) };
        match request_of(wr) {
            Ok(Some(request)) => batch[count] = request,
            Ok(None) => break,
            Err(errno) => {
                refused = Some(Refused { at: next, errno });
                break;
            }
        }
        (count, next) = (count + 1, wr.next);
    }
    let result = result(inner, inner.qp.post_send_list(&batch[..count]));
    let taken = result.as_ref().map_or_else(|(index, _)| *index, |()| count);
    // SAFETY: guaranteed by the caller.
    unsafe { update_window_keys(first, taken) };
    match (result, refused) {
        (Err((index, errno)), _) => Err(Refused {
            // SAFETY: guaranteed by the caller; `index` is in the batch.
            at: unsafe { nth(first, index) },
            errno,
        }),
        (Ok(()), Some(refused)) => Err(refused),
        (Ok(()), None) => Ok(next),
    }
}

unsafe fn nth(mut wr: *mut ibv_send_wr, index: usize) -> *mut ibv_send_wr {
    for _ in 0..index {
        // SAFETY: guaranteed by the caller: the list has more than `index` requests.
        wr = unsafe { (&raw const (*wr).next).read_unaligned() };
    }
    wr
}

/// Sets the keys of windows that were bound by posted requests. A window has its new key as soon as
/// the request is posted.
///
/// # Safety
/// `count` requests of the list were posted.
unsafe fn update_window_keys(mut wr: *mut ibv_send_wr, count: usize) {
    for _ in 0..count {
        let mut copy = MaybeUninit::uninit();
        // SAFETY: guaranteed by the caller; the opcode determines which field is set.
        unsafe {
            let one = aligned(wr, &mut copy);
            if one.opcode == IBV_WR_BIND_MW {
                let bind = &one.__bindgen_anon_2.bind_mw;
                let rkey = key_of_window(bind.mw, bind.rkey);
                if let Some(window) = bind.mw.as_mut() {
                    window.rkey = rkey;
                }
            }
            wr = one.next;
        }
    }
}

/// Returns the key that a window gets by a request: its own index, and the last byte of `rkey`, as
/// drivers take it. Programs may give any other bits.
///
/// # Safety
/// `mw` is an existing window, or NULL.
pub(super) unsafe fn key_of_window(mw: *const ibv_mw, rkey: u32) -> u32 {
    // SAFETY: guaranteed by the caller.
    let window = unsafe { mw.as_ref() };
    window.map_or(rkey, |window| window.rkey & !0xFF | rkey & 0xFF)
}

/// Converts the error of a post to the index of the refused request and the `errno` value. Prints
/// the reason of the first refusal, except for a full queue, which programs expect and handle.
pub(crate) fn result<T>(
    inner: &QpInner,
    result: Result<T, PostError>,
) -> Result<T, (usize, c_int)> {
    result.map_err(|error| {
        let errno = errno::of_post(error.kind);
        if errno != libc::ENOMEM && inner.refusal_warning.claim() {
            warn(format_args!(
                "queue pair {}: a request was refused: {}",
                inner.qp.qp_num(),
                error.kind
            ));
        }
        (error.index, errno)
    })
}

/// `ibv_post_send`
pub(crate) unsafe extern "C-unwind" fn post_send(
    pointer: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    quick(libc::EIO, || {
        // SAFETY: the program passes an existing queue pair, a list, and memory for a pointer.
        unsafe { return_bad(send(qp::of(pointer), wr), bad) }
    })
}

/// Returns the result of a post to the program, with the refused request in `bad`.
///
/// # Safety
/// `bad` has memory for a pointer.
pub(crate) unsafe fn return_bad<W>(result: Result<(), Refused<W>>, bad: *mut *mut W) -> c_int {
    errno::status(result.map_err(|refused| {
        // SAFETY: guaranteed by the caller.
        unsafe { bad.write(refused.at) };
        refused.errno
    }))
}

/// Posts a list of receives in batches through `post`.
///
/// # Safety
/// `wr` is a list or NULL, and everything that it points to exists.
pub(crate) unsafe fn receive(
    mut wr: *mut ibv_recv_wr,
    mut post: impl FnMut(&[RecvWr<'_>]) -> Result<(), (usize, c_int)>,
) -> Result<(), Refused<ibv_recv_wr>> {
    while !wr.is_null() {
        let first = wr;
        let mut space = Space::new();
        let mut room = space.room();
        let mut batch = [RecvWr::new(0, &[]); BATCH];
        let mut count = 0;
        let mut bad = None;
        while count < BATCH && !wr.is_null() {
            // SAFETY: guaranteed by the caller.
            let one = unsafe { wr.read_unaligned() };
            // SAFETY: guaranteed by the caller.
            match unsafe { room.elements(one.sg_list, one.num_sge) } {
                Ok(Some(sges)) => batch[count] = RecvWr::new(one.wr_id, sges),
                Ok(None) if count > 0 => break,
                // An empty `room` is too small: no queue accepts that many elements.
                Ok(None) => {
                    bad = Some(Refused {
                        at: wr,
                        errno: libc::EINVAL,
                    });
                    break;
                }
                Err(errno) => {
                    bad = Some(Refused { at: wr, errno });
                    break;
                }
            }
            (count, wr) = (count + 1, one.next);
        }
        if let Err((index, errno)) = post(&batch[..count]) {
            let mut at = first;
            for _ in 0..index {
                // SAFETY: the request is in the batch.
                at = unsafe { (&raw const (*at).next).read_unaligned() };
            }
            return Err(Refused { at, errno });
        }
        if let Some(bad) = bad {
            return Err(bad);
        }
    }
    Ok(())
}

/// Posts a batch of receives. In the state RESET an InfiniBand device refuses them, and an iWARP
/// device takes them.
fn post_receives(inner: &QpInner, wrs: &[RecvWr<'_>]) -> Result<(), (usize, c_int)> {
    if inner.pairing.is_some()
        && modify::last_step(inner) == IBV_QPS_RESET
        && modify::shown_state(inner) == IBV_QPS_RESET
    {
        if inner.refusal_warning.claim() {
            warn(format_args!(
                "queue pair {}: a receive was refused, because the state is RESET; move it to INIT \
                 first (ibv_modify_qp), or use --persona iwarp, which takes it",
                inner.qp.qp_num()
            ));
        }
        return Err((0, libc::EINVAL));
    }
    let qp: &Qp = &inner.qp;
    result(inner, qp.post_recv_list(wrs))
}

/// `ibv_post_recv`
pub(crate) unsafe extern "C-unwind" fn post_recv(
    pointer: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    quick(libc::EIO, || {
        // SAFETY: the program passes an existing queue pair.
        let inner = unsafe { qp::of(pointer) };
        // SAFETY: the program passes a list, and memory for a pointer.
        unsafe { return_bad(receive(wr, |wrs| post_receives(inner, wrs)), bad) }
    })
}
