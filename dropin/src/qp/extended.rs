//! Requests that the program builds with function calls (`ibv_qp_ex`, `ibv_wr_start` to
//! `ibv_wr_complete`). They are collected as drafts, and then posted in one list.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{self, ManuallyDrop};
use core::ptr;

use parking_lot::Mutex;
use uwarp_verbs::{RemoteBuffer, SendWr, Sge, WindowBind};

use super::datagram::Destination;
use super::pair::Service;
use super::room::Space;
use super::{QpInner, datagram, post};
use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QPT_UC, IBV_QPT_UD, ibv_ah, ibv_data_buf, ibv_mw,
    ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_qp_type, ibv_sge,
};
use crate::panic_guard::{entry, quick};
use crate::{errno, qp, wc};

/// Operations that an extended queue pair supports: all except those of other transports.
const SUPPORTED: u64 = (IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_SEND_WITH_INV) as u64;

/// Operations that an unreliable connection does not have.
const WITH_RESPONSE: u64 = (IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) as u64;

/// Operations of a queue pair for datagrams.
const OF_DATAGRAMS: u64 = (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM) as u64;

/// Returns the operations that an extended queue pair of this type supports.
pub(super) fn supported(qp_type: ibv_qp_type) -> u64 {
    match qp_type {
        IBV_QPT_UC => SUPPORTED & !WITH_RESPONSE,
        IBV_QPT_UD => OF_DATAGRAMS,
        _ => SUPPORTED,
    }
}

/// Requests that are being built. The lock is held from `wr_start` to `wr_complete` or `wr_abort`.
#[derive(Default)]
pub(crate) struct Work(Mutex<Drafts>);

/// Drafts and their data. All memory is reused for the next list.
#[derive(Default)]
struct Drafts {
    drafts: Vec<Draft>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    /// List of the last post, emptied. Its capacity is reused for the next list.
    list: Vec<SendWr<'static>>,
    /// `errno` value, if the program asked for something that is not supported.
    failed: Option<c_int>,
}

#[derive(Clone, Copy)]
struct Draft {
    wr_id: u64,
    flags: c_uint,
    operation: Operation,
    data: Data,
    /// Destination of a datagram, and its Immediate Data.
    datagram: (Option<Destination>, Option<[u8; 4]>),
}

#[derive(Clone, Copy)]
enum Operation {
    Send,
    SendImmediate([u8; 8]),
    SendInvalidate(u32),
    Write {
        to: u64,
        rkey: u32,
    },
    WriteImmediate {
        to: u64,
        rkey: u32,
        imm: [u8; 8],
    },
    Read {
        to: u64,
        rkey: u32,
    },
    CompareSwap {
        to: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        to: u64,
        rkey: u32,
        add: u64,
    },
    Invalidate(u32),
    Bind {
        rkey: u32,
        bind: WindowBind,
    },
}

/// Location of a request's data in [`Drafts`]: start index and length in `sges`, or in `bytes`.
#[derive(Clone, Copy)]
enum Data {
    Sges(usize, usize),
    Inline(usize, usize),
}

impl Draft {
    /// Converts the draft to a request of the verbs crate.
    fn request<'a>(&self, sges: &'a [Sge], bytes: &'a [u8]) -> Result<SendWr<'a>, c_int> {
        let id = self.wr_id;
        let (sges, inline) = match self.data {
            Data::Sges(from, count) => (sges.get(from..from + count), None),
            Data::Inline(from, len) => (Some(&[][..]), bytes.get(from..from + len)),
        };
        let sges = sges.ok_or(libc::EINVAL)?;
        let request = match (self.operation, inline) {
            (Operation::Send, None) => SendWr::send(id, sges),
            (Operation::Send, Some(bytes)) => SendWr::send_inline(id, bytes),
            (Operation::SendImmediate(imm), None) => SendWr::send(id, sges).with_immediate(imm),
            (Operation::SendImmediate(imm), Some(bytes)) => {
                SendWr::send_inline(id, bytes).with_immediate(imm)
            }
            (Operation::SendInvalidate(stag), None) => SendWr::send(id, sges).invalidate(stag),
            (Operation::SendInvalidate(stag), Some(bytes)) => {
                SendWr::send_inline(id, bytes).invalidate(stag)
            }
            (Operation::Write { to, rkey }, None) => {
                SendWr::write(id, sges, RemoteBuffer::at(to, rkey))
            }
            (Operation::Write { to, rkey }, Some(bytes)) => {
                SendWr::write_inline(id, bytes, RemoteBuffer::at(to, rkey))
            }
            (Operation::WriteImmediate { to, rkey, imm }, None) => {
                SendWr::write_with_immediate(id, sges, RemoteBuffer::at(to, rkey), imm)
            }
            (Operation::WriteImmediate { to, rkey, imm }, Some(bytes)) => {
                SendWr::write_with_immediate_inline(id, bytes, RemoteBuffer::at(to, rkey), imm)
            }
            (Operation::Read { to, rkey }, None) => {
                SendWr::read(id, sges, RemoteBuffer::at(to, rkey))
            }
            (
                Operation::CompareSwap {
                    to,
                    rkey,
                    compare,
                    swap,
                },
                None,
            ) => SendWr::compare_swap(id, sges, RemoteBuffer::at(to, rkey), compare, swap),
            (Operation::FetchAdd { to, rkey, add }, None) => {
                SendWr::fetch_add(id, sges, RemoteBuffer::at(to, rkey), add)
            }
            (Operation::Invalidate(stag), _) => SendWr::local_invalidate(id, stag),
            (Operation::Bind { rkey, bind }, _) => SendWr::bind_window(id, rkey, &bind),
            (
                Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. },
                Some(_),
            ) => {
                return Err(libc::EINVAL);
            }
        };
        Ok(post::flagged(request, self.flags))
    }
}

