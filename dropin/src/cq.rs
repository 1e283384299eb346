//! Completion queues (`ibv_cq`).
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_void};
use core::{mem, ptr};

use uwarp_verbs::{Completion, Cq, DestroyCqError, Notify, ResizeCqError};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};
use crate::context::Context;
use crate::cq_ex::Poller;
use crate::object::{Object, check_handle};
use crate::panic_guard::{entry, quick};
use crate::persona::Persona;
use crate::registry::CQS;
use crate::{cancel, channel, errno, warnings, wc};

/// Internal state of an `ibv_cq`, which programs do not see.
pub(crate) struct CqInner {
    pub(crate) cq: Cq,
    pub(crate) poller: Poller,
    pub(crate) persona: Persona,
}

/// Every queue is allocated as an extended one, whose structure begins with that of a plain queue.
type CqObject = Object<ibv_cq_ex, CqInner>;

/// Maximum number of completions that one call of `poll_more` takes.
const BATCH: usize = 16;

/// Creates a queue for at least `cqe` completions, rounded up to a power of 2 as many devices do.
///
/// # Errors
/// Returns an `errno` value.
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
    // SAFETY: guaranteed by the caller.
    let opened = unsafe { Context::of(context) };
    let (device, persona) = (opened.device(), opened.persona());
    // SAFETY: guaranteed by the caller; programs do not write this field.
    let vectors = unsafe { (*context).num_comp_vectors };
    if comp_vector >= vectors.cast_unsigned() {
        return Err(libc::EINVAL);
    }
    let depth = match cqe.checked_next_power_of_two() {
        Some(depth) if cqe > 0 => depth,
        _ => return Err(libc::EINVAL),
    };
    let made: Result<_, c_int> = CqObject::allocate_with(|pointer| {
        let cq = if channel.is_null() {
            device.create_cq(depth)
        } else {
            let number = pointer.expose_provenance() as u64;
            // SAFETY: guaranteed by the caller.
            device.create_cq_on(depth, unsafe { channel::of(channel) }, number)
        };
        let cq = cq.map_err(|error| errno::of_device(&error))?;
        // SAFETY: zero is valid for every field: numbers, pointers, function pointers (`None`), and
        // the mutex and the condition variable, whose static initialisers are all zero.
        let mut shown: ibv_cq_ex = unsafe { mem::zeroed() };
        shown.context = context;
        shown.channel = channel;
        shown.cq_context = cq_context;
        shown.handle = cq.cq_num();
        shown.cqe = c_int::try_from(cq.capacity()).unwrap_or(c_int::MAX);
        let poller = Poller::default();
        let inner = CqInner {
            cq,
            poller,
            persona,
        };
        Ok((shown, inner))
    });
    let made: *mut ibv_cq = made?.cast();
    // SAFETY: the object was just created, and is removed before it is destroyed.
    unsafe { CQS.add(of(made).cq.cq_num(), made.cast()) };
    Ok(made)
}

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Safety
/// `cq` is a queue that exists during the lifetime of the reference.
pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a CqInner {
    // SAFETY: guaranteed by the caller.
    unsafe { CqObject::inner(cq.cast()) }
}

/// As [`of`], for a command that names the queue by its handle.
///
/// # Errors
/// As for [`check_handle`].
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn by_handle<'a>(cq: *mut ibv_cq) -> Result<&'a CqInner, c_int> {
    // SAFETY: guaranteed by the caller.
    let (inner, shown) = unsafe { (of(cq), (*cq).handle) };
    check_handle(shown, inner.cq.cq_num()).map(|()| inner)
}

/// Returns the queue from the number in its event. (The number is the queue's address.)
pub(crate) fn from_event(number: u64) -> *mut ibv_cq {
    ptr::with_exposed_provenance_mut(number as usize)
}

