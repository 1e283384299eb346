//! Messages cause no memory allocation: not in posts, not in polls, and not on the thread that
//! makes progress in the background.
//!
//! This is a separate test binary without a test harness, because its allocator counts the
//! allocations of all threads. The only threads are this one and those of the devices.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use uwarp_verbs::{
    Access, Completion, CompletionChannel, Cq, Listener, MemoryRegion, Notify, Qp, RecvWr,
    RemoteBuffer, SendWr, Sge, Srq, SrqAttr,
};

/// The system's allocator, which counts allocations while `COUNTS` is set.
struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Backtrace of the first allocation.
static FIRST: Mutex<Option<Backtrace>> = Mutex::new(None);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() {
    if !COUNTS.load(Ordering::Relaxed) {
        return;
    }
    if COUNT.fetch_add(1, Ordering::SeqCst) == 0 {
        // Capturing the backtrace allocates as well.
        COUNTS.store(false, Ordering::SeqCst);
        *FIRST.lock().unwrap() = Some(Backtrace::force_capture());
        COUNTS.store(true, Ordering::SeqCst);
    }
}

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe to implement; every call is handed on as it is"
)]
// SAFETY: each call is passed to the system's allocator, which fulfils the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Number of rounds after which queues and buffers have reached their final size.
const WARM: usize = 300;
/// Number of rounds in which allocations are counted.
const ROUNDS: usize = 300;

/// Asserts that `round` can be repeated without an allocation.
fn none_in(what: &str, mut round: impl FnMut()) {
    (0..WARM).for_each(|_| round());
    COUNT.store(0, Ordering::SeqCst);
    COUNTS.store(true, Ordering::SeqCst);
    (0..ROUNDS).for_each(|_| round());
    COUNTS.store(false, Ordering::SeqCst);
    let count = COUNT.load(Ordering::SeqCst);
    let first = FIRST.lock().unwrap().take();
    assert!(
        count == 0,
        "{what}: {count} allocations in {ROUNDS} rounds; the first one:\n{}",
        first.map(|first| first.to_string()).unwrap_or_default()
    );
    #[expect(
        clippy::print_stdout,
        reason = "without a harness it says itself what went well"
    )]
    {
        println!("{what} ... ok");
    }
}

fn main() {
    let pair = Pair::new(None, false);
    pair.receives_much_at_once();
    pair.two_sided("its own receive queue");
    pair.one_sided();
    pair.lists();
    pair.asleep();
    let pair = Pair::new(None, true);
    pair.receives_much_at_once();
    pair.two_sided("sent in place");
    pair.lists();
    let attr = SrqAttr::default();
    let pair = Pair::new(Some(attr), false);
    pair.receives_much_at_once();
    pair.two_sided("an SRQ");
}

/// Length in bytes of the largest message.
const LARGE: usize = 1 << 20;
/// Lengths that use different paths: the fast path, one FPDU, and many FPDUs (the last two copied
/// or in place).
const SIZES: [u32; 3] = [64, 32 << 10, LARGE as u32];

/// Two ends connected over kernel TCP. The second end may use an SRQ.
struct Pair {
    client: Qp,
    server: Qp,
    srq: Option<Srq>,
    channel: CompletionChannel,
    /// Send and receive CQ of the client.
    cq: Cq,
    /// Send and receive CQ of the server.
    recv_cq: Cq,
    near: MemoryRegion,
    far: MemoryRegion,
    /// Sides that own the devices of the QPs above. Their own connections are not used.
    _sides: [Side; 2],
    _listener: Listener,
}

impl Pair {
    fn new(srq: Option<SrqAttr>, send_in_place: bool) -> Self {
        let mut setup = Setup::new(Wire::Kernel).peer_to_peer();
        for settings in &mut setup.settings {
            settings.send_in_place = send_in_place;
        }
        let Ends { a, b, listener, .. } = setup.unconnected();
        let srq = srq.map(|attr| b.pd.create_srq(attr).unwrap());
        let channel = a.device.create_channel().unwrap();
        let cq = a.device.create_cq_on(256, &channel, 0).unwrap();
        let recv_cq = b.device.create_cq(256).unwrap();
        let client = a.pd.qp().build(&cq, &cq).unwrap();
        let mut builder = b.pd.qp();
        if let Some(srq) = &srq {
            builder = builder.srq(srq);
        }
        let server = builder.build(&recv_cq, &recv_cq).unwrap();
        join(&listener, &client, &server, &setup.connect, &setup.accept);
        let region = |side: &Side| side.pd.register(vec![1; LARGE], Access::ALL).unwrap();
        Pair {
            near: region(&a),
            far: region(&b),
            _sides: [a, b],
            client,
            server,
            srq,
            channel,
            cq,
            recv_cq,
            _listener: listener,
        }
    }

    /// Makes the receive buffers of both ends reach their final size before allocations are
    /// counted. A read that fills its buffer makes the buffer grow, and whether that happens
    /// depends on speed.
    fn receives_much_at_once(&self) {
        const SEVERAL: u64 = 16;
        let near = [self.near.sge(0, LARGE as u32)];
        let (addr, rkey) = (self.far.addr(), self.far.rkey());
        for _ in 0..8 {
            for wr in [
                SendWr::write(2, &near, RemoteBuffer::at(addr, rkey)),
                SendWr::read(2, &near, RemoteBuffer::at(addr, rkey)),
            ] {
                (0..SEVERAL).for_each(|_| self.client.post_send(&wr).unwrap());
                std::thread::sleep(Duration::from_millis(5));
                (0..SEVERAL).for_each(|_| polled(&self.cq));
            }
        }
    }

