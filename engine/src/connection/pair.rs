//! A QP that is connected by its number: it meets its peer without a connection manager, and is not
//! told that the peer has gone until it sends.
//!
//! ```text
//!            pair             startup is done             lost, nothing is outstanding
//!   Idle ──────────► Meeting ─────────────────► Open ────────────────────────────────► Quiet
//!                     ▲   │ │                    │                                       │
//!     an attempt fails└───┘ │ a send waited      │ lost, a send is outstanding           │ a send
//!                           │ too long           ▼                                       │
//!                           └─────────────────► Error ◄──────────────────────────────────┘
//! ```
//!
//! An unreliable QP has no such errors. In Quiet its sends are dropped: they complete with success.
//! In Meeting they are dropped once one of them has waited too long, until the QPs have met.
//!
//! The state of the QP is `Connecting` in Meeting and in Quiet. While the QP meets its peer, it may
//! have an attempt under way in either role. No message is sent before `Open`, so posted work is
//! kept from one attempt to the next.

use std::time::{Duration, Instant};

use crate::hello;
use crate::llp::LlpError;
use crate::state::{QpEvent, QpState};
use crate::times::{after, earlier};
use uwarp_mpa::{Negotiated, Role};

use super::LOG_TARGET;
use super::work::{Blamed, Progress};
use super::{Connection, FinState, Stage};
use crate::cause::{Cause, LocalProblem};
use crate::completion::{CompletionQueue, Status};
use crate::event::EndReason;
use crate::wr::SendOp;

/// Time before the second call. Each further one waits twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Maximum time between two calls. Also the time that the other side has to call first.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// State of a QP that is connected by its number.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Time of the next call, unless an attempt is under way. `None` if this side does not call.
    next_call: Option<Instant>,
    pause: Duration,
    /// Maximum time that a send waits for the peer. `None`: without limit.
    patience: Option<Duration>,
    /// Time at which a send began to wait. `None`: no send waits.
    waits_since: Option<Instant>,
    /// Sequence number of the first request of the send queue that the current stream may carry.
    begins_at: u64,
    /// The peer has gone, and no send was outstanding.
    quiet: bool,
    /// The QP is unreliable, and a send has waited for too long. Sends are dropped until the QPs
    /// have met.
    drops: bool,
    /// Why the last attempt failed, or how the connection ended.
    last: Option<EndReason>,
    /// Random state that spreads the calls, if both sides may call. `None`: one side calls.
    spread: Option<u64>,
}

impl Pair {
    /// Creates the state of a QP whose peer is not connected yet. With `calls_first` it calls at
    /// once. Otherwise it calls in reverse if the peer has not called for some time.
    pub fn new(calls_first: bool, patience: Option<Duration>, now: Instant) -> Self {
        let first = if calls_first {
            Duration::ZERO
        } else {
            LONGEST_PAUSE
        };
        Pair {
            next_call: Some(after(now, first)),
            pause: if calls_first {
                FIRST_PAUSE
            } else {
                LONGEST_PAUSE
            },
            patience,
            waits_since: None,
            begins_at: 0,
            quiet: false,
            drops: false,
            last: None,
            spread: None,
        }
    }

    /// Spreads the calls of this side by random times, because the other side may call at the same
    /// times.
    pub fn spread(mut self, random: u64) -> Self {
        // No state of zeros, which a xorshift keeps.
        self.spread = Some(random | 1);
        self
    }

    /// Time at which the send that waits has waited for too long.
    fn gives_up_at(&self) -> Option<Instant> {
        Some(after(self.waits_since?, self.patience?))
    }

    /// Records that the stream is open: sends do not wait for the peer any more.
    pub(super) fn opened(&mut self) {
        self.waits_since = None;
        self.drops = false;
        self.last = None;
    }

    /// Records whether sends wait for the peer.
    fn wait(&mut self, waits: bool, now: Instant) {
        if waits {
            self.waits_since.get_or_insert(now);
        } else {
            self.waits_since = None;
        }
    }

    /// Schedules the next call after an attempt has failed.
    fn failed(&mut self, reason: EndReason, now: Instant) {
        let more = self.spread.as_mut().map_or(Duration::ZERO, |random| {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            self.pause * (*random >> 32) as u32 / u32::MAX
        });
        self.next_call = Some(after(now, self.pause + more));
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.last = Some(reason);
    }
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Begins to meet the peer. Returns false if the QP is already in use.
    pub fn begin_pair(&mut self, pair: Pair) -> bool {
        if self.state != QpState::Idle || self.ctx.datagrams.is_some() {
            return false;
        }
        self.event(QpEvent::Attach);
        self.end = None;
        self.cause = None;
        self.pair = Some(Box::new(pair));
        true
    }

    /// Sets when Writes to the peer complete, if the program has chosen that for this peer. No
    /// Write of an unreliable QP waits.
    pub fn choose_placed_writes(&mut self, placed: Option<bool>) {
        if !self.ctx.unreliable {
            self.attr.placed_writes = placed.unwrap_or(self.ctx.placed_writes);
        }
    }

