//! The connection object: its parts, its state, and the questions of the driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Span;
use uwarp_llp::{Keepalive, SendHints};
use uwarp_mpa::{Deframer, FpduSegments, Framer, Initiator, InitiatorConfig, Negotiated, SendGate};
use uwarp_rdmap::{Opcode, OutMessage, Stream};

use super::closing::Close;
use super::receive_queue::ReceiveQueue;
use super::recorder::{FlightRecord, Recorder};
use super::transmit::TxBatch;
use super::wake_up::WakeUp;
use super::work::{ImmediateData, SendQueue};
use crate::cause::{Cause, LocalProblem};
use crate::completion::{Completion, CqOfQueue, CqOverflow, Pushing};
use crate::event::{AsyncEvent, EndReason};
use crate::mem::{Access, Asker, RegionTable, Target};
use crate::mutants::mutate;
use crate::qp::state::{QpEvent, QpState};
use crate::settings::{OnNoReceive, Settings};
use crate::srq::SrqInner;
use crate::wait::{after, earlier};

/// Bytes sent between two queries of the LLP's EMSS.
const EMSS_INTERVAL: u64 = 16 * 1024 * 1024;

/// Facts about the QP and the device that a connection uses.
pub(crate) struct QpContext {
    pub(crate) qp_num: u32,
    pub(crate) pd: u32,
    pub(crate) table: Arc<RegionTable>,
    pub(crate) send_cq: CqOfQueue,
    /// CQ of the receive queue, or of the SRQ.
    pub(crate) recv_cq: CqOfQueue,
    pub(crate) settings: Arc<Settings>,
    pub(crate) caps: super::QueueCaps,
    /// Source of the receives, if the QP has no receive queue of its own.
    pub(crate) srq: Option<Arc<SrqInner>>,
    /// Policy for a message that arrives while no receive is posted.
    pub(crate) on_no_receive: OnNoReceive,
    /// Rights of the peer through the QP when the QP is made; [`Connection::access`] has the
    /// current ones.
    pub(crate) access: Access,
    /// Every request makes a completion, signaled or not.
    pub(crate) signal_all: bool,
    /// A request with unusable elements is accepted by the post, and fails when its turn comes.
    pub(crate) late_faults: bool,
    /// Time after which a silent peer counts as dead, where the network does not decide.
    pub(crate) keepalive: Option<Keepalive>,
}

impl QpContext {
    /// The QP as the region table identifies it.
    pub(crate) fn asker(&self, access: Access) -> Asker {
        Asker {
            pd: self.pd,
            qp: self.qp_num,
            access,
        }
    }
}

/// Stage of the LLP stream of a connection.
///
/// ```text
///               start_initiator              tcp_connected               Reply accepted
///   Detached ───────────────────► TcpConnect ──────────────► AwaitReply ────────────────► Open
///      ▲  │                          ▲   │                    │   │                       ▲ │
///      │  │                          └── closed: revision 1 ──┘   │                       │ │
///      │  └──────────────────── start_responder (accept) ─────────┼───────────────────────┘ │
///      └──────── failed, refused, timed out, aborted, closed ─────┴─────────────────────────┘
/// ```
///
/// A snapshot in `engine/tests.rs` shows the effect of each event in each stage.
pub(crate) enum Stage {
    /// No LLP stream.
    Detached,
    /// TCP is being connected. The MPA Request is sent once it is.
    TcpConnect(Box<Initiator>),
    /// The MPA Request was sent.
    AwaitReply(Box<Initiator>),
    /// Full Operation: FPDUs in both directions.
    Open(Box<OpenStream>),
}

