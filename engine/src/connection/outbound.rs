//! Send side: turns work requests and the peer's requests into FPDUs of the batch.

use crate::mem::{AtomicFailure, MemorySource, Need, PinnedRegions, Target};
use crate::state::QpState;
use crate::timers::Timer;
use uwarp_ddp::{STag, TaggedFault, TaggedOffset};
use uwarp_mpa::Framer;
use uwarp_rdmap::{
    AtomicJob, Job, MAX_HEADER, Opcode, OutMessage, OutSegment, ReadJob, ReadRequestHeader,
    SendKind,
};

use super::send_immediate;
use super::startup::RTR_STAG;
use super::transmit::TxBatch;
use super::work::{ImmediateData, Progress, SendData, SendWqe};
use super::{Connection, Current, OpenStream, QpContext, Stage, Then};
use crate::cause::{LocalProblem, Unmapped};
use crate::completion::{CompletionQueue, Status};
use crate::mutants::mutate;

use crate::policy::transfer::{BATCH_LIMIT, CONFIRMED_AT_ONCE, IN_PLACE_BYTES, SHORT_ULPDU};
use crate::policy::{Heuristic, is_on};
use crate::wr::SendOp;

/// Next message to frame.
enum Choice {
    Response,
    Work(u64),
    /// An empty Read that confirms Writes.
    Confirmation,
    Nothing,
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Frames the next batch: responses to the peer, and work requests. Does nothing until the LLP
    /// has taken the whole last batch.
    pub fn fill(&mut self) {
        if !self.tx.is_empty() {
            return;
        }
        self.tx.reset();
        if let Stage::Open(stream) = &self.stage
            && (stream.current.is_some() || stream.rdmap.requests_pending())
        {
            let asked = stream.rdmap.bytes_asked();
            let (next, queued_after) = match &stream.current {
                Some(_) => (stream.response_left(), asked),
                None => {
                    let next = stream.rdmap.bytes_asked_next();
                    (next, asked - next)
                }
            };
            self.tx.raise_limit(next, queued_after);
        }
        if let Stage::Open(stream) = &self.stage
            && stream.mulpdu > IN_PLACE_BYTES
            && !stream.sends_in_place(self.ctx.settings.send_in_place)
        {
            // Staged payload may fill a batch as large as one of payload sent in place. Sending a
            // part of it earlier would not help, because the peer waits for all of it.
            let large = self
                .sq
                .large_payload(IN_PLACE_BYTES as u32, BATCH_LIMIT as u64);
            self.tx.raise_limit(large, 0);
        }
        while self.tx.has_room() && (self.frame_plain() || self.frame_one()) && self.has_unsent() {}
        if self.tx.is_empty() {
            self.tx.release();
            self.tx.count_idle_turn();
        } else {
            self.tx.note_framed();
        }
    }

    /// Returns true if large payload is read twice: for the CRC, and again by TCP.
    ///
    /// A program that changes the payload in between makes the CRC wrong.
    pub(super) fn reads_payload_twice(&self) -> bool {
        let Stage::Open(stream) = &self.stage else {
            return false;
        };
        let still = self.ctx.settings.send_in_place;
        stream.framer.has_crc() && stream.sends_in_place(still)
    }

