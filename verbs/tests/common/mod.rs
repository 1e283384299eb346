//! Helpers of the behaviour tests: two connected endpoints over the kernel's TCP on the loopback
//! interface, or over the in-memory link of smoltcp.
//!
//! No test measures time. Tests wait for each expected event, up to [`LIMIT`].
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    AcceptOptions, Access, AsyncEvent, Completion, ConnectOptions, Connected, Cq, Device,
    EndReason, Listener, MemoryRegion, Pd, Qp, QpCaps, QpState, RecvWr, RemoteBuffer, SendWr,
    Settings, Status, WcOpcode,
};

/// Time limit of every wait. Only a hang takes this long. The limit says nothing about speed: a
/// loaded machine may take minutes for work of a few milliseconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Initial content of buffers.
pub(crate) const FILL: u8 = 0xA5;

/// Sizes in bytes at which behaviour changes: empty, less than a word, one FPDU in one Ethernet TCP
/// segment (with and without CRC and Markers), pages, loopback segments, and the longest ULPDU.
pub(crate) const SIZES: [usize; 24] = [
    0,
    1,
    3,
    4,
    1447,
    1448,
    1449,
    1450,
    1451,
    1452,
    1453,
    4095,
    4096,
    4097,
    65_483,
    64_749,
    64_750,
    64_751,
    64_767,
    64_768,
    64_769,
    65_535,
    65_536,
    (1 << 20) + 1,
];

/// Link between the two endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wire {
    /// The kernel's TCP on 127.0.0.1.
    Kernel,
    /// Two smoltcp stacks with an in-memory link between them.
    Memory {
        /// MTU of the link.
        mtu: usize,
        /// Size of the TCP buffer in each direction of a connection, in bytes.
        buffer: usize,
    },
}

impl Wire {
    /// In-memory link with default settings.
    pub(crate) const MEMORY: Wire = Wire::Memory {
        mtu: 1500,
        buffer: 256 << 10,
    };
    /// Both links.
    pub(crate) const BOTH: [Wire; 2] = [Wire::Kernel, Wire::MEMORY];

    /// Creates the networks of the two ends. Also returns a listening address of the second end.
    fn networks(self) -> ([Arc<dyn Network>; 2], SocketAddr) {
        match self {
            Wire::Kernel => {
                let net = || -> Arc<dyn Network> { Arc::new(KernelNetwork::default()) };
                ([net(), net()], "127.0.0.1:0".parse().unwrap())
            }
            Wire::Memory { mtu, buffer } => {
                let settings = MemorySettings::default()
                    .mtu(mtu)
                    .receive_buffer(buffer)
                    .send_buffer(buffer);
                let (a, b) = MemoryNetwork::pair(&settings).unwrap();
                (
                    [Arc::new(a), Arc::new(b)],
                    "192.0.2.2:7174".parse().unwrap(),
                )
            }
        }
    }
}

/// Parameters of two endpoints. The first connects, and the second accepts.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) wire: Wire,
    pub(crate) settings: [Settings; 2],
    pub(crate) caps: QpCaps,
    pub(crate) cq_depth: u32,
    pub(crate) connect: ConnectOptions,
    pub(crate) accept: AcceptOptions,
}

impl Setup {
    pub(crate) fn new(wire: Wire) -> Self {
        Setup {
            wire,
            settings: [Settings::default(), Settings::default()],
            caps: QpCaps::default(),
            cq_depth: 256,
            connect: ConnectOptions::default(),
            accept: AcceptOptions::default(),
        }
    }

    /// Lets either side send first.
    pub(crate) fn peer_to_peer(mut self) -> Self {
        self.connect.peer_to_peer = true;
        self
    }

    /// Opens two devices, each with an unconnected QP, and a listener on the second device.
    pub(crate) fn unconnected(&self) -> Ends {
        let (networks, addr) = self.wire.networks();
        self.unconnected_over(networks, addr)
    }

    /// Does the same as [`Setup::unconnected`] over the given networks. The listener is at `addr`.
    pub(crate) fn unconnected_over(
        &self,
        [first, second]: [Arc<dyn Network>; 2],
        addr: SocketAddr,
    ) -> Ends {
        let [settings_a, settings_b] = self.settings.clone();
        let a = Side::new(
            Device::open(first, settings_a).unwrap(),
            self.caps,
            self.cq_depth,
        );
        let b = Side::new(
            Device::open(second, settings_b).unwrap(),
            self.caps,
            self.cq_depth,
        );
        let listener = b.device.listen(addr).unwrap();
        Ends {
            a,
            b,
            listener,
            setup: self.clone(),
        }
    }

    /// Creates two connected endpoints.
    pub(crate) fn connected(&self) -> (Side, Side) {
        let ends = self.unconnected();
        ends.join();
        (ends.a, ends.b)
    }
}