impl Drafts {
    /// Posts all drafts of a queue pair for datagrams. If one of them is refused, posts none.
    fn post_datagrams(&mut self, inner: &QpInner) -> Result<(), c_int> {
        let request = |draft: &Draft| {
            let send = draft.request(&self.sges, &self.bytes)?;
            let (to, imm) = draft.datagram;
            to.map(|to| to.request(send, imm)).ok_or(libc::EINVAL)
        };
        for draft in &self.drafts {
            request(draft)?;
        }
        let requests = self.drafts.iter();
        datagram::post(inner, requests.filter_map(|draft| request(draft).ok()))
    }

    fn clear(&mut self) {
        self.drafts.clear();
        self.sges.clear();
        self.bytes.clear();
        self.failed = None;
    }

    /// Posts all drafts. If one of them is refused, posts none.
    fn post(&mut self, inner: &QpInner) -> Result<(), c_int> {
        if let Some(errno) = self.failed {
            return Err(errno);
        }
        if inner.sends_datagrams {
            return self.post_datagrams(inner);
        }
        let mut list: Vec<SendWr<'_>> = mem::take(&mut self.list);
        let requests = self
            .drafts
            .iter()
            .map(|draft| draft.request(&self.sges, &self.bytes));
        let mut result = Ok(());
        for request in requests {
            match request {
                Ok(request) => list.push(request),
                Err(errno) => result = Err(errno),
            }
        }
        if result.is_ok() {
            let posted = post::result(inner, inner.qp.post_send_all(&list));
            result = posted.map_err(|(_, errno)| errno);
        }
        list.clear();
        let mut list = ManuallyDrop::new(list);
        // SAFETY: the memory comes from a vector that is not dropped. The vector is empty, and the
        // two types differ only in a lifetime.
        self.list = unsafe { Vec::from_raw_parts(list.as_mut_ptr().cast(), 0, list.capacity()) };
        result
    }
}

/// Sets the pointers to the functions that the inline functions of `verbs.h` call.
pub(super) fn fill(shown: &mut ibv_qp_ex, service: Service) {
    shown.wr_start = Some(wr_start);
    shown.wr_complete = Some(wr_complete);
    shown.wr_abort = Some(wr_abort);
    shown.wr_send = Some(wr_send);
    shown.wr_set_sge = Some(wr_set_sge);
    shown.wr_set_sge_list = Some(wr_set_sge_list);
    shown.wr_set_inline_data = Some(wr_set_inline_data);
    shown.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    if service == Service::Datagrams {
        shown.wr_send_imm = Some(wr_send_datagram_imm);
        shown.wr_set_ud_addr = Some(wr_set_ud_addr);
        return;
    }
    shown.wr_send_imm = Some(wr_send_imm);
    shown.wr_send_inv = Some(wr_send_inv);
    shown.wr_rdma_write = Some(wr_rdma_write);
    shown.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    shown.wr_rdma_read = Some(wr_rdma_read);
    shown.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    shown.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    shown.wr_local_inv = Some(wr_local_inv);
    shown.wr_bind_mw = Some(wr_bind_mw);
}

/// `ibv_qp_to_qp_ex`: NULL for a queue pair that was created without this interface.
pub(crate) unsafe extern "C-unwind" fn qp_to_qp_ex(pointer: *mut ibv_qp) -> *mut ibv_qp_ex {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes an existing queue pair.
        match unsafe { qp::of(pointer) }.work {
            Some(_) => pointer.cast(),
            None => ptr::null_mut(),
        }
    })
}

