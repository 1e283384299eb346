//! Server for `rping` clients on the RDMA port of the agent. Such connections belong to no
//! controller.
//!
//! ```text
//!   client                                             server
//!     | Send: where the ping data is (16 bytes) ------> |
//!     | <------------------- RDMA Read of the ping data  |
//!     | <-------------------------- Send: go ahead (16)  |
//!     | Send: where the echo goes (16 bytes) ---------> |
//!     | <------------------- RDMA Write of the echo      |
//!     | <-------------------------- Send: go ahead (16)  |
//! ```

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use uwarp_verbs::{
    AcceptOptions, Access, Buffer, ConnectRequest, Cq, Device, ListenError, Listener, MemoryRegion,
    Qp, QpCaps, RecvWr, RemoteBuffer, SendWr, Status, WcOpcode,
};

use crate::clients::{Clients, Seat, Turn};
use crate::hub::Hub;
use crate::workers::Workers;

/// Length in bytes of a message of rping: address (8 bytes), key (4) and length (4), in network
/// byte order.
const ADVERT: u32 = 16;
/// Maximum length in bytes of the ping data of rping.
const DATA: u32 = 65_535;
/// Memory in bytes that a client may need at once: its region, a receive buffer (256 KiB), and a
/// staging buffer for the answer (384 KiB).
const MEMORY: usize = DATA as usize + (640 << 10);
/// Interval at which a waiting thread checks whether the agent stops.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum time to wait until the peer has closed its side.
const CLOSE: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error>;

/// Starts a thread that accepts clients until the agent stops or the network fails. Each client is
/// served on one of `workers`.
pub(crate) fn start(
    device: &Device,
    listener: Listener,
    clients: Clients,
    workers: &Arc<Workers>,
    hub: &Arc<Hub>,
) -> io::Result<JoinHandle<()>> {
    let (device, workers, hub) = (device.clone(), Arc::clone(workers), Arc::clone(hub));
    let name = "uwarp-agent-rdma".to_owned();
    thread::Builder::new()
        .name(name)
        .spawn(move || serve(&device, &listener, &clients, &workers, &hub))
}

fn serve(
    device: &Device,
    listener: &Listener,
    clients: &Clients,
    workers: &Workers,
    hub: &Arc<Hub>,
) {
    while !hub.is_stopping() {
        let request = match listener.wait_request(Some(LOOK)) {
            Ok(request) => Some(request),
            Err(ListenError::TimedOut { .. }) => None,
            Err(error) => {
                tracing::error!(%error, "the RDMA port is no longer served");
                break;
            }
        };
        // Discards the errors of connections that did not use MPA. They are already closed.
        while listener.poll_failure().is_some() {}
        let Some(request) = request else {
            continue;
        };
        let peer = request.peer_addr();
        let checked = workers.check_or_make_way(device, MEMORY, clients, peer.ip());
        if let Err(short) = checked {
            hub.record_short_memory();
            let _ = request.reject(short.for_peer().as_bytes());
            continue;
        }
        let seat = match clients.admit(peer.ip()) {
            Ok(seat) => seat,
            Err(full) => {
                let why = full.to_string();
                tracing::info!(%peer, why, "an rping client was rejected");
                // If the private data cannot be sent, the request is rejected without it.
                let _ = request.reject(why.as_bytes());
                continue;
            }
        };
        let (device, stopping) = (device.clone(), Arc::clone(hub));
        let client = move || {
            if let Err(error) = ping_pong(&device, request, seat, &stopping) {
                tracing::info!(%peer, error, "serving an rping client failed");
            }
        };
        if workers.run(client).is_err() {
            hub.record_short_memory();
        }
    }
}

/// Accepts the request of a client, and serves the client until the connection ends.
fn ping_pong(
    device: &Device,
    request: ConnectRequest,
    seat: Seat,
    hub: &Hub,
) -> Result<(), String> {
    let served = Server::new(device, seat, hub).and_then(|server| {
        // As with rping, one Read may be outstanding in each direction.
        let options = AcceptOptions::default().ird(1).ord(1);
        request.accept(&server.qp, &options)?;
        let result = server.pings();
        server.qp.disconnect();
        let mut looks = CLOSE.as_millis() / LOOK.as_millis();
        while looks > 0 && !hub.is_stopping() && !server.qp.wait_closed(LOOK) {
            looks -= 1;
        }
        result
    });
    served.map_err(|error| error.to_string())
}

struct Server<'a> {
    qp: Arc<Qp>,
    cq: Cq,
    inbox: MemoryRegion,
    data: MemoryRegion,
    hub: &'a Hub,
    /// Dropped last, because a client that waits for the place may need the memory.
    seat: Seat,
}

/// Memory of the client, as a message of the client describes it.
struct Advert {
    addr: u64,
    rkey: u32,
    len: u32,
}

