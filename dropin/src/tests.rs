//! Tests that call libibverbs's functions as a program does, with two queue pairs in one process.
//! Connections are made with the verbs crate, because the connection manager has its own tests.
#![expect(unsafe_code, reason = "functions of a C interface are called")]

mod channels;
mod data;
mod events;
mod extended;
mod handles;
mod limits;
mod lives;
mod places;
mod queues;
mod regions;
mod windows;

use core::ffi::c_int;
use core::mem;
use core::ptr;
use std::ffi::c_void;
use std::thread;
use std::time::Duration;

use uwarp_verbs::{AcceptOptions, ConnectOptions};

use crate::abi::*;
use crate::context::Context;
use crate::environment::Environment;
use crate::rnic::Rnic;
use crate::{channel, cq, device, mr, pd, qp, rnic};

/// Access flags that allow everything except window binds.
pub(super) const ALL: c_int = 15;

/// Objects of one side: a context with a domain, a channel, and a completion queue that uses the
/// channel.
pub(super) struct Side {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) cq: *mut ibv_cq,
}

impl Side {
    pub(super) fn new() -> Self {
        let first = rnic::get().unwrap().devices.pointer(0);
        // SAFETY: the argument is a device of the library.
        Self::on(unsafe { device::open_device(first) })
    }

    /// A side on a device of its own, in the persona `iwarp`.
    pub(super) fn iwarp() -> Self {
        let var = |name: &str| (name == "UWARP_PERSONA").then(|| "iwarp".into());
        let rnic = Rnic::open(Environment::from(var).unwrap(), None, None).unwrap();
        Self::on(Context::open(&rnic, 0))
    }

    fn on(context: *mut ibv_context) -> Self {
        assert!(!context.is_null());
        // SAFETY: the arguments are results of earlier calls.
        unsafe {
            let (pd, channel) = (pd::alloc_pd(context), channel::create_comp_channel(context));
            let cq = cq::create_cq(context, 60, ptr::without_provenance_mut(7), channel, 0);
            assert!(!pd.is_null() && !channel.is_null() && !cq.is_null());
            Side {
                context,
                pd,
                channel,
                cq,
            }
        }
    }

    /// Returns attributes for a queue pair of this side.
    pub(super) fn attr(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: ptr::without_provenance_mut(9),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: 20,
                max_recv_wr: 20,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        }
    }

    /// Returns a queue pair in the state INIT, as `rdma_create_qp` does.
    pub(super) fn qp(&self) -> *mut ibv_qp {
        let qp = self.qp_in_reset();
        initialize(qp);
        qp
    }

    pub(super) fn qp_in_reset(&self) -> *mut ibv_qp {
        let mut attr = self.attr();
        // SAFETY: the arguments are results of earlier calls.
        let qp = unsafe { qp::create_qp(self.pd, &raw mut attr) };
        assert!(!qp.is_null());
        qp
    }

    pub(super) fn mr(&self, memory: &mut [u8], access: c_int) -> *mut ibv_mr {
        let at = memory.as_mut_ptr().cast::<c_void>();
        // SAFETY: tests deregister the region before they free the memory, or never free it.
        let mr = unsafe { mr::reg_mr(self.pd, at, memory.len(), access) };
        assert!(!mr.is_null());
        mr
    }

    /// Polls until there are `count` completions.
    pub(super) fn poll(&self, count: usize) -> Vec<ibv_wc> {
        let mut all = Vec::new();
        while all.len() < count {
            // SAFETY: all bytes may be zero: the structure has only numbers.
            let mut some: [ibv_wc; 20] = unsafe { mem::zeroed() };
            // SAFETY: the test passes memory for 20 completions.
            let got = unsafe { cq::poll_cq(self.cq, 20, some.as_mut_ptr()) };
            all.extend_from_slice(&some[..usize::try_from(got).unwrap()]);
        }
        assert_eq!(all.len(), count);
        all
    }

    /// Destroys all four objects. No other objects may be left in the domain.
    pub(super) fn end(self) {
        // SAFETY: the arguments are results of earlier calls.
        unsafe {
            assert_eq!(cq::destroy_cq(self.cq), 0);
            assert_eq!(channel::destroy_comp_channel(self.channel), 0);
            assert_eq!(pd::dealloc_pd(self.pd), 0);
            assert_eq!(device::close_device(self.context), 0);
        }
    }
}

/// Returns true, and prints a message, if QEMU's user emulation runs this test (`./ci.sh aarch64`).
/// Its `madvise` reports success for this advice, but does nothing.
pub(super) fn madvise_is_emulated(advice: &str) -> bool {
    let emulated = std::env::var_os("QEMU_LD_PREFIX").is_some();
    if emulated {
        eprintln!("SKIPPED: QEMU's user emulation ignores {advice}");
    }
    emulated
}

