//! The receive side: from bytes of the LLP to placed data, completions and answers.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use uwarp_ddp::{DdpError, Header, STag, TaggedFault, UntaggedFault};
use uwarp_mpa::{Step, Ulpdu};
use uwarp_rdmap::{
    AtomicFault, AtomicRequestHeader, HEAD_LEN, Inbound, Memory, Opcode, QN_SEND,
    ReadRequestHeader, StreamError,
};

use super::connection::{Connection, OpenStream, QpContext, Stage};
use super::receive_buffer::ReceiveBuffer;
use super::receive_queue::ReceiveQueue;
use crate::cause::{Act, Broken, Cause, Receive, Refusal};
use crate::completion::Status;
use crate::event::AsyncEvent;
use crate::mem::{Asker, Landing, Need, WriteTargetCache};
use crate::mutants::mutate;
use crate::qp::state::QpState;
use crate::settings::OnNoReceive;
use crate::wait::after;

/// The answers that RDMAP needs of memory and of the receive queue.
struct View<'a> {
    ctx: &'a QpContext,
    asker: Asker,
    rq: &'a ReceiveQueue,
    recent: RefCell<&'a mut WriteTargetCache>,
    /// The segment is the RTR indication: a Send of no bytes that takes no receive.
    rtr_send: bool,
}