    /// Frames one FPDU, or runs one local request. Returns false if neither is possible now.
    fn frame_one(&mut self) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Closing) {
            return false;
        }
        if self.run_local() {
            return true;
        }
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        // 5044-7.1.2-15: a responder sends nothing before it has validated one FPDU.
        if !stream.gate.may_send() {
            return false;
        }
        if self.timers.is_set(Timer::Hold) {
            return false;
        }
        if stream.current.is_none() && !self.begin_message() {
            return false;
        }
        self.frame_segment()
    }

    /// Starts the next message.
    ///
    /// Messages are never interleaved: they go to DDP one after the other (5041-5.3-01). Responses
    /// and the send queue take turns.
    fn begin_message(&mut self) -> bool {
        match self.choose() {
            Choice::Nothing => false,
            Choice::Response => self.begin_response(),
            Choice::Work(sequence) => self.begin_work(sequence),
            Choice::Confirmation => self.begin_confirmation(),
        }
    }

    fn choose(&self) -> Choice {
        let Stage::Open(stream) = &self.stage else {
            return Choice::Nothing;
        };
        let work = self.sq.next_to_send().and_then(|(sequence, wqe)| {
            let is_request = wqe.op.awaits_response();
            // 5040-6.1-04: at most ORD Reads and atomics are outstanding. Requests after the
            // waiting one wait as well, which keeps the order.
            let waits = (is_request && stream.negotiated.ord > 0 && !stream.rdmap.ord_available())
                || (wqe.fence && !wqe.was_begun() && self.sq.requests_pending())
                // Local requests run before a message is chosen. A local request that is still
                // queued has to wait.
                || matches!(wqe.op, SendOp::Local(_))
                || self.waits_to_fail(sequence, wqe);
            (!waits).then_some(sequence)
        });
        let own = match work {
            _ if self.is_confirmation_due(work.is_some()) => Choice::Confirmation,
            Some(sequence) => Choice::Work(sequence),
            None => Choice::Nothing,
        };
        match (stream.rdmap.requests_pending(), own) {
            (false, own) => own,
            (true, own @ (Choice::Work(_) | Choice::Confirmation)) if stream.answered_last => own,
            (true, _) => Choice::Response,
        }
    }

    /// Returns true if an empty Read is to confirm Writes now. While there is other work it waits
    /// until it can confirm [`CONFIRMED_AT_ONCE`] bytes.
    fn is_confirmation_due(&self, has_work: bool) -> bool {
        let (Some(unconfirmed), Stage::Open(stream)) = (self.sq.unconfirmed(), &self.stage) else {
            return false;
        };
        (!has_work || unconfirmed >= CONFIRMED_AT_ONCE) && stream.rdmap.ord_available()
    }

    /// Begins an empty Read that confirms the Writes before it. The peer checks neither its STag
    /// nor its TO (5040-5.2.1-13).
    fn begin_confirmation(&mut self) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        let header = ReadRequestHeader {
            sink_stag: RTR_STAG,
            sink_to: TaggedOffset(0),
            len: 0,
            source_stag: RTR_STAG,
            source_to: TaggedOffset(0),
        };
        let Ok(message) = stream.rdmap.begin_read(header) else {
            return false;
        };
        stream.message = message;
        stream.answered_last = false;
        stream.current = Some(Current::Confirmation);
        true
    }

    /// Returns true if a request is about to fail locally while earlier ones are not complete.
    ///
    /// Its failure ends the connection. It therefore waits, so that the earlier requests complete
    /// as they would without it.
    fn waits_to_fail(&self, sequence: u64, wqe: &SendWqe) -> bool {
        if sequence == self.sq.completed_to() {
            return false;
        }
        let Stage::Open(stream) = &self.stage else {
            return false;
        };
        let no_reads = wqe.op.awaits_response() && stream.negotiated.ord == 0;
        no_reads || stream.refuses_immediate(wqe) || self.has_late_fault(wqe)
    }

    /// Returns true if a message can begin now.
    pub(super) fn has_next(&self) -> bool {
        !matches!(self.choose(), Choice::Nothing)
    }

    fn begin_response(&mut self) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        match stream.rdmap.next_request() {
            None => false,
            Some(Job::Read(job)) => self.begin_read_response(job),
            Some(Job::Atomic(job)) => self.begin_atomic_response(job),
        }
    }

    fn begin_read_response(&mut self, job: ReadJob) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        let header = *job.header();
        let source = if header.len == 0 {
            None
        } else {
            // Checked on arrival, and again now: the region may have been deregistered meanwhile.
            let QpContext { table, .. } = &*self.ctx;
            let asker = self.ctx.asker(self.access);
            let (stag, to) = (header.source_stag, header.source_to.0);
            let to = mutate!(to, ReadResponseNextByte => to.wrapping_add(1));
            match table.check(stag, to, header.len, Need::RemoteRead, &asker) {
                Ok(target) => Some(target),
                Err(fault) => {
                    self.source_gone(&header, 0, fault);
                    return false;
                }
            }
        };
        stream.answered_last = true;
        stream.message = stream.rdmap.begin_read_response(job);
        stream.current = Some(Current::Response { source });
        true
    }

    /// Executes an Atomic Operation whose turn has come (7306-5.2.1-08), and begins its Response.
    fn begin_atomic_response(&mut self, job: AtomicJob) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        // Checked on arrival, and again now.
        let asker = self.ctx.asker(self.access);
        let target = self.ctx.table.check_atomic(job.stag(), job.to().0, &asker);
        if target.is_ok() {
            // The batch may contain lent memory for an earlier Read Response. Copies it now, so
            // that the Response has the value from before this operation.
            self.tx.reclaim();
        }
        let done = target.map_err(AtomicFailure::from);
        match done.and_then(|target| target.atomic(job.op())) {
            Ok(original) => {
                stream.answered_last = true;
                let original = mutate!(original, AtomicReturnsNewValue => job.op().apply(original));
                let original = mutate!(original, AtomicByteOrder => original.swap_bytes());
                stream.message = stream.rdmap.begin_atomic_response(job, original);
                stream.current = Some(Current::Response { source: None });
                true
            }
            Err(AtomicFailure::Fault(fault)) => {
                self.atomic_gone(&job, fault);
                false
            }
            Err(AtomicFailure::Unmapped) => {
                // 5040-4.8-i01: only this host has failed, as for a Write.
                let (stag, by) = (job.stag().0, Unmapped::Atomic);
                self.fail_locally(None, None, LocalProblem::Unmapped { stag, by });
                false
            }
        }
    }

    fn begin_work(&mut self, sequence: u64) -> bool {
        if !self.resolve_later(sequence) {
            return false;
        }
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        let Some(wqe) = self.sq.get_mut(sequence) else {
            return false;
        };
        if stream.refuses_immediate(wqe) {
            // Happens only if the request was posted before the peer was known.
            self.fail_locally(
                Some((sequence, Status::LocalQpOperation)),
                None,
                LocalProblem::NoSendImmediate,
            );
            return false;
        }
        let immediate = wqe.imm;
        let (mut then, mut extension) = (Then::Nothing, None);
        let mut begun = Progress::Sending;
        match wqe.op {
            // Local requests run before a message is chosen.
            SendOp::Local(_) => return false,
            SendOp::Send {
                solicited,
                invalidate,
            } => {
                let kind = SendKind {
                    solicited,
                    invalidate: invalidate.map(STag),
                };
                let len = wqe.len;
                stream.message = if let Some(immediate) = immediate {
                    then = Then::Send { kind, len };
                    stream.begin_immediate(Some(send_immediate::before_send(immediate)))
                } else {
                    stream.rdmap.begin_send(kind, len)
                };
            }
            SendOp::Write { rkey, remote_addr } => {
                then = immediate.map_or(Then::Nothing, Then::Immediate);
                let (stag, to) = (STag(rkey), TaggedOffset(remote_addr));
                stream.message = stream.rdmap.begin_write(stag, to, wqe.len);
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
                match stream.rdmap.begin_read(header) {
                    Ok(message) => stream.message = message,
                    Err(_exhausted) => {
                        // Happens only if ORD is 0 and the Read was posted before ORD was known.
                        self.fail_locally(
                            Some((sequence, Status::LocalQpOperation)),
                            None,
                            LocalProblem::NoReads,
                        );
                        return false;
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
                match stream.rdmap.begin_atomic(stag, to, op) {
                    Ok(message) => stream.message = message,
                    Err(_exhausted) => {
                        self.fail_locally(
                            Some((sequence, Status::LocalQpOperation)),
                            None,
                            LocalProblem::NoReads,
                        );
                        return false;
                    }
                }
            }
            SendOp::Immediate => stream.message = stream.begin_immediate(immediate),
        }
        wqe.progress = begun;
        stream.answered_last = false;
        stream.extension = stream.extension.or(extension);
        stream.current = Some(Current::Work { then });
        true
    }

    /// Frames the next segment of the current message. Returns false if there is none.
    fn frame_segment(&mut self) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        // The `send_in_place` setting applies to payload that this program posts, not to memory
        // that the peer reads.
        let posted = matches!(stream.current, Some(Current::Work { .. }));
        let answer = matches!(stream.current, Some(Current::Response { .. }));
        let in_place = stream.sends_in_place(posted && self.ctx.settings.send_in_place);
        let OpenStream {
            framer,
            current,
            message,
            mulpdu,
            ..
        } = &mut **stream;
        if current.is_none() {
            return false;
        }
        let mut header = [0; MAX_HEADER];
        let mulpdu = if self.tx.is_short() {
            (*mulpdu).min(SHORT_ULPDU)
        } else {
            *mulpdu
        };
        let Some(segment) = message.next_segment(mulpdu, &mut header) else {
            *current = None;
            return false;
        };
        let OutSegment {
            header_len: head_len,
            offset,
            len,
            last,
        } = segment;
        let (offset, len) = (offset as usize, len as usize);
        let mut frame = Frame {
            framer,
            tx: &mut self.tx,
            head: &header[..head_len],
            offset,
            len,
            in_place: in_place && len >= IN_PLACE_BYTES,
            unmapped: None,
        };
        let framed = match current {
            Some(Current::Response {
                source: Some(source),
            }) => frame.response(source),
            Some(Current::Work { .. }) => match self.sq.next_to_send() {
                Some((_, wqe)) if len > 0 => frame.work(&wqe.data, &self.sq.pinned),
                _ => frame.stage(&[][..]),
            },
            _ => frame.stage(&[][..]),
        };
        if !framed {
            let unmapped = frame.unmapped;
            self.payload_gone(unmapped);
            return false;
        }
        self.tx.end_of_fpdu();
        let end = self.tx.framed_to();
        let len = head_len + len;
        self.recorder.sent(self.now, &header[..head_len], len, end);
        self.framed_in_close(answer, last);
        if last {
            self.message_framed();
        }
        true
    }

    /// Completes the framing of a message: its last segment is in the batch.
    fn message_framed(&mut self) {
        let Stage::Open(stream) = &mut self.stage else {
            return;
        };
        match stream.current.take() {
            Some(Current::Work {
                then: Then::Immediate(immediate),
            }) => {
                stream.message = stream.begin_immediate(Some(immediate));
                stream.current = Some(Current::Work {
                    then: Then::Nothing,
                });
            }
            Some(Current::Work {
                then: Then::Send { kind, len },
            }) => {
                stream.message = stream.rdmap.begin_send(kind, len);
                stream.current = Some(Current::Work {
                    then: Then::Nothing,
                });
            }
            Some(Current::Work {
                then: Then::Nothing,
            }) => {
                let is_request = self
                    .sq
                    .next_to_send()
                    .is_some_and(|(_, wqe)| wqe.op.awaits_response());
                self.sq.framed(if is_request {
                    self.tx.end_of_request();
                    Progress::AwaitingResponse
                } else {
                    Progress::Sent {
                        ends_at: self.tx.framed_to(),
                    }
                });
            }
            Some(Current::Response { .. }) => stream.rdmap.response_sent(),
            Some(Current::Confirmation) => {
                self.tx.end_of_request();
                self.sq.confirmation_framed();
            }
            Some(Current::Rtr) | None => {}
        }
    }

    /// Ends the connection, because memory of the current message was deregistered before it was
    /// sent. `unmapped`: the STag of memory that is registered, but not mapped.
    #[cold]
    fn payload_gone(&mut self, unmapped: Option<STag>) {
        let Stage::Open(stream) = &mut self.stage else {
            return;
        };
        match (stream.current.take(), unmapped) {
            (Some(Current::Response { .. }), Some(STag(stag))) => {
                let by = Unmapped::Read;
                self.fail_locally(None, None, LocalProblem::Unmapped { stag, by });
            }
            (Some(Current::Response { .. }), None) => {
                // 5040-4.8-i03: the Terminate reports how much of the Read Response was sent.
                if let Some((header, sent)) = stream.message.read_response_progress() {
                    self.source_gone(&header, sent, TaggedFault::InvalidSTag);
                }
            }
            (_, unmapped) => {
                let sequence = self.sq.next_to_send().map(|(sequence, _)| sequence);
                let by = Unmapped::Payload;
                self.fail_locally(
                    sequence.map(|sequence| (sequence, Status::LocalProtection)),
                    None,
                    unmapped.map_or(LocalProblem::PayloadGone, |STag(stag)| {
                        LocalProblem::Unmapped { stag, by }
                    }),
                );
            }
        }
    }
}

