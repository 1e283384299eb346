//! Completion queues (`ibv_cq`).
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
)]

use core::ffi::{c_int, c_void};
use core::{mem, ptr};

use uwarp_verbs::{Completion, Cq, DestroyCqError, Notify, ResizeCqError};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};
use crate::context::Context;
use crate::cq_ex::Poller;
use crate::object::Object;
use crate::panic_guard::{entry, quick};
use crate::registry::CQS;
use crate::{cancel, channel, errno, warnings, wc};

/// What is behind an `ibv_cq`.
pub(crate) struct CqKept {
    pub(crate) cq: Cq,
    pub(crate) poller: Poller,
}

/// Every queue has the room of an extended one in front, which begins as the plain one does.
type CqObject = Object<ibv_cq_ex, CqKept>;

/// Completions that one look takes.
const BATCH: usize = 16;

/// Makes a queue for at least `cqe` completions. As many devices do, it rounds that up to a power of 2.
///
/// # Errors
/// The `errno`.
///
/// # Safety
/// `context` is an open context, `channel` is NULL or a channel.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
) -> Result<*mut ibv_cq, c_int> {
    // SAFETY: the promise of the caller.
    let device = unsafe { Context::of(context) }.device();
    // SAFETY: the promise of the caller; programs do not write it.
    let vectors = unsafe { (*context).num_comp_vectors };
    if comp_vector >= vectors.cast_unsigned() {
        return Err(libc::EINVAL);
    }
    let depth = match cqe.checked_next_power_of_two() {
        Some(depth) if cqe > 0 => depth,
        _ => return Err(libc::EINVAL),
    };
    let made: Result<_, c_int> = CqObject::begin_with(|pointer| {
        let cq = if channel.is_null() {
            device.create_cq(depth)
        } else {
            let number = pointer.expose_provenance() as u64;
            // SAFETY: the promise of the caller.
            device.create_cq_on(depth, unsafe { channel::of(channel) }, number)
        };
        let cq = cq.map_err(|error| errno::of_device(&error))?;
        // SAFETY: numbers, pointers, functions that are not there; a mutex and a condition as their initialisers have them.
        let mut shown: ibv_cq_ex = unsafe { mem::zeroed() };
        shown.context = context;
        shown.channel = channel;
        shown.cq_context = cq_context;
        shown.handle = cq.cq_num();
        shown.cqe = c_int::try_from(cq.capacity()).unwrap_or(c_int::MAX);
        let poller = Poller::default();
        Ok((shown, CqKept { cq, poller }))
    });
    let made: *mut ibv_cq = made?.cast();
    // SAFETY: it was just made, and is removed before it ends.
    unsafe { CQS.add(of(made).cq.cq_num(), made.cast()) };
    Ok(made)
}

/// What is behind a pointer of the program's.
///
/// # Safety
/// `cq` is a queue that exists while the reference lives.
pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a CqKept {
    // SAFETY: the promise of the caller.
    unsafe { CqObject::kept(cq.cast()) }
}

/// The queue whose event has this number.
pub(crate) fn from_event(number: u64) -> *mut ibv_cq {
    ptr::with_exposed_provenance_mut(number as usize)
}

/// Ends a queue, once all its events are acknowledged; `None` when they are not after a while.
///
/// # Errors
/// `EBUSY` while queue pairs complete to it.
///
/// # Safety
/// As for [`of`], and with `Ok` it is not used any more.
pub(crate) unsafe fn end(cq: *mut ibv_cq) -> Option<Result<(), c_int>> {
    // SAFETY: the promise of the caller.
    let kept = unsafe { of(cq) };
    match kept.cq.clone().destroy(Some(cancel::SLICE)) {
        Ok(()) => {}
        Err((_, DestroyCqError::InUse { .. })) => return Some(Err(libc::EBUSY)),
        Err((
            _,
            DestroyCqError::Unacknowledged { .. } | DestroyCqError::UnacknowledgedAsync { .. },
        )) => return None,
        Err((_, _)) => return Some(Err(libc::EIO)),
    }
    CQS.remove(kept.cq.cq_num(), cq.cast());
    // SAFETY: the promise of the caller.
    drop(unsafe { CqObject::end(cq.cast()) });
    Some(Ok(()))
}

