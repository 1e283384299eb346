//! Two connections without any I/O, each with memory of its own. The tests of `uwarp-verbs` include
//! this file, too.

#![expect(
    unsafe_code,
    reason = "regions in the middle of one buffer, so that the bytes around them can be checked"
)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_engine::completion::{Completion, Status};
use uwarp_engine::connection::{
    BufferPool, Connection, PARTS_PER_CALL, QpContext, QueueCaps, ReceiveBuffer,
};
use uwarp_engine::llp::Piece;
use uwarp_engine::mem::{
    Access, Backing, Buffer, Region, RegionSpec, RegionTable, RemoteBuffer, Sge,
};
use uwarp_engine::settings::{ConnectionSettings, OnNoReceive, Timeouts};
use uwarp_engine::state::QpState;
use uwarp_engine::wr::{RecvWr, SendWr};
use uwarp_mpa::{
    Accept, FpduSegments, InitiatorConfig, Model, Responder, ResponderConfig, Revision, RtrKinds,
};
use uwarp_rdmap::Peer;

use super::{QueueOfRing, Ring};

pub(super) const PAGE: usize = 4096;
/// Offset in [`Memory`] of the page that the peer may write and read.
pub(super) const OPEN: usize = PAGE;
pub(super) const RECEIVES: usize = 3 * PAGE;
pub(super) const CANARY: u8 = 0xC5;

/// Settings of a test's connection, and those of its QP and its MPA startup.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) crc: bool,
    pub(super) markers: bool,
    pub(super) on_no_receive: OnNoReceive,
    pub(super) placed_writes: bool,
    pub(super) fpdu_segments: FpduSegments,
    pub(super) send_in_place: bool,
    pub(super) peer: Peer,
    pub(super) first_fpdu_delay: Option<Duration>,
    pub(super) wake_up: Option<Duration>,
    pub(super) send_first: bool,
    pub(super) event_on_write: bool,
    pub(super) retry_with_revision_1: bool,
    pub(super) timeouts: Timeouts,
}

impl Default for Settings {
    fn default() -> Self {
        let defaults = ConnectionSettings::default();
        Settings {
            crc: true,
            markers: false,
            on_no_receive: OnNoReceive::default(),
            placed_writes: false,
            fpdu_segments: defaults.fpdu_segments,
            send_in_place: defaults.send_in_place,
            peer: defaults.peer,
            first_fpdu_delay: defaults.first_fpdu_delay,
            wake_up: defaults.wake_up,
            send_first: defaults.send_first,
            event_on_write: defaults.event_on_write,
            retry_with_revision_1: defaults.retry_with_revision_1,
            timeouts: defaults.timeouts,
        }
    }
}

impl Settings {
    pub(super) fn of_connection(&self) -> Arc<ConnectionSettings> {
        Arc::new(ConnectionSettings {
            fpdu_segments: self.fpdu_segments,
            send_in_place: self.send_in_place,
            peer: self.peer,
            first_fpdu_delay: self.first_fpdu_delay,
            wake_up: self.wake_up,
            send_first: self.send_first,
            event_on_write: self.event_on_write,
            retry_with_revision_1: self.retry_with_revision_1,
            timeouts: self.timeouts,
            ..ConnectionSettings::default()
        })
    }
}

/// One side of a test: a connection with memory of its own.
pub(super) struct End {
    pub(super) conn: Connection<QueueOfRing>,
    pub(super) rx: ReceiveBuffer,
    pub(super) cq: Arc<Ring>,
    pub(super) memory: Arc<Memory>,
}

/// Five pages: canary, open to the peer, canary, receives, canary.
pub(super) struct Memory {
    pub(super) buffer: Arc<Buffer>,
    pub(super) table: Arc<RegionTable>,
    pub(super) open: Arc<Region>,
    pub(super) receives: Arc<Region>,
}