/// Creates two connected endpoints with default settings.
pub(crate) fn pair(wire: Wire) -> (Side, Side) {
    Setup::new(wire).connected()
}

/// Creates two connected endpoints, either of which may send first.
pub(crate) fn peers(wire: Wire) -> (Side, Side) {
    Setup::new(wire).peer_to_peer().connected()
}

/// Two endpoints before they are connected, and the listener of the second one.
pub(crate) struct Ends {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) listener: Listener,
    pub(crate) setup: Setup,
}

impl Ends {
    /// Connects `a` to `b`.
    pub(crate) fn join(&self) -> Connected {
        join(
            &self.listener,
            &self.a.qp,
            &self.b.qp,
            &self.setup.connect,
            &self.setup.accept,
        )
    }
}

/// Connects `a` to the listener, whose next request `b` accepts.
pub(crate) fn join(
    listener: &Listener,
    a: &Qp,
    b: &Qp,
    connect: &ConnectOptions,
    accept: &AcceptOptions,
) -> Connected {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            listener
                .wait_request(Some(LIMIT))
                .unwrap()
                .accept(b, accept)
        });
        let connected = a.connect(listener.local_addr(), connect).unwrap();
        accepting.join().unwrap().unwrap();
        connected
    })
}

/// One endpoint: a device with one QP, and a CQ for each of its queues.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) device: Device,
    pub(crate) pd: Pd,
    pub(crate) qp: Qp,
    pub(crate) send_cq: CqHandle,
    pub(crate) recv_cq: CqHandle,
}

/// A CQ with the waiting functions that tests need.
#[derive(Clone)]
pub(crate) struct CqHandle(pub(crate) Cq);

impl std::fmt::Debug for CqHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cq of {}", self.0.capacity())
    }
}

impl std::ops::Deref for CqHandle {
    type Target = Cq;

    fn deref(&self) -> &Cq {
        &self.0
    }
}

impl CqHandle {
    /// Waits for the next completion, whatever its status.
    #[track_caller]
    pub(crate) fn next(&self) -> Completion {
        self.wait(Some(LIMIT)).expect("no completion came")
    }

    /// Waits for the next completion, which must be a success of `wr_id`.
    #[track_caller]
    pub(crate) fn success(&self, wr_id: u64) -> Completion {
        let completion = self.next();
        assert_eq!(
            (completion.wr_id, completion.status),
            (wr_id, Status::Success),
            "{completion:?}"
        );
        completion
    }

    /// Waits for the next completions, which must be successes of these requests in this order.
    #[track_caller]
    pub(crate) fn successes(&self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            self.success(wr_id);
        }
    }

    /// Waits for the next completion, which must be a flush of `wr_id`.
    #[track_caller]
    pub(crate) fn flushed(&self, wr_id: u64) -> Completion {
        let completion = self.next();
        assert_eq!(
            (completion.wr_id, completion.status),
            (wr_id, Status::WrFlush),
            "{completion:?}"
        );
        completion
    }

    /// Asserts that the CQ is empty, even after the turn of progress that an empty poll makes.
    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.poll_one(), None);
    }
}

impl Side {
    pub(crate) fn new(device: Device, caps: QpCaps, cq_depth: u32) -> Side {
        let pd = device.alloc_pd().unwrap();
        let send_cq = device.create_cq(cq_depth).unwrap();
        let recv_cq = device.create_cq(cq_depth).unwrap();
        let qp = pd.create_qp(&send_cq, &recv_cq, caps).unwrap();
        Side {
            device,
            pd,
            qp,
            send_cq: CqHandle(send_cq),
            recv_cq: CqHandle(recv_cq),
        }
    }

    /// Creates another QP with the same CQs.
    pub(crate) fn another_qp(&self) -> Qp {
        self.pd
            .create_qp(&self.send_cq, &self.recv_cq, QpCaps::default())
            .unwrap()
    }

    /// Registers a region of at least one byte with all rights, filled with [`FILL`].
    pub(crate) fn blank(&self, len: usize) -> MemoryRegion {
        self.region(vec![FILL; len.max(1)])
    }

    /// Registers a region with all rights and the content `pattern(seed, len)`.
    pub(crate) fn filled(&self, seed: u64, len: usize) -> MemoryRegion {
        self.region(pattern(seed, len.max(1)))
    }

    fn region(&self, content: Vec<u8>) -> MemoryRegion {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        self.pd.register(content, all).unwrap()
    }

    /// Posts a receive into the whole `region`.
    pub(crate) fn post_whole(&self, wr_id: u64, region: &MemoryRegion) {
        let sges = [region.sge(0, region.len() as u32)];
        self.qp.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
    }

    /// Posts a receive for an empty Send.
    pub(crate) fn post_empty(&self, wr_id: u64) {
        self.qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }

