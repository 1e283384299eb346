//! Send side: turns work requests and the peer's requests into FPDUs of the batch.

use std::time::Instant;

use crate::mem::{
    Access, Asker, AtomicFailure, MemorySource, Need, PinnedRegions, RegionTable, Target,
};
use crate::state::QpState;
use crate::timers::Timer;
use uwarp_ddp::{STag, TaggedFault, TaggedOffset};
use uwarp_mpa::{FpduSegments, Negotiated};
use uwarp_rdmap::{
    AtomicFault, AtomicJob, Job, MAX_HEADER, Opcode, OutMessage, OutSegment, ReadJob,
    ReadRequestHeader, SendKind, Stream,
};

use super::framing::{Framing, Unreadable};
use super::recorder::Recorder;
use super::send_immediate;
use super::stage::{OpenStream, Stage};
use super::startup::RTR_STAG;
use super::transmit::TxBatch;
use super::work::{ImmediateData, Progress, SendData, SendQueue, SendWqe};
use super::{Connection, QpContext};
use crate::cause::{LocalProblem, Unmapped};
use crate::completion::{CompletionQueue, Status};
use crate::mutants::mutate;
use crate::policy::transfer::{BATCH_LIMIT, CONFIRMED_AT_ONCE, IN_PLACE_BYTES, SHORT_ULPDU};
use crate::policy::{Heuristic, is_on};
use crate::wr::SendOp;

/// The sending half of an open stream.
pub(crate) struct OutboundHalf {
    pub(super) framing: Framing,
    /// Owner of the message that is being framed; `None` between messages.
    pub(super) current: Option<Current>,
    /// Message of `current`. It is overwritten in place, because moving an `OutMessage` costs as
    /// much as framing a small message.
    message: OutMessage,
    /// The last message was a Read or Atomic Response, so the send queue has the next turn.
    pub(super) answered_last: bool,
    /// First RFC 7306 message that this side began to send. It explains a Terminate from a peer
    /// that does not support RFC 7306.
    pub(super) extension: Option<Opcode>,
    /// The peer takes Immediate Data that belongs to a Send
    /// ([`send_immediate`]).
    pub(super) send_immediate: bool,
    /// Initiator: stream position at which the first FPDU begins, until the LLP has taken it. The
    /// timer of the [wake-up](super::wake_up) then starts.
    pub(super) wakes_after: Option<u64>,
}

/// Owner of the message that is currently being framed.
pub(crate) enum Current {
    /// A work request of the send queue.
    Work { then: Then },
    /// The RTR indication of RFC 6581: no work request, no payload.
    Rtr,
    /// An empty Read that confirms Writes (`SendQueue::unconfirmed`).
    Confirmation,
    /// A Read or Atomic Response. `source` is `None` for an empty Read Response and for an Atomic
    /// Response.
    Response { source: Option<Target> },
}

/// Second message of a work request, which directly follows the first one.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    Nothing,
    /// The Immediate Data of a Write.
    Immediate(ImmediateData),
    /// The Send of Immediate Data.
    Send {
        kind: SendKind,
        len: u32,
    },
}

/// Next message to frame.
enum Choice {
    Response,
    Work(u64),
    /// An empty Read that confirms Writes.
    Confirmation,
    Nothing,
}

/// Reason why a message cannot be framed. It ends the connection.
enum Failure {
    /// Memory or limits of this host, and the request to blame.
    Local(Option<(u64, Status)>, LocalProblem),
    /// The source of a peer's Read is no longer accessible, after `sent` bytes of it.
    Source {
        header: ReadRequestHeader,
        sent: u32,
        fault: TaggedFault,
    },
    /// The memory of a peer's Atomic Operation is no longer accessible.
    Atomic { job: AtomicJob, fault: AtomicFault },
}