/// Destroys a queue after all its events are acknowledged. Returns `None` if some are still not
/// acknowledged after [`cancel::SLICE`].
///
/// # Errors
/// `EBUSY` while queue pairs use it, and as for [`by_handle`].
///
/// # Safety
/// As for [`of`]. After `Some(Ok(()))` the queue is not used any more.
pub(crate) unsafe fn try_destroy(cq: *mut ibv_cq) -> Option<Result<(), c_int>> {
    // SAFETY: guaranteed by the caller.
    let inner = match unsafe { by_handle(cq) } {
        Ok(inner) => inner,
        Err(errno) => return Some(Err(errno)),
    };
    match inner.cq.clone().destroy(Some(cancel::SLICE)) {
        Ok(()) => {}
        Err((_, DestroyCqError::InUse { .. })) => return Some(Err(libc::EBUSY)),
        Err((
            _,
            DestroyCqError::Unacknowledged { .. } | DestroyCqError::UnacknowledgedAsync { .. },
        )) => return None,
        Err((_, _)) => return Some(Err(libc::EIO)),
    }
    CQS.remove(inner.cq.cq_num(), cq.cast());
    // SAFETY: guaranteed by the caller.
    drop(unsafe { CqObject::free(cq.cast()) });
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
        // SAFETY: the program passes an open context, and a channel if any.
        errno::pointer(unsafe { create(context, cqe, cq_context, channel, vector) })
    })
}

/// `ibv_destroy_cq`
pub(crate) unsafe extern "C-unwind" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    cancel::retry(|| {
        entry(Some(libc::EIO), || {
            // SAFETY: the program passes a queue from `ibv_create_cq`.
            unsafe { try_destroy(cq) }.map(errno::status)
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
        // SAFETY: the program passes an existing queue.
        let inner = unsafe { of(cq) };
        let room = usize::try_from(room).unwrap_or(0);
        if room == 0 {
            return 0;
        }
        // Most polls of a spinning program find nothing. So memory for only one completion is
        // prepared first.
        let mut one = [Completion::default()];
        let mut got = inner.cq.poll(&mut one);
        // SAFETY: `room` is at least 1.
        unsafe { write_completions(inner, &one[..got], out) };
        if got == 1 && room > 1 {
            // SAFETY: `room - 1` places follow the first.
            got += unsafe { more(inner, room - 1, out.add(1)) };
        }
        // The number is at most `room`.
        got as c_int
    })
}

/// Takes up to `room` further completions that are already available, and returns their number.
///
/// # Safety
/// `out` has memory for `room` completions.
unsafe fn more(inner: &CqInner, room: usize, out: *mut ibv_wc) -> usize {
    let mut got = 0;
    let mut taken = [Completion::default(); BATCH];
    while got < room {
        let most = BATCH.min(room - got);
        let more = inner.cq.poll_more(&mut taken[..most]);
        // SAFETY: `got + more` is at most `room`.
        unsafe { write_completions(inner, &taken[..more], out.add(got)) };
        got += more;
        if more < most {
            break;
        }
    }
    got
}

/// Writes completions to the program's memory. Also prints the cause of an error.
///
/// # Safety
/// `out` has memory for as many completions as `taken` has.
unsafe fn write_completions(inner: &CqInner, taken: &[Completion], out: *mut ibv_wc) {
    for (at, done) in taken.iter().enumerate() {
        if !done.status.is_success() {
            warnings::completion(done);
        }
        // SAFETY: `at` is below the number of completions.
        unsafe { out.add(at).write(wc::convert(done, inner.persona)) };
    }
}

/// `ibv_resize_cq`
pub(crate) unsafe extern "C-unwind" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes an existing queue.
        let inner = match unsafe { by_handle(cq) } {
            Ok(inner) => inner,
            Err(errno) => return errno::status(Err(errno)),
        };
        let depth = u32::try_from(cqe).unwrap_or(0);
        let result = match depth.checked_next_power_of_two() {
            Some(depth) if cqe > 0 => inner.cq.resize(depth),
            _ => return errno::status(Err(libc::EINVAL)),
        };
        if result.is_ok() {
            let capacity = c_int::try_from(inner.cq.capacity()).unwrap_or(c_int::MAX);
            // SAFETY: the program passes an existing queue, whose structure shows its size.
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
        // SAFETY: the program passes an existing queue.
        unsafe { of(cq) }.cq.req_notify(notify);
        0
    })
}
