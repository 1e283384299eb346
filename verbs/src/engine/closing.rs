//! The graceful close, and the close after a Terminate: what has to arrive, how long that may take, and how it fails.

use std::time::Duration;

use super::connection::{Connection, Stage};
use crate::close_timer::{CloseTimer, LEAST};
use crate::event::{AsyncEvent, EndReason};
use crate::qp::state::{QpEvent, QpState};
use crate::wait::after;

/// Pause between two looks for the acknowledgement of the last bytes after both FINs: the LLP reports nothing any more.
const ACKNOWLEDGED_AGAIN: Duration = Duration::from_millis(10);

/// A close that is under way.
pub(super) struct Close {
    timer: CloseTimer,
    /// Position in the stream up to which everything has to arrive: the end of what was framed of
    /// our own work and of the answers in `owed`, or of a Terminate Message. Other answers lie
    /// beyond it, so that a peer that goes on asking does not hold up the close.
    goal: u64,
    /// Number of answers that have to be sent whole: those to the requests that had arrived when
    /// the close began, or before the peer's FIN.
    owed: usize,
    /// Bytes of Read Responses since they last counted as progress.
    answered: u64,
}

impl Close {
    /// The stream has to arrive up to this position.
    pub(super) fn waits_for(&mut self, goal: u64) {
        self.goal = goal;
    }
}

impl Connection {
    /// The consumer closes gracefully: what was posted is sent, then FIN. Returns whether there was
    /// a connection to close.
    pub(crate) fn disconnect(&mut self) -> bool {
        match self.state {
            QpState::Rts => {
                self.event(QpEvent::Disconnect);
                self.end(EndReason::LocalDisconnect);
                self.fin.wanted = true;
                self.start_close_timer();
                self.owe_answers();
                true
            }
            QpState::Connecting => {
                self.failed_attempt = None;
                self.end(EndReason::LocalDisconnect);
                self.detach(QpEvent::Disconnect);
                true
            }
            QpState::Closing | QpState::Terminate => true,
            QpState::Idle | QpState::Error => false,
        }
    }

    /// The handle of the QP was dropped. An idle connection closes gracefully; one with work under way is reset.
    pub(crate) fn orphan(&mut self) {
        self.orphaned = true;
        // In Terminate, all that is left to send is the Terminate Message.
        if self.is_idle() || self.state == QpState::Terminate {
            self.disconnect();
        } else {
            self.abort();
        }
    }