impl Memory {
    pub(super) fn new() -> Arc<Self> {
        let buffer = Arc::new(Buffer::zeroed(5 * PAGE).unwrap());
        buffer.write_at(0, &[CANARY; 5 * PAGE]).unwrap();
        let table = Arc::new(RegionTable::new(16, 16, None).unwrap());
        let register = |offset: usize, access| {
            let base = NonNull::new((buffer.addr() as usize + offset) as *mut u8).unwrap();
            // SAFETY: the page lies in `buffer`, which lives as long as the table does.
            let memory = unsafe { Backing::in_place(base, PAGE, true) };
            table
                .insert(RegionSpec {
                    memory,
                    to_base: None,
                    pd: 1,
                    qp: None,
                    access,
                })
                .unwrap()
        };
        let open = register(
            OPEN,
            Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC,
        );
        let receives = register(RECEIVES, Access::LOCAL_WRITE);
        Arc::new(Memory {
            buffer,
            table,
            open,
            receives,
        })
    }

    /// Registers `buffer` as a region at address 0. A peer may read it, and it may be the sink of a
    /// Read.
    pub(super) fn region(&self, buffer: &Arc<Buffer>) -> Arc<Region> {
        let spec = RegionSpec {
            memory: Backing::buffer(Arc::clone(buffer)),
            to_base: Some(0),
            pd: 1,
            qp: None,
            access: Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        };
        self.table.insert(spec).unwrap()
    }

    /// Returns an element of 256 bytes for the receive number `nth`.
    pub(super) fn receive(&self, nth: u64) -> [Sge; 1] {
        [Sge {
            addr: self.receives.to_base() + nth * 256,
            len: 256,
            lkey: self.receives.stag().0,
        }]
    }

    pub(super) fn canaries_are_alive(&self) -> bool {
        [0, 2, 4].iter().all(|page| {
            let mut bytes = [0; PAGE];
            self.buffer.read_at(page * PAGE, &mut bytes).unwrap();
            bytes.iter().all(|byte| *byte == CANARY)
        })
    }
}

impl End {
    pub(super) fn new(memory: &Arc<Memory>, settings: &Settings) -> Self {
        let cq = Ring::new(1, 256);
        let ctx = QpContext {
            qp_num: 2,
            pd: 1,
            table: Arc::clone(&memory.table),
            send_cq: cq.attach(Arc::default()),
            recv_cq: cq.attach(Arc::default()),
            settings: settings.of_connection(),
            caps: QueueCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 8,
                max_recv_sge: 2,
                max_inline_data: 1024,
            },
            srq: None,
            on_no_receive: settings.on_no_receive,
            access: Access::ALL,
            signal_all: false,
            late_faults: false,
            placed_writes: settings.placed_writes,
            unreliable: false,
            datagrams: None,
            keepalive: None,
        };
        let conn = Connection::new(Arc::new(ctx), Instant::now());
        End {
            conn,
            rx: ReceiveBuffer::default(),
            cq,
            memory: Arc::clone(memory),
        }
    }

    /// Takes all bytes that the connection has to send, as the LLP would.
    pub(super) fn bytes(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            self.conn.fill();
            if self.conn.tx.is_empty() {
                return out;
            }
            let mut pieces = [Piece::from(&[][..]); PARTS_PER_CALL];
            let count = self.conn.tx.pieces(&mut pieces);
            let before = out.len();
            for piece in &pieces[..count] {
                piece.append_to(piece.len(), &mut out);
            }
            let taken = out.len() - before;
            self.conn.taken(taken);
        }
    }

    pub(super) fn deliver(&mut self, bytes: &[u8], pool: &BufferPool) {
        for part in bytes.chunks(50_000) {
            self.rx.space(pool).unwrap();
            assert!(self.rx.append(part));
            self.conn.receive(&mut self.rx);
        }
    }

    pub(super) fn completions(&self) -> Vec<Completion> {
        std::iter::from_fn(|| self.cq.poll()).collect()
    }

    pub(super) fn post_receives(&mut self, count: u64) {
        for index in 0..count {
            let sges = self.memory.receive(index);
            self.conn.post_recv(&RecvWr::new(index, &sges)).unwrap();
        }
    }

    /// Returns an element with the first `len` bytes of the page that is open to the peer.
    pub(super) fn source(&self, len: u32) -> [Sge; 1] {
        [Sge {
            addr: self.memory.open.to_base(),
            len,
            lkey: self.memory.open.stag().0,
        }]
    }

    /// Returns the ids of the work requests that have completed since the last call, with their
    /// status.
    pub(super) fn numbers(&self) -> Vec<(u64, Status)> {
        self.completions()
            .iter()
            .map(|completion| (completion.wr_id, completion.status))
            .collect()
    }
}