/// `ibv_create_cq`
pub(crate) unsafe extern "C-unwind" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    entry(ptr::null_mut(), || {
        let (cqe, vector) = (u32::try_from(cqe).unwrap_or(0), comp_vector.cast_unsigned());
        // SAFETY: an open context, and a channel if any.
        errno::pointer(unsafe { create(context, cqe, cq_context, channel, vector) })
    })
}

/// `ibv_destroy_cq`
pub(crate) unsafe extern "C-unwind" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    cancel::until(|| {
        entry(Some(libc::EIO), || {
            // SAFETY: a queue that `ibv_create_cq` gave.
            unsafe { end(cq) }.map(errno::status)
        })
    })
}

/// `ibv_poll_cq`
pub(crate) unsafe extern "C-unwind" fn poll_cq(
    cq: *mut ibv_cq,
    room: c_int,
    out: *mut ibv_wc,
) -> c_int {
    quick(-libc::EIO, || {
        // SAFETY: a queue that exists.
        let cq = unsafe { &of(cq).cq };
        let room = usize::try_from(room).unwrap_or(0);
        if room == 0 {
            return 0;
        }
        // Most polls of a program that spins find nothing: they have room for one made ready, and no more.
        let mut one = [Completion::default()];
        let mut got = cq.poll(&mut one);
        // SAFETY: a place for one.
        unsafe { show(&one[..got], out) };
        if got == 1 && room > 1 {
            // SAFETY: as many places behind it.
            got += unsafe { more(cq, room - 1, out.add(1)) };
        }
        // Not more than `room`.
        got as c_int
    })
}

/// Takes the completions that are there already.
///
/// # Safety
/// There are `room` places at `out`.
unsafe fn more(cq: &Cq, room: usize, out: *mut ibv_wc) -> usize {
    let mut got = 0;
    let mut taken = [Completion::default(); BATCH];
    while got < room {
        let most = BATCH.min(room - got);
        let more = cq.poll_more(&mut taken[..most]);
        // SAFETY: `got + more` is not above `room`.
        unsafe { show(&taken[..more], out.add(got)) };
        got += more;
        if more < most {
            break;
        }
    }
    got
}

/// Shows completions to the program.
///
/// # Safety
/// There are as many places at `out`.
unsafe fn show(taken: &[Completion], out: *mut ibv_wc) {
    for (at, done) in taken.iter().enumerate() {
        if !done.status.is_success() {
            warnings::completion(done);
        }
        // SAFETY: `at` is below the number of places.
        unsafe { out.add(at).write(wc::shown(done)) };
    }
}

/// `ibv_resize_cq`
pub(crate) unsafe extern "C-unwind" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: a queue that exists.
        let kept = unsafe { of(cq) };
        let depth = u32::try_from(cqe).unwrap_or(0);
        let result = match depth.checked_next_power_of_two() {
            Some(depth) if cqe > 0 => kept.cq.resize(depth),
            _ => return errno::status(Err(libc::EINVAL)),
        };
        if result.is_ok() {
            let capacity = c_int::try_from(kept.cq.capacity()).unwrap_or(c_int::MAX);
            // SAFETY: the structure of the queue, which changes with its size.
            unsafe { (*cq).cqe = capacity };
        }
        errno::status(result.map_err(|error| match error {
            ResizeCqError::OutOfMemory { .. } => libc::ENOMEM,
            _ => libc::EINVAL,
        }))
    })
}

/// `ibv_req_notify_cq`
pub(crate) unsafe extern "C-unwind" fn req_notify_cq(
    cq: *mut ibv_cq,
    solicited_only: c_int,
) -> c_int {
    quick(libc::EIO, || {
        let notify = match solicited_only {
            0 => Notify::Any,
            _ => Notify::Solicited,
        };
        // SAFETY: a queue that exists.
        unsafe { of(cq) }.cq.req_notify(notify);
        0
    })
}