impl Failure {
    /// A request that cannot be carried out on this connection.
    fn unfit(sequence: u64, problem: LocalProblem) -> Self {
        Failure::Local(Some((sequence, Status::LocalQpOperation)), problem)
    }
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Frames the next batch: responses to the peer, and work requests. Does nothing until the LLP
    /// has taken the whole last batch.
    pub fn fill(&mut self) {
        if !self.tx.is_empty() {
            return;
        }
        self.tx.reset();
        if let Some(stream) = self.stage.open() {
            stream.size_batch(&self.ctx, &self.sq, &mut self.tx);
        }
        while self.tx.has_room() && (self.frame_plain() || self.frame_one()) && self.has_unsent() {}
        if self.tx.is_empty() {
            self.tx.release();
        }
    }

    /// Returns true if large payload is read twice: for the CRC, and again by TCP.
    ///
    /// A program that changes the payload in between makes the CRC wrong.
    pub(super) fn reads_payload_twice(&self) -> bool {
        let still = self.ctx.settings.send_in_place;
        (self.stage.open()).is_some_and(|OpenStream { outbound, .. }| {
            outbound.framing.has_crc() && outbound.sends_in_place(still)
        })
    }

    /// Frames one FPDU, or runs one local request. Returns false if neither is possible now.
    fn frame_one(&mut self) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Closing) {
            return false;
        }
        if self.run_local() {
            return true;
        }
        let Connection {
            ctx,
            attr,
            stage: Stage::Open(stream),
            timers,
            sq,
            tx,
            recorder,
            now,
            ..
        } = self
        else {
            return false;
        };
        // 5044-7.1.2-15: a responder sends nothing before it has validated one FPDU.
        if !stream.gate.may_send() || timers.is_set(Timer::Hold) {
            return false;
        }
        let begun = match stream.outbound.current {
            Some(_) => Ok(true),
            None => stream.begin_message(ctx, attr.access, sq, tx),
        };
        let framed = match begun {
            Ok(true) => stream.frame_segment(ctx, sq, tx, (recorder, *now)),
            other => other,
        };
        framed.unwrap_or_else(|failure| {
            self.end_in(failure);
            false
        })
    }

    /// Ends the connection, because a message cannot be framed.
    #[cold]
    fn end_in(&mut self, failure: Failure) {
        match failure {
            Failure::Local(send, problem) => self.fail_locally(send, None, problem),
            Failure::Source {
                header,
                sent,
                fault,
            } => self.source_gone(&header, sent, fault),
            Failure::Atomic { job, fault } => self.atomic_gone(&job, fault),
        }
    }
}

impl OpenStream {
    /// Sets the size limit of a new batch by what is to be sent.
    fn size_batch<Q>(&self, ctx: &QpContext<Q>, sq: &SendQueue, tx: &mut TxBatch) {
        let outbound = &self.outbound;
        if outbound.current.is_some() || self.rdmap.requests_pending() {
            let asked = self.rdmap.bytes_asked();
            let (next, queued_after) = match &outbound.current {
                Some(_) => (outbound.response_left(), asked),
                None => {
                    let next = self.rdmap.bytes_asked_next();
                    (next, asked - next)
                }
            };
            tx.raise_limit(next, queued_after);
        }
        if outbound.framing.mulpdu() > IN_PLACE_BYTES
            && !outbound.sends_in_place(ctx.settings.send_in_place)
        {
            // Staged payload may fill a batch as large as one of payload sent in place. Sending a
            // part of it earlier would not help, because the peer waits for all of it.
            let large = sq.large_payload(IN_PLACE_BYTES as u32, BATCH_LIMIT as u64);
            tx.raise_limit(large, 0);
        }
    }

