//! The graceful close, and the close after a Terminate: data that must arrive, time limits, and
//! failures.

use std::time::{Duration, Instant};

use crate::close_timer::{CloseTimer, LEAST};
use crate::state::{QpEvent, QpState};
use crate::timers::Timer;
use crate::times::after;

use super::LOG_TARGET;
use super::{Connection, OpenStream};
use crate::completion::CompletionQueue;
use crate::event::{AsyncEvent, ConnectionEvent, EndReason};
use crate::policy::transfer::ACKNOWLEDGED_CHECK;

/// A close that is under way.
pub(crate) struct Close {
    timer: CloseTimer,
    /// Stream position up to which everything must be acknowledged.
    ///
    /// It is the end of this side's own framed work and of the answers in `owed`, or of a Terminate
    /// Message. Other answers lie after it, so that a peer that keeps sending requests does not
    /// delay the close.
    goal: u64,
    /// Number of answers that still have to be sent: those to requests that arrived before the
    /// close began or before the peer's FIN.
    owed: usize,
    /// Number of Read Response bytes received since such bytes last restarted the time limit.
    answered: u64,
    /// Bytes that the LLP has taken and the peer has not acknowledged, as last reported by the
    /// driver.
    unacknowledged: u64,
}

impl Close {
    /// Sets the stream position up to which everything must be acknowledged.
    pub(super) fn waits_for(&mut self, goal: u64) {
        self.goal = goal;
    }

    /// Records that a segment was framed.
    ///
    /// `answer`: the segment belongs to the answer to a request of the peer, and not to local work.
    /// `last`: the segment is the last one of its message. `end`: stream position after it.
    pub(super) fn framed(&mut self, answer: bool, last: bool, end: u64) {
        if answer {
            // Requests are answered in the order in which they arrived.
            if self.owed == 0 {
                return;
            }
            self.owed -= usize::from(last);
        }
        self.waits_for(end);
    }

    /// Records that a part of the answer to a local request was placed.
    ///
    /// A close continues while the peer answers earlier requests at the pace of [`CloseTimer`] or
    /// faster.
    pub(super) fn answered(&mut self, bytes: u64, complete: bool, now: Instant) {
        self.answered += bytes;
        if complete || self.answered >= LEAST {
            self.answered = 0;
            self.timer.restart(now);
        }
    }

    /// Makes the close wait for no more answers, because none are sent after a Terminate.
    pub(super) fn clear_owed_answers(&mut self) {
        self.owed = 0;
    }

    /// Stream position up to which the peer has acknowledged bytes. `taken`: position up to which
    /// the LLP has taken them.
    fn acknowledged(&self, taken: u64) -> u64 {
        taken.saturating_sub(self.unacknowledged)
    }

    /// Number of bytes that must be acknowledged and are not yet.
    fn undelivered(&self, taken: u64) -> u64 {
        self.goal.saturating_sub(self.acknowledged(taken))
    }
}

impl OpenStream {
    /// Starts the time limit of the close at `from`, or restarts it after progress. Everything
    /// framed so far, up to `goal`, must be acknowledged. Returns when the first check is due.
    fn start_close(&mut self, from: Instant, limit: Duration, goal: u64) -> Instant {
        let close = self.close.get_or_insert_with(|| Close {
            timer: CloseTimer::new(from, limit),
            goal,
            owed: 0,
            answered: 0,
            unacknowledged: 0,
        });
        close.goal = goal;
        close.timer.restart(from);
        close.timer.first_check(from)
    }

    /// Records how many received requests of the peer are not answered.
    ///
    /// The close waits for these answers, and not for answers to later requests.
    fn count_owed_answers(&mut self) {
        if let Some(close) = &mut self.close {
            close.owed = self.rdmap.requests_unanswered();
        }
    }
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Closes gracefully on behalf of the consumer: sends the posted work, then a FIN. A connection
    /// that is still being set up ends at once.
    ///
    /// Returns true if there is a connection, also if it is already being closed.
    pub fn disconnect(&mut self) -> bool {
        match self.state {
            // There is no stream to be closed.
            QpState::Rts if self.ctx.datagrams.is_some() => {
                self.end(EndReason::LocalDisconnect);
                self.detach(QpEvent::Abort);
                true
            }
            QpState::Rts => {
                self.event(QpEvent::Disconnect);
                self.end(EndReason::LocalDisconnect);
                self.begin_close();
                true
            }
            QpState::Connecting => {
                self.end(EndReason::LocalDisconnect);
                self.detach(QpEvent::Disconnect);
                true
            }
            QpState::Closing | QpState::Terminate => true,
            QpState::Idle | QpState::Error => false,
        }
    }

    /// Handles the drop of the QP's handle. An idle connection closes gracefully; one with work
    /// under way is reset.
    pub fn orphan(&mut self) {
        self.orphaned = true;
        // In state Terminate, only the Terminate Message remains to be sent.
        if self.is_idle() || self.state == QpState::Terminate {
            self.disconnect();
        } else {
            self.abort();
        }
    }

