//! The connection object: its parts, its state, and what the driver asks it.

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

/// Bytes sent between two looks at the EMSS of the LLP.
const EMSS_INTERVAL: u64 = 16 * 1024 * 1024;

/// What a connection knows of the QP and the device around it.
pub(crate) struct QpContext {
    pub(crate) qp_num: u32,
    pub(crate) pd: u32,
    pub(crate) table: Arc<RegionTable>,
    pub(crate) send_cq: CqOfQueue,
    /// Of the receive queue, or of the SRQ.
    pub(crate) recv_cq: CqOfQueue,
    pub(crate) settings: Arc<Settings>,
    pub(crate) caps: super::QueueCaps,
    /// Where the receives come from, if not from a queue of the QP's own.
    pub(crate) srq: Option<Arc<SrqInner>>,
    /// What happens when a message comes and there is no receive for it.
    pub(crate) on_no_receive: OnNoReceive,
    /// What the peer may do through the QP, until it is modified.
    pub(crate) access: Access,
    /// Every request makes a completion, signaled or not.
    pub(crate) signal_all: bool,
    /// A request whose elements may not be used is taken, and fails when its turn comes.
    pub(crate) late_faults: bool,
    /// When a silent peer is taken for dead, where the network does not decide.
    pub(crate) keepalive: Option<Keepalive>,
}

impl QpContext {
    /// The QP, as the region table looks at it.
    pub(crate) fn asker(&self, access: Access) -> Asker {
        Asker {
            pd: self.pd,
            qp: self.qp_num,
            access,
        }
    }
}

/// Where the LLP stream of a connection stands.
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
/// What each event does in each stage is a snapshot in `engine/tests.rs`.
pub(crate) enum Stage {
    /// No LLP stream.
    Detached,
    /// TCP is being connected; the MPA Request goes out when it is.
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
    /// Largest ULPDU that we send now.
    pub(crate) mulpdu: usize,
    /// FPDUs may be gathered in place only where no Markers are sent.
    pub(crate) markers: bool,
    /// What is being framed.
    pub(crate) current: Option<Current>,
    /// Its message. It stays where it is: to move one costs as much as to frame a small one.
    pub(crate) message: OutMessage,
    /// Whether the last message was a Read or Atomic Response: the send queue has the next turn.
    pub(crate) answered_last: bool,
    /// Responder: the first FPDU has not come yet.
    pub(crate) first_awaited: bool,
    /// The first message of RFC 7306 that was begun: the peer may not know it.
    pub(crate) extension: Option<Opcode>,
    /// Initiator: an RTR Read is outstanding, which belongs to no work request.
    pub(crate) rtr_read: bool,
}

/// What the message belongs to of which segments remain to be framed.
pub(crate) enum Current {
    /// A work request of the send queue. `then` is the Immediate Data that follows its Write.
    Work { then: Option<ImmediateData> },
    /// The RTR indication of RFC 6581: no work request, no payload.
    Rtr,
    /// A Read Response; `source` is `None` for a zero-length one, and for an Atomic Response.
    Response { source: Option<Target> },
}

/// What the driver must do with the LLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LlpOrder {
    /// Nothing special: receive, send.
    Keep,
    /// Send a FIN, then keep receiving; call `Connection::fin_sent`.
    Fin,
    /// Drop it and connect anew to the same address.
    Reconnect,
    /// Everything is over: drop it gracefully.
    Close,
    /// Everything is over: reset it.
    Abort,
}