unsafe extern "C-unwind" fn wr_start(pointer: *mut ibv_qp_ex) {
    quick((), || {
        // SAFETY: the program passes an existing queue pair.
        if let Some(work) = unsafe { &qp::of(pointer.cast()).work } {
            let mut drafts = work.0.lock();
            drafts.clear();
            mem::forget(drafts);
        }
    });
}

unsafe extern "C-unwind" fn wr_complete(pointer: *mut ibv_qp_ex) -> c_int {
    quick(libc::EIO, || {
        // SAFETY: the program passes an existing queue pair.
        let inner = unsafe { qp::of(pointer.cast()) };
        // SAFETY: the program makes this call after `wr_start`, in the same thread.
        let result = unsafe { with(pointer, |drafts| drafts.post(inner)) };
        // SAFETY: as above.
        unsafe { unlock(inner) };
        errno::status(result.unwrap_or(Err(libc::EINVAL)))
    })
}

unsafe extern "C-unwind" fn wr_abort(pointer: *mut ibv_qp_ex) {
    // SAFETY: the program passes an existing queue pair, after `wr_start` by the same thread.
    quick((), || unsafe { unlock(qp::of(pointer.cast())) });
}

/// # Safety
/// The calling thread holds the lock.
unsafe fn unlock(inner: &QpInner) {
    if let Some(work) = &inner.work {
        // SAFETY: guaranteed by the caller.
        unsafe { work.0.force_unlock() };
    }
}

/// Calls `run` with the drafts. Returns `None` if the queue pair has no interface for them.
///
/// # Safety
/// The calling thread holds the lock, and has no other reference to the drafts.
unsafe fn with<R>(pointer: *mut ibv_qp_ex, run: impl FnOnce(&mut Drafts) -> R) -> Option<R> {
    // SAFETY: the program passes an existing queue pair.
    let work = unsafe { qp::of(pointer.cast()) }.work.as_ref()?;
    // SAFETY: guaranteed by the caller.
    Some(run(unsafe { &mut *work.0.data_ptr() }))
}

/// Adds a draft without data.
///
/// # Safety
/// As for [`with`].
unsafe fn begin(pointer: *mut ibv_qp_ex, operation: Operation) {
    quick((), || {
        // SAFETY: guaranteed by the caller; the program has set both fields before.
        unsafe {
            let (wr_id, flags) = ((*pointer).wr_id, (*pointer).wr_flags);
            with(pointer, |drafts| {
                let data = Data::Sges(drafts.sges.len(), 0);
                drafts.drafts.push(Draft {
                    wr_id,
                    flags,
                    operation,
                    data,
                    datagram: (None, None),
                });
            });
        }
    });
}

unsafe extern "C-unwind" fn wr_send(pointer: *mut ibv_qp_ex) {
    // SAFETY: the program makes this call, and the calls below, after `wr_start` in the same
    // thread.
    unsafe { begin(pointer, Operation::Send) };
}

unsafe extern "C-unwind" fn wr_send_imm(pointer: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as above.
    unsafe { begin(pointer, Operation::SendImmediate(wc::immediate(imm))) };
}

/// Begins a datagram with Immediate Data.
unsafe extern "C-unwind" fn wr_send_datagram_imm(pointer: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as above.
    unsafe { begin(pointer, Operation::Send) };
    quick((), || {
        // SAFETY: as above.
        unsafe {
            with(pointer, |drafts| {
                if let Some(last) = drafts.drafts.last_mut() {
                    last.datagram.1 = Some(imm.to_ne_bytes());
                }
            })
        };
    });
}

unsafe extern "C-unwind" fn wr_set_ud_addr(
    pointer: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    qp_num: u32,
    qkey: u32,
) {
    quick((), || {
        // SAFETY: as above; the program passes an existing handle.
        unsafe {
            with(pointer, |drafts| {
                match (Destination::new(ah, qp_num, qkey), drafts.drafts.last_mut()) {
                    (Some(to), Some(last)) => last.datagram.0 = Some(to),
                    _ => drafts.failed = Some(libc::EINVAL),
                }
            })
        };
    });
}

unsafe extern "C-unwind" fn wr_send_inv(pointer: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { begin(pointer, Operation::SendInvalidate(rkey)) };
}

unsafe extern "C-unwind" fn wr_rdma_write(pointer: *mut ibv_qp_ex, rkey: u32, to: u64) {
    // SAFETY: as above.
    unsafe { begin(pointer, Operation::Write { to, rkey }) };
}

