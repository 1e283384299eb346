//! One connection of the software RNIC, sans-IO. Received bytes go in; a gather list, completions
//! and events come out.
//!
//! [`Connection`] is the one place where MPA, DDP, RDMAP and the queues of a QP meet. It owns no
//! socket, clock or thread. Who holds it drives it.
//!
//! ```text
//!   post_send ─► SendQueue ─► rdmap::Stream ─► mpa::Framer ─► TxBatch ─► (LLP)
//!                                  ▲ │
//!                   Read Requests  │ ▼ completions
//!   post_recv ─► Receives* ─► rdmap::Stream ◄─ mpa::Deframer ◄─ ReceiveBuffer ◄─ (LLP)
//!                                  │
//!                                  └─► mem::Target: one copy into place
//! ```
//! \* `ReceiveQueue`: the QP's own receive queue, or its share of an SRQ.
//!
//! Rule for the driver: after every call that changes the connection (`receive`, `post_*`,
//! `disconnect`, `lost` ...), call [`Connection::fill`] and hand the batch to the LLP. Then read
//! [`Connection::llp_order`], and deliver [`Connection::events`]. Once the LLP stream is released,
//! call [`Connection::llp_released`].

mod buffer_pool;
mod closing;
mod datagram;
mod framing;
mod inbound;
mod local;
mod outbound;
mod pair;
mod post;
mod receive_buffer;
mod receive_fast_path;
mod receive_queue;
mod recorder;
mod send_fast_path;
mod send_immediate;
mod srq;
mod stage;
mod staging_account;
mod startup;
mod teardown;
#[cfg(test)]
mod tests;
mod transmit;
mod wake_up;
mod work;
mod write_fast_path;

use std::sync::Arc;
use std::time::Instant;

use crate::llp::{Keepalive, SendHints};
use crate::mem::{Access, Asker, RegionTable};
use crate::state::{QpEvent, QpState};
use crate::timers::{Timer, Timers};
use crate::times::{after, earlier};
use tracing::Span;
use uwarp_mpa::{FpduSegments, Negotiated};

use crate::cause::{Cause, LocalProblem};
use crate::completion::{Completion, CompletionQueue, CqOverflow, Pushing};
use crate::event::{ConnectionEvent, EndReason};
use crate::mutants::mutate;
use crate::policy::transfer::EMSS_INTERVAL;
pub use crate::policy::transfer::PARTS_PER_CALL;
use crate::policy::{Heuristic, is_on};
use crate::settings::{ConnectionSettings, OnNoReceive};
use receive_queue::ReceiveQueue;
use recorder::Recorder;
use stage::{OpenStream, Stage};
use startup::Startup;
use transmit::TxBatch;
pub use work::SendQueue;

pub use buffer_pool::BufferPool;
pub use pair::Pair;
pub use post::{PostError, PostErrorKind};
pub use post::{QueueCaps, each};
pub use receive_buffer::ReceiveBuffer;
pub use receive_queue::{ReceiveWaiter, RecvWqe};
pub use recorder::{Direction, FlightRecord, RecordedFrame};
pub use srq::{Counts, Limit, SrqInner, Taken};

/// Target of spans and events. Programs filter the log by `uwarp_verbs`, which they use.
const LOG_TARGET: &str = "uwarp_verbs::connection";

/// Properties of the QP and its device that a connection uses.
pub struct QpContext<Q> {
    /// Number of the QP.
    pub qp_num: u32,
    /// Number of its protection domain.
    pub pd: u32,
    /// Regions of the device.
    pub table: Arc<RegionTable>,
    /// CQ of the send queue.
    pub send_cq: Q,
    /// CQ of the receive queue, or of the SRQ.
    pub recv_cq: Q,
    /// Settings of the device's connections.
    pub settings: Arc<ConnectionSettings>,
    /// Sizes of the queues.
    pub caps: QueueCaps,
    /// Source of the receives, if the QP has no receive queue of its own.
    pub srq: Option<Arc<SrqInner>>,
    /// Policy for a message that arrives while no receive is posted.
    pub on_no_receive: OnNoReceive,
    /// Access rights of the peer when the QP is created. [`Attributes::access`] has the current
    /// ones.
    pub access: Access,
    /// Every send request produces a completion, signaled or not.
    pub signal_all: bool,
    /// Posting accepts a request with unusable elements. The request fails when its turn comes.
    pub late_faults: bool,
    /// A Write completes when the peer has placed it. Otherwise it completes when the LLP has taken
    /// it.
    pub placed_writes: bool,
    /// Messages are dropped if there is no receive or no peer for them. Nothing waits.
    pub unreliable: bool,
    /// The QP is for datagrams; maximum number of bytes in one that it sends.
    pub datagrams: Option<u32>,
    /// Limits after which a silent peer counts as dead. `None` leaves the detection to the network.
    pub keepalive: Option<Keepalive>,
}