impl OpenStream {
    /// Returns true if large payload may be sent in place.
    ///
    /// With a CRC, the memory is read twice: for the CRC, and by TCP. The program must therefore
    /// promise (`still`) not to write to the payload until the request is complete. Without a CRC,
    /// every FPDU is valid whatever the program writes. Markers lie within the payload, so they
    /// exclude sending in place.
    fn sends_in_place(&self, still: bool) -> bool {
        is_on(Heuristic::InPlace) && !self.markers && (still || !self.framer.has_crc())
    }

    /// Returns the number of bytes left in the current Read Response. The segment framed last still
    /// counts as left. Returns 0 for other messages.
    fn response_left(&self) -> u64 {
        let progress = self.message.read_response_progress();
        progress.map_or(0, |(request, answered)| (request.len - answered).into())
    }

    fn begin_immediate(&mut self, immediate: Option<ImmediateData>) -> OutMessage {
        let ImmediateData { data, solicited } = immediate.unwrap_or_default();
        let opcode = if solicited {
            Opcode::ImmediateSolicited
        } else {
            Opcode::Immediate
        };
        self.extension.get_or_insert(opcode);
        self.rdmap.begin_immediate(data, solicited)
    }
}

/// One FPDU about to be framed.
struct Frame<'a> {
    framer: &'a mut Framer,
    tx: &'a mut TxBatch,
    head: &'a [u8],
    /// Offset and length of the payload in the message.
    offset: usize,
    len: usize,
    /// The payload is large enough and may be sent in place.
    in_place: bool,
    /// Set if the payload could not be read, because it is not mapped: its STag.
    unmapped: Option<STag>,
}