pub(super) fn initiator_config(settings: &Settings) -> InitiatorConfig {
    InitiatorConfig {
        revision: Revision::Two,
        crc: settings.crc,
        markers: settings.markers,
        ird: 4,
        ord: 4,
        max_ird: 16,
        model: Model::ClientServer,
        private_data: Vec::new(),
    }
}

/// Returns a client and a server in RTS, and the buffer pool of both.
pub(super) fn connected(settings: &Settings, server: &Arc<Memory>) -> (End, End, BufferPool) {
    connected_from(&Memory::new(), settings, server)
}

/// Does [`connected`] with the given memory for the client.
pub(super) fn connected_from(
    client: &Arc<Memory>,
    settings: &Settings,
    server: &Arc<Memory>,
) -> (End, End, BufferPool) {
    connected_of(client, [settings; 2], server)
}

/// Does [`connected_from`] with separate settings for client and server.
pub(super) fn connected_of(
    client: &Arc<Memory>,
    [ours, theirs]: [&Settings; 2],
    server: &Arc<Memory>,
) -> (End, End, BufferPool) {
    let pool = BufferPool::default();
    let mut client = End::new(client, ours);
    assert!(
        client
            .conn
            .start_initiator(initiator_config(ours), true)
            .unwrap()
    );
    client.conn.emss = 1460;
    client.conn.tcp_connected();
    let request = client.bytes();
    let server = accept(theirs, server, &request);
    let (mut client, mut server) = (client, server);
    let reply = server.bytes();
    client.deliver(&reply, &pool);
    assert_eq!(
        (client.conn.state, server.conn.state),
        (QpState::Rts, QpState::Rts)
    );
    (client, server, pool)
}

/// Returns a responder that has accepted `request`.
pub(super) fn accept(settings: &Settings, memory: &Arc<Memory>, request: &[u8]) -> End {
    let mut end = End::new(memory, settings);
    accept_by(&mut end, settings, request);
    end
}

/// Lets `end` accept `request`.
pub(super) fn accept_by(end: &mut End, settings: &Settings, request: &[u8]) {
    let mut responder = Responder::new(ResponderConfig {
        crc: settings.crc,
        markers: settings.markers,
        max_revision: Revision::Two,
        max_ird: 16,
        rtr: RtrKinds::ALL,
    })
    .unwrap();
    let (taken, whole) = responder.receive(request).unwrap();
    assert!(whole.is_some() && taken == request.len());
    let (reply, negotiated) = responder
        .accept(Accept {
            ird: 4,
            ord: 4,
            private_data: &[],
        })
        .unwrap();
    assert!(end.conn.start_responder(request, &reply, negotiated, 1460));
}

/// Posts the work of a test client: Sends, Writes and Reads, of one segment and of several.
pub(super) fn post_work(client: &mut End, server: &Memory) {
    let (open, rkey) = (server.open.to_base(), server.open.stag().0);
    let lkey = client.memory.open.stag().0;
    let source = client.memory.open.to_base();
    let sge = |len| {
        [Sge {
            addr: source,
            len,
            lkey,
        }]
    };
    for (wr_id, wr) in [
        SendWr::send(0, &sge(100)),
        SendWr::write(1, &sge(4096), RemoteBuffer::at(open, rkey)),
        SendWr::read(2, &sge(4000), RemoteBuffer::at(open + 7, rkey)),
        SendWr::send_inline(3, b"inline"),
        SendWr::write(4, &sge(0), RemoteBuffer::at(0, 0)),
        SendWr::read(5, &sge(0), RemoteBuffer::at(0, 0)),
        SendWr::send(6, &sge(256)).solicited(),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(wr.wr_id(), wr_id as u64);
        client.conn.post_send(&wr).unwrap();
    }
}

pub(super) fn pump(client: &mut End, server: &mut End, pool: &BufferPool) {
    loop {
        let (there, back) = (client.bytes(), server.bytes());
        if there.is_empty() && back.is_empty() {
            return;
        }
        server.deliver(&there, pool);
        client.deliver(&back, pool);
    }
}