impl<Q> QpContext<Q> {
    /// Identifies the QP to the region table. `access`: rights that the peer has through the QP.
    pub(crate) fn asker(&self, access: Access) -> Asker {
        Asker {
            pd: self.pd,
            qp: self.qp_num,
            access,
        }
    }
}

impl<Q: CompletionQueue> QpContext<Q> {
    /// Removes the completions of the QP from its CQs.
    pub fn purge_completions(&self) {
        self.send_cq.purge();
        self.recv_cq.purge();
    }
}

/// Attributes of a QP that its program may change, until it is reset.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// The QP is Idle, and the program has moved it to IBV_QPS_INIT.
    pub initialized: bool,
    /// Q_Key of a QP for datagrams.
    pub qkey: u32,
    /// Current rights of the peer through the QP.
    pub access: Access,
    /// Writes of the next stream complete when the peer has placed them.
    pub(crate) placed_writes: bool,
}

/// Action that the driver must take on the LLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LlpOrder {
    /// Keep the LLP stream: receive and send as usual.
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
///
/// The fields are for the driver, which reads them, takes `events`, and sets `now` by
/// [`set_now`](Self::set_now).
pub struct Connection<Q> {
    /// Properties of the QP.
    pub ctx: Arc<QpContext<Q>>,
    /// State of the QP (RFC 5040 and the RDMAC verbs).
    pub state: QpState,
    /// Attributes that the program has set.
    pub attr: Attributes,
    /// Indices of STags that work requests made valid for this QP alone. They are invalidated when
    /// its stream ends.
    pub(crate) own_stags: Vec<u32>,
    /// Send queue.
    pub sq: SendQueue,
    /// Receive queue, or the share of an SRQ.
    pub rq: ReceiveQueue,
    /// Number of Sends that took the receive fast path.
    #[cfg(test)]
    pub(crate) fast_sends: u32,
    pub(crate) stage: Stage,
    /// Framed bytes that the LLP has not taken.
    pub tx: TxBatch,
    /// Reason of the end, once the connection has begun to end.
    pub end: Option<EndReason>,
    /// Cause that flushed work reports: the end of the connection, or an error during a graceful
    /// close.
    pub(crate) cause: Option<Cause>,
    /// Events that the driver has not delivered.
    pub events: Vec<ConnectionEvent>,
    /// Timers of the connection, and of its driver.
    pub timers: Timers,
    /// [`AsyncEvent::LastWqeReached`](crate::event::AsyncEvent::LastWqeReached) was raised.
    pub raised_last_wqe: bool,
    /// CQ overflow that lost a completion of this QP. The connection still has to be ended because
    /// of it.
    pub(crate) lost: Option<CqOverflow>,
    /// The QP is being destroyed: flushed work makes no completions.
    pub discards: bool,
    /// Progress of closing the LLP stream.
    pub fin: FinState,
    /// State of a QP that is connected by its number. `None`: it is connected by an address.
    pair: Option<Box<Pair>>,
    /// The handle of the QP was dropped, so the program no longer needs the connection.
    pub orphaned: bool,
    /// Negotiated parameters, kept after the stream is gone.
    pub negotiated: Option<Negotiated>,
    /// Current time, as last set by the driver.
    pub now: Instant,
    /// EMSS: payload bytes of a TCP segment, as last reported by the LLP.
    pub emss: usize,
    /// Stream position from which the EMSS is queried again.
    pub(crate) emss_due: u64,
    /// Initiator: startup has reached Full Operation. Stays true when the connection ends.
    pub established: bool,
    /// Flight recorder: headers of the last frames.
    recorder: Recorder,
    /// Span of the connection for `tracing`. Disabled if there was no subscriber when it began.
    pub span: Span,
}

