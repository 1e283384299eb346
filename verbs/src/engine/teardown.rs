//! How a connection ends: an error of the peer, an error of ours, a Terminate Message, a FIN, a
//! reset, a timeout.

use uwarp_ddp::Header;
use uwarp_ddp::TaggedFault;
use uwarp_llp::LlpError;
use uwarp_rdmap::{
    AtomicFault, AtomicJob, MAX_HEADER, Opcode, Peer, ReadRequestHeader, Stream, StreamError,
    Terminate, TerminateCode,
};

use super::connection::{Connection, Stage};
use super::wake_up::WakeUp;
use super::work::Blamed;
use crate::cause::{Act, Broken, Cause, EndKind, LocalProblem, Refusal, TerminateReport, Work};
use crate::completion::{CqOverflow, Status};
use crate::event::{AsyncEvent, EndReason};
use crate::mutants::mutate;
use crate::qp::state::{QpEvent, QpState};
use crate::qp::wr::SendOp;

impl Connection {
    /// The peer broke a rule. `segment` is the ULPDU in which it did, with its length.
    pub(super) fn offended(
        &mut self,
        error: StreamError,
        cause: Cause,
        segment: Option<(&[u8], usize)>,
    ) {
        let terminate = Stream::terminate_for(&error, segment);
        let receive = Self::blame_receive(&error, segment).map(|status| (status, cause));
        let send = self.blame_read_response(&error, cause);
        let said = mutate!(terminate.as_ref(), NoTerminate => None);
        let sent = self.send_terminate(said);
        let terminate = if sent { terminate } else { None };
        let reason = EndReason::TerminateSent {
            error,
            terminate,
            cause,
        };
        self.end_in_terminate(reason, sent);
        self.finish_in_error(QpEvent::TerminateSent, send, receive);
    }

    /// A work request of this side cannot be carried out (5040-7.1-02: the Terminate goes instead).
    /// `send` is the one in the send queue, by its sequence number; `receive`: the one at the head.
    pub(super) fn fail_locally(
        &mut self,
        send: Option<(u64, Status)>,
        receive: Option<Status>,
        problem: LocalProblem,
    ) {
        let cause = Cause::local(problem);
        let terminate = Stream::terminate_for(&StreamError::LocalCatastrophic, None);
        let sent = self.send_terminate(terminate.as_ref());
        self.end_in_terminate(EndReason::LocalError { cause }, sent);
        let send = send.map(|(sequence, status)| Blamed {
            sequence,
            status,
            cause,
        });
        let receive = receive.map(|status| (status, cause));
        self.finish_in_error(QpEvent::TerminateSent, send, receive);
    }

    /// The source of a Read that the peer asked for has gone after it was checked.
    pub(super) fn source_gone(
        &mut self,
        header: &ReadRequestHeader,
        sent: u32,
        fault: TaggedFault,
    ) {
        let error = StreamError::Protection(fault);
        let terminate = Terminate::for_read_under_way(&error, header, sent);
        // What was framed of the Response still goes out: the Terminate counts it.
        self.tx.settle();
        let said = self.frame_terminate(&terminate);
        let cause = Cause::access(Refusal::source_gone(header, sent));
        let reason = EndReason::TerminateSent {
            error,
            terminate: said.then_some(terminate),
            cause,
        };
        self.end_in_terminate(reason, said);
        self.finish_in_error(QpEvent::TerminateSent, None, None);
    }

    /// The memory of an Atomic Operation that the peer asked for has gone after it was checked.
    pub(super) fn atomic_gone(&mut self, job: &AtomicJob, fault: AtomicFault) {
        let error = StreamError::Atomic(fault);
        let terminate = Terminate::for_atomic(&error, job);
        self.tx.settle();
        let said = self.frame_terminate(&terminate);
        let place = (job.stag().0, job.to().0, 8);
        let cause = match fault {
            AtomicFault::Tagged(fault) => {
                let facts = self.ctx.table.facts(job.stag());
                Cause::access(Refusal::new(fault, Act::Atomic, place, facts))
            }
            AtomicFault::Misaligned => Cause::broken(Broken::from(error)),
        };
        let reason = EndReason::TerminateSent {
            error,
            terminate: said.then_some(terminate),
            cause,
        };
        self.end_in_terminate(reason, said);
        self.finish_in_error(QpEvent::TerminateSent, None, None);
    }

