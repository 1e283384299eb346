//! How a connection ends: protocol errors of the peer, local errors, a Terminate Message, a FIN, a
//! reset, a timeout.

use crate::llp::LlpError;
use crate::mem::{LocalFault, LocalFaultKind};
use crate::state::{QpEvent, QpState};
use crate::timers::Timer;
use uwarp_ddp::Header;
use uwarp_ddp::TaggedFault;
use uwarp_rdmap::{
    AccessError, AtomicFault, AtomicJob, MAX_HEADER, Opcode, Peer, ReadRequestHeader, Stream,
    StreamError, Terminate, TerminateCode,
};

use super::LOG_TARGET;
use super::inbound::status_of_receive;
use super::work::Blamed;
use super::{Connection, Stage};
use crate::cause::{Cause, EndFacts, LocalProblem, Refusal, TerminateReport, Unmapped, Work};
use crate::completion::{CompletionQueue, CqOverflow, Status};
use crate::event::{AsyncEvent, ConnectionEvent, EndReason};
use crate::mutants::mutate;
use crate::wr::SendOp;

impl<Q: CompletionQueue> Connection<Q> {
    /// Ends the connection because the peer violated the protocol.
    ///
    /// `segment` is the ULPDU with the violation, with its length.
    pub(super) fn end_in_violation(
        &mut self,
        error: StreamError,
        cause: Cause,
        segment: Option<(&[u8], usize)>,
    ) {
        let terminate = Stream::terminate_for(&error, segment);
        let receive = status_of_receive(&error).map(|status| (status, cause));
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

    /// Ends the connection because a local work request cannot be carried out.
    ///
    /// Sends a Terminate in its place (5040-7.1-02). `send`: sequence number and status of the
    /// request that failed, if it is in the send queue. `receive`: status of the oldest receive, if
    /// that has failed.
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

    /// Ends the connection because the source of a peer's Read is no longer accessible, although it
    /// was when the Read arrived.
    pub(super) fn source_gone(
        &mut self,
        header: &ReadRequestHeader,
        sent: u32,
        fault: TaggedFault,
    ) {
        let refused = AccessError::of_read(&header.advance(sent), fault);
        let error = StreamError::Access(refused);
        let terminate = Terminate::for_partial_read(&error, header, sent);
        // Segments of the Response that are already framed are still sent: the Terminate reports
        // their length.
        self.tx.copy_registered();
        let said = self.frame_terminate(&terminate);
        let cause = match fault {
            TaggedFault::InvalidSTag => Cause::access(Refusal::source_gone(refused)),
            // The STag still exists, but the program has changed what the peer may do with it.
            _ => self.cause_of(error),
        };
        let reason = EndReason::TerminateSent {
            error,
            terminate: said.then_some(terminate),
            cause,
        };
        self.end_in_terminate(reason, said);
        self.finish_in_error(QpEvent::TerminateSent, None, None);
    }

    /// Ends the connection because the memory of a peer's Atomic Operation is no longer accessible,
    /// although it was when the request arrived.
    pub(super) fn atomic_gone(&mut self, job: &AtomicJob, fault: AtomicFault) {
        let error = StreamError::of_atomic(job.stag(), job.to(), fault);
        let terminate = Terminate::for_atomic(&error, job);
        self.tx.copy_registered();
        let said = self.frame_terminate(&terminate);
        let cause = self.cause_of(error);
        let reason = EndReason::TerminateSent {
            error,
            terminate: said.then_some(terminate),
            cause,
        };
        self.end_in_terminate(reason, said);
        self.finish_in_error(QpEvent::TerminateSent, None, None);
    }

    /// Ends the connection because the receive of the current message has no usable memory.
    ///
    /// Its region was deregistered, or one of its elements was already unusable when it was posted.
    /// `found`: the fault that placing a message has found.
    #[cold]
    pub(super) fn receive_buffer_gone(&mut self, found: Option<LocalFault>) {
        let fault = self.rq.taken().and_then(|wqe| wqe.fault.as_deref());
        let problem = match (fault, found.map(|fault| fault.kind)) {
            (Some(fault), _) => LocalProblem::Element(*fault),
            (None, Some(LocalFaultKind::Unmapped { lkey: stag })) => LocalProblem::Unmapped {
                stag,
                by: Unmapped::Receive,
            },
            (None, _) => LocalProblem::ReceiveGone,
        };
        self.fail_locally(None, Some(Status::LocalProtection), problem);
    }

    /// Ends the connection because the sink of an outstanding Read or atomic was deregistered or
    /// unmapped.
    #[cold]
    pub(super) fn read_sink_gone(&mut self, sequence: u64, fault: LocalFault) {
        let problem = match fault.kind {
            LocalFaultKind::Unmapped { lkey: stag } => LocalProblem::Unmapped {
                stag,
                by: Unmapped::Sink,
            },
            _ => LocalProblem::ReadSinkGone,
        };
        self.fail_locally(Some((sequence, Status::LocalProtection)), None, problem);
    }

    /// Ends the connection because memory of the program that the LLP reads in place is not mapped.
    ///
    /// The FPDU that contains it has begun, and its bytes are lost. A Terminate would be taken for
    /// payload, and other bytes in their place would be placed as data. So the stream is reset.
    pub fn memory_in_place_gone(&mut self) {
        if self.stage.is_detached() {
            return;
        }
        let owner = self.sq.unsent_payload(self.tx.taken_to());
        let by = owner.map_or(Unmapped::Read, |_| Unmapped::Payload);
        let cause = Cause::local(LocalProblem::Unmapped { stag: 0, by });
        self.fin.abort = true;
        self.end_in_loss(EndReason::LocalError { cause });
        self.flush_sends(owner.map(|sequence| Blamed {
            sequence,
            status: Status::LocalProtection,
            cause,
        }));
        self.detach(QpEvent::LlpLost);
    }

    /// Handles the peer's Terminate Message.
    pub(super) fn terminated_by_peer(&mut self, terminate: Terminate) {
        let code = terminate.reason();
        tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, %code, "Terminate received");
        self.drop_unsent();
        let lacks = self.extension_refused(&terminate);
        let blamed = match lacks {
            Some(message) => self.sq.oldest_extension().map(|sequence| Blamed {
                sequence,
                status: Status::RemoteInvalidRequest,
                cause: Cause::end(EndFacts::PeerLacksRfc7306(message)),
            }),
            None => self.blame_by_terminate(&terminate),
        };
        if let Some(blamed) = blamed {
            // The peer handles messages in order.
            self.sq.placed_before(blamed.sequence);
            self.retire();
        }
        let work = match blamed {
            Some(_) => Work::This,
            None if self.may_be_complete(&terminate) => Work::Complete,
            None => Work::Unknown,
        };
        let cause = match blamed {
            Some(blamed) => blamed.cause,
            None => {
                let report = TerminateReport::new(&terminate, work);
                Cause::from_terminate(report.read_twice(self.reads_payload_twice()))
            }
        };
        let reason = match lacks {
            Some(message) => EndReason::PeerLacksRfc7306 { message, terminate },
            None => EndReason::TerminateReceived { terminate, cause },
        };
        // The Terminate replaces the reason of a graceful close: work that had completed before the
        // close may have failed at the peer.
        self.end_in_terminate(reason, true);
        self.finish_in_error(QpEvent::TerminateReceived, blamed, None);
    }

