//! One rping connection: its QP and buffers, and the waits that both roles share.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_agent::clients::{Seat, Turn};
use uwarp_verbs::{
    Access, Buffer, Completion, Cq, Device, EndReason, MemoryRegion, Pd, Qp, QpCaps, RecvWr,
    SendWr, Status, WcOpcode,
};

use super::Printer;
use crate::advert::{ADVERT_LEN, Advert};
use crate::explain;
use crate::failure::{Failure, Report};

/// Depth of the send queue in rping.
const DEPTH: u32 = 16;
/// Longest time that `close` waits for the peer.
const CLOSE: Duration = Duration::from_secs(5);

/// Reason for the end of a session.
pub(super) enum Stop {
    /// The peer closed the connection gracefully. The client and the server decide whether this is
    /// an error.
    PeerClosed,
    /// Any other reason.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(failure: E) -> Self {
        Stop::Failed(failure.into())
    }
}

/// Turns an error that the peer did not cause into a failure.
pub(super) fn local(error: impl std::fmt::Display) -> Failure {
    Failure::because(error.to_string())
}

/// A QP with the two buffers of rping and one posted receive.
pub(super) struct Session {
    pub(super) device: Device,
    pub(super) qp: Arc<Qp>,
    pub(super) pd: Pd,
    /// At the server: buffer of its Read and its Write. At the client: buffer that receives the
    /// echo.
    pub(super) data: MemoryRegion,
    /// Copy of the ping data, with room for all of it.
    pub(super) copy: RefCell<Vec<u8>>,
    cq: Cq,
    inbox: MemoryRegion,
    pub(super) peer: SocketAddr,
    pub(super) printer: Printer,
    /// Place of the client at a persistent server, which has limits. Dropped last, because a client
    /// that waits for the place may need the memory.
    seat: Option<Seat>,
}

impl Session {
    pub(super) fn new(
        device: &Device,
        size: usize,
        access: Access,
        peer: SocketAddr,
        printer: Printer,
    ) -> Result<Session, Failure> {
        let pd = device.alloc_pd().map_err(local)?;
        let cq = device.create_cq(2 * DEPTH).map_err(local)?;
        #[expect(clippy::cast_possible_truncation, reason = "16")]
        let caps = QpCaps::default()
            .max_send_wr(DEPTH)
            .max_recv_wr(2)
            .max_send_sge(1)
            .max_recv_sge(1)
            .max_inline_data(ADVERT_LEN as u32);
        let qp = Arc::new(pd.create_qp(&cq, &cq, caps).map_err(local)?);
        let inbox = pd
            .register(vec![0; ADVERT_LEN], Access::LOCAL_WRITE)
            .map_err(local)?;
        let data = Buffer::zeroed(size).map_err(local)?;
        let data = pd.register_buffer(data, access).map_err(local)?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(size).map_err(local)?;
        let session = Session {
            device: device.clone(),
            qp,
            pd,
            data,
            copy: RefCell::new(copy),
            cq,
            inbox,
            seat: None,
            peer,
            printer,
        };
        session.post_recv()?;
        Ok(session)
    }

    /// Gives the session the place of its client.
    pub(super) fn take(&mut self, seat: Option<Seat>) {
        if let Some(seat) = &seat {
            seat.attach(&self.qp);
        }
        self.seat = seat;
    }

    fn post_recv(&self) -> Result<(), Failure> {
        #[expect(clippy::cast_possible_truncation, reason = "16")]
        let sges = [self.inbox.sge(0, ADVERT_LEN as u32)];
        self.qp.post_recv(&RecvWr::new(0, &sges)).map_err(local)
    }

    pub(super) fn post(&self, wr: &SendWr<'_>) -> Result<(), Failure> {
        self.qp.post_send(wr).map_err(local)
    }

    /// Sends the 16 bytes of an advert. In a go-ahead message their content has no meaning.
    pub(super) fn send(&self, advert: Advert) -> Result<(), Failure> {
        self.post(&SendWr::send_inline(0, &advert.emit()))
    }