unsafe extern "C-unwind" fn wr_rdma_write_imm(
    pointer: *mut ibv_qp_ex,
    rkey: u32,
    to: u64,
    imm: u32,
) {
    let imm = wc::immediate(imm);
    // SAFETY: as above.
    unsafe { begin(pointer, Operation::WriteImmediate { to, rkey, imm }) };
}

unsafe extern "C-unwind" fn wr_rdma_read(pointer: *mut ibv_qp_ex, rkey: u32, to: u64) {
    // SAFETY: as above.
    unsafe { begin(pointer, Operation::Read { to, rkey }) };
}

unsafe extern "C-unwind" fn wr_atomic_cmp_swp(
    pointer: *mut ibv_qp_ex,
    rkey: u32,
    to: u64,
    compare: u64,
    swap: u64,
) {
    let operation = Operation::CompareSwap {
        to,
        rkey,
        compare,
        swap,
    };
    // SAFETY: as above.
    unsafe { begin(pointer, operation) };
}

unsafe extern "C-unwind" fn wr_atomic_fetch_add(
    pointer: *mut ibv_qp_ex,
    rkey: u32,
    to: u64,
    add: u64,
) {
    // SAFETY: as above.
    unsafe { begin(pointer, Operation::FetchAdd { to, rkey, add }) };
}

unsafe extern "C-unwind" fn wr_local_inv(pointer: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { begin(pointer, Operation::Invalidate(rkey)) };
}

unsafe extern "C-unwind" fn wr_bind_mw(
    pointer: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: as above; the program passes an existing window, and a structure.
    unsafe {
        let bind = post::window(&info.read_unaligned());
        let rkey = post::key_of_window(mw, rkey);
        begin(pointer, Operation::Bind { rkey, bind });
        if let Some(window) = mw.as_mut() {
            window.rkey = rkey;
        }
    }
}

unsafe extern "C-unwind" fn wr_set_sge(pointer: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let one = ibv_sge { addr, length, lkey };
    // SAFETY: as above; the list has one element.
    unsafe { wr_set_sge_list(pointer, 1, &raw const one) };
}

unsafe extern "C-unwind" fn wr_set_sge_list(
    pointer: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    quick((), || {
        let count = c_int::try_from(count).unwrap_or(c_int::MIN);
        // SAFETY: as above; the program has `count` elements.
        unsafe {
            with(pointer, |drafts| {
                let mut space = Space::new();
                let elements = space.room().elements(list, count);
                let from = drafts.sges.len();
                match (elements, drafts.drafts.last_mut()) {
                    (Ok(Some(elements)), Some(last)) => {
                        last.data = Data::Sges(from, elements.len());
                        drafts.sges.extend_from_slice(elements);
                    }
                    _ => drafts.failed = Some(libc::EINVAL),
                }
            });
        }
    });
}

unsafe extern "C-unwind" fn wr_set_inline_data(
    pointer: *mut ibv_qp_ex,
    addr: *mut c_void,
    length: usize,
) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: as above; the list has one buffer.
    unsafe { wr_set_inline_data_list(pointer, 1, &raw const one) };
}

unsafe extern "C-unwind" fn wr_set_inline_data_list(
    pointer: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    quick((), || {
        // SAFETY: as above; the bytes of each buffer may be read.
        unsafe {
            with(pointer, |drafts| {
                drafts.set_inline(qp::of(pointer.cast()), list, count);
            })
        };
    });
}

impl Drafts {
    /// Copies the inline data of the last request.
    ///
    /// # Safety
    /// `list` has `count` buffers, and their bytes may be read.
    unsafe fn set_inline(&mut self, inner: &QpInner, list: *const ibv_data_buf, count: usize) {
        // SAFETY: guaranteed by the caller; the buffers may be unaligned.
        let buffers = || (0..count).map(|at| unsafe { list.add(at).read_unaligned() });
        let max = inner.qp.init_attr().caps.max_inline_data as usize;
        let sum = |sum: usize, buffer: ibv_data_buf| sum.checked_add(buffer.length);
        let len = buffers().try_fold(0, sum);
        let from = self.bytes.len();
        let (Some(len), Some(last)) = (len.filter(|len| *len <= max), self.drafts.last_mut())
        else {
            self.failed = Some(libc::EINVAL);
            return;
        };
        last.data = Data::Inline(from, len);
        self.bytes.reserve(len);
        for buffer in buffers().filter(|buffer| buffer.length > 0) {
            let at = self.bytes.len();
            // SAFETY: guaranteed by the caller; the memory was reserved, and the new length covers
            // only written bytes.
            unsafe {
                let to = self.bytes.as_mut_ptr().add(at);
                ptr::copy_nonoverlapping(buffer.addr.cast(), to, buffer.length);
                self.bytes.set_len(at + buffer.length);
            }
        }
    }
}