    /// The message under way has no place in its receive: the region was deregistered, or could not be used from the
    /// beginning.
    pub(super) fn receive_buffer_gone(&mut self) {
        let fault = self.rq.taken().and_then(|wqe| wqe.fault.as_deref());
        let problem = fault.map_or(LocalProblem::ReceiveGone, |fault| {
            LocalProblem::Element(*fault)
        });
        self.fail_locally(None, Some(Status::LocalProtection), problem);
    }

    /// The sink of an outstanding Read or atomic was deregistered.
    pub(super) fn read_sink_gone(&mut self, sequence: u64) {
        self.fail_locally(
            Some((sequence, Status::LocalProtection)),
            None,
            LocalProblem::ReadSinkGone,
        );
    }

    /// The peer's Terminate Message has arrived.
    pub(super) fn terminated_by_peer(&mut self, terminate: Terminate) {
        let code = terminate.reason();
        tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, %code, "Terminate came");
        self.drop_unsent();
        let lacks = self.extension_refused(&terminate);
        let blamed = match lacks {
            Some(message) => self.sq.oldest_extension().map(|sequence| Blamed {
                sequence,
                status: Status::RemoteInvalidRequest,
                cause: Cause::end(EndKind::PeerLacksRfc7306(message)),
            }),
            None => self.blame_by_terminate(&terminate),
        };
        let work = match blamed {
            Some(_) => Work::This,
            None if self.may_be_complete(&terminate) => Work::Complete,
            None => Work::Unknown,
        };
        let cause = match blamed {
            Some(blamed) => blamed.cause,
            None => {
                let told = TerminateReport::new(&terminate, work);
                Cause::told(told.read_twice(self.reads_payload_twice()))
            }
        };
        let reason = match lacks {
            Some(message) => EndReason::PeerLacksRfc7306 { message, terminate },
            None => EndReason::TerminateReceived { terminate, cause },
        };
        // What we sent before a close did not do what the completions said.
        self.end_in_terminate(reason, true);
        self.finish_in_error(QpEvent::TerminateReceived, blamed, None);
    }

    /// The peer's FIN. `midway`: bytes of an incomplete FPDU or startup frame are left.
    ///
    /// Stream and connection are one, and this is how their graceful end is told (5044-3-11, 5044-7.2-01, 5041-3-07,
    /// 5041-3-08). It is none while a message is under way, also between two FPDUs: who closes gracefully has sent what
    /// was begun (5041-6.2.1-01), so the stream was lost (5041-6.2.2-01).
    pub(crate) fn peer_fin(&mut self, midway: bool) {
        if self.fin.received {
            return;
        }
        self.fin.received = true;
        tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, midway, "FIN came");
        let message = match &self.stage {
            Stage::Detached => return,
            Stage::TcpConnect(_) | Stage::AwaitReply(_) => return self.startup_closed(false),
            Stage::Open(stream) => stream.rdmap.message_under_way(),
        };
        let midway = midway || message.is_some();
        if midway && self.state != QpState::Terminate {
            self.end_in_loss(EndReason::ClosedMidway { message });
            self.detach(QpEvent::LlpLost);
        } else {
            self.half_closed();
        }
    }

    /// The peer has closed its half between two messages. What was posted before is still sent
    /// (5041-6.2.1-04), unless it waits for an answer that cannot come any more.
    fn half_closed(&mut self) {
        self.event(QpEvent::PeerFin);
        self.end(EndReason::PeerDisconnect);
        if let Stage::Open(stream) = &mut self.stage {
            stream.rdmap.peer_closed();
        }
        self.fin.wanted = true;
        self.start_close_timer();
        self.owe_answers();
        self.flush_receives(None);
        match &self.stage {
            // The FPDU that would have let us send can come no more.
            Stage::Open(stream) if !stream.gate.may_send() => self.flush_sends(None),
            // No Response can come any more.
            _ => self.sq.refuse_requests(),
        }
        self.retire();
        self.check_closed();
    }

    /// TCP is gone, without a FIN at a proper place. What it has not taken, and so will not transfer, is flushed
    /// (5041-3-03), and its error goes up as it is (5041-7-01).
    pub(crate) fn lost(&mut self, error: LlpError) {
        match &self.stage {
            Stage::Detached => return,
            Stage::TcpConnect(_) => {
                if matches!(error, LlpError::Refused { .. }) && self.refused() {
                    return;
                }
                let reason = EndReason::ConnectFailed { error };
                if self.attempt_failed(&reason) {
                    return;
                }
                self.end(reason);
            }
            // 6581-10-05: a peer that does this may not know our Request. One that is silent has said nothing about it.
            Stage::AwaitReply(_)
                if matches!(error, LlpError::Reset { .. } | LlpError::Broken { .. }) =>
            {
                return self.startup_closed(true);
            }
            Stage::AwaitReply(_) | Stage::Open(_) => {
                self.end_in_loss(EndReason::LlpLost { error });
            }
        }
        self.detach(QpEvent::LlpLost);
    }

    /// The consumer gives the connection up: reset.
    pub(crate) fn abort(&mut self) {
        // Between two addresses there is no stage, and the connection still begins.
        self.more_addresses = false;
        let is_between = self.failed_attempt.take().is_some();
        if !is_between && matches!(self.stage, Stage::Detached) {
            return;
        }
        self.fin.abort = true;
        self.end(EndReason::Aborted);
        self.detach(QpEvent::Abort);
    }

    /// The consumer moves the QP to Error, with a connection or without.
    pub(crate) fn fail(&mut self) {
        self.abort();
        self.event(QpEvent::Abort);
        self.flush_sends(None);
        self.flush_receives(None);
    }

    /// The consumer moves an open QP to Terminate.
    pub(crate) fn terminate(&mut self) {
        self.fail_locally(None, None, LocalProblem::MovedToTerminate);
    }

    /// `deadline` has passed.
    pub(crate) fn deadline_passed(&mut self) {
        self.deadline = None;
        match &self.stage {
            Stage::Detached => {}
            Stage::TcpConnect(_) => {
                self.fin.abort = true;
                if self.attempt_failed(&EndReason::ConnectTimedOut) {
                    return;
                }
                self.end(EndReason::ConnectTimedOut);
                self.detach(QpEvent::LlpLost);
            }
            Stage::AwaitReply(_) => self.startup_timed_out(),
            Stage::Open(stream) if stream.first_awaited && self.state == QpState::Rts => {
                self.first_fpdu_timed_out();
            }
            Stage::Open(_) => self.look_at_close(),
        }
    }

    /// For as long as `timeouts.stalled` the peer has not read what it was sent, or not finished what it
    /// began to send.
    pub(crate) fn stalled(&mut self, sending: bool) {
        if matches!(self.stage, Stage::Detached) {
            return;
        }
        self.fin.abort = true;
        self.end_in_loss(EndReason::Stalled { sending });
        self.detach(QpEvent::LlpLost);
    }

    /// The LLP stream is over: everything outstanding is flushed.
    pub(super) fn detach(&mut self, event: QpEvent) {
        self.event(event);
        self.stage = Stage::Detached;
        self.close = None;
        self.ask_again = None;
        self.deadline = None;
        self.hold = None;
        self.wake_up = WakeUp::Done;
        self.starving = None;
        self.recorder.stream_over(self.tx.taken_to());
        self.tx = super::transmit::TxBatch::default();
        self.flush_sends(None);
        self.flush_receives(None);
        self.last_receive_taken();
    }

    /// After a Terminate in either direction: everything is flushed, then a graceful close, so that
    /// the message arrives (5040-6.2.1-04).
    ///
    /// The state says that the stream has failed. From then on nothing else is sent on it, and what arrives is
    /// dropped (5041-3-05).
    fn finish_in_error(
        &mut self,
        event: QpEvent,
        send: Option<Blamed>,
        receive: Option<(Status, Cause)>,
    ) {
        self.event(event);
        self.flush_sends(send);
        self.flush_receives(receive);
        self.last_receive_taken();
        self.starving = None;
        self.fin.wanted = mutate!(true, NoCloseAfterTerminate => false);
        mutate!(self.start_close_timer(), NoCloseAfterTerminate => ());
        self.owe_no_answers();
    }

    /// The QP has failed and takes no receive any more: who posts to its SRQ is told, once.
    fn last_receive_taken(&mut self) {
        let fails = matches!(self.state, QpState::Terminate | QpState::Error);
        if fails && self.rq.is_shared() && !std::mem::replace(&mut self.told_last_wqe, true) {
            self.events.push(AsyncEvent::LastWqeReached {
                qp_num: self.ctx.qp_num,
            });
        }
    }

    /// A completion of this QP found its CQ full and is lost: the program cannot know any more what was done, so
    /// the connection ends.
    #[inline]
    pub(super) fn end_on_lost_completion(&mut self) {
        if let Some(overflow) = self.lost {
            self.lost = None;
            self.end_on_overflow(overflow);
        }
    }

    #[cold]
    fn end_on_overflow(&mut self, overflow: CqOverflow) {
        if !matches!(self.state, QpState::Rts | QpState::Closing) {
            return;
        }
        let terminate = Stream::terminate_for(&StreamError::LocalCatastrophic, None);
        let sent = self.send_terminate(terminate.as_ref());
        let reason = EndReason::CqOverflow {
            cq_num: overflow.cq_num,
            depth: overflow.capacity,
            wr_id: overflow.wr_id,
        };
        self.end_in_terminate(reason, sent);
        self.finish_in_error(QpEvent::TerminateSent, None, None);
    }

    /// Frames the Terminate as the next and last FPDU. False where nothing may be sent
    /// (5044-7.1.2-15).
    fn send_terminate(&mut self, terminate: Option<&Terminate>) -> bool {
        self.drop_unsent();
        terminate.is_some_and(|terminate| self.frame_terminate(terminate))
    }

    fn frame_terminate(&mut self, terminate: &Terminate) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        if !stream.gate.may_send() {
            return false;
        }
        let Some(mut message) = stream.rdmap.begin_terminate(terminate) else {
            return false;
        };
        let mut header = [0; MAX_HEADER];
        let Some(segment) = message.next_segment(stream.mulpdu, &mut header) else {
            return false;
        };
        let head = &header[..segment.header_len];
        let framed = self
            .tx
            .stage(|staged| stream.framer.frame(head, &[][..], 0, 0, staged));
        if mutate!(false, TerminateTwice => true) {
            let _ = self
                .tx
                .stage(|staged| stream.framer.frame(head, &[][..], 0, 0, staged));
        }
        self.tx.end_of_fpdu();
        let end = self.tx.framed_to();
        self.recorder.sent(self.now, head, head.len(), end);
        let code = terminate.reason();
        tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, %code, "Terminate goes out");
        framed.is_ok()
    }

    /// Forgets every FPDU that the LLP has taken nothing of.
    fn drop_unsent(&mut self) {
        let dropped = self.tx.truncate();
        self.recorder.dropped_behind(self.tx.framed_to());
        if let Stage::Open(stream) = &mut self.stage {
            stream
                .framer
                .rewind(stream.framer.position().saturating_sub(dropped));
            stream.current = None;
        }
    }

    /// The Read or atomic that a wrong Response belongs to.
    fn blame_read_response(&self, error: &StreamError, cause: Cause) -> Option<Blamed> {
        let mismatch = matches!(
            error,
            StreamError::ReadResponseMismatch(_) | StreamError::AtomicResponseMismatch { .. }
        );
        mismatch
            .then(|| self.sq.oldest_request())
            .flatten()
            .map(|sequence| Blamed {
                sequence,
                status: Status::BadResponse,
                cause,
            })
    }

    /// The work request that the peer's Terminate speaks of, when it can be told.
    fn blame_by_terminate(&self, terminate: &Terminate) -> Option<Blamed> {
        if !terminate.headers_fit() {
            return None;
        }
        let reason = terminate.rfc_reason();
        let status = match (reason.layer, reason.etype) {
            (0, 1) | (1, 1) => Status::RemoteAccess,
            (0, 2) | (1, 2) => Status::RemoteOperation,
            _ => return None,
        };
        if terminate.is_about_request() {
            let sequence = self.request_of(terminate)?;
            return self.blamed(sequence, status, terminate);
        }
        // A Write or a Send is complete when the LLP has taken it. If the oldest is not, its bytes
        // were only partly taken when the peer answered: it is the one.
        let (sequence, wqe) = self.sq.front()?;
        let tagged = terminate.is_about_tagged();
        let fits = match wqe.op {
            SendOp::Write { .. } => tagged || wqe.imm.is_some(),
            SendOp::Send { .. } | SendOp::Immediate => !tagged,
            SendOp::Read { .. } | SendOp::Atomic { .. } | SendOp::Local(_) => false,
        };
        if !(fits && wqe.was_begun()) {
            return None;
        }
        self.blamed(sequence, status, terminate)
    }

    fn blamed(&self, sequence: u64, status: Status, terminate: &Terminate) -> Option<Blamed> {
        let asked = self.sq.get(sequence)?.asked();
        Some(Blamed {
            sequence,
            status,
            cause: Cause::told(TerminateReport::about(terminate, asked)),
        })
    }

    /// Whether the Terminate is about a Send or Write of ours, which then was complete: TCP had
    /// taken it.
    fn may_be_complete(&self, terminate: &Terminate) -> bool {
        terminate.headers_fit()
            && matches!(
                terminate.opcode().map(Act::from),
                Some(Act::Send | Act::Write | Act::Invalidate)
            )
    }

    /// The Read or atomic of which a Terminate has the DDP header; the oldest one if it has none. (In
    /// that of Linux siw the MSN may be something else.)
    fn request_of(&self, terminate: &Terminate) -> Option<u64> {
        if let (Stage::Open(stream), Some(Header::Untagged(header)), Peer::Rfc) =
            (&self.stage, terminate.ddp_header(), terminate.read_as())
            && let Some(older) = stream.rdmap.outstanding_before(header.msn)
        {
            // The Read of the RTR indication is no work request.
            let older = older.checked_sub(usize::from(stream.rtr_read))?;
            return self.sq.request_behind(older);
        }
        self.sq.oldest_request()
    }

    /// The message of RFC 7306 that the peer refuses because it does not know it. Linux siw does not
    /// say in its Terminate which one it was.
    fn extension_refused(&self, terminate: &Terminate) -> Option<Opcode> {
        const UNEXPECTED: TerminateCode = TerminateCode {
            layer: 0,
            etype: 2,
            code: 6,
        };
        // What may be siw's is: by the RFCs it would say that MPA startup has failed, which is over.
        if terminate.rfc_reason() != UNEXPECTED && terminate.if_siw() != Some(UNEXPECTED) {
            return None; // 7306-1.1-i01
        }
        let Stage::Open(stream) = &self.stage else {
            return None;
        };
        let sent = stream.extension?;
        match terminate.opcode() {
            Some(opcode) => {
                (opcode.is_extension() && opcode != Opcode::AtomicResponse).then_some(opcode)
            }
            None => Some(sent),
        }
    }
}
