//! Posting to the send queue, and when what was posted goes out: the doorbell, as a QP rings it.

use std::time::Instant;

use super::PostError;
use super::inner::{Driver, Locked, QpInner};
use super::state::QpState;
use crate::engine::{Connection, PostErrorKind, QpContext};
use crate::progress::poll_owner::PollOwner;
use crate::wait::after;

/// Does the same with each request of a list, in order, up to the first that is refused; that one is named.
pub(crate) fn each<W>(
    wrs: &[W],
    mut take: impl FnMut(usize, &W) -> Result<(), PostErrorKind>,
) -> Result<(), PostError> {
    let mut numbered = wrs.iter().enumerate();
    numbered.try_for_each(|(index, wr)| take(index, wr).map_err(|kind| PostError { index, kind }))
}

/// A post, as it began.
struct Posted {
    now: Instant,
    /// The same in nanoseconds of the device's clock.
    at: u64,
    /// What the send queue counted before.
    before: (u64, u64),
    /// The send queue was empty.
    alone: bool,
}

impl QpInner {
    /// Posts to the send queue, and rings the doorbell: what was posted goes out at once when nothing before it waits
    /// and the program does not post one request after the other. Otherwise it is staged, and leaves with the next
    /// turn (of a poll, say), with a full batch, or by the background when nobody has polled for
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
        if self.leaves_now(&mut locked, &posted) || !self.stage_if_polling(&mut locked, now) {
            let outcome = locked.driven.push(&self.device.pool);
            self.settle(&mut locked, outcome, Driver::Consumer);
            let ended = self.device.clock(self.device.now());
            locked.driven.doorbell.pushed(posted.at, ended);
        }
        // A poll that finds completions gives no turn: a program that posts and always finds some would never receive.
        if self.is_polling(&locked, &posted)
            && locked.driven.llp.is_some()
            && !self.polled_recently(now, posted.at)
        {
            self.turn_by_poll(&mut locked, now, posted.at, true);
        }
        value
    }

    /// Sees to it that what was posted leaves before long. False when it has to leave now.
    fn stage_if_polling(&self, locked: &mut Locked, now: Instant) -> bool {
        if let Some(member) = self.taken_member(locked) {
            return member.mark_dirty();
        }
        // A connection that is watched is looked at every so often anyway.
        if locked.registration.owner != PollOwner::Watched {
            let due = after(now, self.ctx.settings.takeover);
            locked
                .registration
                .set_timer(&self.device.background, Some(due));
        }
        true
    }

    /// Whether a thread polls that gives turns to the connection, or to its crowd.
    fn is_polling(&self, locked: &Locked, posted: &Posted) -> bool {
        locked.driven.doorbell.is_polling(posted.at, self.takeover)
            || (self.taken_member(locked))
                .is_some_and(|member| member.group().is_polled(posted.now))
    }

    /// Whether what was posted goes out at once.
    fn leaves_now(&self, locked: &mut Locked, posted: &Posted) -> bool {
        let QpContext {
            send_cq, recv_cq, ..
        } = &*self.ctx;
        let (armed, polls) = (
            send_cq.is_armed() || recv_cq.is_armed(),
            send_cq.polls().wrapping_add(recv_cq.polls()),
        );
        let doorbell = &mut locked.driven.doorbell;
        doorbell.look(polls, posted.at, self.takeover);
        let sq = &locked.driven.conn.sq;
        let full = doorbell.posted(sq, posted.before, posted.at, self.takeover);
        let single = locked.driven.doorbell.is_single() && posted.alone;
        single || full || armed || !self.may_stage(locked, posted)
    }

    /// Whether a turn is likely to come soon: a thread polls, and nobody sleeps on the connection. Never where the program
    /// drives the device itself: it may not come back before something happens.
    fn may_stage(&self, locked: &Locked, posted: &Posted) -> bool {
        locked.driven.conn.state == QpState::Rts
            && locked.driven.llp.is_some()
            && self.is_polling(locked, posted)
            && !locked.registration.owner.is_waited()
            && !self.watched.is_set()
            && !self.device.background.is_manual()
    }

    /// Sends what posts have staged, if anything: what comes next must find it sent.
    pub(super) fn flush_staged(&self, locked: &mut Locked) {
        if locked.driven.doorbell.is_staged() {
            let outcome = locked.driven.push(&self.device.pool);
            self.settle(locked, outcome, Driver::Consumer);
        }
    }
}
