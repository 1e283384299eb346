//! Receive side: turns bytes of the LLP into placed data, completions and answers.

use std::cell::RefCell;
use std::time::Duration;

use crate::mem::{ATOMIC_LEN, Asker, Landing, Need, WriteTargetCache};
use crate::state::QpState;
use crate::timers::{Timer, Timers};
use crate::times::after;
use uwarp_ddp::{DdpError, STag, TaggedFault, UNTAGGED_HEADER, UntaggedFault};
use uwarp_mpa::{Negotiated, Role};
use uwarp_rdmap::{AtomicFault, HEAD_LEN, Inbound, Memory, Opcode, QN_SEND, StreamError};

use super::LOG_TARGET;
use super::framing::{Deframing, Step, Ulpdu};
use super::receive_buffer::ReceiveBuffer;
use super::receive_queue::ReceiveQueue;
use super::send_immediate;
use super::{Connection, OpenStream, QpContext, Stage};
use crate::cause::{Broken, Cause, Held, Refusal};
use crate::completion::{CompletionQueue, Status};
use crate::event::{AsyncEvent, ConnectionEvent};
use crate::mutants::mutate;
use crate::settings::OnNoReceive;

/// The receiving half of an open stream.
pub(crate) struct InboundHalf {
    deframing: Deframing,
    /// Responder: the first FPDU has not arrived yet.
    pub(super) first_awaited: bool,
    /// Initiator: the Read that serves as RTR indication is outstanding. It belongs to no work
    /// request.
    pub(super) rtr_read: bool,
    /// Number of bytes of the peer's last Write, and whether more of that Write follows.
    last_write: (u32, bool),
    /// A non-empty Write from the peer completed and no event has been raised for it yet.
    pub(super) unreported_write: bool,
    /// Immediate Data that has arrived for the next Send ([`send_immediate`]).
    immediate_of_send: Option<[u8; 4]>,
    /// Total time that the message may wait for a receive, from the start of the wait. It is set
    /// when the peer closes during the wait, and is shorter than the configured time.
    pub(super) shortened_hold: Option<Duration>,
}

impl InboundHalf {
    pub(super) fn new(negotiated: &Negotiated) -> Self {
        InboundHalf {
            deframing: Deframing::new(negotiated),
            first_awaited: negotiated.role == Role::Responder,
            rtr_read: false,
            last_write: (0, false),
            unreported_write: false,
            immediate_of_send: None,
            shortened_hold: None,
        }
    }

    /// Returns true if the peer has sent a segment.
    pub(super) fn has_begun(&self) -> bool {
        self.deframing.has_begun()
    }

    /// Counts the bytes of a Write. If Immediate Data follows the Write, its completion reports
    /// them.
    #[inline]
    pub(super) fn count_write(&mut self, len: u32, last: bool) {
        let before = match self.last_write {
            (bytes, true) => bytes,
            (_, false) => 0,
        };
        let bytes = before.saturating_add(len);
        self.last_write = (bytes, !last);
        self.unreported_write |= last && bytes > 0;
    }

    /// Records that a Send was delivered. Returns the Immediate Data that came for it.
    #[inline]
    pub(super) fn send_delivered(&mut self) -> Option<[u8; 4]> {
        self.last_write = (0, false);
        self.immediate_of_send.take()
    }

    /// Records the arrival of Immediate Data, which belongs to the next Send (`of_send`) or stands
    /// alone. Returns the number of bytes of the Write that it follows.
    fn immediate_arrived(&mut self, data: [u8; 8], of_send: bool) -> u32 {
        let [a, b, c, d, ..] = data;
        self.immediate_of_send = of_send.then_some([a, b, c, d]);
        match of_send {
            true => 0,
            false => std::mem::take(&mut self.last_write).0,
        }
    }
}

/// Outcome of taking a receive for a message.
enum Take {
    /// A receive was taken, or the message is dropped.
    Taken,
    /// There is no receive, and the message may not wait for one.
    Missing,
    /// The message waits for a receive.
    Held,
}

/// The memory and receive queue of a QP, against which RDMAP checks a segment.
struct View<'a, Q> {
    ctx: &'a QpContext<Q>,
    asker: Asker,
    rq: &'a ReceiveQueue,
    targets: RefCell<&'a mut WriteTargetCache>,
    /// The segment takes no receive of the program, although it is for the queue of receives.
    hidden: bool,
}

