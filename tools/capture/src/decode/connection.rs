//! Decoder of one TCP connection. It combines both directions: the result of startup, and the rules
//! that concern both.

mod fpdus;
mod startup;

use std::net::SocketAddr;
use std::time::Duration;

use uwarp_rdmap::Peer;

use super::assembly::Piece;
use super::finding::Findings;
use super::frame::{Content, Event, Frame};
use super::side::{Guess, Next, Phase, Side};
use super::sorter::{Arrival, Sorter};
use super::startup::{Opening, Startup};
use crate::TcpSegment;

/// Maximum number of bytes that wait after a startup frame for the startup frame of the peer. If
/// there are more, decoding of this direction stops until an FPDU begins a segment.
const MAX_EARLY: usize = 128 * 1024;

/// Number and time of a packet in the capture.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Now {
    pub(super) packet: u64,
    pub(super) time: Duration,
}

/// Protocol of a connection, as far as it is known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Not known yet.
    Unknown,
    /// MPA. The value is the number of the connection.
    Mpa(u64),
    /// Another protocol, which is not decoded.
    Other,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) protocol: Protocol,
    pub(super) ends: [SocketAddr; 2],
    pub(super) sides: [Side; 2],
    /// The Request, with the index of the side that sent it.
    pub(super) request: Option<(usize, Startup)>,
    pub(super) reply: Option<Startup>,
    pub(super) findings: u64,
    /// Last packet of the connection.
    pub(super) last: Now,
    /// Packet whose segment is being decoded.
    current: Now,
    sorter: Sorter,
    peer: Peer,
}

impl Connection {
    pub(super) fn new(first: SocketAddr, second: SocketAddr, peer: Peer) -> Self {
        Self {
            protocol: Protocol::Unknown,
            ends: [first, second],
            sides: Default::default(),
            request: None,
            reply: None,
            findings: 0,
            last: Now::default(),
            current: Now::default(),
            sorter: Sorter::default(),
            peer,
        }
    }

    /// Returns the memory that the connection uses besides this structure, in bytes.
    pub(super) fn held(&self) -> usize {
        self.sorter.held() + self.sides.iter().map(Side::held).sum::<usize>()
    }

    /// Handles a segment of this connection. `numbers` counts the connections with MPA.
    pub(super) fn segment(
        &mut self,
        now: Now,
        segment: &TcpSegment<'_>,
        numbers: &mut u64,
        out: &mut Vec<Frame>,
    ) {
        self.last = now;
        if self.protocol == Protocol::Other {
            return;
        }
        let arrival = Arrival {
            now,
            from: usize::from(segment.source != self.ends[0]),
            seq: segment.seq,
            ack: segment.ack.then_some(segment.ack_number),
            syn: segment.syn,
            fin: segment.fin,
            rst: segment.rst,
            bytes: segment.payload.into(),
            // A segment fits into an IP packet, so its length fits into 32 bits.
            len: u32::try_from(segment.len).unwrap_or_default(),
        };
        if let Some(arrival) = self.sorter.push(arrival) {
            self.arrive(&arrival, numbers, out);
        }
        self.arrive_due(Some(now.time), numbers, out);
    }

    /// Handles the segments that need not wait any longer. `now` is the time of the capture, or
    /// `None` at its end.
    fn arrive_due(&mut self, now: Option<Duration>, numbers: &mut u64, out: &mut Vec<Frame>) {
        while let Some(arrival) = self.sorter.due(now) {
            self.arrive(&arrival, numbers, out);
        }
    }