    /// Waits for the peer's next Send and parses its advert.
    pub(super) fn receive(&self, turn: Turn, during: &str) -> Result<Advert, Stop> {
        let completion = self.wait_for(WcOpcode::Recv, turn, during)?;
        if completion.byte_len as usize != ADVERT_LEN {
            let (peer, len) = (self.peer, completion.byte_len);
            return Err(Report::new(format!(
                "{peer}, {during}: the peer sent a message of {len} bytes"
            ))
            .expected(format!(
                "a message of {ADVERT_LEN} bytes: address, key and length"
            ))
            .fault("the peer, which is iWARP but not rping")
            .into());
        }
        let mut bytes = [0; ADVERT_LEN];
        self.inbox.read_at(0, &mut bytes).map_err(local)?;
        self.post_recv()?;
        Ok(Advert::parse(bytes))
    }

    /// Waits for a completion of this opcode and skips completions of Sends. Any other opcode is an
    /// error of the peer. At a persistent server, so is a silence that is too long.
    pub(super) fn wait_for(
        &self,
        opcode: WcOpcode,
        turn: Turn,
        during: &str,
    ) -> Result<Completion, Stop> {
        let start = Instant::now();
        let limit = self.seat.as_ref().and_then(|seat| seat.begin_wait(turn));
        loop {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let Some(completion) = self.cq.wait(left) else {
                match limit.filter(|limit| start.elapsed() >= *limit) {
                    Some(limit) => return Err(self.silent(limit, during)),
                    None => continue,
                }
            };
            if completion.status != Status::Success {
                return Err(self.ended(during, completion.status));
            }
            self.printer.debug(match completion.opcode {
                WcOpcode::Send => "send completion",
                WcOpcode::RdmaWrite => "rdma write completion",
                WcOpcode::RdmaRead => "rdma read completion",
                _ => "recv completion",
            })?;
            if completion.opcode == opcode {
                return Ok(completion);
            }
            if completion.opcode != WcOpcode::Send {
                return Err(Report::new(format!(
                    "{}, {during}: the peer sent a message",
                    self.peer
                ))
                .expected("the peer to wait for the go-ahead")
                .fault("the peer, which is iWARP but not rping")
                .into());
            }
        }
    }

    /// Ends the connection of a client that was silent for too long.
    fn silent(&self, limit: Duration, during: &str) -> Stop {
        // A graceful close would wait for the silent client again.
        self.qp.abort();
        let (peer, limit) = (self.peer, limit.as_secs());
        let what = format!("{peer}, {during}: the client said nothing for {limit} s");
        Report::new(what)
            .expected(format!("each step of a ping within {limit} s"))
            .fault("the client, or the network")
            .advice("--silence with a longer time, or 0, if the client needs it")
            .into()
    }

    /// Returns the reason why work of this side did not complete.
    fn ended(&self, during: &str, status: Status) -> Stop {
        if self.seat.as_ref().is_some_and(Seat::gives_way) {
            let what = format!(
                "{}, {during}: a new client took its place, because all places were taken",
                self.peer
            );
            let report = Report::new(what).fault("nobody");
            let advice = "--max-clients with a larger number, or a longer --silence";
            return report.advice(advice).into();
        }
        match self.qp.end_reason() {
            Some(EndReason::PeerDisconnect) => Stop::PeerClosed,
            Some(reason) => explain::ended(self.peer, during, &reason).into(),
            None => Report::new(format!("{}, {during}: {status}", self.peer)).into(),
        }
    }

    /// Closes gracefully, and waits at most [`CLOSE`] for the peer to do the same.
    pub(super) fn close(&self) {
        self.qp.disconnect();
        let _ = self.qp.wait_closed(CLOSE);
    }

    /// Prints the parameters of the connection if `-d` is given.
    pub(super) fn debug_agreed(&self) -> Result<(), Failure> {
        let Some(info) = self.qp.connection() else {
            return Ok(());
        };
        let on = |on| if on { "on" } else { "off" };
        self.printer.debug(format_args!(
            "{} <-> {}: MPA revision {}, CRC {}, Markers sent {} received {}, IRD {} ORD {}",
            info.local,
            info.peer,
            info.revision.code(),
            on(info.crc),
            on(info.tx_markers),
            on(info.rx_markers),
            info.ird,
            info.ord
        ))
    }
}