    /// Returns true if the QP meets its peer and no attempt is under way.
    pub fn awaits_pair(&self) -> bool {
        self.is_meeting() && self.stage.is_detached()
    }

    /// Returns true if the QP meets its peer.
    pub fn is_meeting(&self) -> bool {
        let meets = self.pair.as_ref().is_some_and(|pair| !pair.quiet);
        meets && matches!(self.state, QpState::Connecting | QpState::Rts) && !self.is_pair_open()
    }

    /// Returns true once messages of the program may have been sent or received on the stream.
    /// Until then it can be left without a trace.
    fn is_pair_open(&self) -> bool {
        let (Some(stream), Some(pair)) = (self.stage.open(), &self.pair) else {
            return false;
        };
        match stream.negotiated.role {
            Role::Responder => !stream.inbound.first_awaited || stream.gate.may_send(),
            // The responder may have given up, and closed, before it got the RTR indication.
            Role::Initiator => stream.inbound.has_begun() || self.sq.has_begun(pair.begins_at),
        }
    }

    /// Returns true if an attempt of this side has not sent its MPA Request, so that it can be
    /// given up without a trace at the peer.
    pub fn may_retract(&self) -> bool {
        self.stage.is_detached() || self.is_connecting_tcp()
    }

    /// Gives up the attempt that is under way, because the peer's own is taken instead.
    pub fn retract(&mut self) {
        self.leave_stream();
        self.fin.abort = true;
        if let Some(pair) = &mut self.pair {
            // In case the peer's cannot be taken after all.
            pair.next_call = Some(after(self.now, pair.pause));
        }
    }

    /// Time at which the driver has to call [`pair_due`](Self::pair_due).
    #[inline]
    pub fn pair_deadline(&self) -> Option<Instant> {
        let pair = self.pair.as_ref()?;
        if !self.is_meeting() {
            return None;
        }
        let call = pair.next_call.filter(|_| self.awaits_pair());
        earlier(call, pair.gives_up_at())
    }

    /// Ends the QP if a send has waited for too long. Otherwise returns true if this side is to
    /// call the peer now.
    pub fn pair_due(&mut self) -> bool {
        if self.give_up_pair() || !self.awaits_pair() {
            return false;
        }
        let Some(pair) = &mut self.pair else {
            return false;
        };
        pair.next_call.take_if(|when| *when <= self.now).is_some()
    }

    /// Ends the QP if a send has waited for too long, and returns true if it did. An unreliable QP
    /// drops its sends, and goes on.
    pub fn give_up_pair(&mut self) -> bool {
        if !self.is_meeting() {
            return false;
        }
        let Some(pair) = &mut self.pair else {
            return false;
        };
        if pair.gives_up_at().is_none_or(|when| self.now < when) {
            return false;
        }
        if self.ctx.unreliable {
            pair.drops = true;
            pair.waits_since = None;
            return !self.drop_sends();
        }
        let last = pair.last.take();
        self.fail_pair(last);
        true
    }

    /// Returns true if this side has called its peer by number, and the Reply is not that of a
    /// rendezvous.
    pub(super) fn is_no_rendezvous(&self, reply: &Negotiated) -> bool {
        self.pair.is_some() && !hello::is_acceptance(&reply.private_data)
    }

    /// Records that the stream is open: sends do not wait for the peer any more.
    pub(super) fn pair_opened(&mut self) {
        if let Some(pair) = &mut self.pair {
            pair.opened();
        }
    }

    /// Handles a request that was posted while no stream is open.
    #[cold]
    pub(super) fn posted_without_stream(&mut self, asks_peer: bool) {
        let Some(pair) = &mut self.pair else {
            return;
        };
        if self.ctx.unreliable && (pair.quiet || pair.drops) {
            self.drop_sends();
        } else if pair.quiet {
            let last = pair.last.take();
            self.fail_pair(last);
        } else if asks_peer {
            pair.wait(true, self.now);
        }
    }