    /// Handles the next segment in causal order.
    fn arrive(&mut self, segment: &Arrival<'_>, numbers: &mut u64, out: &mut Vec<Frame>) {
        self.current = segment.now;
        let (from, mut seq) = (segment.from, segment.seq);
        if segment.syn {
            seq = seq.wrapping_add(1);
            self.open(from, seq, segment.ack);
        }
        if self.protocol == Protocol::Other {
            return;
        }
        if let Some(ack) = segment.ack {
            for piece in self.sides[1 - from].assembly.acknowledge(ack) {
                self.feed(1 - from, piece, numbers, out);
            }
            if self.sides[1 - from].is_incomplete() {
                self.forget_requests();
            }
        }
        let pieces = self.sides[from]
            .assembly
            .push(seq, &segment.bytes, segment.len);
        for piece in pieces {
            self.feed(from, piece, numbers, out);
        }
        let is_mpa = matches!(self.protocol, Protocol::Mpa(_));
        if is_mpa && (segment.fin || segment.rst) && !self.sides[from].ended {
            self.sides[from].ended = true;
            let event = match segment.rst {
                true => Event::Reset,
                false => Event::Fin(self.sides[from].buffer.len()),
            };
            self.event(from, event, out);
        }
    }

    fn open(&mut self, from: usize, first: u32, ack: Option<u32>) {
        let side = &mut self.sides[from];
        side.from_start |= !side.assembly.is_started();
        side.assembly.starts_at(first);
        if let Some(ack) = ack {
            let side = &mut self.sides[1 - from];
            side.from_start |= !side.assembly.is_started();
            side.assembly.starts_at(ack);
        }
    }

    /// Ends the connection after its last packet.
    pub(super) fn finish(&mut self, numbers: &mut u64, out: &mut Vec<Frame>) {
        self.arrive_due(None, numbers, out);
        self.current = self.last;
        for from in [0, 1] {
            for piece in self.sides[from].assembly.finish() {
                self.feed(from, piece, numbers, out);
            }
        }
        for from in [0, 1] {
            // The startup frame of the peer is missing. Either the peer does not speak MPA, or the
            // capture lacks the frame.
            if !self.sides[from].early {
                self.stop_waiting(from, numbers, out);
            }
        }
        if !matches!(self.protocol, Protocol::Mpa(_)) {
            return;
        }
        for from in [0, 1] {
            let side = &self.sides[from];
            let left = side.buffer.len();
            let said = side.ended && side.phase == Phase::Fpdus;
            if left == 0 || said || side.phase == Phase::Plain {
                continue;
            }
            let mut findings = Findings::default();
            let waits = side.early && self.initiator() == Some(from);
            findings.demand(
                !waits,
                "5044-7.1.2-11",
                || "bytes after the Request, but no Reply",
            );
            self.push(
                from,
                Content::Event(Event::Unfinished(left)),
                &[],
                findings,
                out,
            );
        }
    }

    fn initiator(&self) -> Option<usize> {
        self.request.map(|(from, _)| from)
    }

    /// Handles the next piece of the stream of a direction.
    fn feed(&mut self, from: usize, piece: Piece<'_>, numbers: &mut u64, out: &mut Vec<Frame>) {
        match piece {
            Piece::Gap(len) => self.gap(from, len, numbers, out),
            Piece::Bytes(bytes) => {
                let side = &mut self.sides[from];
                match side.phase {
                    Phase::Plain => return side.drop_all(bytes.len() as u64),
                    Phase::Lost => {
                        if !side.resume(&bytes, self.peer) {
                            return side.drop_all(bytes.len() as u64);
                        }
                        side.buffer.extend(&bytes);
                        self.confirm_mpa(numbers);
                        self.stop_waiting(1 - from, numbers, out);
                    }
                    Phase::AwaitPeer => {
                        side.buffer.extend(&bytes);
                        self.mark_early(from);
                    }
                    Phase::Opening | Phase::Fpdus => {
                        side.buffer.extend(&bytes);
                    }
                }
            }
        }
        self.advance(from, numbers, out);
    }