/// Progress of closing the LLP stream.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FinState {
    /// A FIN is to be sent once everything is drained.
    pub(crate) wanted: bool,
    /// The FIN was sent.
    pub sent: bool,
    pub(crate) received: bool,
    /// The LLP stream is to be reset instead.
    pub(crate) abort: bool,
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Creates a QP without a connection.
    pub fn new(ctx: Arc<QpContext<Q>>, now: Instant) -> Self {
        let places = |cq: &Q| Arc::clone(cq.freed());
        let sq = SendQueue::new(ctx.caps.max_send_wr as usize, places(&ctx.send_cq));
        let rq = match &ctx.srq {
            Some(srq) => ReceiveQueue::shared(Arc::clone(srq), ctx.qp_num),
            None => ReceiveQueue::own(ctx.caps.max_recv_wr as usize, places(&ctx.recv_cq)),
        };
        Connection {
            attr: Attributes {
                initialized: false,
                qkey: 0,
                access: ctx.access,
                placed_writes: ctx.placed_writes,
            },
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
            timers: Timers::default(),
            raised_last_wqe: false,
            lost: None,
            discards: false,
            #[cfg(test)]
            fast_sends: 0,
            fin: FinState::default(),
            pair: None,
            orphaned: false,
            negotiated: None,
            now,
            emss: 536,
            emss_due: EMSS_INTERVAL,
            established: false,
            recorder: Recorder::new(now),
            span: Span::none(),
        }
    }

    /// Starts the flight record and the tracing span of a new connection.
    fn begin(&mut self) {
        self.recorder.begin(self.now);
        self.span = tracing::debug_span!(
            target: LOG_TARGET,
            "connection",
            qp = self.ctx.qp_num,
            local = tracing::field::Empty,
            peer = tracing::field::Empty
        );
    }

    /// Returns the headers of the last frames.
    pub fn flight_record(&self) -> FlightRecord {
        self.recorder
            .record(self.tx.taken_to(), self.ctx.settings.peer)
    }

    /// Returns true if there is no connection, or an open one with nothing left to send, answer or
    /// complete.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.stage {
            Stage::Open(_) => self.sq.is_empty() && self.tx.is_empty() && self.drained(),
            Stage::Detached | Stage::Startup(_) => self.stage.is_detached(),
        }
    }

    /// Returns the numbers of Reads and atomics in progress: those of the peer, which count towards
    /// IRD, and those of this side, which count towards ORD.
    pub fn places_used(&self) -> (u16, u16) {
        // At most IRD and ORD, which have 16 bits.
        let places = |used: usize| u16::try_from(used).unwrap_or(u16::MAX);
        self.stage.open().map_or((0, 0), |stream| {
            (
                places(stream.rdmap.requests_unanswered()),
                places(stream.rdmap.requests_outstanding()),
            )
        })
    }

    /// Makes an ended connection ready for another one. Returns false while it is in use.
    pub fn reset(&mut self) -> bool {
        if !self.stage.is_detached() || !self.event(QpEvent::Reset) {
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

    /// Applies an event to the state of the QP. Returns false, with no effect, if the state does
    /// not allow the event.
    pub(crate) fn event(&mut self, event: QpEvent) -> bool {
        match self.state.next(event) {
            Ok(next) => {
                if next != self.state {
                    tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, from = %self.state, to = %next, ?event, "state");
                }
                self.state = next;
                true
            }
            Err(_) => false,
        }
    }

    /// Returns the time at which the connection needs a turn even if nothing arrives.
    ///
    /// In that turn the driver calls `set_now`, which ends some of the waits. If [`Timer::Stage`]
    /// is still due, the driver calls `stage_timed_out`.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        earlier(self.timers.next(), self.pair_deadline())
    }

    /// Returns the time at which the connection counts as stalled if an unfinished transfer makes
    /// no progress from now on. `None`: there is no such limit.
    pub fn stall_due(&self) -> Option<Instant> {
        let limit = self.ctx.settings.timeouts.stalled?;
        Some(after(self.now, limit))
    }

    /// Returns true while TCP itself is being connected, or is to be connected anew.
    pub fn is_connecting_tcp(&self) -> bool {
        (self.stage.startup()).is_some_and(Startup::is_connecting_tcp)
    }

    /// Returns true if the driver should read from the LLP.
    pub fn wants_bytes(&self) -> bool {
        let has_tcp = match &self.stage {
            Stage::Open(_) => true,
            Stage::Startup(startup) => startup.awaits_reply(),
            Stage::Detached => false,
        };
        has_tcp && !self.fin.received && !self.is_starving()
    }

    /// Returns true while the peer's next message waits for a receive.
    ///
    /// The LLP is not read during that time. A call of `receive` tries again.
    #[inline]
    pub fn is_starving(&self) -> bool {
        self.timers.is_set(Timer::Receive)
    }

    /// Returns the next action on the LLP. Call it after the LLP has taken as much of the batch as
    /// it can.
    pub fn llp_order(&self) -> LlpOrder {
        match &self.stage {
            Stage::Open(_) => {}
            Stage::Startup(startup) if startup.redials() => return LlpOrder::Reconnect,
            Stage::Detached | Stage::Startup(_) => {
                return match (self.stage.is_detached(), self.fin.abort) {
                    (false, _) => LlpOrder::Keep,
                    (true, true) => LlpOrder::Abort,
                    (true, false) => LlpOrder::Close,
                };
            }
        }
        let wanted = mutate!(self.fin.wanted, NoFin => false);
        if wanted && !self.fin.sent && self.tx.is_empty() && self.drained() {
            return LlpOrder::Fin;
        }
        LlpOrder::Keep
    }

    /// Returns true if the next [`Self::fill`] may find something to frame.
    pub fn has_unsent(&self) -> bool {
        (self.stage.open()).is_some_and(|stream| stream.has_unsent(&self.sq))
    }

    /// Returns true if all that is to be sent are Responses to empty Reads, which nearly always
    /// confirm Writes of the peer.
    pub fn owes_only_confirmations(&self) -> bool {
        let owes = |stream: &OpenStream| stream.owes_only_confirmations(&self.sq);
        self.state == QpState::Rts
            && self.tx.is_empty()
            && self.stage.open().is_some_and(owes)
            && self.llp_order() == LlpOrder::Keep
    }

    /// Returns true if no posted work and no request of the peer is unfinished. In Terminate,
    /// always returns true.
    fn drained(&self) -> bool {
        let is_drained = |stream: &OpenStream| stream.is_drained(&self.sq);
        self.state == QpState::Terminate || self.stage.open().is_none_or(is_drained)
    }

    /// Adds a completion to the send CQ. `places`: number of places in the send queue that are
    /// freed when the completion is polled.
    #[inline]
    pub(crate) fn complete_send(
        ctx: &QpContext<Q>,
        send_cq: &mut Q::Pushing<'_>,
        events: &mut Vec<ConnectionEvent>,
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
        ctx: &QpContext<Q>,
        events: &mut Vec<ConnectionEvent>,
        lost: &mut Option<CqOverflow>,
        completion: Completion,
    ) {
        if let Err(overflow) = ctx.recv_cq.pushing().push(completion, 1) {
            *lost = Some(overflow.tell(ctx.qp_num, events));
        }
    }

    /// Completes, in order, the send requests that are done. Ends the connection if the CQ lost a
    /// completion.
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
            discards,
            ..
        } = self;
        let mut send_cq = ctx.send_cq.pushing();
        sq.retire(
            tx.taken_to(),
            ctx.qp_num,
            || flush_cause(*cause),
            |completion, places| match discards {
                true => ctx.send_cq.freed().add(places),
                false => Self::complete_send(ctx, &mut send_cq, events, lost, completion, places),
            },
        );
        drop(send_cq);
        self.end_on_lost_completion();
    }

    /// Returns the cause for the completions of work requests that are flushed now.
    fn flush_cause(&self) -> Cause {
        flush_cause(self.cause)
    }

    /// Records that the LLP has taken `bytes` bytes of the batch, at most those that are left of
    /// it. Completes the requests that are then done.
    pub fn taken(&mut self, bytes: usize) {
        self.tx.taken(bytes);
        self.time_wake_up();
        self.retire();
        // The last request may just have been retired without a completion.
        self.report_write();
    }

    /// Returns true if the EMSS of the LLP should be queried before the next batch is framed.
    ///
    /// That is before every batch, or once per `EMSS_INTERVAL` bytes if the query is a system call
    /// (`costly`). A framed FPDU is never split again (5041-3-02).
    pub fn wants_emss(&self, costly: bool) -> bool {
        let is_due = self.tx.taken_to() >= self.emss_due;
        self.tx.is_empty() && (is_due || !costly || !is_on(Heuristic::RareEmss))
    }

    /// Returns hints for the unsent bytes: where FPDUs end, whether an FPDU may span TCP segments,
    /// and whether the bytes end with the only outstanding Read or atomic.
    pub fn fpdu_ends(&self) -> SendHints<'_> {
        // The request is at the end of the batch. If the batch takes several send calls, only the
        // last one gets this hint.
        let asks = self.tx.ends_with_request()
            && self.sq.one_request_pending()
            && !self.has_unsent()
            && !self.tx.needs_more_calls();
        let ends = self.tx.fpdu_ends().asking(asks);
        if self.ctx.settings.fpdu_segments > FpduSegments::ONE {
            ends.over_segments()
        } else {
            ends
        }
    }

    /// Records the EMSS of the LLP, and sets the MULPDU of later FPDUs by it (5041-3-01).
    pub fn set_emss(&mut self, emss: usize) {
        self.emss_due = self.tx.taken_to() + EMSS_INTERVAL;
        self.emss = emss;
        if let Some(stream) = self.stage.open_mut() {
            stream.outbound.framing.set_emss(emss);
        }
    }
}

fn flush_cause(cause: Option<Cause>) -> Cause {
    // Without a cause, the QP never had a connection: its handle is dropped, or the program moves
    // it to Error.
    cause
        .unwrap_or(Cause::local(LocalProblem::QpDropped))
        .flushed()
}