impl Frame<'_> {
    /// Frames a segment with payload of a work request. Returns false if its memory is gone.
    fn work(&mut self, data: &SendData, pinned: &PinnedRegions) -> bool {
        let (offset, len) = (self.offset, self.len);
        if !data.inline.is_empty() {
            return self.stage(data.inline.as_slice());
        }
        // The guard keeps the memory from being deregistered while it is read.
        if !data.spot.is_empty() {
            let Some(source) = pinned.source(data.spot) else {
                return false;
            };
            return if self.in_place {
                self.gather(&source, |tx| {
                    let run = pinned.pin(data.spot, offset, len);
                    run.map(|run| tx.in_place(run)).is_some()
                })
            } else {
                self.stage(&source)
            };
        }
        let Ok(source) = data.list.source(offset, len) else {
            return false;
        };
        if self.in_place {
            self.gather(&source, |tx| {
                data.list.pin(offset, len, |run| tx.in_place(run))
            })
        } else {
            self.stage(&source)
        }
    }

    /// Frames a segment with payload of a Read Response. Returns false if its memory is gone.
    fn response(&mut self, source: &Target) -> bool {
        let (offset, len) = (self.offset, self.len);
        if !self.in_place {
            return source.source().is_ok_and(|payload| self.stage(&payload));
        }
        // The memory is lent before the header is framed. If it were gone after that, the peer
        // would take the Terminate that follows for payload.
        let Some(run) = source.lend(offset, len) else {
            return false;
        };
        // Without a CRC the framer does not read the payload.
        self.gather(&[][..], |tx| {
            tx.lend(run);
            true
        })
    }

    /// Copies the payload into staging, with the CRC over the copy. Returns false if that fails.
    fn stage<P: MemorySource + ?Sized>(&mut self, payload: &P) -> bool {
        let (offset, len) = (self.offset, self.len);
        let (framer, head) = (&mut *self.framer, self.head);
        let room = framer.fpdu_len(head.len() + len) + mutate!(0, PadTooLong => 1);
        let before = framer.position();
        let framed = self.tx.stage_over(room, |out| {
            let framed = framer.frame_into(head, payload, offset, len, out);
            self.unmapped = payload.unmapped();
            match self.unmapped {
                None => framed.map_err(drop),
                Some(_) => Err(()),
            }
        });
        if framed.is_err() {
            framer.rewind(before);
        }
        framed.is_ok()
    }

    /// Frames the segment with its payload in place.
    ///
    /// `pin` adds the memory of the payload to the batch, pinned or lent. It returns false if the
    /// memory is gone.
    fn gather<P: MemorySource + ?Sized>(
        &mut self,
        source: &P,
        pin: impl FnOnce(&mut TxBatch) -> bool,
    ) -> bool {
        let (offset, len) = (self.offset, self.len);
        let (framer, head) = (&mut *self.framer, self.head);
        let before = framer.position();
        let framed = self.tx.stage(|staged| {
            let start = staged.len();
            let framed = framer.frame_in_place(head, source, offset, len, staged);
            self.unmapped = source.unmapped();
            if self.unmapped.is_some() {
                staged.truncate(start);
                framer.rewind(before);
                return None;
            }
            framed.ok()
        });
        let Some(trailer) = framed else {
            return false;
        };
        // From here on the pins keep the memory registered, in place of the guard of `source`.
        let complete = pin(self.tx);
        self.tx
            .stage(|staged| staged.extend_from_slice(trailer.as_ref()));
        complete
    }
}