    /// Starts the next message. Returns false if there is none.
    ///
    /// Messages are never interleaved: they go to DDP one after the other (5041-5.3-01). Responses
    /// and the send queue take turns.
    fn begin_message<Q>(
        &mut self,
        ctx: &QpContext<Q>,
        access: Access,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
    ) -> Result<bool, Failure> {
        match self.choose(ctx, sq) {
            Choice::Nothing => Ok(false),
            Choice::Response => self.begin_response(ctx, access, tx),
            Choice::Work(sequence) => self.begin_work(ctx, sq, sequence),
            Choice::Confirmation => Ok(self.begin_confirmation()),
        }
    }

    #[inline]
    fn choose<Q>(&self, ctx: &QpContext<Q>, sq: &SendQueue) -> Choice {
        let work = sq.next_to_send().and_then(|(sequence, wqe)| {
            let is_request = wqe.op.awaits_response();
            // 5040-6.1-04: at most ORD Reads and atomics are outstanding. Requests after the
            // waiting one wait as well, which keeps the order.
            let waits = (is_request && self.negotiated.ord > 0 && !self.rdmap.ord_available())
                || (wqe.fence && !wqe.was_begun() && sq.requests_pending())
                // Local requests run before a message is chosen. A local request that is still
                // queued has to wait.
                || matches!(wqe.op, SendOp::Local(_))
                || self.waits_to_fail(ctx, sq, sequence, wqe);
            (!waits).then_some(sequence)
        });
        let own = match work {
            _ if self.is_confirmation_due(sq, work.is_some()) => Choice::Confirmation,
            Some(sequence) => Choice::Work(sequence),
            None => Choice::Nothing,
        };
        match (self.rdmap.requests_pending(), own) {
            (false, own) => own,
            (true, own @ (Choice::Work(_) | Choice::Confirmation))
                if self.outbound.answered_last =>
            {
                own
            }
            (true, _) => Choice::Response,
        }
    }

    /// Returns true if an empty Read is to confirm Writes now. While there is other work it waits
    /// until it can confirm [`CONFIRMED_AT_ONCE`] bytes.
    fn is_confirmation_due(&self, sq: &SendQueue, has_work: bool) -> bool {
        sq.unconfirmed()
            .is_some_and(|unconfirmed| !has_work || unconfirmed >= CONFIRMED_AT_ONCE)
            && self.rdmap.ord_available()
    }

    /// Begins an empty Read that confirms the Writes before it. The peer checks neither its STag
    /// nor its TO (5040-5.2.1-13).
    fn begin_confirmation(&mut self) -> bool {
        let header = ReadRequestHeader {
            sink_stag: RTR_STAG,
            sink_to: TaggedOffset(0),
            len: 0,
            source_stag: RTR_STAG,
            source_to: TaggedOffset(0),
        };
        let Ok(message) = self.rdmap.begin_read(header) else {
            return false;
        };
        self.outbound.begin(message, Current::Confirmation);
        self.outbound.answered_last = false;
        true
    }

    /// Returns true if a request is about to fail locally while earlier ones are not complete.
    ///
    /// Its failure ends the connection. It therefore waits, so that the earlier requests complete
    /// as they would without it.
    fn waits_to_fail<Q>(
        &self,
        ctx: &QpContext<Q>,
        sq: &SendQueue,
        sequence: u64,
        wqe: &SendWqe,
    ) -> bool {
        if sequence == sq.completed_to() {
            return false;
        }
        let no_reads = wqe.op.awaits_response() && self.negotiated.ord == 0;
        no_reads || self.outbound.refuses_immediate(wqe) || ctx.has_late_fault(wqe)
    }

    /// Returns true if a message is being framed, or can begin now.
    pub(super) fn has_next<Q>(&self, ctx: &QpContext<Q>, sq: &SendQueue) -> bool {
        self.outbound.current.is_some() || !matches!(self.choose(ctx, sq), Choice::Nothing)
    }

    fn begin_response<Q>(
        &mut self,
        ctx: &QpContext<Q>,
        access: Access,
        tx: &mut TxBatch,
    ) -> Result<bool, Failure> {
        let asker = ctx.asker(access);
        match self.rdmap.next_request() {
            None => Ok(false),
            Some(Job::Read(job)) => self.begin_read_response(&ctx.table, &asker, job),
            Some(Job::Atomic(job)) => self.begin_atomic_response(&ctx.table, &asker, job, tx),
        }
    }