/// The protocol layers of an open stream.
pub(crate) struct OpenStream {
    pub(crate) deframer: Deframer,
    pub(crate) framer: Framer,
    pub(crate) rdmap: Stream,
    pub(crate) gate: SendGate,
    pub(crate) negotiated: Negotiated,
    /// Largest ULPDU that is sent now.
    pub(crate) mulpdu: usize,
    /// Markers are sent. Payload is gathered in place only if they are not.
    pub(crate) markers: bool,
    /// Owner of the message that is being framed; `None` between messages.
    pub(crate) current: Option<Current>,
    /// Message of `current`. It is reused in place: moving one costs as much as framing a small
    /// one.
    pub(crate) message: OutMessage,
    /// The last message was a Read or Atomic Response, so the send queue has the next turn.
    pub(crate) answered_last: bool,
    /// Responder: the first FPDU has not arrived yet.
    pub(crate) first_awaited: bool,
    /// First message of RFC 7306 that was begun. The peer may not support it.
    pub(crate) extension: Option<Opcode>,
    /// Initiator: an RTR Read is outstanding, which belongs to no work request.
    pub(crate) rtr_read: bool,
}

/// Owner of the message that is currently being framed.
pub(crate) enum Current {
    /// A work request of the send queue. `then` is the Immediate Data that follows its Write.
    Work { then: Option<ImmediateData> },
    /// The RTR indication of RFC 6581: no work request, no payload.
    Rtr,
    /// A Read or Atomic Response. `source` is `None` for an empty Read Response and for an Atomic
    /// Response.
    Response { source: Option<Target> },
}

/// Action that the driver must take on the LLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LlpOrder {
    /// Nothing special: receive, send.
    Keep,
    /// Send a FIN, then keep receiving; call `Connection::fin_sent`.
    Fin,
    /// Drop the LLP stream and connect anew to the same address.
    Reconnect,
    /// The connection is over: close the LLP stream gracefully.
    Close,
    /// The connection is over: reset the LLP stream.
    Abort,
}

/// One connection with its queues.
pub(crate) struct Connection {
    pub(crate) ctx: Arc<QpContext>,
    pub(crate) state: QpState,
    /// Idle, and the program has asked for IBV_QPS_INIT.
    pub(crate) initialized: bool,
    /// Current rights of the peer through the QP.
    pub(crate) access: Access,
    /// Indices of STags that work requests made valid for this QP alone. They end with its stream.
    pub(crate) own_stags: Vec<u32>,
    pub(crate) sq: SendQueue,
    pub(crate) rq: ReceiveQueue,
    /// Number of Sends that took the receive fast path.
    #[cfg(test)]
    pub(crate) fast_sends: u32,
    pub(crate) stage: Stage,
    pub(crate) tx: TxBatch,
    pub(crate) end: Option<EndReason>,
    /// Reason with which work is flushed: why the connection ended, or what failed during a
    /// graceful close.
    pub(crate) cause: Option<Cause>,
    pub(crate) events: Vec<AsyncEvent>,
    pub(crate) deadline: Option<Instant>,
    /// No FPDU is sent before this time.
    ///
    /// On an initiator it is `Settings::first_fpdu_delay`; a Terminate is exempt. On a responder
    /// that may send first (`Settings::send_first`), it ends early when the first FPDU arrives.
    pub(crate) hold: Option<Instant>,
    /// Initiator: action if the first FPDU brings nothing back.
    pub(super) wake_up: WakeUp,
    /// End of the wait of the peer's next message for a receive. Nothing is received until then
    /// ([`OnNoReceive::Hold`]).
    pub(crate) starving: Option<Instant>,
    /// Total wait of that message if the peer has closed after it. Shorter than the configured one.
    pub(crate) shortened_hold: Option<Duration>,
    /// [`AsyncEvent::LastWqeReached`] was raised.
    pub(crate) raised_last_wqe: bool,
    /// Overflow that lost a completion of this QP, until the connection is ended because of it.
    pub(crate) lost: Option<CqOverflow>,
    /// The QP is being destroyed: flushed work makes no completions.
    pub(crate) discards: bool,
    pub(crate) fin: FinState,
    /// The close that is under way, with its time limit.
    pub(super) close: Option<Close>,
    /// Bytes that the LLP has taken and the peer has not acknowledged, as last reported by the
    /// driver.
    pub(crate) unacknowledged: u64,
    /// The handle of the QP was dropped: the end of the connection is not reported.
    pub(crate) orphaned: bool,
    /// Negotiated parameters, kept after the stream is gone.
    pub(crate) negotiated: Option<Negotiated>,
    /// Current time, as last set by the driver.
    pub(crate) now: Instant,
    /// Number of bytes in a TCP segment of the LLP.
    pub(crate) emss: usize,
    /// Stream position from which the EMSS is queried again.
    pub(crate) emss_due: u64,
    /// Startup has reached Full Operation, whatever happened later.
    pub(crate) established: bool,
    /// Configuration of the MPA Request, for the retry with revision 1.
    pub(crate) retry: Option<InitiatorConfig>,
    /// A new LLP stream to the same address is wanted.
    pub(crate) reconnect: bool,
    /// Other addresses remain to be tried if TCP does not connect to this one.
    pub(crate) more_addresses: bool,
    /// Reason why TCP did not connect to an address, until the next one is tried.
    pub(crate) failed_attempt: Option<EndReason>,
    /// End of the retries after the peer's TCP has refused.
    pub(super) retry_until: Option<Instant>,
    /// Time of the next retry after a refusal. There is no LLP stream until then.
    pub(crate) ask_again: Option<Instant>,
    /// Bytes of the peer's last Write, and whether more of it follows.
    pub(super) last_write: (u32, bool),
    /// A non-empty Write from the peer completed and no event has been raised for it yet.
    pub(super) unreported_write: bool,
    /// Headers of the last frames.
    pub(super) recorder: Recorder,
    /// Span of the connection for `tracing`. Disabled if there was no subscriber when it began.
    pub(crate) span: Span,
}