    /// The driver has sent our FIN.
    pub(crate) fn fin_sent(&mut self) {
        self.fin.sent = true;
        tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, "FIN sent");
        if let Stage::Open(stream) = &mut self.stage {
            stream.rdmap.close();
        }
        self.start_close_timer();
        self.check_closed();
    }

    /// Ends the connection if both halves are closed and the peer has acknowledged everything.
    pub(super) fn check_closed(&mut self) {
        if !self.fin.sent || !self.fin.received || matches!(self.stage, Stage::Detached) {
            return;
        }
        if self.undelivered() == 0 {
            self.detach(QpEvent::Closed);
        } else {
            let again = after(self.now, ACKNOWLEDGED_AGAIN);
            self.deadline = Some(self.deadline.map_or(again, |deadline| deadline.min(again)));
        }
    }

    /// Starts the wait for the peer's close, or restarts it after progress.
    pub(super) fn start_close_timer(&mut self) {
        let from = self.hold.map_or(self.now, |hold| hold.max(self.now));
        let limit = self.ctx.settings.timeouts.close;
        let goal = self.tx.framed_to();
        let close = self.close.get_or_insert_with(|| Close {
            timer: CloseTimer::new(from, limit),
            goal,
            owed: 0,
            answered: 0,
        });
        close.goal = goal;
        close.timer.restart(from);
        self.deadline = Some(close.timer.first_look(from));
    }

    /// Counts the peer's requests that have arrived and are not answered: the close waits for these
    /// answers, and not for those to requests that arrive later.
    pub(super) fn owe_answers(&mut self) {
        if let (Some(close), Stage::Open(stream)) = (&mut self.close, &self.stage) {
            close.owed = stream.rdmap.requests_unanswered();
        }
    }

    /// After a Terminate no answer is sent any more.
    pub(super) fn owe_no_answers(&mut self) {
        if let Some(close) = &mut self.close {
            close.owed = 0;
        }
    }

    /// A segment has been framed. `answer`: of the answer to a request of the peer, and not of our
    /// own work; `last`: the last one of its message.
    pub(super) fn framed_in_close(&mut self, answer: bool, last: bool) {
        let Some(close) = &mut self.close else {
            return;
        };
        if answer {
            // Requests are answered in the order in which they arrived.
            if close.owed == 0 {
                return;
            }
            close.owed -= usize::from(last);
        }
        close.waits_for(self.tx.framed_to());
    }

    /// A part of the answer to a request of ours has been placed. A close goes on while the
    /// requests before it are answered, at no less than the pace of [`CloseTimer`].
    pub(super) fn answered_in_close(&mut self, bytes: u64, complete: bool) {
        let now = self.now;
        let Some(close) = &mut self.close else {
            return;
        };
        close.answered += bytes;
        if complete || close.answered >= LEAST {
            close.answered = 0;
            close.timer.restart(now);
        }
    }

    /// Whether the driver has to say how much is unacknowledged: before the deadline, a FIN or a loss is reported.
    pub(crate) fn is_closing(&self) -> bool {
        self.close.is_some()
    }

    /// Time for a look at the close.
    pub(super) fn look_at_close(&mut self) {
        let acknowledged = self.acknowledged();
        let Some(close) = &mut self.close else {
            return;
        };
        match close.timer.look(self.now, acknowledged, close.goal) {
            Some(next) => {
                self.deadline = Some(next);
                self.check_closed();
            }
            None => self.give_close_up(),
        }
    }

    /// The peer has made no progress for as long as a close may take without.
    fn give_close_up(&mut self) {
        let undelivered = self.undelivered();
        self.fin.abort = if self.orphaned {
            // The process has no use for the connection: TCP may go on with what it has.
            !self.tx.is_empty()
        } else {
            // A peer that has everything and only does not close gets no reset, which could overtake its reading.
            !self.fin.sent || self.loses_work()
        };
        if self.loses_work() {
            self.end_in_loss(EndReason::CloseTimedOut { undelivered });
        }
        self.detach(QpEvent::LlpLost);
    }

    /// Position in the stream that the peer has acknowledged.
    fn acknowledged(&self) -> u64 {
        self.tx.taken_to().saturating_sub(self.unacknowledged)
    }

    /// Number of bytes that have to arrive and were not acknowledged.
    fn undelivered(&self) -> u64 {
        let acknowledged = self.acknowledged();
        (self.close.as_ref()).map_or(0, |close| close.goal.saturating_sub(acknowledged))
    }

    /// Whether work is lost if the connection ends now.
    fn loses_work(&self) -> bool {
        let owes = self.close.as_ref().is_some_and(|close| close.owed > 0);
        self.undelivered() > 0 || !self.sq.is_empty() || owes
    }

    /// As [`Self::end`], for the loss of TCP: a graceful close has failed if it loses work.
    pub(super) fn end_in_loss(&mut self, reason: EndReason) {
        if self.loses_work() {
            self.retract_orderly_end();
        }
        self.end(reason);
    }

    /// As [`Self::end`], for an error; `told`: by a Terminate Message in either direction, so that
    /// both ends report it, also during a graceful close. Behind our FIN there is none, and all
    /// work is done: what is on its way still arrives.
    pub(super) fn end_in_terminate(&mut self, reason: EndReason, told: bool) {
        if told || !self.sq.is_empty() {
            self.retract_orderly_end();
        }
        self.end(reason);
    }

    /// A graceful close has failed: the next [`Self::end`] replaces its reason.
    fn retract_orderly_end(&mut self) {
        self.end.take_if(|end| end.is_orderly());
    }

    /// Records why the connection ends; the first reason stays (5040-7.1-05), unless a graceful close has failed.
    pub(super) fn end(&mut self, reason: EndReason) {
        // Trouble during a graceful close flushes what was to be done in it.
        if self.end.as_ref().is_none_or(EndReason::is_orderly) {
            self.cause = Some(reason.cause());
        }
        if self.end.is_none() {
            tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, %reason, "connection ends");
            self.events.push(AsyncEvent::Ended {
                qp_num: self.ctx.qp_num,
                reason: reason.clone(),
            });
            self.end = Some(reason);
        }
    }
}