impl<Q: CompletionQueue> Memory for View<'_, Q> {
    /// Memory of a Write, which is placed right after its check. Other checks return `None`.
    type Target = Option<Landing>;

    #[inline]
    fn check_write(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault> {
        let table = &self.ctx.table;
        let mut targets = self.targets.borrow_mut();
        targets
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
        if self.rq.drops() {
            return Ok(());
        }
        self.ctx
            .table
            .check_invalidate(stag, self.ctx.pd, self.ctx.qp_num)
    }

    fn receive_buffer(&self) -> Option<u32> {
        if self.hidden {
            return Some(0);
        }
        self.rq.next_len()
    }
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Handles the bytes that the LLP has delivered.
    ///
    /// Bytes left in `rx` are the beginning of an incomplete frame. While the connection [is
    /// starving](Self::is_starving), they are a message without a receive and the bytes after it.
    pub fn receive(&mut self, rx: &mut ReceiveBuffer) {
        if let Stage::Startup(startup) = &self.stage
            && startup.awaits_reply()
        {
            self.receive_reply(rx);
        }
        if self.is_open() {
            self.receive_fpdus(rx);
        }
        // Reads may now be complete, and must complete in order with the Sends before them.
        self.retire();
        self.report_write();
    }

    fn receive_fpdus(&mut self, rx: &mut ReceiveBuffer) {
        if !self.find_receive_if_held() {
            return;
        }
        let mut at = 0;
        let mut targets = WriteTargetCache::default();
        loop {
            if !matches!(self.state, QpState::Rts | QpState::Closing) {
                // 5041-7.1-18: bytes that arrive after an error are dropped silently.
                at = rx.filled().len();
                break;
            }
            let Some(stream) = self.stage.open_mut() else {
                break;
            };
            // By reference, here and below: moving the result costs as much as computing it.
            match &stream.inbound.deframing.next(&rx.filled()[at..]) {
                Ok(Step::Need(bytes)) => {
                    rx.set_missing(bytes - (rx.filled().len() - at));
                    break;
                }
                Ok(Step::Fpdu(ulpdu)) => {
                    let taken = self.try_fast_write(ulpdu, &mut targets)
                        || self.try_fast_send(ulpdu, &mut targets)
                        || self.ulpdu(ulpdu, &mut targets);
                    if !taken {
                        break;
                    }
                    at += ulpdu.wire_len();
                }
                Err(error) => {
                    targets.leave();
                    self.recorder.damaged(self.now, &rx.filled()[at..]);
                    let (error, cause) = Deframing::violation(*error);
                    self.end_in_violation(error, cause, None);
                }
            }
        }
        rx.discard(at);
    }

    /// Handles one validated ULPDU. Returns false, with no effect, if it has to wait for a receive.
    fn ulpdu(&mut self, ulpdu: &Ulpdu<'_>, targets: &mut WriteTargetCache) -> bool {
        let Some(stream) = self.stage.open_mut() else {
            return true;
        };
        if stream.gate.fpdu_validated() {
            self.timers.clear(Timer::Hold);
            if let Some(pair) = &mut self.pair {
                pair.opened();
            }
        }
        let mut scratch = [0; HEAD_LEN];
        let head = ulpdu.head(&mut scratch);
        let rtr_send = first_fpdu(
            stream,
            head,
            ulpdu.len(),
            &mut self.events,
            // Once a close has begun, `Timer::Stage` belongs to the close.
            (!self.fin.wanted).then_some(&mut self.timers),
            self.ctx.qp_num,
        );
        let hidden = rtr_send || stream.outbound.send_immediate && send_immediate::is_of_send(head);
        let takes = !hidden && stream.rdmap.takes_receive(head);
        if takes {
            targets.leave();
        }
        let take = takes.then(|| self.take_receive());
        let Some(stream) = self.stage.open_mut() else {
            return true;
        };
        match take {
            Some(Take::Held) => {
                stream.inbound.deframing.put_back(ulpdu);
                return false;
            }
            Some(Take::Taken) => stream.inbound.shortened_hold = None,
            Some(Take::Missing) | None => {}
        }
        self.recorder.received(self.now, head, ulpdu.len());
        let view = View {
            ctx: &self.ctx,
            asker: self.ctx.asker(self.attr.access),
            rq: &self.rq,
            targets: RefCell::new(&mut *targets),
            hidden,
        };
        let received = &stream.rdmap.receive(&view, head, ulpdu.len());
        match received {
            &Ok(Inbound::Write {
                ref target,
                payload_at,
                len,
                last,
            }) => {
                stream.inbound.count_write(len, last);
                if let Some(Some(landing)) = *target {
                    self.place_write(landing, targets, ulpdu, payload_at, len);
                }
            }
            Ok(inbound) => {
                // The message may invalidate an STag. Invalidation waits until the region is not in
                // use, so this connection ends its own use first.
                targets.leave();
                self.inbound(inbound, ulpdu, hidden);
            }
            &Err(error) => {
                targets.leave();
                let cause = self.cause_of(error);
                self.end_in_violation(error, cause, Some((head, ulpdu.len())));
            }
        }
        true
    }

    /// Returns true if received bytes may be handled. Returns false while the first message among
    /// them waits for a receive. The SRQ then notifies this connection when a receive is posted.
    fn find_receive_if_held(&mut self) -> bool {
        self.timers.get(Timer::Receive).is_none_or(|until| {
            until <= self.now || self.rq.has_left() || self.rq.find_or_await_receive()
        })
    }

    /// Takes a receive for the message that begins, unless the message has to wait for one.
    ///
    /// If there is no receive, and the message may not wait or has waited long enough, `rdmap`
    /// reports the error, unless the QP is unreliable: the message is dropped.
    ///
    /// A missing receive is a fault of this host, not of the message (5041-7.1-06). It ends the
    /// stream at once, or after the time that the program allows. The fault thus cannot repeat on
    /// the stream (5041-7.1-08).
    fn take_receive(&mut self) -> Take {
        if self.ctx.unreliable {
            self.rq.take_or_drop(&mut self.events);
            return Take::Taken;
        }
        let before = self.timers.get(Timer::Receive);
        let until = match (before, self.ctx.on_no_receive) {
            (Some(until), _) => Some(until),
            (None, OnNoReceive::Terminate) => None,
            (None, OnNoReceive::Hold(bound)) => Some(after(self.now, bound)),
        };
        let waits = until.is_some_and(|until| self.now < until) && !self.rq.has_left();
        let taken = self.rq.take(waits, &mut self.events);
        let starving = if taken || !waits { None } else { until };
        if starving.is_some() != before.is_some() {
            let waits = starving.is_some();
            tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, waits, "wait of a message for a receive");
        }
        self.timers.set_or_clear(Timer::Receive, starving);
        match (taken, waits) {
            (true, _) => Take::Taken,
            (false, true) => Take::Held,
            (false, false) => Take::Missing,
        }
    }

    /// Shortens the wait of a message for a receive, because the peer has closed after sending it.
    pub fn closed_on_hold(&mut self) {
        let (Some(until), OnNoReceive::Hold(bound)) =
            (self.timers.get(Timer::Receive), self.ctx.on_no_receive)
        else {
            return;
        };
        let more = self.ctx.settings.timeouts.hold_after_close;
        let sooner = after(self.now, more);
        if sooner < until {
            tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, "the peer has closed while a message waits for a receive");
            // The full wait ends at `until`. A full wait that began now would end later. The
            // difference is the time that has already passed.
            let waited = after(self.now, bound).saturating_duration_since(until);
            if let Some(stream) = self.stage.open_mut() {
                stream.inbound.shortened_hold = Some(waited + more);
            }
            self.timers.set(Timer::Receive, sooner);
        }
    }

    /// Handles every message except a Write. `hidden`: it takes no receive of the program.
    fn inbound<T>(&mut self, inbound: &Inbound<T>, ulpdu: &Ulpdu<'_>, hidden: bool) {
        match inbound {
            Inbound::Write { .. } | Inbound::ReadRequest | Inbound::AtomicRequest => {}
            &Inbound::Send {
                payload_at,
                offset,
                len,
                delivered,
            } => {
                if hidden {
                    return;
                }
                if !self.place_send(ulpdu, payload_at, offset, len) {
                    return;
                }
                if let Some(delivered) = delivered {
                    let immediate =
                        (self.stage.open_mut()).and_then(|stream| stream.inbound.send_delivered());
                    let invalidates = delivered.invalidated.filter(|_| !self.rq.drops());
                    let invalidated = invalidates.map(|stag| {
                        // The STag was checked before. If it was deregistered since, it is invalid
                        // already.
                        let _ = mutate!(self.ctx.table.invalidate(stag), InvalidateNotDone => None);
                        stag.0
                    });
                    self.complete_receive(
                        delivered.len,
                        delivered.solicited,
                        invalidated,
                        immediate,
                    );
                }
            }
            &Inbound::Immediate { data, solicited } => {
                let written = (self.stage.open_mut())
                    .map_or(0, |stream| stream.inbound.immediate_arrived(data, hidden));
                if !hidden {
                    self.complete_immediate(data, solicited, written);
                }
            }
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
            return len == 0 || self.rq.drops();
        };
        let mut at = offset as usize;
        for piece in ulpdu.pieces(payload_at, len as usize) {
            let placed = wqe.data.place(at, piece);
            if mutate!(placed.is_err(), TooLongTruncated => false) {
                self.receive_buffer_gone(placed.err());
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
        let Some(stream) = self.stage.open_mut() else {
            return;
        };
        if stream.inbound.rtr_read {
            // The empty Read of the RTR indication is the first Read of the connection, so this is
            // its Response.
            stream.inbound.rtr_read = !complete;
            return;
        }
        if self.sq.is_confirmation_next() {
            if complete {
                self.sq.confirmed();
            }
            return;
        }
        let Some(sequence) = self.sq.oldest_request() else {
            return;
        };
        if let Some(wqe) = self.sq.get(sequence) {
            let mut at = self.sq.answered() as usize + offset as usize;
            for piece in ulpdu.pieces(payload_at, len as usize) {
                if let Err(fault) = wqe.data.list.place(at, piece) {
                    self.read_sink_gone(sequence, fault);
                    return;
                }
                at += piece.len();
            }
        }
        if let Some(close) = self.stage.close_mut() {
            close.answered(u64::from(len), complete, self.now);
        }
        if complete && self.invalidate_sink(sequence) {
            self.sq.request_answered(offset + len);
        }
    }

    /// Places the result of an Atomic Operation into its sink, in the byte order of this host.
    fn place_original(&mut self, original: u64) {
        let Some(sequence) = self.sq.oldest_request() else {
            return;
        };
        let bytes = original.to_ne_bytes(); // 7306-5.1.1-i02
        let wqe = self.sq.get(sequence);
        if let Some(Err(fault)) = wqe.map(|wqe| wqe.data.list.place(0, &bytes)) {
            return self.read_sink_gone(sequence, fault);
        }
        if let Some(close) = self.stage.close_mut() {
            close.answered(bytes.len() as u64, true, self.now);
        }
        self.sq.request_answered(ATOMIC_LEN);
    }

    /// Returns the cause for an error in a segment: with the memory that the STag names, or with
    /// the wait for a receive.
    pub(super) fn cause_of(&self, error: StreamError) -> Cause {
        let StreamError::Access(refused) = error else {
            let held = self.held_for_receive(&error);
            return Cause::broken(Broken { error, held });
        };
        let stag = refused.stag;
        let facts = self.ctx.table.facts(stag);
        tracing::debug!(target: LOG_TARGET, qp = self.ctx.qp_num, %stag, names = self.ctx.table.describe(stag), "access refused");
        Cause::access(Refusal::new(refused, facts))
    }

    /// Returns how long the message with this error has waited for a receive.
    fn held_for_receive(&self, error: &StreamError) -> Held {
        let starved = matches!(
            error,
            StreamError::Ddp(DdpError::Untagged(UntaggedFault::NoBuffer { qn, .. })) if *qn == QN_SEND
        );
        match self.ctx.on_no_receive {
            // On a connection that holds messages, a message without a receive is an error only
            // after it has waited.
            OnNoReceive::Hold(bound) if starved && !bound.is_zero() && !self.rq.has_left() => {
                match self
                    .stage
                    .open()
                    .and_then(|stream| stream.inbound.shortened_hold)
                {
                    None => Held::For(milliseconds(bound)),
                    Some(waited) => Held::UntilClose(milliseconds(waited)),
                }
            }
            OnNoReceive::Hold(_) | OnNoReceive::Terminate => Held::No,
        }
    }
}

/// Returns the status with which the oldest receive fails, if `error` concerns the message that
/// would have consumed it.
///
/// Only messages on queue 0 consume receives. A Read Request or Terminate that is too long does not
/// affect them.
pub(super) fn status_of_receive(error: &StreamError) -> Option<Status> {
    match error {
        StreamError::Ddp(DdpError::Untagged(UntaggedFault::MessageTooLong { qn, .. }))
            if *qn == QN_SEND =>
        {
            Some(Status::LocalLength)
        }
        StreamError::ImmediateLength { .. } => Some(Status::LocalLength),
        StreamError::Access(refused) if refused.opcode.invalidates() => {
            Some(Status::RemoteInvalidRequest)
        }
        _ => None,
    }
}

/// Handles the first FPDU that a responder receives.
///
/// Returns true if it is an empty Send that serves as RTR indication, which takes no receive (RFC
/// 6581 section 4.4.2). Returns false for all later FPDUs.
fn first_fpdu(
    stream: &mut OpenStream,
    head: &[u8],
    len: usize,
    events: &mut Vec<ConnectionEvent>,
    timers: Option<&mut Timers>,
    qp_num: u32,
) -> bool {
    if !stream.inbound.first_awaited {
        return false;
    }
    stream.inbound.first_awaited = false;
    if let Some(timers) = timers {
        timers.clear(Timer::Stage);
    }
    let opcode = Opcode::of_segment(head);
    // The initiator sends a Terminate if it cannot accept the Reply.
    if opcode != Some(Opcode::Terminate) {
        events.push(ConnectionEvent::Async(AsyncEvent::Established { qp_num }));
    }
    let empty_send = opcode == Some(Opcode::Send) && len == UNTAGGED_HEADER;
    mutate!(stream.negotiated.rtr_offered.send, RtrSendDelivered => false) && empty_send
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