    fn begin_read_response(
        &mut self,
        table: &RegionTable,
        asker: &Asker,
        job: ReadJob,
    ) -> Result<bool, Failure> {
        let header = *job.header();
        let source = if header.len == 0 {
            None
        } else {
            // Checked on arrival, and again now: the region may have been deregistered meanwhile.
            let (stag, to) = (header.source_stag, header.source_to.0);
            let to = mutate!(to, ReadResponseNextByte => to.wrapping_add(1));
            match table.check(stag, to, header.len, Need::RemoteRead, asker) {
                Ok(target) => Some(target),
                Err(fault) => {
                    return Err(Failure::Source {
                        header,
                        sent: 0,
                        fault,
                    });
                }
            }
        };
        self.outbound.message = self.rdmap.begin_read_response(job);
        self.outbound.current = Some(Current::Response { source });
        self.outbound.answered_last = true;
        Ok(true)
    }

    /// Executes an Atomic Operation whose turn has come (7306-5.2.1-08), and begins its Response.
    fn begin_atomic_response(
        &mut self,
        table: &RegionTable,
        asker: &Asker,
        job: AtomicJob,
        tx: &mut TxBatch,
    ) -> Result<bool, Failure> {
        // Checked on arrival, and again now.
        let target = table.check_atomic(job.stag(), job.to().0, asker);
        if target.is_ok() {
            // The batch may contain lent memory for an earlier Read Response. Copies it now, so
            // that the Response has the value from before this operation.
            tx.reclaim();
        }
        let done = target.map_err(AtomicFailure::from);
        match done.and_then(|target| target.atomic(job.op())) {
            Ok(original) => {
                let original = mutate!(original, AtomicReturnsNewValue => job.op().apply(original));
                let original = mutate!(original, AtomicByteOrder => original.swap_bytes());
                let message = self.rdmap.begin_atomic_response(job, original);
                self.outbound
                    .begin(message, Current::Response { source: None });
                self.outbound.answered_last = true;
                Ok(true)
            }
            Err(AtomicFailure::Fault(fault)) => Err(Failure::Atomic { job, fault }),
            Err(AtomicFailure::Unmapped) => {
                // 5040-4.8-i01: only this host has failed, as for a Write.
                let (stag, by) = (job.stag().0, Unmapped::Atomic);
                Err(Failure::Local(None, LocalProblem::Unmapped { stag, by }))
            }
        }
    }