    /// Handles the peer's FIN. `midway`: the stream ends within an FPDU or startup frame.
    ///
    /// The DDP stream lasts as long as the connection, and the FIN reports the graceful end of both
    /// (5044-3-11, 5044-7.2-01, 5041-3-07, 5041-3-08). A graceful close first sends every message
    /// that was begun (5041-6.2.1-01). A FIN within a message, even between two of its FPDUs,
    /// therefore means that the stream was lost (5041-6.2.2-01).
    pub fn peer_fin(&mut self, midway: bool) {
        if self.fin.received {
            return;
        }
        self.fin.received = true;
        tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, midway, "FIN received");
        let message = match &self.stage {
            Stage::Open(stream) => stream.rdmap.message_under_way(),
            _ if self.stage.is_detached() => return,
            _ => return self.startup_closed(false),
        };
        let midway = midway || message.is_some();
        let reason = match midway {
            true => EndReason::ClosedMidway { message },
            false => EndReason::PeerDisconnect,
        };
        if self.pair_lost(&reason) {
            return;
        }
        if midway && self.state != QpState::Terminate {
            self.end_in_loss(reason);
            self.detach(QpEvent::LlpLost);
        } else {
            self.half_closed();
        }
    }

    /// Handles a FIN at the end of a message.
    ///
    /// Earlier requests are still sent (5041-6.2.1-04), unless they wait for an answer that can no
    /// longer arrive.
    fn half_closed(&mut self) {
        self.event(QpEvent::PeerFin);
        self.end(EndReason::PeerDisconnect);
        if let Some(stream) = self.stage.open_mut() {
            stream.rdmap.peer_closed();
        }
        self.begin_close();
        self.flush_receives(None);
        if (self.stage.open()).is_some_and(|stream| !stream.gate.may_send()) {
            // The FPDU that would have opened the send gate can no longer arrive.
            self.flush_sends(None);
        } else {
            // No Response can arrive any more.
            self.sq.refuse_requests();
        }
        self.retire();
        self.check_closed();
    }

    /// Handles the loss of TCP: the stream ended, but not by a FIN at the end of a message.
    ///
    /// Flushes the requests that TCP has not taken and will not transfer (5041-3-03). Reports the
    /// error of TCP unchanged (5041-7-01).
    pub fn lost(&mut self, error: LlpError) {
        match &self.stage {
            _ if self.stage.is_detached() => return,
            Stage::Startup(startup) if startup.is_connecting_tcp() => {
                if matches!(error, LlpError::Refused { .. }) && self.refused() {
                    return;
                }
                let reason = EndReason::ConnectFailed { error };
                if self.pair_lost(&reason) || self.attempt_failed(&reason) {
                    return;
                }
                self.end(reason);
            }
            // 6581-10-05: a peer that resets may not understand our Request. A silent peer gives no
            // such sign.
            Stage::Startup(_)
                if matches!(error, LlpError::Reset { .. } | LlpError::Broken { .. }) =>
            {
                return self.startup_closed(true);
            }
            _ => {
                let reason = EndReason::LlpLost { error };
                if self.pair_lost(&reason) {
                    return;
                }
                self.end_in_loss(reason);
            }
        }
        self.detach(QpEvent::LlpLost);
    }

    /// Resets the connection, because there is no memory for a buffer. `op`: what needs the buffer,
    /// as a verb.
    pub fn out_of_memory(&mut self, op: &'static str) {
        self.fin.abort = true;
        let what = "memory in this process (`ulimit -v`, `ulimit -d`)";
        self.lost(LlpError::Exhausted { op, what });
    }

    /// Resets the connection on behalf of the consumer.
    pub fn abort(&mut self) {
        // There is no stream between the attempts for two addresses, while the connection is still
        // being set up.
        // Nor is there one while a QP meets its peer, or the peer has gone (`pair.rs`).
        // And a QP for datagrams has no stage.
        let is_open = match self.ctx.datagrams {
            Some(_) => self.state == QpState::Rts,
            None => self.state == QpState::Connecting,
        };
        if self.stage.is_detached() && !is_open {
            return;
        }
        self.fin.abort = true;
        self.end(EndReason::Aborted);
        self.detach(QpEvent::Abort);
    }

    /// Moves the QP to Error on behalf of the consumer. Resets the connection, if there is one, and
    /// flushes all work.
    pub fn fail(&mut self) {
        self.abort();
        self.event(QpEvent::Abort);
        self.flush_sends(None);
        self.flush_receives(None);
    }

    /// Sends a Terminate and moves an open QP to Terminate on behalf of the consumer. A QP for
    /// datagrams, which has no stream for the message, goes to Error.
    pub fn terminate(&mut self) {
        if self.ctx.datagrams.is_some() {
            let cause = Cause::local(LocalProblem::MovedToTerminate);
            self.end(EndReason::LocalError { cause });
            return self.detach(QpEvent::Abort);
        }
        self.fail_locally(None, None, LocalProblem::MovedToTerminate);
    }

    /// Handles [`Timer::Stage`], which was due and is cleared.
    pub fn stage_timed_out(&mut self) {
        match &self.stage {
            _ if self.stage.is_detached() => {}
            Stage::Startup(startup) if startup.is_connecting_tcp() => {
                self.fin.abort = true;
                if self.pair_lost(&EndReason::ConnectTimedOut)
                    || self.attempt_failed(&EndReason::ConnectTimedOut)
                {
                    return;
                }
                self.end(EndReason::ConnectTimedOut);
                self.detach(QpEvent::LlpLost);
            }
            Stage::Detached | Stage::Startup(_) => self.startup_timed_out(),
            Stage::Open(stream) if stream.inbound.first_awaited && self.state == QpState::Rts => {
                self.first_fpdu_timed_out();
            }
            Stage::Open(_) => self.check_close_progress(),
        }
    }

    /// Ends the connection because the peer stalled for `timeouts.stalled`.
    ///
    /// `sending`: the peer has not read the bytes that this side sent. Otherwise it has not
    /// finished an FPDU that it began.
    pub fn stalled(&mut self, sending: bool) {
        if self.stage.is_detached() {
            return;
        }
        self.fin.abort = true;
        if self.pair_lost(&EndReason::Stalled { sending }) {
            return;
        }
        self.end_in_loss(EndReason::Stalled { sending });
        self.detach(QpEvent::LlpLost);
    }

    /// Drops the LLP stream and flushes everything outstanding.
    pub(super) fn detach(&mut self, event: QpEvent) {
        self.event(event);
        self.stage = Stage::Detached;
        self.timers.clear_stream();
        self.recorder.stream_over(self.tx.taken_to());
        self.tx = super::transmit::TxBatch::default();
        self.flush_sends(None);
        self.flush_receives(None);
        self.last_receive_taken();
    }

    /// Records that the driver has released the LLP stream, or could not attach one. This is an
    /// event ([`ConnectionEvent::Released`]) only if the connection has ended: otherwise another
    /// attempt follows.
    pub fn llp_released(&mut self) {
        if self.state == QpState::Error {
            self.events.push(ConnectionEvent::Released);
        }
    }

    /// Flushes everything after a Terminate in either direction, and begins a graceful close.
    ///
    /// The close is graceful so that the Terminate arrives (5040-6.2.1-04). The state of the QP
    /// records that the stream has failed. From then on nothing else is sent on it, and received
    /// bytes are dropped (5041-3-05).
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
        self.timers.clear(Timer::Receive);
        self.fin.wanted = mutate!(true, NoCloseAfterTerminate => false);
        mutate!(self.start_close_timer(), NoCloseAfterTerminate => ());
        if let Some(close) = self.stage.close_mut() {
            close.clear_owed_answers();
        }
    }

    /// Raises [`AsyncEvent::LastWqeReached`], at most once, if the QP has failed and so takes no
    /// more receives from its SRQ.
    fn last_receive_taken(&mut self) {
        let fails = matches!(self.state, QpState::Terminate | QpState::Error);
        if fails && self.rq.is_shared() && !std::mem::replace(&mut self.raised_last_wqe, true) {
            self.events
                .push(ConnectionEvent::Async(AsyncEvent::LastWqeReached {
                    qp_num: self.ctx.qp_num,
                }));
        }
    }

    /// Ends the connection if a completion was lost because its CQ was full.
    ///
    /// The program can no longer know which work was done.
    #[inline]
    pub(super) fn end_on_lost_completion(&mut self) {
        if let Some(overflow) = self.lost {
            self.lost = None;
            self.end_on_overflow(overflow);
        }
    }

    #[cold]
    fn end_on_overflow(&mut self, overflow: CqOverflow) {
        // An unreliable QP completes requests also while it has no stream.
        let has_no_stream = self.pair.is_some() && self.state == QpState::Connecting;
        if !has_no_stream && !matches!(self.state, QpState::Rts | QpState::Closing) {
            return;
        }
        let reason = EndReason::CqOverflow {
            cq_num: overflow.cq_num,
            depth: overflow.capacity,
            wr_id: overflow.wr_id,
        };
        if self.ctx.datagrams.is_some() || has_no_stream {
            self.fin.abort = true;
            self.end(reason);
            return self.detach(QpEvent::Abort);
        }
        let terminate = Stream::terminate_for(&StreamError::LocalCatastrophic, None);
        let sent = self.send_terminate(terminate.as_ref());
        self.end_in_terminate(reason, sent);
        self.finish_in_error(QpEvent::TerminateSent, None, None);
    }

    /// Frames the Terminate as the next and last FPDU.
    ///
    /// Returns false if nothing may be sent (5044-7.1.2-15).
    fn send_terminate(&mut self, terminate: Option<&Terminate>) -> bool {
        self.drop_unsent();
        terminate.is_some_and(|terminate| self.frame_terminate(terminate))
    }

    fn frame_terminate(&mut self, terminate: &Terminate) -> bool {
        let Some(stream) = self.stage.open_mut() else {
            return false;
        };
        if !stream.gate.may_send() {
            return false;
        }
        let Some(mut message) = stream.rdmap.begin_terminate(terminate) else {
            return false;
        };
        let framing = &mut stream.outbound.framing;
        let mut header = [0; MAX_HEADER];
        let Some(segment) = message.next_segment(framing.mulpdu(), &mut header) else {
            return false;
        };
        let head = &header[..segment.header_len];
        let framed = framing.head(&mut self.tx, head);
        if mutate!(false, TerminateTwice => true) {
            framing.head(&mut self.tx, head);
        }
        self.tx.end_of_fpdu();
        let end = self.tx.framed_to();
        self.recorder.sent(self.now, head, head.len(), end);
        let code = terminate.reason();
        tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, %code, "Terminate framed");
        framed
    }

    /// Drops every FPDU that the LLP has not begun to take.
    fn drop_unsent(&mut self) {
        let dropped = self.tx.truncate();
        self.recorder.drop_after(self.tx.framed_to());
        if let Some(stream) = self.stage.open_mut() {
            stream.outbound.drop_unsent(dropped);
        }
    }

    /// Returns the Read or atomic to blame if the error is a wrong Response to it.
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

    /// Returns the work request that the peer's Terminate is about, if it can be determined.
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
        if let (Some(Header::Tagged(header)), Peer::Rfc) =
            (terminate.ddp_header(), terminate.read_as())
            && let Some(sequence) = self.sq.unconfirmed_write(header.stag.0, header.to.0)
        {
            return self.blamed(sequence, status, terminate);
        }
        // A Write or Send is complete when the LLP has taken it. If the oldest one is not complete,
        // the peer answered after only a part of it was sent. The Terminate is then about that
        // request.
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
            cause: Cause::from_terminate(TerminateReport::about(terminate, asked)),
        })
    }

    /// Returns true if the Terminate is about a Send or Write, which may already be complete,
    /// because TCP had taken it.
    fn may_be_complete(&self, terminate: &Terminate) -> bool {
        terminate.headers_fit()
            && terminate
                .opcode()
                .is_some_and(|opcode| opcode == Opcode::Write || opcode.is_send())
    }

    /// Returns the sequence number of the Read or atomic whose DDP header the Terminate contains.
    /// Without a header that can be trusted, returns the sequence number of the oldest Read or
    /// atomic.
    ///
    /// The MSN in a Terminate of Linux siw may have any value, so it is not used.
    fn request_of(&self, terminate: &Terminate) -> Option<u64> {
        if let (Some(stream), Some(Header::Untagged(header)), Peer::Rfc) = (
            self.stage.open(),
            terminate.ddp_header(),
            terminate.read_as(),
        ) && let Some(older) = stream.rdmap.outstanding_before(header.msn)
        {
            // The Read of the RTR indication is no work request.
            let older = older.checked_sub(usize::from(stream.inbound.rtr_read))?;
            return self.sq.request_after(older);
        }
        self.sq.oldest_request()
    }

    /// Returns the message of RFC 7306 that the peer refuses because it does not support it.
    ///
    /// Linux siw sends a Terminate that does not name the message. In that case, returns the first
    /// such message of this side.
    fn extension_refused(&self, terminate: &Terminate) -> Option<Opcode> {
        const UNEXPECTED: TerminateCode = TerminateCode {
            layer: 0,
            etype: 2,
            code: 6,
        };
        // A code that siw may have meant differently is read with siw's meaning. By the RFCs it
        // would report a failed MPA startup, but startup is over.
        if terminate.rfc_reason() != UNEXPECTED && terminate.if_siw() != Some(UNEXPECTED) {
            return None; // 7306-1.1-i01
        }
        let sent = self.stage.open()?.outbound.extension?;
        match terminate.opcode() {
            Some(opcode) => {
                (opcode.is_extension() && opcode != Opcode::AtomicResponse).then_some(opcode)
            }
            None => Some(sent),
        }
    }
}