/// FINs that were sent and received.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct FinState {
    /// A FIN is to be sent once everything is drained.
    pub(crate) wanted: bool,
    pub(crate) sent: bool,
    pub(crate) received: bool,
    /// The LLP is to be reset.
    pub(crate) abort: bool,
}

impl Connection {
    /// Creates a QP without a connection.
    pub(crate) fn new(ctx: Arc<QpContext>, now: Instant) -> Self {
        let places = |cq: &CqOfQueue| Arc::clone(cq.freed());
        let sq = SendQueue::new(ctx.caps.max_send_wr as usize, places(&ctx.send_cq));
        let rq = match &ctx.srq {
            Some(srq) => ReceiveQueue::shared(Arc::clone(srq), ctx.qp_num),
            None => ReceiveQueue::own(ctx.caps.max_recv_wr as usize, places(&ctx.recv_cq)),
        };
        Connection {
            access: ctx.access,
            initialized: false,
            ctx,
            state: QpState::Idle,
            own_stags: Vec::new(),
            sq,
            rq,
            stage: Stage::Detached,
            tx: TxBatch::default(),
            end: None,
            cause: None,
            events: Vec::new(),
            deadline: None,
            hold: None,
            wake_up: WakeUp::Done,
            starving: None,
            shortened_hold: None,
            raised_last_wqe: false,
            lost: None,
            discards: false,
            #[cfg(test)]
            fast_sends: 0,
            fin: FinState::default(),
            close: None,
            unacknowledged: 0,
            orphaned: false,
            negotiated: None,
            now,
            emss: 536,
            emss_due: EMSS_INTERVAL,
            established: false,
            retry: None,
            reconnect: false,
            more_addresses: false,
            failed_attempt: None,
            retry_until: None,
            ask_again: None,
            last_write: (0, false),
            unreported_write: false,
            recorder: Recorder::new(now),
            span: Span::none(),
        }
    }

    /// Begins a connection, with a span and a flight record of its own.
    pub(super) fn begin(&mut self) {
        self.recorder.begin(self.now);
        self.span = tracing::debug_span!(
            "connection",
            qp = self.ctx.qp_num,
            local = tracing::field::Empty,
            peer = tracing::field::Empty
        );
    }

    /// Returns the headers of the last frames.
    pub(crate) fn flight_record(&self) -> FlightRecord {
        self.recorder
            .record(self.tx.taken_to(), self.ctx.settings.peer)
    }