    fn begin_work<Q>(
        &mut self,
        ctx: &QpContext<Q>,
        sq: &mut SendQueue,
        sequence: u64,
    ) -> Result<bool, Failure> {
        let OpenStream {
            outbound, rdmap, ..
        } = self;
        let Some(wqe) = sq.get_mut(sequence) else {
            return Ok(false);
        };
        ctx.resolve_later(wqe).map_err(|fault| {
            let problem = LocalProblem::Element(fault);
            Failure::Local(Some((sequence, Status::LocalProtection)), problem)
        })?;
        if outbound.refuses_immediate(wqe) {
            // Happens only if the request was posted before the peer was known.
            return Err(Failure::unfit(sequence, LocalProblem::NoSendImmediate));
        }
        let immediate = wqe.imm;
        let (mut then, mut extension) = (Then::Nothing, None);
        let mut begun = Progress::Sending;
        match wqe.op {
            // Local requests run before a message is chosen.
            SendOp::Local(_) => return Ok(false),
            SendOp::Send {
                solicited,
                invalidate,
            } => {
                let kind = SendKind {
                    solicited,
                    invalidate: invalidate.map(STag),
                };
                let len = wqe.len;
                outbound.message = if let Some(immediate) = immediate {
                    then = Then::Send { kind, len };
                    outbound.begin_immediate(rdmap, Some(send_immediate::before_send(immediate)))
                } else {
                    rdmap.begin_send(kind, len)
                };
            }
            SendOp::Write { rkey, remote_addr } => {
                then = immediate.map_or(Then::Nothing, Then::Immediate);
                let (stag, to) = (STag(rkey), TaggedOffset(remote_addr));
                outbound.message = rdmap.begin_write(stag, to, wqe.len);
            }
            SendOp::Read { rkey, remote_addr } => {
                // 5040-4.4-01, 5040-5.2-01: a Read Request names one sink, so each element has a
                // Request of its own. A Read of no bytes has one Request too.
                let nth = match wqe.progress {
                    Progress::Requesting { next } => next,
                    _ => 0,
                };
                let sink = wqe.data.list.element(nth).unwrap_or_default();
                if wqe.data.list.element(nth + 1).is_some() {
                    begun = Progress::Requesting { next: nth + 1 };
                }
                let header = ReadRequestHeader {
                    sink_stag: sink.stag,
                    sink_to: TaggedOffset(sink.to),
                    len: sink.len,
                    source_stag: STag(rkey),
                    source_to: TaggedOffset(remote_addr).advance(sink.start),
                };
                match rdmap.begin_read(header) {
                    Ok(message) => outbound.message = message,
                    Err(_exhausted) => {
                        // Happens only if ORD is 0 and the Read was posted before ORD was known.
                        return Err(Failure::unfit(sequence, LocalProblem::NoReads));
                    }
                }
            }
            SendOp::Atomic {
                rkey,
                remote_addr,
                op,
            } => {
                extension = Some(Opcode::AtomicRequest);
                let (stag, to) = (STag(rkey), TaggedOffset(remote_addr));
                match rdmap.begin_atomic(stag, to, op) {
                    Ok(message) => outbound.message = message,
                    Err(_exhausted) => {
                        return Err(Failure::unfit(sequence, LocalProblem::NoReads));
                    }
                }
            }
            SendOp::Immediate => outbound.message = outbound.begin_immediate(rdmap, immediate),
        }
        wqe.progress = begun;
        outbound.answered_last = false;
        outbound.extension = outbound.extension.or(extension);
        outbound.current = Some(Current::Work { then });
        Ok(true)
    }

    /// Frames the next segment of the current message. Returns false if there is none.
    fn frame_segment<Q>(
        &mut self,
        ctx: &QpContext<Q>,
        sq: &mut SendQueue,
        tx: &mut TxBatch,
        (recorder, now): (&mut Recorder, Instant),
    ) -> Result<bool, Failure> {
        let outbound = &mut self.outbound;
        // The `send_in_place` setting applies to payload that this program posts, not to memory
        // that the peer reads.
        let posted = matches!(outbound.current, Some(Current::Work { .. }));
        let answer = matches!(outbound.current, Some(Current::Response { .. }));
        let in_place = outbound.sends_in_place(posted && ctx.settings.send_in_place);
        let OutboundHalf {
            framing,
            current,
            message,
            ..
        } = outbound;
        if current.is_none() {
            return Ok(false);
        }
        let mut header = [0; MAX_HEADER];
        let mulpdu = if tx.is_short() {
            framing.mulpdu().min(SHORT_ULPDU)
        } else {
            framing.mulpdu()
        };
        let Some(segment) = message.next_segment(mulpdu, &mut header) else {
            *current = None;
            return Ok(false);
        };
        let OutSegment {
            header_len: head_len,
            offset,
            len,
            last,
        } = segment;
        let (offset, len) = (offset as usize, len as usize);
        let mut frame = Frame {
            framing,
            tx,
            head: &header[..head_len],
            offset,
            len,
            in_place: in_place && len >= IN_PLACE_BYTES,
        };
        let framed = match current {
            Some(Current::Response {
                source: Some(source),
            }) => frame.response(source),
            Some(Current::Work { .. }) => match sq.next_to_send() {
                Some((_, wqe)) if len > 0 => frame.work(&wqe.data, &sq.pinned),
                _ => frame.stage(&[][..]),
            },
            _ => frame.stage(&[][..]),
        };
        if let Err(unmapped) = framed {
            return self.payload_gone(sq, unmapped);
        }
        tx.end_of_fpdu();
        let end = tx.framed_to();
        let len = head_len + len;
        recorder.sent(now, &header[..head_len], len, end);
        if let Some(close) = &mut self.close {
            close.framed(answer, last, end);
        }
        if last {
            self.message_framed(sq, tx);
        }
        Ok(true)
    }