    /// Handles the end of an attempt or of the stream, if the QP is connected by its number and its
    /// program has not ended the connection. Returns false in all other cases.
    pub(super) fn pair_lost(&mut self, reason: &EndReason) -> bool {
        if self.pair.is_none()
            || self.orphaned
            || !matches!(self.state, QpState::Connecting | QpState::Rts)
        {
            return false;
        }
        tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, %reason, "the peer is not there");
        if self.is_pair_open() {
            if matches!(
                reason,
                EndReason::LlpLost {
                    error: LlpError::Exhausted { .. }
                }
            ) {
                // An error of this host is not one of the peer.
                return false;
            }
            self.retire();
            if self.state != QpState::Rts {
                // A completion was lost, which ends the connection.
                return false;
            }
            if self.ctx.unreliable {
                if !self.drop_sends() {
                    // After a lost completion the stream is still there, and ends as any other.
                    return self.stage.is_detached();
                }
            } else if !self.sq.is_empty() {
                self.fail_pair(Some(reason.clone()));
                return true;
            }
            self.leave_stream();
            if let Some(pair) = &mut self.pair {
                pair.quiet = true;
                pair.last = Some(reason.clone());
            }
        } else {
            // An unreliable QP that has given its peer up drops what was posted during an attempt,
            // too.
            let drops = self.ctx.unreliable && self.pair.as_ref().is_some_and(|pair| pair.drops);
            if drops && !self.drop_sends() {
                return self.stage.is_detached();
            }
            self.leave_stream();
            let waits = !self.sq.is_empty();
            if let Some(pair) = &mut self.pair {
                pair.wait(waits, self.now);
                pair.failed(reason.clone(), self.now);
            }
        }
        true
    }

    /// Sets the maximum time that a send waits for the peer.
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        if let Some(pair) = &mut self.pair {
            pair.patience = patience;
        }
    }

    /// Schedules the next call after one could not be made.
    pub fn call_failed(&mut self) {
        self.pair_lost(&EndReason::PeerGone { last: None });
    }

    /// Returns true if MPA startup is done, although the peer may not have sent its first FPDU.
    pub fn is_open(&self) -> bool {
        self.stage.open().is_some()
    }

    /// Fails the oldest request, because the peer's QP is not there, and flushes all others.
    fn fail_pair(&mut self, last: Option<EndReason>) {
        let reason = EndReason::PeerGone {
            last: last.map(Box::new),
        };
        let cause = reason.cause();
        let oldest = self.sq.front().map(|(sequence, _)| Blamed {
            sequence,
            status: Status::RetryExceeded,
            cause,
        });
        // A stream that has ended is closed gracefully, an attempt is given up.
        self.fin.abort |= !self.is_pair_open();
        self.end(reason);
        self.flush_sends(oldest);
        self.detach(QpEvent::LlpLost);
    }

    /// Completes the requests of the send queue with success, because the peer of this unreliable
    /// QP is not there. Local requests are carried out.
    ///
    /// Returns false if a request has failed on this side. The QP has then ended.
    fn drop_sends(&mut self) -> bool {
        self.tx.reclaim();
        self.sq.give_up_sent();
        while let Some((sequence, wqe)) = self.sq.next_to_send() {
            let failure = match wqe.op {
                SendOp::Local(op) => self.local(op).err().map(|fault| op.failure(fault)),
                _ => (self.ctx.late_fault(wqe))
                    .map(|fault| (Status::LocalProtection, LocalProblem::Element(fault))),
            };
            if let Some((status, problem)) = failure {
                self.fin.abort = true;
                self.fail_without_stream(sequence, status, problem);
                return false;
            }
            self.sq.framed(Progress::Answered);
        }
        self.retire();
        // The stream of an attempt that is under way may carry what is posted from now on.
        let begins_at = self.sq.framed_to();
        if let Some(pair) = &mut self.pair {
            pair.begins_at = begins_at;
        }
        matches!(self.state, QpState::Connecting | QpState::Rts)
    }

    /// Fails a request for a reason of this side, and ends the QP. No peer is told.
    pub(super) fn fail_without_stream(
        &mut self,
        sequence: u64,
        status: Status,
        problem: LocalProblem,
    ) {
        let cause = Cause::local(problem);
        self.end(EndReason::LocalError { cause });
        self.flush_sends(Some(Blamed {
            sequence,
            status,
            cause,
        }));
        self.detach(QpEvent::LlpLost);
    }

    /// Leaves the stream, or the attempt to open one, and keeps all posted work.
    fn leave_stream(&mut self) {
        self.event(QpEvent::StreamLeft);
        // If the stream was in use, no request is outstanding any more, and a Write of the peer is
        // reported before its stream is forgotten.
        self.report_write();
        self.stage = Stage::Detached;
        self.negotiated = None;
        self.established = false;
        self.timers.clear_stream();
        self.fin = FinState {
            abort: self.fin.abort,
            ..FinState::default()
        };
        self.rq.stream_over();
        self.recorder.stream_over(self.tx.taken_to());
        self.tx = super::transmit::TxBatch::default();
    }

    /// Moves the QP into `Connecting`, for a new stream. Returns false if it is in use.
    pub(super) fn begin_startup(&mut self) -> bool {
        if self.ctx.datagrams.is_some() {
            return false;
        }
        if self.state == QpState::Idle {
            self.event(QpEvent::Attach);
        } else if self.awaits_pair() {
            self.fin = FinState::default();
        } else {
            return false;
        }
        let begins_at = self.sq.framed_to();
        if let Some(pair) = &mut self.pair {
            pair.begins_at = begins_at;
        }
        self.begin();
        self.end = None;
        self.cause = None;
        true
    }
}
