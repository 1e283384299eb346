//! Posting to the send queue, and the decision when posted requests are sent (the doorbell).

use std::time::Instant;

use uwarp_engine::state::QpState;
use uwarp_engine::times::after;

use super::inner::{Driver, Locked, QpInner};
use crate::connection::{Connection, QpContext};
use crate::policy::{Heuristic, is_on};
use crate::progress::poll_owner::PollOwner;

/// State at the start of a post.
struct Posted {
    now: Instant,
    /// `now` in nanoseconds of the device's clock.
    at: u64,
    /// Value of the send queue's `posted` before the post.
    before: (u64, u64),
    /// Whether the send queue was empty.
    alone: bool,
}

impl QpInner {
    /// Posts to the send queue and decides when the requests are sent.
    ///
    /// They are sent at once if no earlier request waits and the program does not post several in a
    /// row. Otherwise they are staged. Staged requests are sent with the next turn (of a poll, for
    /// example), when they make a full batch, or by the background if there was no poll for
    /// [`Settings::takeover`](crate::Settings::takeover).
    pub(crate) fn post<T>(&self, act: impl FnOnce(&mut Connection) -> T) -> T {
        let mut locked = self.lock();
        let now = self.device.now();
        let posted = Posted {
            now,
            at: self.device.clock(now),
            before: locked.driven.conn.sq.posted(),
            alone: locked.driven.conn.sq.is_empty(),
        };
        locked.driven.conn.set_now(now);
        let value = act(&mut locked.driven.conn);
        if locked.driven.conn.sq.posted() != posted.before {
            locked.driven.confirmations.posted(posted.at);
        }
        if self.leaves_now(&mut locked, &posted) || !self.stage_if_polling(&mut locked, now) {
            let outcome = locked.driven.push(&self.device.pool);
            self.settle(&mut locked, outcome, Driver::Consumer);
            let ended = self.device.clock(self.device.now());
            locked.driven.doorbell.pushed(posted.at, ended);
        }
        // A poll that finds completions gives no turn, so a program that posts and always finds
        // some would never receive.
        if self.is_polling(&locked, &posted)
            && locked.driven.llp.is_some()
            && !self.polled_recently(now, posted.at)
        {
            self.turn_by_poll(&mut locked, now, posted.at, true);
        }
        value
    }

    /// Arranges that a turn soon sends the posted requests. Returns false if they have to be sent
    /// now.
    pub(super) fn stage_if_polling(&self, locked: &mut Locked, now: Instant) -> bool {
        if let Some(member) = self.grouped_member(locked) {
            return member.mark_dirty();
        }
        // The background checks a watched connection regularly.
        if locked.registration.owner != PollOwner::Watched {
            let due = after(now, self.device.settings.takeover);
            locked
                .registration
                .set_timer(&self.device.background, Some(due));
        }
        true
    }

    /// Returns true if a polling thread gives turns to the connection or to its group.
    fn is_polling(&self, locked: &Locked, posted: &Posted) -> bool {
        locked.driven.doorbell.is_polling(posted.at, self.takeover)
            || (self.grouped_member(locked))
                .is_some_and(|member| member.group().is_polled(posted.now))
    }

    /// Records the post for the doorbell, and returns true if the requests are to be sent at once.
    fn leaves_now(&self, locked: &mut Locked, posted: &Posted) -> bool {
        let QpContext {
            send_cq, recv_cq, ..
        } = &*self.ctx;
        let (armed, polls) = (
            send_cq.is_armed() || recv_cq.is_armed(),
            send_cq.polls().wrapping_add(recv_cq.polls()),
        );
        let doorbell = &mut locked.driven.doorbell;
        doorbell.note_polls(polls, posted.at, self.takeover);
        let sq = &locked.driven.conn.sq;
        let full = doorbell.posted(sq, posted.before, posted.at, self.takeover);
        let single = locked.driven.doorbell.is_single() && posted.alone;
        single || full || armed || !is_on(Heuristic::Doorbell) || !self.may_stage(locked, posted)
    }

    /// Returns true if a turn is likely to follow soon: a thread polls, and none sleeps on the
    /// connection. Always false with manual progress, because the program may not call again before
    /// an event.
    fn may_stage(&self, locked: &Locked, posted: &Posted) -> bool {
        locked.driven.conn.state == QpState::Rts
            && locked.driven.llp.is_some()
            && self.is_polling(locked, posted)
            && !locked.registration.owner.is_waited()
            && !self.notifications.is_set()
            && !self.device.background.is_manual()
    }

    /// Sends what was left to a later call, because the operation that follows must find it sent.
    pub(super) fn flush_staged(&self, locked: &mut Locked) {
        if locked.driven.keeps_back() {
            let outcome = locked.driven.push(&self.device.pool);
            self.settle(locked, outcome, Driver::Consumer);
        }
    }
}