    /// Completes the framing of a message: its last segment is in the batch.
    fn message_framed(&mut self, sq: &mut SendQueue, tx: &mut TxBatch) {
        let OpenStream {
            outbound, rdmap, ..
        } = self;
        match outbound.current.take() {
            Some(Current::Work {
                then: Then::Immediate(immediate),
            }) => {
                outbound.message = outbound.begin_immediate(rdmap, Some(immediate));
                outbound.current = Some(Current::Work {
                    then: Then::Nothing,
                });
            }
            Some(Current::Work {
                then: Then::Send { kind, len },
            }) => {
                outbound.message = rdmap.begin_send(kind, len);
                outbound.current = Some(Current::Work {
                    then: Then::Nothing,
                });
            }
            Some(Current::Work {
                then: Then::Nothing,
            }) => {
                let is_request = sq
                    .next_to_send()
                    .is_some_and(|(_, wqe)| wqe.op.awaits_response());
                sq.framed(if is_request {
                    tx.end_of_request();
                    Progress::AwaitingResponse
                } else {
                    Progress::Sent {
                        ends_at: tx.framed_to(),
                    }
                });
            }
            Some(Current::Response { .. }) => rdmap.response_sent(),
            Some(Current::Confirmation) => {
                tx.end_of_request();
                sq.confirmation_framed();
            }
            Some(Current::Rtr) | None => {}
        }
    }

    /// Gives up the current message, because its memory was deregistered before it was sent.
    /// `unmapped`: the STag of memory that is registered, but not mapped.
    #[cold]
    fn payload_gone(&mut self, sq: &SendQueue, unmapped: Unreadable) -> Result<bool, Failure> {
        let unmapped = |by| unmapped.map(|STag(stag)| LocalProblem::Unmapped { stag, by });
        if let Some(Current::Response { .. }) = self.outbound.current.take() {
            if let Some(problem) = unmapped(Unmapped::Read) {
                return Err(Failure::Local(None, problem));
            }
            // 5040-4.8-i03: the Terminate reports how much of the Read Response was sent.
            return match self.outbound.message.read_response_progress() {
                None => Ok(false),
                Some((header, sent)) => Err(Failure::Source {
                    header,
                    sent,
                    fault: TaggedFault::InvalidSTag,
                }),
            };
        }
        let blamed = (sq.next_to_send()).map(|(sequence, _)| (sequence, Status::LocalProtection));
        let problem = unmapped(Unmapped::Payload).unwrap_or(LocalProblem::PayloadGone);
        Err(Failure::Local(blamed, problem))
    }
}

impl OutboundHalf {
    /// Creates the sending half of a stream. `send_immediate`: the peer takes Immediate Data that
    /// belongs to a Send.
    pub(super) fn new(
        negotiated: &Negotiated,
        segments: FpduSegments,
        emss: usize,
        send_immediate: bool,
    ) -> Self {
        OutboundHalf {
            framing: Framing::new(negotiated, segments, emss),
            current: None,
            message: OutMessage::default(),
            answered_last: false,
            extension: None,
            send_immediate,
            wakes_after: None,
        }
    }