/// One connection with its queues.
pub(crate) struct Connection {
    pub(crate) ctx: Arc<QpContext>,
    pub(crate) state: QpState,
    /// Idle, and the program has asked for IBV_QPS_INIT.
    pub(crate) initialized: bool,
    /// What the peer may do through the QP now.
    pub(crate) access: Access,
    /// Indices of STags that work requests made valid for this QP alone: they end with its stream.
    pub(crate) own: Vec<u32>,
    pub(crate) sq: SendQueue,
    pub(crate) rq: ReceiveQueue,
    /// How many Sends took the short way.
    #[cfg(test)]
    pub(crate) short_sends: u32,
    pub(crate) stage: Stage,
    pub(crate) tx: TxBatch,
    pub(crate) end: Option<EndReason>,
    /// What flushes work: the cause of the end, or of the trouble that came during a graceful one.
    pub(crate) cause: Option<Cause>,
    pub(crate) events: Vec<AsyncEvent>,
    pub(crate) deadline: Option<Instant>,
    /// No FPDU before this: of an initiator (`Settings::first_fpdu_delay`), except a Terminate; of a responder that may send first
    /// (`Settings::send_first`), until the first FPDU has come.
    pub(crate) hold: Option<Instant>,
    /// Initiator: what to do when the first FPDU brings nothing back.
    pub(super) wake_up: WakeUp,
    /// The peer's message that comes next has no receive, and waits for one until then: nothing is received
    /// ([`OnNoReceive::Hold`]).
    pub(crate) starving: Option<Instant>,
    /// How long that message waits in all, where the peer has closed behind it: less than the settings say.
    pub(crate) closed_behind: Option<Duration>,
    /// [`AsyncEvent::LastWqeReached`] was raised.
    pub(crate) told_last_wqe: bool,
    /// A completion of this QP was lost, and the connection has not been ended for it yet.
    pub(crate) lost: Option<CqOverflow>,
    /// The QP is being destroyed, and nobody asks how its work ended: what is flushed makes no completion.
    pub(crate) discards: bool,
    pub(crate) fin: FinState,
    /// The close that is under way, and its time limit.
    pub(super) close: Option<Close>,
    /// Number of bytes that the LLP has taken and the peer has not acknowledged, as the driver last told it.
    pub(crate) unacknowledged: u64,
    /// The handle of the QP was dropped: nobody is told of the end.
    pub(crate) orphaned: bool,
    /// What was negotiated, kept after the stream has gone.
    pub(crate) negotiated: Option<Negotiated>,
    /// Time as the driver last told it.
    pub(crate) now: Instant,
    /// Bytes that a TCP segment of the LLP carries.
    pub(crate) emss: usize,
    /// Bytes of the stream after which the EMSS is asked for again.
    pub(crate) emss_due: u64,
    /// Startup has reached Full Operation, whatever came after.
    pub(crate) established: bool,
    /// What the MPA Request was made from, for the retry with revision 1.
    pub(crate) retry: Option<InitiatorConfig>,
    /// A new LLP stream to the same address is wanted.
    pub(crate) reconnect: bool,
    /// There are other addresses to try when TCP does not connect to this one.
    pub(crate) more_addresses: bool,
    /// Why TCP did not connect to an address, until the next one is tried.
    pub(crate) failed_attempt: Option<EndReason>,
    /// Where the peer's TCP refuses: how long it is asked again.
    pub(super) ask_until: Option<Instant>,
    /// It refused, and is asked again then: there is no LLP until then.
    pub(crate) ask_again: Option<Instant>,
    /// Bytes of the peer's last Write, and whether more of it is to come.
    pub(super) written: (u32, bool),
    /// A Write of the peer has ended that was not of no bytes, and nobody who waits for an event was thought of since.
    pub(super) wrote: bool,
    /// The headers of the last frames.
    pub(super) recorder: Recorder,
    /// The connection, for `tracing`; disabled when nobody listened as it began.
    pub(crate) span: Span,
}

/// Which FINs have gone and come.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct FinState {
    /// We want to send one once all is drained.
    pub(crate) wanted: bool,
    pub(crate) sent: bool,
    pub(crate) received: bool,
    /// The LLP is to be reset.
    pub(crate) abort: bool,
}