    /// Decodes all complete frames in the buffer of a direction.
    fn advance(&mut self, from: usize, numbers: &mut u64, out: &mut Vec<Frame>) {
        loop {
            match self.sides[from].phase {
                Phase::Opening => match Startup::read(&self.sides[from].buffer) {
                    Opening::More => return,
                    Opening::Other => return self.no_startup(from, numbers, out),
                    Opening::Frame(frame, len) => self.startup(from, frame, len, numbers, out),
                },
                Phase::AwaitPeer => {
                    let alone = self.sides[from].alone || self.sorter.is_absent(1 - from);
                    let guess = match alone {
                        true => self.sides[from].guess(self.asks_for_crc(from), self.peer),
                        false => Guess::More,
                    };
                    match guess {
                        Guess::Framing(framing) => {
                            let crc = self.asks_for_crc(from);
                            self.forget_requests();
                            self.sides[from].begin_alone(framing, crc);
                        }
                        Guess::More if self.sides[from].buffer.len() <= MAX_EARLY => return,
                        Guess::More | Guess::No => return self.lose(from, 0),
                    }
                }
                Phase::Fpdus => match self.sides[from].next() {
                    Next::More => return,
                    Next::Fpdu { ulpdu, len } => self.fpdu(from, ulpdu, len, out),
                    Next::Impossible(ulpdu) => return self.impossible(from, ulpdu, out),
                },
                Phase::Lost | Phase::Plain => return,
            }
        }
    }

    /// Marks the connection as MPA and gives it a number, unless it has one already.
    fn confirm_mpa(&mut self, numbers: &mut u64) {
        if self.protocol == Protocol::Unknown {
            *numbers += 1;
            self.protocol = Protocol::Mpa(*numbers);
        }
    }

    fn forget_requests(&mut self) {
        for side in &mut self.sides {
            side.sent.forget_requests();
        }
    }

    /// Stops decoding the FPDUs of a direction, until one is found at the start of a segment. Drops
    /// the bytes in its buffer and the next `more` bytes.
    fn lose(&mut self, from: usize, more: u64) {
        self.forget_requests();
        let side = &mut self.sides[from];
        side.sent.lose_track();
        side.phase = Phase::Lost;
        side.was_lost = true;
        side.drop_all(more);
    }

    /// Stops waiting for the startup frame of the peer, because the capture lacks it.
    fn stop_waiting(&mut self, from: usize, numbers: &mut u64, out: &mut Vec<Frame>) {
        if self.sides[from].phase == Phase::AwaitPeer {
            self.sides[from].alone = true;
            self.advance(from, numbers, out);
        }
    }

    /// Returns true if the startup frame of this side asks for CRCs. If this side has not sent the
    /// Request, checks the Reply.
    fn asks_for_crc(&self, from: usize) -> bool {
        match self.request {
            Some((initiator, request)) if initiator == from => request.crc(),
            _ => self.reply.is_some_and(|reply| reply.crc()),
        }
    }

    fn gap(&mut self, from: usize, len: u64, numbers: &mut u64, out: &mut Vec<Frame>) {
        let is_mpa = matches!(self.protocol, Protocol::Mpa(_));
        if is_mpa && self.sides[from].phase != Phase::Plain {
            self.event(from, Event::Gap(len), out);
        }
        match self.sides[from].phase {
            Phase::Plain => self.sides[from].drop_all(len),
            Phase::AwaitPeer | Phase::Lost => self.lose(from, len),
            Phase::Opening => {
                self.lose(from, len);
                self.stop_waiting(1 - from, numbers, out);
            }
            Phase::Fpdus => {
                let bridged = self.sides[from].bridge(len);
                self.advance(from, numbers, out);
                if bridged < len {
                    self.lose(from, len - bridged);
                }
            }
        }
    }

    fn event(&mut self, from: usize, event: Event, out: &mut Vec<Frame>) {
        self.push(from, Content::Event(event), &[], Findings::default(), out);
    }

    fn push(
        &mut self,
        from: usize,
        content: Content,
        bytes: &[u8],
        findings: Findings,
        out: &mut Vec<Frame>,
    ) {
        let Protocol::Mpa(connection) = self.protocol else {
            return;
        };
        self.findings += findings.0.len() as u64;
        let behind = match content {
            Content::Startup(_) | Content::Fpdu { .. } => bytes.len() as u64,
            Content::Bytes | Content::Event(_) => 0,
        };
        out.push(Frame {
            packet: self.current.packet,
            time: self.current.time,
            connection,
            from: self.ends[from],
            to: self.ends[1 - from],
            offset: self.sides[from].offset.saturating_sub(behind),
            content,
            bytes: bytes.to_vec(),
            whole: true,
            findings: findings.0,
            framing: None,
        });
    }
}

#[cfg(test)]
mod tests;