    /// Records that the driver has sent the FIN.
    pub fn fin_sent(&mut self) {
        self.fin.sent = true;
        tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, "FIN sent");
        if let Some(stream) = self.stage.open_mut() {
            stream.rdmap.close();
        }
        self.start_close_timer();
        self.check_closed();
    }

    /// Ends the connection if both halves are closed and the peer has acknowledged everything.
    pub(super) fn check_closed(&mut self) {
        if !self.fin.sent || !self.fin.received || self.stage.is_detached() {
            return;
        }
        if self.undelivered() == 0 {
            self.detach(QpEvent::Closed);
        } else {
            let again = after(self.now, ACKNOWLEDGED_CHECK);
            let due = self.timers.get(Timer::Stage);
            let next = due.map_or(again, |due| due.min(again));
            self.timers.set(Timer::Stage, next);
        }
    }

    /// Begins a graceful close: a FIN follows the posted work, and the answers to the requests that
    /// have arrived.
    pub(super) fn begin_close(&mut self) {
        self.fin.wanted = true;
        self.start_close_timer();
        if let Some(stream) = self.stage.open_mut() {
            stream.count_owed_answers();
        }
    }

    /// Starts the time limit of the close, or restarts it after progress. Everything framed so far
    /// must be acknowledged.
    pub(super) fn start_close_timer(&mut self) {
        let hold = self.timers.get(Timer::Hold);
        let from = hold.map_or(self.now, |hold| hold.max(self.now));
        let limit = self.ctx.settings.timeouts.close;
        let goal = self.tx.framed_to();
        if let Some(stream) = self.stage.open_mut() {
            let check = stream.start_close(from, limit, goal);
            self.timers.set(Timer::Stage, check);
        }
    }

    /// Returns true while a close is under way. The driver then reports the number of
    /// unacknowledged bytes before it reports the deadline, a FIN or a loss.
    pub fn is_closing(&self) -> bool {
        self.stage.close().is_some()
    }

    /// Records the number of bytes that the LLP has taken and the peer has not acknowledged.
    pub fn set_unacknowledged(&mut self, bytes: u64) {
        if let Some(close) = self.stage.close_mut() {
            close.unacknowledged = bytes;
        }
    }

    /// Checks the progress of the close, and ends the connection if there was none for too long.
    pub(super) fn check_close_progress(&mut self) {
        let taken = self.tx.taken_to();
        let Some(close) = self.stage.close_mut() else {
            return;
        };
        let acknowledged = close.acknowledged(taken);
        match close.timer.look(self.now, acknowledged, close.goal) {
            Some(next) => {
                self.timers.set(Timer::Stage, next);
                self.check_closed();
            }
            None => self.abandon_close(),
        }
    }

    /// Ends a close during which the peer made no progress for the longest allowed time.
    fn abandon_close(&mut self) {
        let undelivered = self.undelivered();
        self.fin.abort = if self.orphaned {
            // The program no longer needs the connection. TCP may continue with the bytes that it
            // has taken, so a reset is needed only for bytes that it has not taken.
            !self.tx.is_empty()
        } else {
            // A peer that has acknowledged everything and only fails to close gets no reset. A
            // reset could arrive before the peer has read everything.
            !self.fin.sent || self.loses_work()
        };
        if self.loses_work() {
            self.end_in_loss(EndReason::CloseTimedOut { undelivered });
        }
        self.detach(QpEvent::LlpLost);
    }

    /// Number of bytes that must be acknowledged and are not yet.
    fn undelivered(&self) -> u64 {
        let taken = self.tx.taken_to();
        (self.stage.close()).map_or(0, |close| close.undelivered(taken))
    }

    /// Returns true if work would be lost if the connection ended now.
    fn loses_work(&self) -> bool {
        let owes = self.stage.close().is_some_and(|close| close.owed > 0);
        self.undelivered() > 0 || !self.sq.is_empty() || owes
    }

    /// Records the end of a connection whose TCP is lost, with [`Self::end`].
    ///
    /// If work is lost, a graceful close has failed, and `reason` replaces its reason.
    pub(super) fn end_in_loss(&mut self, reason: EndReason) {
        if self.loses_work() {
            self.retract_orderly_end();
        }
        self.end(reason);
    }

    /// Records the end of a connection in an error, with [`Self::end`].
    ///
    /// `reported`: a Terminate Message in either direction reports the error. Both sides then
    /// report the error to their programs, even during a graceful close. After our FIN there is no
    /// Terminate and all work is done. Bytes that were sent still arrive, so the close stays
    /// graceful.
    pub(super) fn end_in_terminate(&mut self, reason: EndReason, reported: bool) {
        if reported || !self.sq.is_empty() {
            self.retract_orderly_end();
        }
        self.end(reason);
    }

    /// Removes the reason of a graceful close that has failed, so that [`Self::end`] can record
    /// another one.
    fn retract_orderly_end(&mut self) {
        self.end.take_if(|end| end.is_orderly());
    }

    /// Records why the connection ends. The first reason stays (5040-7.1-05), unless a graceful
    /// close has failed.
    pub(super) fn end(&mut self, reason: EndReason) {
        // An error during a graceful close is the cause for the work that it flushes.
        if self.end.as_ref().is_none_or(EndReason::is_orderly) {
            self.cause = Some(reason.cause());
        }
        if self.end.is_none() {
            tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, %reason, "connection ends");
            self.events.push(ConnectionEvent::Async(AsyncEvent::Ended {
                qp_num: self.ctx.qp_num,
                reason: reason.clone(),
            }));
            self.end = Some(reason);
        }
    }
}
