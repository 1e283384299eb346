//! Handles the startup frames of a connection: their order, and the result of the negotiation.

use super::{Connection, Protocol};
use crate::decode::assembly::Piece;
use crate::decode::finding::Findings;
use crate::decode::fpdu::Framing;
use crate::decode::frame::{Content, Frame};
use crate::decode::side::Phase;
use crate::decode::startup::Startup;

/// Maximum number of bytes kept of data that is not a frame.
pub(super) const SHOWN: usize = 64;

impl Connection {
    pub(super) fn startup(
        &mut self,
        from: usize,
        frame: Startup,
        len: usize,
        numbers: &mut u64,
        out: &mut Vec<Frame>,
    ) {
        self.confirm_mpa(numbers);
        let mut findings = Findings::default();
        frame.judge(&mut findings);
        let other = &self.sides[1 - from];
        // The Request may be missing: it may have been sent before the capture began, or the
        // capture may lack it.
        let unknown = other.is_incomplete();
        match (frame.reply, self.request) {
            (true, Some((_, request))) => frame.judge_reply(&request, &mut findings),
            (true, None) => {
                findings.demand(unknown, "5044-7.1.2-03", || "a Reply before the Request");
            }
            (false, Some(_)) => findings.demand(
                false,
                "5044-7.1.1-03",
                || "a Request where the Reply is expected",
            ),
            (false, None) => {}
        }
        let both_ask = !frame.reply && self.request.is_some();
        let both_answer = frame.reply && self.reply.is_some();
        match frame.reply {
            true => self.reply = Some(frame),
            false if both_ask => {}
            false => self.request = Some((from, frame)),
        }
        let bytes = self.sides[from].take(len);
        self.push(from, Content::Startup(frame), &bytes, findings, out);
        let side = &mut self.sides[from];
        side.base = side.offset;
        side.phase = Phase::AwaitPeer;
        // Without the Request, the result of the negotiation has to be derived from the FPDUs.
        side.alone |= frame.reply && self.request.is_none() && unknown;
        if !self.sides[from].buffer.is_empty() && self.reply.is_none() {
            self.mark_early(from);
        }
        if both_ask || both_answer {
            self.leave_mpa();
        } else if let (Some((initiator, request)), Some(reply)) = (self.request, self.reply) {
            self.agree(initiator, &request, &reply);
            self.advance(1 - from, numbers, out);
        }
    }

    /// Marks a side as early: it sent bytes after its Request before the Reply arrived.
    pub(super) fn mark_early(&mut self, from: usize) {
        // The capture may lack bytes of the peer, and these may include the Reply. In that case,
        // the side is not marked.
        let early = self.initiator() == Some(from) && !self.sides[1 - from].is_incomplete();
        self.sides[from].early |= early;
    }

    /// Enters Full Operation after both startup frames, or leaves MPA if the Reply rejects.
    fn agree(&mut self, initiator: usize, request: &Startup, reply: &Startup) {
        if reply.rejected() {
            return self.leave_mpa();
        }
        let crc = request.crc() || reply.crc();
        // M asks the receiver of the frame to send Markers.
        for (from, markers) in [
            (initiator, reply.markers()),
            (1 - initiator, request.markers()),
        ] {
            let side = &mut self.sides[from];
            side.framing = Some(Framing { crc, markers });
            if side.phase == Phase::AwaitPeer {
                side.phase = Phase::Fpdus;
            }
        }
    }

    fn leave_mpa(&mut self) {
        for side in &mut self.sides {
            side.phase = Phase::Plain;
            side.drop_all(0);
        }
    }

    /// Handles the first bytes of a direction if they do not begin a startup frame.
    pub(super) fn no_startup(&mut self, from: usize, numbers: &mut u64, out: &mut Vec<Frame>) {
        let from_start = self.sides[from].from_start;
        if let Protocol::Mpa(_) = self.protocol
            && from_start
        {
            let mut findings = Findings::default();
            let (id, what) = match self.initiator() {
                Some(_) => (
                    "5044-7.1.1-03",
                    "the Reply must begin with \"MPA ID Rep Frame\"",
                ),
                None => (
                    "5044-7.1.1-01",
                    "the Request must begin with \"MPA ID Req Frame\"",
                ),
            };
            findings.demand(false, id, || what);
            let bytes = self.sides[from].buffer.to_vec();
            let shown = bytes.get(..SHOWN).unwrap_or(&bytes);
            self.push(from, Content::Bytes, shown, findings, out);
            self.leave_mpa();
        } else if from_start {
            self.protocol = Protocol::Other;
            self.sides = Default::default();
        } else {
            // The connection began before the capture.
            let bytes = self.sides[from].buffer.take_all();
            self.forget_requests();
            self.sides[from].phase = Phase::Lost;
            self.sides[from].sent.lose_track();
            self.feed(from, Piece::Bytes(bytes.into()), numbers, out);
        }
    }
}