    fn post_recv(&self, wr: &RecvWr<'_>) {
        match &self.srq {
            Some(srq) => srq.post_recv(wr).unwrap(),
            None => self.server.post_recv(wr).unwrap(),
        }
    }

    /// Checks a message that consumes a receive. The completions are polled on both sides.
    fn received(&self, what: &str, sink: &[Sge], send: &SendWr<'_>) {
        none_in(what, || {
            self.post_recv(&RecvWr::new(1, sink));
            self.client.post_send(send).unwrap();
            polled(&self.cq);
            polled(&self.recv_cq);
        });
    }

    /// Checks a request that the target's program does not notice, because the progress thread
    /// places it and answers.
    fn unnoticed(&self, what: &str, send: &SendWr<'_>) {
        none_in(what, || {
            self.client.post_send(send).unwrap();
            polled(&self.cq);
        });
    }

    fn two_sided(&self, queue: &str) {
        let (rkey, addr) = (self.far.rkey(), self.far.addr());
        for size in SIZES {
            let (from, into) = ([self.near.sge(0, size)], [self.far.sge(0, size)]);
            let what = |kind: &str| format!("{kind} of {size} bytes, {queue}");
            self.received(&what("Send"), &into, &SendWr::send(2, &from));
            let write =
                SendWr::write_with_immediate(2, &from, RemoteBuffer::at(addr, rkey), [3; 8]);
            self.received(&what("Write with Immediate"), &[], &write);
        }
        let into = [self.far.sge(0, 64)];
        let inline = SendWr::send_inline(2, b"inline");
        self.received(&format!("inline Send, {queue}"), &into, &inline);
        let immediate = SendWr::immediate(2, [3; 8]);
        self.received(&format!("Immediate Data, {queue}"), &[], &immediate);
    }

    fn one_sided(&self) {
        let (rkey, addr) = (self.far.rkey(), self.far.addr());
        for size in SIZES {
            let sges = [self.near.sge(0, size)];
            let write = SendWr::write(1, &sges, RemoteBuffer::at(addr, rkey));
            self.unnoticed(&format!("Write of {size} bytes"), &write);
            let read = SendWr::read(1, &sges, RemoteBuffer::at(addr, rkey));
            self.unnoticed(&format!("Read of {size} bytes"), &read);
        }
        let word = [self.near.sge(0, 8)];
        let add = SendWr::fetch_add(1, &word, RemoteBuffer::at(addr, rkey), 1);
        self.unnoticed("FetchAdd", &add);
        let swap = SendWr::compare_swap(1, &word, RemoteBuffer::at(addr, rkey), 1, 2);
        self.unnoticed("CmpSwap", &swap);
    }

    /// Checks lists of requests of all kinds, with several SGEs.
    fn lists(&self) {
        let (rkey, addr) = (self.far.rkey(), self.far.addr());
        let parts = [0, 4096, 40_000].map(|at| self.near.sge(at, 9000));
        let (whole, word) = ([self.near.sge(0, 27_000)], [self.near.sge(0, 8)]);
        let into = [self.far.sge(0, 27_000)];
        let mut wrs = Vec::new();
        for wr_id in 0..16 {
            wrs.extend([
                SendWr::write(wr_id, &parts, RemoteBuffer::at(addr, rkey)).unsignaled(),
                SendWr::read(wr_id, &whole, RemoteBuffer::at(addr, rkey)),
                SendWr::fetch_add(wr_id, &word, RemoteBuffer::at(addr, rkey), 1),
                SendWr::send(wr_id, &parts).fence(),
            ]);
        }
        let receives = [RecvWr::new(1, &into); 16];
        let mut out = [Completion::default(); 64];
        none_in("lists of 64 requests", || {
            self.server.post_recv_list(&receives).unwrap();
            self.client.post_send_list(&wrs).unwrap();
            let (mut sent, mut received) = (0, 0);
            while sent < 48 || received < 16 {
                sent += self.cq.poll(&mut out);
                received += self.recv_cq.poll(&mut out);
            }
        });
    }

    /// Checks a program that sleeps until something completes, on the channel or in `wait`.
    fn asleep(&self) {
        let (rkey, addr) = (self.far.rkey(), self.far.addr());
        let sges = [self.near.sge(0, 64)];
        let read = SendWr::read(1, &sges, RemoteBuffer::at(addr, rkey));
        none_in("an event for each Read", || {
            self.cq.req_notify(Notify::Any);
            self.client.post_send(&read).unwrap();
            drop(self.channel.get_event(Some(LIMIT)).unwrap());
            polled(&self.cq);
        });
        none_in("a wait for each Read", || {
            self.client.post_send(&read).unwrap();
            self.cq.wait(Some(LIMIT)).unwrap().ok().unwrap();
        });
    }
}

/// Polls until the next completion, which must be successful.
fn polled(cq: &Cq) {
    loop {
        if let Some(completion) = cq.poll_one() {
            completion.ok().unwrap();
            return;
        }
        std::hint::spin_loop();
    }
}