impl Server<'_> {
    fn new<'a>(device: &Device, seat: Seat, hub: &'a Hub) -> Result<Server<'a>, Failure> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(32)?);
        let caps = QpCaps::default()
            .max_send_wr(16)
            .max_recv_wr(2)
            .max_send_sge(1)
            .max_recv_sge(1)
            .max_inline_data(ADVERT);
        let server = Server {
            qp: Arc::new(pd.create_qp(&cq, &cq, caps)?),
            seat,
            inbox: pd.register(vec![0; ADVERT as usize], Access::LOCAL_WRITE)?,
            data: pd.register_buffer(Buffer::zeroed(DATA as usize)?, Access::LOCAL_WRITE)?,
            cq,
            hub,
        };
        server.seat.attach(&server.qp);
        server.post_recv()?;
        Ok(server)
    }

    fn post_recv(&self) -> Result<(), Failure> {
        let sges = [self.inbox.sge(0, ADVERT)];
        Ok(self.qp.post_recv(&RecvWr::new(0, &sges))?)
    }

    /// Serves pings until the client closes the connection.
    fn pings(&self) -> Result<(), Failure> {
        let mut turn = Turn::Due;
        while let Some(source) = self.receive(turn)? {
            turn = Turn::BetweenPings;
            let sges = [self.data.sge(0, source.len.min(DATA))];
            self.qp.post_send(&SendWr::read(
                0,
                &sges,
                RemoteBuffer::at(source.addr, source.rkey),
            ))?;
            if !self.wait_for(WcOpcode::RdmaRead, Turn::Due)? {
                break;
            }
            self.go_ahead()?;
            let Some(sink) = self.receive(Turn::Due)? else {
                break;
            };
            let sges = [self.data.sge(0, self.text_len(source.len)?.min(sink.len))];
            self.qp.post_send(&SendWr::write(
                0,
                &sges,
                RemoteBuffer::at(sink.addr, sink.rkey),
            ))?;
            if !self.wait_for(WcOpcode::RdmaWrite, Turn::Due)? {
                break;
            }
            self.go_ahead()?;
        }
        Ok(())
    }

    /// Returns the length of the ping data up to and including its first zero byte. A server of
    /// rping writes back only this part.
    fn text_len(&self, len: u32) -> Result<u32, Failure> {
        let (end, mut begin) = (len.min(DATA) as usize, 0);
        // In pieces on the stack, because a copy of all of it might find no memory.
        let mut piece = [0; 1024];
        while begin < end {
            let bytes = &mut piece[..1024.min(end - begin)];
            self.data.read_at(begin, bytes)?;
            if let Some(zero) = bytes.iter().position(|byte| *byte == 0) {
                return Ok(u32::try_from(begin + zero + 1).unwrap_or(len));
            }
            begin += bytes.len();
        }
        Ok(len)
    }

    fn go_ahead(&self) -> Result<(), Failure> {
        let bytes = [0; ADVERT as usize];
        Ok(self.qp.post_send(&SendWr::send_inline(0, &bytes))?)
    }

    /// Waits for the next message that describes memory. Returns `None` if the connection has
    /// ended.
    fn receive(&self, turn: Turn) -> Result<Option<Advert>, Failure> {
        if !self.wait_for(WcOpcode::Recv, turn)? {
            return Ok(None);
        }
        let mut bytes = [0; ADVERT as usize];
        self.inbox.read_at(0, &mut bytes)?;
        self.post_recv()?;
        let number = |from: usize, to: usize| {
            let bytes = bytes[from..to].iter();
            bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        Ok(Some(Advert {
            addr: number(0, 8),
            rkey: number(8, 12) as u32,
            len: number(12, 16) as u32,
        }))
    }

    /// Waits for a completion with this opcode, and ignores completions of Sends. Returns false if
    /// the connection has ended or the agent stops. Any other completion is an error, and so is a
    /// client that is silent for too long.
    fn wait_for(&self, opcode: WcOpcode, turn: Turn) -> Result<bool, Failure> {
        let (start, limit) = (Instant::now(), self.seat.begin_wait(turn));
        loop {
            if self.hub.is_stopping() {
                return Ok(false);
            }
            let Some(done) = self.cq.wait(Some(LOOK)) else {
                if let Some(limit) = limit.filter(|limit| start.elapsed() >= *limit) {
                    // A graceful close would wait for the silent client again.
                    self.qp.abort();
                    return Err(format!("the client said nothing for {limit:?}").into());
                }
                continue;
            };
            if self.seat.gives_way() {
                return Err("a new client took its place, because all places were taken".into());
            }
            if done.status != Status::Success {
                return Ok(false);
            }
            if done.opcode == WcOpcode::Recv && done.byte_len != ADVERT {
                let len = done.byte_len;
                let why = format!("a message of {len} bytes, where rping sends {ADVERT}");
                return Err(why.into());
            }
            if done.opcode == opcode {
                return Ok(true);
            }
            if done.opcode != WcOpcode::Send {
                return Err("the peer sent a message out of turn".into());
            }
        }
    }
}