impl Memory for View<'_> {
    /// Only a Write goes somewhere at once.
    type Target = Option<Landing>;

    #[inline]
    fn check_write(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault> {
        let table = &self.ctx.table;
        let mut recent = self.recent.borrow_mut();
        recent
            .check_write(table, stag, to, len, &self.asker)
            .map(Some)
    }

    fn check_read(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault> {
        let table = &self.ctx.table;
        let checked = table.check(stag, to, len, Need::RemoteRead, &self.asker);
        checked.map(|_| None)
    }

    fn check_atomic(&self, stag: STag, to: u64) -> Result<Self::Target, AtomicFault> {
        let checked = self.ctx.table.check_atomic(stag, to, &self.asker);
        checked.map(|_| None)
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
        if self.wrote && self.sq.is_empty() {
            self.tell_of_write();
        }
    }

    fn receive_fpdus(&mut self, rx: &mut ReceiveBuffer) {
        if !self.may_go_on() {
            return;
        }
        let mut at = 0;
        let mut recent = WriteTargetCache::default();
        loop {
            if !matches!(self.state, QpState::Rts | QpState::Closing) {
                // 5041-7.1-18: after an error whatever still arrives is dropped in silence.
                at = rx.filled().len();
                break;
            }
            let Stage::Open(stream) = &mut self.stage else {
                break;
            };
            // By reference, here and below: to move what was found costs as much as to look for it.
            match &stream.deframer.next(&rx.filled()[at..]) {
                Ok(Step::Need(_)) => break,
                Ok(Step::Fpdu(ulpdu)) => {
                    let taken = self.plain_write(ulpdu, &mut recent)
                        || self.plain_send(ulpdu, &mut recent)
                        || self.ulpdu(ulpdu, &mut recent);
                    if !taken {
                        break;
                    }
                    at += ulpdu.wire_len();
                }
                Err(error) => {
                    recent.leave();
                    self.recorder.damaged(self.now, &rx.filled()[at..]);
                    self.offended(
                        StreamError::Mpa(error.code().code()),
                        Cause::framing(*error),
                        None,
                    );
                }
            }
        }
        rx.discard(at);
    }

    /// One validated ULPDU. False when it has to wait for a receive: then nothing has happened to it.
    fn ulpdu(&mut self, ulpdu: &Ulpdu<'_>, recent: &mut WriteTargetCache) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return true;
        };
        if stream.gate.fpdu_validated() {
            self.hold = None;
        }
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
        let takes = !rtr_send && stream.rdmap.takes_receive(head);
        if takes {
            recent.leave();
        }
        if takes && !self.take_receive() {
            if let Stage::Open(stream) = &mut self.stage {
                stream.deframer.put_back(ulpdu);
            }
            return false;
        }
        self.recorder.received(self.now, head, ulpdu.len());
        let Stage::Open(stream) = &mut self.stage else {
            return true;
        };
        let view = View {
            ctx: &self.ctx,
            asker: self.ctx.asker(self.access),
            rq: &self.rq,
            recent: RefCell::new(&mut *recent),
            rtr_send,
        };
        let received = &stream.rdmap.receive(&view, head, ulpdu.len());
        match received {
            &Ok(Inbound::Write {
                ref target,
                payload_at,
                len,
                last,
            }) => {
                self.count_write(len, last);
                if let Some(Some(landing)) = *target {
                    self.place_write(landing, recent, ulpdu, payload_at, len);
                }
            }
            Ok(inbound) => {
                // It may end a region.
                recent.leave();
                self.inbound(inbound, ulpdu, rtr_send);
            }
            &Err(error) => {
                recent.leave();
                let cause = self.cause_of(error, head, ulpdu.len());
                self.offended(error, cause, Some((head, ulpdu.len())));
            }
        }
        true
    }

    /// Whether bytes that arrived may be looked at: not while the message in front of them waits for a receive.
    fn may_go_on(&mut self) -> bool {
        self.starving
            .is_none_or(|until| until <= self.now || self.rq.has_left() || self.rq.has_receive())
    }

    /// Takes a receive for the message that begins. False when there is none and the message waits for one; true
    /// also when there is none and it does not wait, or no longer: `rdmap` finds that out next.
    ///
    /// A message without a receive is a fault of this system, not of the message (5041-7.1-06). It ends the stream, at
    /// once or after the time that the program allows for it, so that it cannot happen there again and again
    /// (5041-7.1-08).
    fn take_receive(&mut self) -> bool {
        let until = match (self.starving, self.ctx.on_no_receive) {
            (Some(until), _) => Some(until),
            (None, OnNoReceive::Terminate) => None,
            (None, OnNoReceive::Hold(bound)) => Some(after(self.now, bound)),
        };
        let waits = until.is_some_and(|until| self.now < until) && !self.rq.has_left();
        let taken = self.rq.take(waits, &mut self.events);
        let starving = if taken || !waits { None } else { until };
        if starving.is_some() != self.starving.is_some() {
            let waits = starving.is_some();
            tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, waits, "a message on hold for a receive");
        }
        self.starving = starving;
        if taken {
            self.closed_behind = None;
        }
        taken || !waits
    }

    /// The peer has closed, and its FIN waits behind the message that waits for a receive: not for long any more.
    pub(crate) fn closed_on_hold(&mut self) {
        let (Some(until), OnNoReceive::Hold(bound)) = (self.starving, self.ctx.on_no_receive)
        else {
            return;
        };
        let more = self.ctx.settings.timeouts.hold_after_close;
        let sooner = after(self.now, more);
        if sooner < until {
            tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, "the peer has closed behind a message on hold");
            // Of what would have been the whole time, this is left.
            let waited = after(self.now, bound).saturating_duration_since(until);
            self.closed_behind = Some(waited + more);
            self.starving = Some(sooner);
        }
    }

    /// Everything but a Write.
    fn inbound<T>(&mut self, inbound: &Inbound<T>, ulpdu: &Ulpdu<'_>, rtr_send: bool) {
        match inbound {
            Inbound::Write { .. } | Inbound::ReadRequest | Inbound::AtomicRequest => {}
            &Inbound::Send {
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
                    self.written = (0, false);
                    let invalidated = delivered.invalidated.map(|stag| {
                        // The check has found it; a local deregistration meanwhile is as good.
                        let _ = mutate!(self.ctx.table.invalidate(stag), InvalidateNotDone => None);
                        stag.0
                    });
                    self.complete_receive(delivered.len, delivered.solicited, invalidated);
                }
            }
            &Inbound::Immediate { data, solicited } => self.complete_immediate(data, solicited),
            &Inbound::AtomicResponse { original } => self.place_original(original),
            &Inbound::ReadResponse {
                payload_at,
                offset,
                len,
                complete,
            } => {
                self.place_response(ulpdu, payload_at, offset, len, complete);
            }
            Inbound::Terminate(terminate) => self.terminated_by_peer(*terminate),
        }
    }

    fn place_send(&mut self, ulpdu: &Ulpdu<'_>, payload_at: usize, offset: u32, len: u32) -> bool {
        let Some(wqe) = self.rq.taken() else {
            return len == 0;
        };
        let mut at = offset as usize;
        for piece in ulpdu.pieces(payload_at, len as usize) {
            let placed = wqe.data.place(at, piece).is_ok();
            if mutate!(!placed, TooLongTruncated => false) {
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
        self.answered_in_close(u64::from(len), complete);
        if complete && self.invalidate_sink(sequence) {
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
        self.answered_in_close(octets.len() as u64, true);
        self.sq.request_answered();
    }

    /// What is known here of an error in a segment: which region, which bounds, which receive.
    pub(super) fn cause_of(&self, error: StreamError, head: &[u8], len: usize) -> Cause {
        let header = Header::parse(head).ok();
        let access = match (&error, header) {
            (StreamError::Ddp(DdpError::Tagged(fault)), Some((Header::Tagged(tagged), at))) => {
                let octets = u32::try_from(len.saturating_sub(at)).unwrap_or(u32::MAX);
                let act = Opcode::from_raw(tagged.ulp & 0x0F).map_or(Act::Write, Act::from);
                Some((*fault, act, (tagged.stag.0, tagged.to.0, octets)))
            }
            (StreamError::Protection(fault), Some((Header::Untagged(_), at))) => {
                ReadRequestHeader::parse(head.get(at..).unwrap_or(&[])).map(|request| {
                    let place = (request.source_stag.0, request.source_to.0, request.len);
                    (*fault, Act::Read, place)
                })
            }
            (StreamError::Atomic(AtomicFault::Tagged(fault)), Some((Header::Untagged(_), at))) => {
                AtomicRequestHeader::parse(head.get(at..).unwrap_or(&[]))
                    .map(|request| (*fault, Act::Atomic, (request.stag.0, request.to.0, 8)))
            }
            (StreamError::CannotInvalidate(fault), Some((Header::Untagged(untagged), _))) => {
                Some((*fault, Act::Invalidate, (untagged.ulp_word, 0, 0)))
            }
            _ => None,
        };
        if let Some((fault, act, place)) = access {
            let stag = STag(place.0);
            let facts = self.ctx.table.facts(stag);
            tracing::debug!(qp = self.ctx.qp_num, %stag, names = self.ctx.table.describe(stag), "access refused");
            return Cause::access(Refusal::new(fault, act, place, facts));
        }
        let to_receive =
            matches!(header, Some((Header::Untagged(untagged), _)) if untagged.qn == QN_SEND);
        let receive = if to_receive {
            self.receive_meant(&error)
        } else {
            Receive::Any
        };
        Cause::broken(Broken { error, receive })
    }

    /// What there is to say of the receive that a Send with this error would have gone to.
    fn receive_meant(&self, error: &StreamError) -> Receive {
        let starved = matches!(
            error,
            StreamError::Ddp(DdpError::Untagged(UntaggedFault::NoBuffer { .. }))
        );
        match self.ctx.on_no_receive {
            // On a connection that holds, a message gets here only after it has waited.
            OnNoReceive::Hold(bound) if starved && !bound.is_zero() && !self.rq.has_left() => {
                match self.closed_behind {
                    None => Receive::NoneAfter(milliseconds(bound)),
                    Some(waited) => Receive::NoneAfterClose(milliseconds(waited)),
                }
            }
            OnNoReceive::Hold(_) | OnNoReceive::Terminate => {
                self.rq.next_len().map_or(Receive::Any, Receive::Takes)
            }
        }
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
    mutate!(stream.negotiated.rtr_offered.send, RtrSendDelivered => false) && empty_send
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
