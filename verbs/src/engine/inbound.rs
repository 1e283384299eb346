//! The receive side: from octets of the LLP to placed data, completions and answers.

use std::time::Instant;

use uwarp_ddp::{DdpError, Header, STag, TaggedFault, UntaggedFault};
use uwarp_mpa::{Step, Ulpdu};
use uwarp_rdmap::{
    AtomicFault, AtomicRequestHeader, HEAD_LEN, Inbound, Memory, Opcode, QN_SEND,
    ReadRequestHeader, StreamError,
};

use super::connection::{Connection, OpenStream, QpContext, Stage};
use super::receive_buffer::ReceiveBuffer;
use super::receive_queue::ReceiveQueue;
use crate::completion::Status;
use crate::event::AsyncEvent;
use crate::mem::{Asker, Need, Target};
use crate::qp::state::QpState;
use crate::settings::OnNoReceive;
use crate::wait::after;

/// The answers that RDMAP needs of memory and of the receive queue.
struct View<'a> {
    ctx: &'a QpContext,
    asker: Asker,
    rq: &'a ReceiveQueue,
    /// The segment is the RTR indication: a Send of no octets that takes no receive.
    rtr_send: bool,
}

impl Memory for View<'_> {
    type Target = Target;

    fn check_write(&self, stag: STag, to: u64, len: u32) -> Result<Target, TaggedFault> {
        let asker = &self.asker;
        self.ctx
            .table
            .check(stag, to, len, Need::RemoteWrite, asker)
    }

    fn check_read(&self, stag: STag, to: u64, len: u32) -> Result<Target, TaggedFault> {
        let asker = &self.asker;
        self.ctx.table.check(stag, to, len, Need::RemoteRead, asker)
    }

    fn check_atomic(&self, stag: STag, to: u64) -> Result<Target, AtomicFault> {
        self.ctx.table.check_atomic(stag, to, &self.asker)
    }

    fn check_invalidate(&self, stag: STag) -> Result<(), TaggedFault> {
        self.ctx
            .table
            .check_invalidate(stag, self.ctx.pd, self.ctx.qp_num)
    }

    fn receive_buffer(&self) -> Option<u32> {
        if self.rtr_send {
            return Some(0);
        }
        self.rq.next_len()
    }
}

impl Connection {
    /// Takes what the LLP has delivered. What is left in `rx` is the beginning of something that
    /// has not arrived whole; or, while the connection [is starving](Self::is_starving), a message without a
    /// receive and what came behind it.
    pub(crate) fn receive(&mut self, rx: &mut ReceiveBuffer) {
        if matches!(self.stage, Stage::AwaitReply(_)) {
            self.receive_reply(rx);
        }
        if matches!(self.stage, Stage::Open(_)) {
            self.receive_fpdus(rx);
        }
        // Completions of Reads may have become due, in order with the Sends before them.
        self.retire();
    }

    fn receive_fpdus(&mut self, rx: &mut ReceiveBuffer) {
        if !self.may_go_on() {
            return;
        }
        let mut at = 0;
        loop {
            if !matches!(self.state, QpState::Rts | QpState::Closing) {
                // 5041-7.1-18: after an error whatever still arrives is dropped in silence.
                at = rx.filled().len();
                break;
            }
            let Stage::Open(stream) = &mut self.stage else {
                break;
            };
            match stream.deframer.next(&rx.filled()[at..]) {
                Ok(Step::Need(_)) => break,
                Ok(Step::Fpdu(ulpdu)) => {
                    if !self.ulpdu(&ulpdu) {
                        break;
                    }
                    at += ulpdu.wire_len();
                }
                Err(error) => {
                    self.offended(
                        StreamError::Mpa(error.code().code()),
                        error.to_string(),
                        None,
                    );
                }
            }
        }
        rx.discard(at);
    }

