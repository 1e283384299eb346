//! A connection of a case: its negotiated parameters, its MSNs, and the bytes that arrived.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::{Breach, Follower};
use crate::size::mulpdu;
use crate::transport::{Got, Network, Stream};
use crate::wire::fpdu::{Framing, OpenedFpdu};
use crate::wire::segment::{Address, Segment, opcode};
use crate::wire::startup::{C, M, REQUEST_KEY, StartupFrame};

/// Maximum number of bytes that the target may send on one connection. More than this is a flood,
/// because no case needs as much.
const FLOOD: usize = 32 << 20;
/// Maximum number of FPDUs that the target may send on one connection. It detects a flood of small
/// FPDUs.
const FLOOD_FPDUS: usize = 50_000;

/// Sink of a Read Request that the target sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenRead {
    pub(super) sink_stag: u32,
    pub(super) sink_to: u64,
}

/// Headers of a segment that the suite sent. A Terminate may quote them.
#[derive(Clone, Debug)]
pub(super) struct SentSegment {
    /// DDP Segment Length.
    pub(super) length: u16,
    /// DDP Header of the segment.
    pub(super) header: Vec<u8>,
    /// RDMA Header of a Read Request; empty for other segments.
    pub(super) rdma: Vec<u8>,
}

/// A connection of a case.
pub(super) struct Connection {
    pub(super) stream: Box<dyn Stream>,
    /// Network of the connection, whose clock measures timeouts.
    network: Arc<dyn Network>,
    /// Startup frame of the suite.
    pub(super) ours: Option<StartupFrame>,
    /// Startup frame of the target.
    pub(super) theirs: Option<StartupFrame>,
    pub(super) tx: Framing,
    pub(super) rx: Framing,
    /// MSN of the next message that the suite sends, by QN.
    msns: [u32; 4],
    follower: Follower,
    buffer: Vec<u8>,
    /// Number of bytes at the start of `buffer` that are already consumed. They are removed when
    /// more bytes arrive.
    taken: usize,
    /// Number of received bytes.
    received: usize,
    /// Number of received FPDUs.
    fpdus: usize,
    /// Time limit of the current step. It also applies if messages keep arriving, because a target
    /// that sends slowly forever is a flood, too.
    pub(super) until: Option<Instant>,
    /// How the target ended the stream: [`Got::Fin`] or [`Got::Reset`]. `None` while the stream is
    /// open.
    pub(super) ended: Option<Got>,
    pub(super) breaches: Vec<Breach>,
    pub(super) reads: Vec<SeenRead>,
    pub(super) atomics: Vec<u32>,
    /// FPDUs that were received but belong to a later step.
    pub(super) ahead: VecDeque<OpenedFpdu>,
    /// True until the target has sent its one wake-up ([`Connection::is_wake_up`]).
    may_wake: bool,
    /// The current step expects a Write of zero length.
    pub(super) wants_empty_write: bool,
    /// Agent's number for the connection.
    pub(super) conn: Option<u64>,
    /// True if the suite chose the MSS that it announced. Then the EMSS of the target equals that
    /// of the suite.
    pub(super) mss_chosen: bool,
    /// Headers of all segments that the suite sent, in order.
    pub(super) sent: Vec<SentSegment>,
}

