//! Extended completion queues (`ibv_cq_ex`): completions are read one by one in place
//! (`start_poll`, `next_poll`, `end_poll`).
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_uint};
use core::{mem, ptr};

use parking_lot::Mutex;
use uwarp_verbs::Completion;

use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_STANDARD_FLAGS,
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_opcode,
};
use crate::cq::{self, CqInner};
use crate::panic_guard::{entry, quick};
use crate::{errno, warnings, wc};

/// Completion that the program reads now. The lock is held from `start_poll` to `end_poll`.
#[derive(Default)]
pub(crate) struct Poller(Mutex<Completion>);

/// `ibv_create_cq_ex`
pub(crate) unsafe extern "C-unwind" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes an open context, and a structure.
        errno::pointer(unsafe { create(context, &*attr) })
    })
}

/// Creates an extended queue.
///
/// # Errors
/// As for [`cq::create`]; `EOPNOTSUPP` for fields that completions of this device do not have (such
/// as timestamps).
///
/// # Safety
/// As for [`cq::create`].
unsafe fn create(
    context: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, c_int> {
    let flags = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
        0 => 0,
        _ => attr.flags,
    };
    if attr.wc_flags & !u64::from(IBV_WC_STANDARD_FLAGS) != 0
        || attr.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
        || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    let (depth, vector) = (attr.cqe, attr.comp_vector);
    // SAFETY: guaranteed by the caller.
    let made = unsafe { cq::create(context, depth, attr.cq_context, attr.channel, vector) }?;
    let made: *mut ibv_cq_ex = made.cast();
    // SAFETY: the queue was just created, has memory for an extended one, and is not shared yet.
    fill(unsafe { &mut *made });
    Ok(made)
}

/// Sets the pointers to the functions that the inline functions of `verbs.h` call.
fn fill(shown: &mut ibv_cq_ex) {
    shown.start_poll = Some(start_poll);
    shown.next_poll = Some(next_poll);
    shown.end_poll = Some(end_poll);
    shown.read_opcode = Some(read_opcode);
    shown.read_vendor_err = Some(zero);
    shown.read_byte_len = Some(read_byte_len);
    shown.read_imm_data = Some(read_imm_data);
    shown.read_qp_num = Some(read_qp_num);
    shown.read_src_qp = Some(read_src_qp);
    shown.read_wc_flags = Some(read_wc_flags);
    shown.read_slid = Some(zero);
    shown.read_sl = Some(read_sl);
    shown.read_dlid_path_bits = Some(zero_byte);
}

unsafe fn inner<'a>(cq: *mut ibv_cq_ex) -> &'a CqInner {
    // SAFETY: guaranteed by the caller.
    unsafe { cq::of(cq.cast()) }
}

/// Makes the next completion the current one and returns 0, or returns `ENOENT` if there is none.
///
/// # Safety
/// The calling thread holds the lock of the poller.
unsafe fn take(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { inner(cq) };
    let mut one = [Completion::default()];
    if inner.cq.poll(&mut one) == 0 {
        return libc::ENOENT;
    }
    let [done] = one;
    if !done.status.is_success() {
        warnings::completion(&done);
    }
    // SAFETY: guaranteed by the caller; the two fields are written only here.
    unsafe {
        *inner.poller.0.data_ptr() = done;
        (*cq).status = wc::status_of(&done, inner.persona);
        (*cq).wr_id = done.wr_id;
    }
    0
}

unsafe extern "C-unwind" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    quick(libc::EIO, || {
        // SAFETY: the program passes a structure.
        if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        // SAFETY: the program passes an existing queue.
        let poller = unsafe { &inner(cq).poller };
        mem::forget(poller.0.lock());
        // SAFETY: the lock is held.
        let found = unsafe { take(cq) };
        if found != 0 {
            // The program does not call `end_poll` then. SAFETY: this thread holds the lock.
            unsafe { poller.0.force_unlock() };
        }
        found
    })
}

unsafe extern "C-unwind" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program makes this call between `start_poll` and `end_poll`.
    quick(libc::EIO, || unsafe { take(cq) })
}

unsafe extern "C-unwind" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: this thread has locked the poller in `start_poll`.
    quick((), || unsafe { inner(cq).poller.0.force_unlock() });
}

/// Returns the current completion.
///
/// # Safety
/// Called between `start_poll` and `end_poll`, by the same thread.
unsafe fn current(cq: *mut ibv_cq_ex) -> Completion {
    // SAFETY: guaranteed by the caller: this thread holds the lock.
    unsafe { *inner(cq).poller.0.data_ptr() }
}

unsafe extern "C-unwind" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the program makes this call, and the calls below, between `start_poll` and
    // `end_poll`.
    wc::opcode(unsafe { current(cq) }.opcode)
}

unsafe extern "C-unwind" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    wc::byte_len(&unsafe { current(cq) })
}

/// Returns the Immediate Data, or the STag that was invalidated (`ibv_wc_read_invalidated_rkey`).
unsafe extern "C-unwind" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    wc::extra(&unsafe { current(cq) }).0
}

unsafe extern "C-unwind" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.qp_num
}

unsafe extern "C-unwind" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: as above.
    wc::extra(&unsafe { current(cq) }).1
}

unsafe extern "C-unwind" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    wc::src_qp(&unsafe { current(cq) })
}

unsafe extern "C-unwind" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as above.
    wc::sl(&unsafe { current(cq) })
}

unsafe extern "C-unwind" fn zero(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C-unwind" fn zero_byte(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