    /// One validated ULPDU. False when it has to wait for a receive: then nothing has happened to it.
    fn ulpdu(&mut self, ulpdu: &Ulpdu<'_>) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return true;
        };
        stream.gate.fpdu_validated();
        let mut scratch = [0; HEAD_LEN];
        let head = ulpdu.head(&mut scratch);
        let rtr_send = first_fpdu(
            stream,
            head,
            ulpdu.len(),
            &mut self.events,
            // Once a close has begun the timer is that of the close.
            (!self.fin.wanted).then_some(&mut self.deadline),
            self.ctx.qp_num,
        );
        if !rtr_send && stream.rdmap.takes_receive(head) && !self.take_receive() {
            if let Stage::Open(stream) = &mut self.stage {
                stream.deframer.put_back(ulpdu);
            }
            return false;
        }
        let Stage::Open(stream) = &mut self.stage else {
            return true;
        };
        let view = View {
            ctx: &self.ctx,
            asker: self.ctx.asker(self.access),
            rq: &self.rq,
            rtr_send,
        };
        match stream.rdmap.receive(&view, head, ulpdu.len()) {
            Ok(inbound) => self.inbound(inbound, ulpdu, rtr_send),
            Err(error) => {
                let detail = self.describe(&error, head);
                self.offended(error, detail, Some((head, ulpdu.len())));
            }
        }
        true
    }

    /// Whether octets that arrived may be looked at: not while the message in front of them waits for a receive.
    fn may_go_on(&self) -> bool {
        self.starving
            .is_none_or(|until| until <= self.now || self.rq.has_receive() || self.rq.has_left())
    }

    /// Takes a receive for the message that begins. False when there is none and the message waits for one; true
    /// also when there is none and it does not wait, or no longer: `rdmap` finds that out next.
    fn take_receive(&mut self) -> bool {
        let until = match (self.starving, self.ctx.on_no_receive) {
            (Some(until), _) => Some(until),
            (None, OnNoReceive::Terminate) => None,
            (None, OnNoReceive::Hold(bound)) => Some(after(self.now, bound)),
        };
        let waits = until.is_some_and(|until| self.now < until) && !self.rq.has_left();
        let taken = self.rq.take(waits, &mut self.events);
        self.starving = if taken || !waits { None } else { until };
        taken || !waits
    }

    fn inbound(&mut self, inbound: Inbound<Target>, ulpdu: &Ulpdu<'_>, rtr_send: bool) {
        match inbound {
            Inbound::Write {
                target,
                payload_at,
                len,
                ..
            } => {
                if let Some(target) = target {
                    self.place_write(&target, ulpdu, payload_at, len);
                }
            }
            Inbound::Send {
                payload_at,
                offset,
                len,
                delivered,
            } => {
                if rtr_send {
                    return;
                }
                if !self.place_send(ulpdu, payload_at, offset, len) {
                    return;
                }
                if let Some(delivered) = delivered {
                    let invalidated = delivered.invalidated.map(|stag| {
                        // The check has found it; a local deregistration meanwhile is as good.
                        let _ = self.ctx.table.invalidate(stag);
                        stag.0
                    });
                    self.complete_receive(delivered.len, delivered.solicited, invalidated);
                }
            }
            Inbound::ReadRequest | Inbound::AtomicRequest => {}
            Inbound::Immediate { data, solicited } => self.complete_immediate(data, solicited),
            Inbound::AtomicResponse { original } => self.place_original(original),
            Inbound::ReadResponse {
                payload_at,
                offset,
                len,
                complete,
            } => {
                self.place_response(ulpdu, payload_at, offset, len, complete);
            }
            Inbound::Terminate(terminate) => self.terminated_by_peer(terminate),
        }
    }

    fn place_write(&mut self, target: &Target, ulpdu: &Ulpdu<'_>, payload_at: usize, len: u32) {
        let mut at = 0;
        for piece in ulpdu.pieces(payload_at, len as usize) {
            if let Err(fault) = target.place(at, piece) {
                // Deregistered between the check and here.
                let error = StreamError::Ddp(DdpError::Tagged(fault));
                let mut scratch = [0; HEAD_LEN];
                let head = ulpdu.head(&mut scratch);
                return self.offended(error, String::new(), Some((head, ulpdu.len())));
            }
            at += piece.len();
        }
    }

    fn place_send(&mut self, ulpdu: &Ulpdu<'_>, payload_at: usize, offset: u32, len: u32) -> bool {
        let Some(wqe) = self.rq.taken() else {
            return len == 0;
        };
        let mut at = offset as usize;
        for piece in ulpdu.pieces(payload_at, len as usize) {
            if wqe.data.place(at, piece).is_err() {
                self.receive_buffer_gone();
                return false;
            }
            at += piece.len();
        }
        true
    }

    fn place_response(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        payload_at: usize,
        offset: u32,
        len: u32,
        complete: bool,
    ) {
        let Stage::Open(stream) = &mut self.stage else {
            return;
        };
        if stream.rtr_read {
            // The zero-length Read of the RTR indication is the first Read of all.
            stream.rtr_read = !complete;
            return;
        }
        let Some(sequence) = self.sq.oldest_request() else {
            return;
        };
        if let Some(wqe) = self.sq.get(sequence) {
            let mut at = offset as usize;
            for piece in ulpdu.pieces(payload_at, len as usize) {
                if wqe.data.list.place(at, piece).is_err() {
                    self.read_sink_gone(sequence);
                    return;
                }
                at += piece.len();
            }
        }
        if self.fin.wanted {
            // Our own work makes progress: the close may take that long.
            self.start_close_timer();
        }
        if complete {
            self.sq.request_answered();
        }
    }

    /// The result of an Atomic Operation, which is a word of this host in its sink.
    fn place_original(&mut self, original: u64) {
        let Some(sequence) = self.sq.oldest_request() else {
            return;
        };
        let octets = original.to_ne_bytes(); // 7306-5.1.1-i02
        let placed = self
            .sq
            .get(sequence)
            .is_none_or(|wqe| wqe.data.list.place(0, &octets).is_ok());
        if !placed {
            return self.read_sink_gone(sequence);
        }
        if self.fin.wanted {
            self.start_close_timer();
        }
        self.sq.request_answered();
    }

    /// Words about the place of an error: which region, which bounds, which buffer.
    fn describe(&self, error: &StreamError, head: &[u8]) -> String {
        use std::fmt::Write as _;
        let mut words = String::new();
        let Ok((header, _)) = Header::parse(head) else {
            return words;
        };
        let (stag, to, need) = match header {
            Header::Tagged(tagged) => (tagged.stag, tagged.to.0, Need::RemoteWrite),
            Header::Untagged(untagged) => {
                let opcode = Opcode::from_raw(untagged.ulp & 0x0F);
                let body = head.get(18..).unwrap_or(&[]);
                match (
                    opcode,
                    ReadRequestHeader::parse(body),
                    AtomicRequestHeader::parse(body),
                ) {
                    (Some(Opcode::ReadRequest), Some(request), _) => {
                        let _ = write!(words, "a Read of {} octets from ", request.len);
                        let (stag, to) = (request.source_stag, request.source_to.0);
                        (stag, to, Need::RemoteRead)
                    }
                    (Some(Opcode::AtomicRequest), _, Some(request)) => {
                        match request.op() {
                            Some(op) => drop(write!(words, "a {op} on ")),
                            None => words.push_str("an Atomic Operation on "),
                        }
                        (request.stag, request.to.0, Need::RemoteAtomic)
                    }
                    _ => {
                        if let Some(len) = self.rq.next_len() {
                            let _ = write!(
                                words,
                                "the receive at the head of the queue has {len} octets"
                            );
                        } else if matches!(error, StreamError::Ddp(_)) {
                            words.push_str("no receive is posted");
                        }
                        return words;
                    }
                }
            }
        };
        let _ = write!(words, "STag {:#010x}, TO {to:#x}: ", stag.0);
        words.push_str(&self.ctx.table.describe(stag));
        words.push_str(&self.refusal(error, stag, need));
        words
    }

    /// More words, when the region would allow what its QP does not.
    fn refusal(&self, error: &StreamError, stag: STag, need: Need) -> String {
        let right = need.access();
        let rights = matches!(
            error,
            StreamError::Ddp(DdpError::Tagged(TaggedFault::AccessRights))
                | StreamError::Protection(TaggedFault::AccessRights)
                | StreamError::Atomic(AtomicFault::Tagged(TaggedFault::AccessRights))
        );
        let region = self.ctx.table.access_of(stag);
        if !rights || self.access.contains(right) || !region.is_some_and(|own| own.contains(right))
        {
            return String::new();
        }
        format!(
            "; the queue pair does not allow {}: its own rights are {}",
            need.name(),
            self.access
        )
    }

    /// The status that the receive at the head gets when the peer's Send could not be taken. Only
    /// queue 0 consumes receives: a request or Terminate that is too long is none of its business.
    pub(super) fn blame_receive(
        error: &StreamError,
        segment: Option<(&[u8], usize)>,
    ) -> Option<Status> {
        let (head, _) = segment?;
        match Header::parse(head) {
            Ok((Header::Untagged(header), _)) if header.qn == QN_SEND => {}
            _ => return None,
        }
        match error {
            StreamError::Ddp(DdpError::Untagged(UntaggedFault::MessageTooLong { .. }))
            | StreamError::ImmediateLength { .. } => Some(Status::LocalLength),
            StreamError::CannotInvalidate(_) => Some(Status::RemoteInvalidRequest),
            _ => None,
        }
    }
}

/// What the first FPDU means for a responder. True when it is a zero-length Send that serves as the
/// RTR indication: it belongs to no receive (RFC 6581 section 4.4.2).
fn first_fpdu(
    stream: &mut OpenStream,
    head: &[u8],
    len: usize,
    events: &mut Vec<AsyncEvent>,
    rtr_timer: Option<&mut Option<Instant>>,
    qp_num: u32,
) -> bool {
    if !stream.first_awaited {
        return false;
    }
    stream.first_awaited = false;
    if let Some(timer) = rtr_timer {
        *timer = None;
    }
    let opcode = head.get(1).map(|control| control & 0x0F);
    // The initiator may have come to the conclusion that it cannot live with the Reply.
    if opcode != Some(Opcode::Terminate as u8) {
        events.push(AsyncEvent::Established { qp_num });
    }
    let empty_send = len == 18
        && head.first().is_some_and(|control| control & 0x80 == 0)
        && head
            .get(1)
            .is_some_and(|control| control & 0x0F == Opcode::Send as u8);
    stream.negotiated.rtr_offered.send && empty_send
}