/// Next event on a connection.
pub(super) enum Next {
    Fpdu(OpenedFpdu),
    Fin,
    Reset,
    Nothing,
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Stream>, network: Arc<dyn Network>) -> Self {
        Connection {
            stream,
            network,
            ours: None,
            theirs: None,
            tx: Framing::new(true, false),
            rx: Framing::new(true, false),
            msns: [1; 4],
            follower: Follower::default(),
            buffer: Vec::new(),
            taken: 0,
            received: 0,
            fpdus: 0,
            until: None,
            ended: None,
            breaches: Vec::new(),
            reads: Vec::new(),
            atomics: Vec::new(),
            ahead: VecDeque::new(),
            may_wake: false,
            wants_empty_write: false,
            conn: None,
            mss_chosen: false,
            sent: Vec::new(),
        }
    }

    pub(super) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.stream.local_addr(), self.stream.peer_addr())
    }

    /// Enters Full Operation. The two startup frames determine whether CRCs and Markers are used
    /// (RFC 5044 section 7.1.1).
    pub(super) fn operate(&mut self) {
        let flags = |frame: &Option<StartupFrame>| frame.as_ref().map_or(0, |frame| frame.flags);
        let (ours, theirs) = (flags(&self.ours), flags(&self.theirs));
        let crc = (ours | theirs) & C != 0;
        self.tx = Framing::new(crc, theirs & M != 0);
        self.rx = Framing::new(crc, ours & M != 0);
        let initiates = |frame: &StartupFrame| frame.key == REQUEST_KEY;
        self.may_wake = self.theirs.as_ref().is_some_and(initiates);
        self.follower.sizes.mulpdu = self.emss().map(|emss| mulpdu(emss, self.rx.markers));
    }

    /// Reads the available bytes without waiting. Returns true if the target has closed or reset
    /// the connection.
    pub(super) fn poll_end(&mut self) -> bool {
        if self.ended.is_none() {
            let _ = self.fill(self.network.now());
        }
        matches!(self.ended, Some(Got::Fin | Got::Reset))
    }

    /// Returns the EMSS of the target, if the suite knows it. It equals the EMSS of the suite if
    /// the suite announced an MSS below both MTUs.
    pub(super) fn emss(&self) -> Option<usize> {
        self.stream.mss().filter(|_| self.mss_chosen)
    }

    /// Returns the MSN of the next message on a queue.
    pub(super) fn msn(&self, qn: u32) -> u32 {
        self.msns.get(qn as usize).copied().unwrap_or(1)
    }

    pub(super) fn use_msn(&mut self, qn: u32) {
        if let Some(msn) = self.msns.get_mut(qn as usize) {
            *msn = msn.wrapping_add(1);
        }
    }

    pub(super) fn fill(&mut self, deadline: Instant) -> io::Result<Got> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        let mut bytes = vec![0; 1 << 16];
        let left = deadline.saturating_duration_since(self.network.now());
        let got = self.stream.receive(&mut bytes, left)?;
        match got {
            Got::Bytes(count) => {
                self.buffer.drain(..std::mem::take(&mut self.taken));
                self.buffer.extend_from_slice(&bytes[..count]);
                self.received += count;
                if self.received > FLOOD {
                    return Err(ErrorKind::QuotaExceeded.into());
                }
            }
            Got::Fin | Got::Reset => self.ended = Some(got),
            Got::Nothing => {}
        }
        Ok(got)
    }

    /// Reads a whole startup frame and returns it with its bytes. Returns `Err(Ok(got))` if FIN,
    /// reset or the timeout occurs first.
    pub(super) fn startup(
        &mut self,
        timeout: Duration,
    ) -> Result<(StartupFrame, Vec<u8>), io::Result<Got>> {
        let deadline = self.network.now() + timeout;
        loop {
            if let Some(header) = self.rest().first_chunk::<20>() {
                let (mut frame, claimed) = StartupFrame::parse_header(header);
                if let Some(bytes) = self.rest().get(..20 + claimed) {
                    let bytes = bytes.to_vec();
                    frame.private_data = bytes[20..].to_vec();
                    self.taken += bytes.len();
                    return Ok((frame, bytes));
                }
            }
            match self.fill(deadline) {
                Ok(Got::Bytes(_)) => {}
                other => return Err(other),
            }
        }
    }

    /// Returns received bytes that are not consumed yet, because they do not form a whole frame or
    /// FPDU.
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Stores the first breach of each rule. One breach is enough to fail a case.
    fn remember(&mut self, breaches: Vec<Breach>) {
        for breach in breaches {
            if !self.breaches.iter().any(|known| known.rule == breach.rule) {
                self.breaches.push(breach);
            }
        }
    }

    /// Returns true if the FPDU is a wake-up: a Write of zero length that an Initiator sends in
    /// case the Responder missed its first FPDU. uwarp does this (`Settings::wake_up`).
    ///
    /// No rule forbids a wake-up between two messages, and no case tests it. Therefore
    /// [`Connection::next`] skips it. The rules for senders still apply to it.
    fn is_wake_up(&self, fpdu: &OpenedFpdu) -> bool {
        let is_allowed = self.may_wake
            && !self.wants_empty_write
            && self.fpdus > 1
            && self.follower.is_between_messages();
        is_allowed
            && Segment::parse(&fpdu.ulpdu).is_some_and(|segment| {
                matches!(segment.address, Address::Tagged { .. })
                    && segment.opcode() == opcode::WRITE
                    && segment.last()
                    && segment.payload.is_empty()
            })
    }

    /// Returns the next FPDU, or FIN, reset or the timeout if one of them occurs first. Skips one
    /// wake-up.
    pub(super) fn next(&mut self, timeout: Duration) -> io::Result<Next> {
        if let Some(fpdu) = self.ahead.pop_front() {
            return Ok(Next::Fpdu(fpdu));
        }
        let now = self.network.now();
        if self.until.is_some_and(|until| now > until) {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        let deadline = now + timeout;
        loop {
            let mut rx = self.rx;
            if let Some(fpdu) = rx.open(self.rest()) {
                self.rx = rx;
                self.taken += fpdu.wire.len();
                self.fpdus += 1;
                if self.fpdus > FLOOD_FPDUS {
                    return Err(ErrorKind::QuotaExceeded.into());
                }
                let is_wake_up = self.is_wake_up(&fpdu);
                let breaches = self.follower.follow(&fpdu, self.rx.crc);
                self.remember(breaches);
                if is_wake_up {
                    self.may_wake = false;
                    continue;
                }
                return Ok(Next::Fpdu(fpdu));
            }
            match self.fill(deadline)? {
                Got::Bytes(_) => {}
                Got::Fin => return Ok(Next::Fin),
                Got::Reset => return Ok(Next::Reset),
                Got::Nothing => return Ok(Next::Nothing),
            }
        }
    }
}