impl Connection {
    /// A QP without a connection.
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
            own: Vec::new(),
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
            closed_behind: None,
            told_last_wqe: false,
            lost: None,
            discards: false,
            #[cfg(test)]
            short_sends: 0,
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
            ask_until: None,
            ask_again: None,
            written: (0, false),
            wrote: false,
            recorder: Recorder::new(now),
            span: Span::none(),
        }
    }

    /// A connection begins: it has a span and a record of its own.
    pub(super) fn begin(&mut self) {
        self.recorder.begin(self.now);
        self.span = tracing::debug_span!(
            "connection",
            qp = self.ctx.qp_num,
            local = tracing::field::Empty,
            peer = tracing::field::Empty
        );
    }

    /// The last frames.
    pub(crate) fn flight_record(&self) -> FlightRecord {
        self.recorder
            .record(self.tx.taken_to(), self.ctx.settings.peer)
    }

    /// Whether nothing is under way that the peer or the consumer waits for.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.stage {
            Stage::Open(_) => self.sq.is_empty() && self.tx.is_empty() && self.drained(),
            Stage::Detached => true,
            Stage::TcpConnect(_) | Stage::AwaitReply(_) => false,
        }
    }

    /// Places of IRD and of ORD that are taken.
    pub(crate) fn places_used(&self) -> (u16, u16) {
        let Stage::Open(stream) = &self.stage else {
            return (0, 0);
        };
        // No more than IRD and ORD, which have 16 bits.
        let places = |used: usize| u16::try_from(used).unwrap_or(u16::MAX);
        (
            places(stream.rdmap.requests_unanswered()),
            places(stream.rdmap.requests_outstanding()),
        )
    }

    /// Makes an ended connection ready for another one. False while it is in use.
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
            // It is empty, and remembers what completed and who waits.
            rq: std::mem::replace(&mut self.rq, ReceiveQueue::own(0, Arc::default())),
            ..Connection::new(Arc::clone(&self.ctx), self.now)
        };
        true
    }

    /// Moves the state machine; an event that the state does not allow changes nothing.
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

    /// When something must happen even if nothing arrives: then `set_now`, and if it still says so,
    /// `deadline_passed`.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let waits = earlier(self.hold, self.starving);
        earlier(earlier(self.deadline, self.wake_up_due()), waits)
    }

    /// When to see whether a direction that is half done now went on.
    pub(crate) fn stall_due(&self) -> Option<Instant> {
        let limit = self.ctx.settings.timeouts.stalled?;
        Some(after(self.now, limit))
    }

    /// Whether TCP itself is still being connected.
    pub(crate) fn is_connecting_tcp(&self) -> bool {
        matches!(self.stage, Stage::TcpConnect(_))
    }

    /// Whether the driver should read from the LLP.
    pub(crate) fn wants_octets(&self) -> bool {
        !matches!(self.stage, Stage::Detached | Stage::TcpConnect(_))
            && !self.fin.received
            && self.starving.is_none()
    }

    /// Whether the peer's next message waits for a receive. The LLP is not read then; `receive` looks again.
    pub(crate) fn is_starving(&self) -> bool {
        self.starving.is_some()
    }

    /// What the LLP needs, after the batch has been taken as far as possible.
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

    /// Whether the next [`Self::fill`] may find something to frame.
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

    /// Whether nothing of what was posted remains to be done.
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

    /// Adds a completion to the send CQ, with the number of places that its poll frees.
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

    /// Adds a completion to the receive CQ. (Inlined for the reason that [`Pushing::push`] has.)
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

    /// Completes what the LLP has taken.
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

    /// What a work request is told that is flushed now.
    pub(super) fn flush_cause(&self) -> Cause {
        flush_cause(self.cause)
    }

    /// The driver handed `octets` of the batch to the LLP.
    pub(crate) fn taken(&mut self, octets: usize) {
        self.tx.taken(octets);
        self.time_wake_up();
        self.retire();
        // What was outstanding as the Write came may have made no completion.
        if self.wrote && self.sq.is_empty() {
            self.tell_of_write();
        }
    }

    /// Whether to ask the LLP for its EMSS before the next batch is framed: for every batch, or,
    /// where that is a system call (`costly`), now and then. What was framed is never cut anew (5041-3-02).
    pub(crate) fn wants_emss(&self, costly: bool) -> bool {
        self.tx.is_empty() && (!costly || self.tx.taken_to() >= self.emss_due)
    }

    /// Where FPDUs end in what there is to send, whether they may go over segments, and whether they ask for a single answer.
    pub(crate) fn fpdu_ends(&self) -> SendHints<'_> {
        // It is in the last call for a batch: those before it do not ask.
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

    /// The EMSS of the LLP has changed, or not: so does MULPDU, for what is framed from now on (5041-3-01).
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