    /// Waits until the connection has ended.
    #[track_caller]
    pub(crate) fn wait_end(&self) -> EndReason {
        assert!(
            self.qp.wait_closed(LIMIT),
            "still in state {} ({:?})",
            self.qp.state(),
            self.qp.end_reason()
        );
        assert_eq!(self.qp.state(), QpState::Error);
        self.qp.end_reason().expect("an end has a reason")
    }

    /// Waits for the next `Ended` event. Returns the number of the QP and the reason.
    #[track_caller]
    pub(crate) fn ended_event(&self) -> (u32, EndReason) {
        loop {
            match self.device.wait_event(Some(LIMIT)).expect("no event came") {
                AsyncEvent::Ended { qp_num, reason } => return (qp_num, reason),
                AsyncEvent::Established { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Sends an empty Send from `from` to `to`. When this returns, everything that `from` sent before
/// it has been placed.
#[track_caller]
pub(crate) fn bell(from: &Side, to: &Side) {
    const BELL: u64 = 0xBE11;
    to.post_empty(BELL);
    from.qp.post_send(&SendWr::send(BELL, &[])).unwrap();
    from.send_cq.success(BELL);
    to.recv_cq.success(BELL);
}

/// Checks that the connection works. Sends an empty Send each way, the initiator's first.
#[track_caller]
pub(crate) fn both_ways(a: &Side, b: &Side) {
    bell(a, b);
    bell(b, a);
}

/// Returns all bytes of a region.
pub(crate) fn content(region: &MemoryRegion) -> Vec<u8> {
    slice(region, 0, region.len())
}

/// Returns part of a region.
pub(crate) fn slice(region: &MemoryRegion, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read_at(offset, &mut bytes).unwrap();
    bytes
}

/// Compares long byte strings. Prints only the bytes around the first difference.
#[track_caller]
pub(crate) fn same(got: &[u8], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    if got != expected {
        let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap();
        let end = got.len().min(at + 16);
        panic!(
            "{what}: byte {at} of {} differs: got {:x?}, expected {:x?}",
            got.len(),
            &got[at..end],
            &expected[at..end]
        );
    }
}

/// Asserts that `len` bytes at `offset` are `expected`, and that all others are still [`FILL`].
#[track_caller]
pub(crate) fn placed_only(region: &MemoryRegion, offset: usize, expected: &[u8], what: &str) {
    let mut whole = vec![FILL; region.len()];
    whole[offset..offset + expected.len()].copy_from_slice(expected);
    same(&content(region), &whole, what);
}

/// Returns bytes that look random and depend only on the seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    uwarp_testkit::pattern(seed, 0, len)
}

/// Repeats `done` until it returns true, and panics after [`LIMIT`].
#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

/// Returns a summary of a completion: wr_id, status, opcode, byte_len.
pub(crate) fn brief(completion: &Completion) -> (u64, Status, WcOpcode, u32) {
    (
        completion.wr_id,
        completion.status,
        completion.opcode,
        completion.byte_len,
    )
}

/// A responder without an RDMA stack. It answers the MPA Request with revision 1, without Markers
/// and CRC. After that the test uses its socket directly.
pub(crate) struct RawPeer {
    pub(crate) stream: std::net::TcpStream,
}

/// Connects `a` (revision 1, no CRC) to a [`RawPeer`].
pub(crate) fn raw_peer(a: &Qp) -> RawPeer {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let (stream, request) = uwarp_testkit::raw_accept(&listener, 0, LIMIT).unwrap();
            assert_eq!(
                request.private_data, b"",
                "the raw peer takes no private data"
            );
            stream
        });
        a.connect(addr, &ConnectOptions::default()).unwrap();
        RawPeer {
            stream: accepting.join().unwrap(),
        }
    })
}

/// Creates an endpoint with these settings and connects it to a [`RawPeer`].
pub(crate) fn beside_raw_peer(settings: Settings) -> (Side, RawPeer) {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0] = settings;
    let a = setup.unconnected().a;
    let peer = raw_peer(&a.qp);
    (a, peer)
}

/// Connects an endpoint to a [`RawPeer`] that does not read, and posts a long Write (`wr_id` 1).
/// TCP's buffers fill up, and the rest stays in the source, which is returned.
pub(crate) fn beside_idle_peer() -> (Side, RawPeer, MemoryRegion) {
    const LEN: u32 = 32 << 20;
    let (a, peer) = beside_raw_peer(raw_settings());
    let source = a.filled(1, LEN as usize);
    let to = RemoteBuffer::at(1, 1);
    let sges = [source.sge(0, LEN)];
    a.qp.post_send(&SendWr::write(1, &sges, to)).unwrap();
    (a, peer, source)
}

/// Returns settings for a connection to a [`RawPeer`].
pub(crate) fn raw_settings() -> Settings {
    Settings::default()
        .revision(uwarp_verbs::Revision::One)
        .crc(false)
        // Wake-ups are off, because tests count the messages that the raw peer receives, and the
        // peer may be slow to answer.
        .wake_up(None)
}