/// Connects two queue pairs.
pub(super) fn connect(one: *mut ibv_qp, other: *mut ibv_qp) {
    // SAFETY: the test passes existing queue pairs.
    let (here, there) = unsafe { (qp::of(one), qp::of(other)) };
    // SAFETY: the test passes an open context.
    let device = unsafe { Context::of((*other).context) }.device();
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    thread::scope(|scope| {
        let accepts = scope.spawn(|| {
            let request = listener
                .wait_request(Some(Duration::from_secs(60)))
                .unwrap();
            let options = AcceptOptions::default();
            request.accept(&there.qp, &options).unwrap();
        });
        here.qp.connect(addr, &ConnectOptions::default()).unwrap();
        accepts.join().unwrap();
    });
}

/// Moves a new queue pair to INIT, in which it takes receives.
pub(super) fn initialize(qp: *mut ibv_qp) {
    // SAFETY: the test passes an existing queue pair.
    qp::modify::initialize(unsafe { qp::of(qp) });
}

/// Destroys a queue pair.
pub(super) fn end_qp(qp: *mut ibv_qp) {
    // SAFETY: the test passes a queue pair that is not used any more.
    assert_eq!(unsafe { qp::destroy_qp(qp) }, 0);
}

/// Deregisters a region.
pub(super) fn end_mr(mr: *mut ibv_mr) {
    // SAFETY: the test passes a region that is not used any more.
    assert_eq!(unsafe { mr::dereg_mr(mr) }, 0);
}

/// Returns a scatter/gather element with `length` bytes of a region, starting at offset `from`.
pub(super) fn sge(mr: *mut ibv_mr, from: u64, length: u32) -> ibv_sge {
    // SAFETY: the test passes an existing region.
    let mr = unsafe { &*mr };
    ibv_sge {
        addr: mr.addr.addr() as u64 + from,
        length,
        lkey: mr.lkey,
    }
}

/// Returns a signaled request with these elements.
pub(super) fn send_wr(wr_id: u64, opcode: ibv_wr_opcode, list: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
    wr.wr_id = wr_id;
    wr.sg_list = list.as_mut_ptr();
    wr.num_sge = c_int::try_from(list.len()).unwrap();
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr
}

/// Returns a signaled request for the peer's region `to`, starting at its first byte.
pub(super) fn rdma_wr(
    wr_id: u64,
    opcode: ibv_wr_opcode,
    list: &mut [ibv_sge],
    to: *mut ibv_mr,
) -> ibv_send_wr {
    let mut wr = send_wr(wr_id, opcode, list);
    // SAFETY: the test passes an existing region.
    let to = unsafe { &*to };
    wr.wr.rdma.remote_addr = to.addr.addr() as u64;
    wr.wr.rdma.rkey = to.rkey;
    wr
}

/// Posts through the context, as the inline function of `verbs.h` does. Returns the `errno` and the
/// refused request.
pub(super) fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
    let mut bad = ptr::null_mut();
    // SAFETY: the test passes an existing queue pair, and a list.
    let errno = unsafe {
        let post = (*(*qp).context).ops.post_send.unwrap();
        post(qp, wr, &raw mut bad)
    };
    (errno, bad)
}

/// Posts one receive.
pub(super) fn post_recv(qp: *mut ibv_qp, wr_id: u64, list: &mut [ibv_sge]) {
    let mut wr = recv_wr(wr_id, list);
    let mut bad = ptr::null_mut();
    // SAFETY: the test passes an existing queue pair, and a list.
    let errno = unsafe {
        let post = (*(*qp).context).ops.post_recv.unwrap();
        post(qp, &raw mut wr, &raw mut bad)
    };
    assert_eq!((errno, bad), (0, ptr::null_mut()));
}

pub(super) fn recv_wr(wr_id: u64, list: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: c_int::try_from(list.len()).unwrap(),
    }
}

unsafe extern "C" {
    // In the `libc` crate, `pthread_create` takes a function that may not unwind. The crate has no
    // `pthread_cancel`.
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attr: *const c_void,
        start: Start,
        argument: *mut c_void,
    ) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

/// Function of a thread that may be cancelled.
pub(super) type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// Runs `start` in a thread, cancels the thread, and checks that the cancellation has ended the
/// thread. (`start` waits for something that never happens.)
#[track_caller]
pub(super) fn cancelled(start: Start, argument: *mut c_void) {
    let (mut thread, mut ended) = (0, ptr::null_mut());
    // SAFETY: the thread ends before this function returns, so all pointers stay valid.
    unsafe {
        let made = pthread_create(&raw mut thread, ptr::null(), start, argument);
        assert_eq!(made, 0);
        assert_eq!(pthread_cancel(thread), 0);
        assert_eq!(libc::pthread_join(thread, &raw mut ended), 0);
    }
    // The value is `PTHREAD_CANCELED`.
    assert_eq!(ended.addr(), usize::MAX);
}

/// Returns status, opcode and `wr_id` of a completion.
pub(super) fn kind(wc: &ibv_wc) -> (ibv_wc_status, ibv_wc_opcode, u64) {
    (wc.status, wc.opcode, wc.wr_id)
}