    /// Returns true if neither the peer nor the consumer waits for anything.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.stage {
            Stage::Open(_) => self.sq.is_empty() && self.tx.is_empty() && self.drained(),
            Stage::Detached => true,
            Stage::TcpConnect(_) | Stage::AwaitReply(_) => false,
        }
    }

    /// Returns the places of IRD and of ORD that are in use.
    pub(crate) fn places_used(&self) -> (u16, u16) {
        let Stage::Open(stream) = &self.stage else {
            return (0, 0);
        };
        // At most IRD and ORD, which have 16 bits.
        let places = |used: usize| u16::try_from(used).unwrap_or(u16::MAX);
        (
            places(stream.rdmap.requests_unanswered()),
            places(stream.rdmap.requests_outstanding()),
        )
    }

    /// Makes an ended connection ready for another one. Returns false while it is in use.
    pub(crate) fn reset(&mut self) -> bool {
        if !matches!(self.stage, Stage::Detached) || !self.event(QpEvent::Reset) {
            return false;
        }
        self.cause
            .get_or_insert(Cause::local(LocalProblem::QpReset));
        self.flush_sends(None);
        self.flush_receives(None);
        self.give_up_own();
        *self = Connection {
            events: std::mem::take(&mut self.events),
            sq: self.sq.renewed(),
            // The queue is empty. It is kept for its completion count and its waiter.
            rq: std::mem::replace(&mut self.rq, ReceiveQueue::own(0, Arc::default())),
            ..Connection::new(Arc::clone(&self.ctx), self.now)
        };
        true
    }

    /// Moves the state machine. An event that the state does not allow changes nothing and returns
    /// false.
    pub(crate) fn event(&mut self, event: QpEvent) -> bool {
        match self.state.next(event) {
            Ok(next) => {
                if next != self.state {
                    tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, from = %self.state, to = %next, ?event, "state");
                }
                self.state = next;
                true
            }
            Err(_) => false,
        }
    }

    /// Returns the time at which something is due even if nothing arrives.
    ///
    /// The driver then calls `set_now`. If the deadline has still passed, it calls
    /// `deadline_passed`.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let waits = earlier(self.hold, self.starving);
        earlier(earlier(self.deadline, self.wake_up_due()), waits)
    }

    /// Returns the time at which a direction that is now half done counts as stalled.
    pub(crate) fn stall_due(&self) -> Option<Instant> {
        let limit = self.ctx.settings.timeouts.stalled?;
        Some(after(self.now, limit))
    }

    /// Returns true while TCP itself is being connected.
    pub(crate) fn is_connecting_tcp(&self) -> bool {
        matches!(self.stage, Stage::TcpConnect(_))
    }

    /// Returns true if the driver should read from the LLP.
    pub(crate) fn wants_octets(&self) -> bool {
        !matches!(self.stage, Stage::Detached | Stage::TcpConnect(_))
            && !self.fin.received
            && self.starving.is_none()
    }

    /// Returns true while the peer's next message waits for a receive.
    ///
    /// The LLP is not read during that time. A call of `receive` tries again.
    pub(crate) fn is_starving(&self) -> bool {
        self.starving.is_some()
    }

    /// Returns the next action on the LLP. Call it after the LLP has taken as much of the batch as
    /// it can.
    pub(crate) fn llp_order(&self) -> LlpOrder {
        if self.reconnect || self.ask_again.is_some() {
            return LlpOrder::Reconnect;
        }
        if matches!(self.stage, Stage::Detached) {
            return if self.fin.abort {
                LlpOrder::Abort
            } else {
                LlpOrder::Close
            };
        }
        let wanted = mutate!(self.fin.wanted, NoFin => false);
        if wanted && !self.fin.sent && self.tx.is_empty() && self.drained() {
            return LlpOrder::Fin;
        }
        LlpOrder::Keep
    }

    /// Returns true if the next [`Self::fill`] may find something to frame.
    pub(crate) fn has_unsent(&self) -> bool {
        match &self.stage {
            Stage::Open(stream) => {
                stream.current.is_some()
                    || stream.rdmap.requests_pending()
                    || self.sq.next_to_send().is_some()
            }
            _ => false,
        }
    }

    /// Returns true if nothing of the posted work remains to be sent or answered.
    fn drained(&self) -> bool {
        if self.state == QpState::Terminate {
            return true;
        }
        match &self.stage {
            Stage::Open(stream) => {
                self.sq.is_empty() && stream.current.is_none() && !stream.rdmap.requests_pending()
            }
            _ => true,
        }
    }

    /// Adds a completion to the send CQ, with the number of places that polling it frees.
    #[inline]
    pub(crate) fn complete_send(
        ctx: &QpContext,
        send_cq: &mut Pushing<'_>,
        events: &mut Vec<AsyncEvent>,
        lost: &mut Option<CqOverflow>,
        completion: Completion,
        places: u32,
    ) {
        if let Err(overflow) = send_cq.push(completion, places) {
            *lost = Some(overflow.tell(ctx.qp_num, events));
        }
    }

    /// Adds a completion to the receive CQ. Inlined for the reason given at [`Pushing::push`].
    #[inline(always)]
    pub(crate) fn complete_recv(
        ctx: &QpContext,
        events: &mut Vec<AsyncEvent>,
        lost: &mut Option<CqOverflow>,
        completion: Completion,
    ) {
        if let Err(overflow) = ctx.recv_cq.pushing().push(completion, 1) {
            *lost = Some(overflow.tell(ctx.qp_num, events));
        }
    }

    /// Completes the requests that the LLP has taken.
    pub(crate) fn retire(&mut self) {
        if self.sq.is_empty() {
            return self.end_on_lost_completion();
        }
        let Connection {
            ctx,
            sq,
            events,
            lost,
            tx,
            cause,
            ..
        } = self;
        let mut send_cq = ctx.send_cq.pushing();
        sq.retire(
            tx.taken_to(),
            ctx.qp_num,
            || flush_cause(*cause),
            |completion, places| {
                Self::complete_send(ctx, &mut send_cq, events, lost, completion, places);
            },
        );
        drop(send_cq);
        self.end_on_lost_completion();
    }

    /// Returns the cause that a work request flushed now is completed with.
    pub(super) fn flush_cause(&self) -> Cause {
        flush_cause(self.cause)
    }

    /// Records that the driver handed `octets` bytes of the batch to the LLP.
    pub(crate) fn taken(&mut self, octets: usize) {
        self.tx.taken(octets);
        self.time_wake_up();
        self.retire();
        // A request that was outstanding when the Write arrived may have made no completion.
        if self.unreported_write && self.sq.is_empty() {
            self.raise_write_event();
        }
    }

    /// Returns true if the EMSS of the LLP should be queried before the next batch is framed.
    ///
    /// That is every batch, or once per `EMSS_INTERVAL` bytes if the query is a system call
    /// (`costly`). An FPDU that was framed is never split anew (5041-3-02).
    pub(crate) fn wants_emss(&self, costly: bool) -> bool {
        self.tx.is_empty() && (!costly || self.tx.taken_to() >= self.emss_due)
    }

    /// Returns hints for the unsent bytes: where FPDUs end, whether one may span segments, and
    /// whether they ask for a single answer.
    pub(crate) fn fpdu_ends(&self) -> SendHints<'_> {
        // Only the last call of a batch contains the request; earlier calls do not ask.
        let asks = self.tx.ends_with_request()
            && self.sq.one_request_pending()
            && !self.has_unsent()
            && !self.tx.is_followed(false);
        let ends = self.tx.fpdu_ends().asking(asks);
        if self.ctx.settings.fpdu_segments > FpduSegments::ONE {
            ends.over_segments()
        } else {
            ends
        }
    }

    /// Sets the EMSS of the LLP, which may be unchanged. MULPDU follows it for later FPDUs
    /// (5041-3-01).
    pub(crate) fn set_emss(&mut self, emss: usize) {
        self.emss_due = self.tx.taken_to() + EMSS_INTERVAL;
        self.emss = emss;
        if let Stage::Open(stream) = &mut self.stage {
            stream.mulpdu = self.ctx.settings.fpdu_segments.mulpdu(emss, stream.markers);
        }
    }
}

fn flush_cause(cause: Option<Cause>) -> Cause {
    // A QP without a connection flushes only when its handle is dropped.
    cause
        .unwrap_or(Cause::local(LocalProblem::QpDropped))
        .flushed()
}