    /// Begins a message.
    #[inline]
    pub(super) fn begin(&mut self, message: OutMessage, owner: Current) {
        self.message = message;
        self.current = Some(owner);
    }

    /// Gives up the current message, and the last `bytes` bytes of the stream, which the batch has
    /// dropped.
    pub(super) fn drop_unsent(&mut self, bytes: u64) {
        self.framing.drop_last(bytes);
        self.current = None;
    }

    /// Returns true if large payload may be sent in place ([`Framing::takes_in_place`]).
    fn sends_in_place(&self, still: bool) -> bool {
        is_on(Heuristic::InPlace) && self.framing.takes_in_place(still)
    }

    /// Returns the number of bytes left in the current Read Response. The segment framed last still
    /// counts as left. Returns 0 for other messages.
    fn response_left(&self) -> u64 {
        let progress = self.message.read_response_progress();
        progress.map_or(0, |(request, answered)| (request.len - answered).into())
    }

    fn begin_immediate(
        &mut self,
        rdmap: &mut Stream,
        immediate: Option<ImmediateData>,
    ) -> OutMessage {
        let ImmediateData { data, solicited } = immediate.unwrap_or_default();
        let opcode = if solicited {
            Opcode::ImmediateSolicited
        } else {
            Opcode::Immediate
        };
        self.extension.get_or_insert(opcode);
        rdmap.begin_immediate(data, solicited)
    }
}

/// One FPDU about to be framed.
struct Frame<'a> {
    framing: &'a mut Framing,
    tx: &'a mut TxBatch,
    head: &'a [u8],
    /// Offset and length of the payload in the message.
    offset: usize,
    len: usize,
    /// The payload is large enough and may be sent in place.
    in_place: bool,
}

impl Frame<'_> {
    /// Frames a segment with payload of a work request. Fails if its memory is gone.
    fn work(&mut self, data: &SendData, pinned: &PinnedRegions) -> Result<(), Unreadable> {
        let (offset, len) = (self.offset, self.len);
        if !data.inline.is_empty() {
            return self.stage(data.inline.as_slice());
        }
        // The guard keeps the memory from being deregistered while it is read.
        if !data.spot.is_empty() {
            let source = pinned.source(data.spot).ok_or(None)?;
            return if self.in_place {
                self.gather(&source, |tx| {
                    let run = pinned.pin(data.spot, offset, len);
                    run.map(|run| tx.in_place(run)).is_some()
                })
            } else {
                self.stage(&source)
            };
        }
        let source = data.list.source(offset, len).map_err(|_| None)?;
        if self.in_place {
            self.gather(&source, |tx| {
                data.list.pin(offset, len, |run| tx.in_place(run))
            })
        } else {
            self.stage(&source)
        }
    }

    /// Frames a segment with payload of a Read Response. Fails if its memory is gone.
    fn response(&mut self, source: &Target) -> Result<(), Unreadable> {
        let (offset, len) = (self.offset, self.len);
        if !self.in_place {
            let payload = source.source().map_err(|_| None)?;
            return self.stage(&payload);
        }
        // The memory is lent before the header is framed. If it were gone after that, the peer
        // would take the Terminate that follows for payload.
        let run = source.lend(offset, len).ok_or(None)?;
        // Without a CRC the framing does not read the payload.
        self.gather(&[][..], |tx| {
            tx.lend(run);
            true
        })
    }

    fn stage<P: MemorySource + ?Sized>(&mut self, payload: &P) -> Result<(), Unreadable> {
        (self.framing).stage(self.tx, self.head, payload, self.offset, self.len)
    }

    fn gather<P: MemorySource + ?Sized>(
        &mut self,
        source: &P,
        pin: impl FnOnce(&mut TxBatch) -> bool,
    ) -> Result<(), Unreadable> {
        let place = (self.offset, self.len);
        (self.framing).gather(self.tx, self.head, source, place, pin)
    }
}
