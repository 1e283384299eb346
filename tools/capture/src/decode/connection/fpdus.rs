//! Checks the FPDUs of a connection against the result of startup and against the other direction.

use uwarp_ddp::Header;
use uwarp_mpa::NO_AUTO;
use uwarp_rdmap::Opcode;

use super::Connection;
use super::startup::SHOWN;
use crate::decode::Body;
use crate::decode::finding::Findings;
use crate::decode::frame::{Content, Frame};
use crate::decode::segment::Segment;
use crate::decode::words::many;

impl Connection {
    pub(super) fn impossible(&mut self, from: usize, ulpdu: u16, out: &mut Vec<Frame>) {
        let mut findings = Findings::default();
        let side = &self.sides[from];
        if let Some(framing) = side.framing {
            framing.judge(side.position(), &[], ulpdu, false, &mut findings);
        }
        let bytes = side.buffer.get(..SHOWN).unwrap_or(&side.buffer).to_vec();
        let content = Content::Fpdu {
            ulpdu,
            segment: None,
        };
        self.push(from, content, &bytes, findings, out);
        // The bytes of the frame are still in the buffer, so the frame begins at the offset of the
        // buffer.
        if let Some(frame) = out.last_mut() {
            frame.offset = self.sides[from].offset;
        }
        self.lose(from, 0);
    }

    pub(super) fn fpdu(&mut self, from: usize, ulpdu: u16, len: usize, out: &mut Vec<Frame>) {
        let side = &mut self.sides[from];
        let Some(framing) = side.framing else {
            return;
        };
        let whole = side.hole.is_none();
        let position = side.position();
        let bytes = side.take(len);
        let content = framing.content(position, &bytes);
        let ulpdu_bytes = content.get(2..2 + usize::from(ulpdu)).unwrap_or_default();
        let segment = Segment::read(ulpdu_bytes, self.peer);
        if !self.sides[from].accept_fpdu(&bytes, segment.as_ref()) {
            return self.lose(from, 0);
        }
        let mut findings = Findings::default();
        framing.judge(position, &bytes, ulpdu, whole, &mut findings);
        self.check_may_send(from, segment.as_ref(), &mut findings);
        match &segment {
            None => findings.demand(false, "5041-4.4-01", || {
                let ulpdu = many(ulpdu, "byte");
                format!("a ULPDU of {ulpdu}: it ends within the DDP header")
            }),
            Some(segment) => {
                let at = ulpdu_bytes.len() - segment.len as usize;
                let rest = ulpdu_bytes.get(at..).unwrap_or_default();
                segment.judge(rest, whole, &mut findings);
                let ird = self.ird_of(1 - from);
                let [first, second] = &mut self.sides;
                let (side, peer) = match from {
                    0 => (first, second),
                    _ => (second, first),
                };
                side.sent.judge(segment, &mut peer.sent, ird, &mut findings);
            }
        }
        let side = &mut self.sides[from];
        side.fpdus += 1;
        side.bytes += u64::from(ulpdu);
        let content = Content::Fpdu { ulpdu, segment };
        self.push(from, content, &bytes, findings, out);
        if let Some(frame) = out.last_mut() {
            frame.whole = whole;
            frame.framing = Some((framing, position));
        }
    }

    /// Checks at the start of Full Operation that this side was already allowed to send, and that
    /// it may send this FPDU first.
    fn check_may_send(&mut self, from: usize, segment: Option<&Segment>, findings: &mut Findings) {
        let initiator = self.initiator();
        let is_first = self.sides[from].fpdus == 0;
        let early = std::mem::take(&mut self.sides[from].early);
        findings.demand(!early, "5044-7.1.2-11", || "sent before the Reply arrived");
        let (mine, theirs) = (&self.sides[from], &self.sides[1 - from]);
        let may_answer = initiator == Some(from) || initiator.is_none();
        findings.demand(
            !is_first || may_answer || theirs.fpdus > 0 || theirs.is_incomplete() || mine.guessed,
            "5044-7.1.2-15",
            || "the responder sends before the first FPDU of the initiator",
        );
        let rtr = self.reply.and_then(|reply| reply.enhanced);
        if let Some(data) = rtr
            && is_first
            && initiator == Some(from)
            && data.peer_to_peer()
            && !mine.is_incomplete()
        {
            findings.demand(
                segment.is_some_and(|segment| is_rtr(segment, data.rtr())),
                "6581-9.2-09",
                || "the first FPDU is not one of the RTR indications of the Reply",
            );
        }
    }

    /// Returns the number of outstanding Read Requests that a side accepts, according to its
    /// startup frame. Returns `None` if it is not known or not negotiated.
    fn ird_of(&self, side: usize) -> Option<u16> {
        let (initiator, request) = self.request?;
        let frame = match initiator == side {
            true => request,
            false => self.reply?,
        };
        // IRD and ORD are negotiated only if both frames contain them.
        request.enhanced.and(self.reply?.enhanced)?;
        let ird = frame.enhanced?.ird();
        (ird != NO_AUTO).then_some(ird)
    }
}

/// Returns true if the segment is an RTR indication: a message of zero length and of one of the
/// kinds that are set (Send, Write, Read).
fn is_rtr(segment: &Segment, [send, write, read]: [bool; 3]) -> bool {
    let is_empty = segment.len == 0 && segment.header.last();
    match segment.opcode() {
        Some(Opcode::Send) => send && is_empty,
        Some(Opcode::Write) => write && is_empty,
        Some(Opcode::ReadRequest) => match (&segment.body, &segment.header) {
            (Body::ReadRequest(request), Header::Untagged(_)) => read && request.len == 0,
            _ => false,
        },
        _ => false,
    }
}
