//! Turns that threads of the program give a QP: by polls of its CQs or its group, by polls of other
//! CQs, and by waiting on its descriptor.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::connection::inner::{Driver, Locked, QpInner};
use crate::policy::progress::SHORT_TURN_BYTES;
use crate::policy::{Heuristic, is_on};
use crate::progress::confirmations::Giver;
use crate::progress::epoll_group::{Caller, TurnResult};
use crate::progress::orphan_polling::OrphanTurn;
use crate::progress::poll_owner::PollOwner;

/// Turns given by polling threads.
impl QpInner {
    /// Gives the QP a turn by a polling thread, unless another thread has the lock. `stays`: the
    /// thread will poll again and is not about to sleep. Returns true if bytes were received.
    pub(crate) fn poll(&self, now: Instant, stays: bool) -> bool {
        // Its port receives, and is polled by itself.
        if self.datagrams().is_some() {
            return false;
        }
        let at = self.device.clock(now);
        if stays {
            self.polled_at.store(at, Ordering::Relaxed);
        }
        let Some(mut locked) = self.try_lock() else {
            return false;
        };
        locked.driven.llp.is_some() && self.turn_by_poll(&mut locked, now, at, stays)
    }

    /// Gives the QP a turn by a thread that polls other CQs ([`crate::progress::orphan_polling`]).
    /// `polled_at`: time of its last such turn, or 0. Returns `None` if the connection has ended or
    /// if another thread handles it.
    pub(crate) fn poll_orphan(&self, now: Instant, polled_at: u64) -> Option<OrphanTurn> {
        let last = self.polled_at.load(Ordering::Relaxed);
        let is_ours = last == polled_at || (polled_at == 0 && !self.polled_alone(now));
        if !is_ours || self.is_armed() {
            return None;
        }
        let Some(mut locked) = self.try_lock() else {
            return Some(OrphanTurn::Refused);
        };
        let owner = locked.registration.owner;
        if locked.driven.llp.is_none() || owner.is_grouped() || owner.is_waited() {
            return None;
        }
        let (moved, _, polled_at) =
            self.measured_turn(&mut locked, now, self.device.clock(now), Giver::Other);
        self.polled_at.store(polled_at, Ordering::Relaxed);
        let moved = moved > 0;
        Some(OrphanTurn::Given { moved, polled_at })
    }

    /// Gives the QP a turn by a polling thread at time `now`, which is `at` by the device's clock.
    /// Returns true if bytes were received.
    pub(super) fn turn_by_poll(
        &self,
        locked: &mut Locked,
        now: Instant,
        at: u64,
        stays: bool,
    ) -> bool {
        let giver = match stays && self.may_wait_for_post(locked) {
            true => Giver::Poll { at },
            false => Giver::Other,
        };
        let (_, received, end) = self.measured_turn(locked, now, at, giver);
        if locked.driven.confirmations.are_late() && !self.stage_if_polling(locked, now) {
            let outcome = locked.driven.push(&self.device.pool);
            self.settle(locked, outcome, Driver::Consumer);
        }
        if stays {
            self.polled_at.store(end, Ordering::Relaxed);
            locked.driven.doorbell.polled(end);
        }
        received
    }

    /// Returns true if a program is expected to call again even if nothing happens: no thread or
    /// task waits to be woken, and the background sends what no call sends.
    pub(super) fn may_wait_for_post(&self, locked: &Locked) -> bool {
        !locked.registration.owner.is_waited()
            && !self.is_armed()
            && !self.notifications.is_set()
            && !self.device.background.is_manual()
            && !self.device.confirmations.process_exits()
    }

    /// Gives the QP a turn. Returns the number of bytes moved, whether some were received, and the
    /// time (by the device's clock) from which the program could poll again.
    fn measured_turn(
        &self,
        locked: &mut Locked,
        now: Instant,
        at: u64,
        giver: Giver,
    ) -> (u64, bool, u64) {
        let (sent, received) = locked.driven.moved();
        let outcome = locked.driven.turn_by(&self.device.pool, now, giver);
        self.settle(locked, outcome, Driver::Consumer);
        let (sent_now, received_now) = locked.driven.moved();
        locked.polls_receive |= received != received_now;
        // The counters restart at 0 when a connection ends.
        let moved = sent_now
            .abs_diff(sent)
            .saturating_add(received_now.abs_diff(received));
        // The program could not poll during a long turn, so the end of the turn counts as the time
        // of the poll.
        let end = match moved > SHORT_TURN_BYTES || !is_on(Heuristic::RareClock) {
            true => self.device.clock(self.device.now()),
            false => at,
        };
        (moved, received != received_now, end)
    }

    /// Gives the QP a turn in a round of its group. Returns `None` if a polling thread finds the
    /// lock taken.
    pub(crate) fn turn_in_group(&self, now: Instant, caller: Caller) -> Option<TurnResult> {
        let mut locked = match caller {
            Caller::Poll => self.try_lock()?,
            Caller::Sleeper | Caller::Background => self.lock(),
        };
        let driver = match caller {
            Caller::Poll | Caller::Sleeper => Driver::Consumer,
            Caller::Background
                if is_on(Heuristic::StandBack)
                    && locked.polls_receive
                    && !self.is_armed()
                    && self.polled_alone(now) =>
            {
                return Some(TurnResult {
                    skipped: true,
                    ..TurnResult::default()
                });
            }
            Caller::Background => Driver::Background,
        };
        if locked.driven.llp.is_none() {
            return Some(TurnResult::default());
        }
        let before = locked.driven.moved();
        let outcome = locked.driven.turn(&self.device.pool, now);
        self.settle(&mut locked, outcome, driver);
        let after = locked.driven.moved();
        let received = before.1 != after.1;
        if driver == Driver::Background {
            locked.polls_receive &= !received;
        }
        Some(TurnResult {
            moved: before != after,
            received,
            skipped: false,
        })
    }

    /// Makes the background take over at once: a notification was requested on a CQ of this QP, so
    /// the consumer is about to sleep.
    ///
    /// Receives the bytes that have arrived, for two reasons. The program may read memory before it
    /// sleeps. And the background may not have received for many milliseconds, if posts and polls
    /// occupied the processor and the lock. A member of a group has a turn here only if requests
    /// are staged; afterwards its group is handed over.
    pub(crate) fn hand_over(&self) {
        self.polled_at.store(0, Ordering::Relaxed);
        let mut locked = self.lock();
        locked.driven.doorbell.sleeps();
        let owner = locked.registration.owner;
        if !owner.is_grouped() || locked.driven.keeps_back() {
            let driver = match owner {
                // The descriptor is already armed in the background's epoll set.
                PollOwner::Armed { .. } => Driver::Consumer,
                _ => Driver::Background,
            };
            let outcome = locked.driven.turn(&self.device.pool, self.device.now());
            self.settle(&mut locked, outcome, driver);
        }
        let member = self.grouped_member(&locked);
        drop(locked);
        // Polls of this QP or of its other CQ may have kept the background away from the group. The
        // hand-over forgets these polls. If the program still polls the other CQ, its next poll is
        // recorded anew.
        if let Some(member) = member {
            member.group().hand_over();
        }
    }

    /// Returns true if a CQ of the QP is armed: the program is about to sleep until a request
    /// completes.
    fn is_armed(&self) -> bool {
        self.ctx.send_cq.is_armed() || self.ctx.recv_cq.is_armed()
    }

    /// Returns true if a thread polls the QP, alone or with its group.
    pub(super) fn polled_recently(&self, now: Instant, at: u64) -> bool {
        self.polled_alone_at(at)
            || self
                .member()
                .is_some_and(|member| member.group().is_polled(now))
    }

    pub(super) fn polled_alone(&self, now: Instant) -> bool {
        self.polled_alone_at(self.device.clock(now))
    }

    fn polled_alone_at(&self, at: u64) -> bool {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        polled_at != 0 && at.saturating_sub(polled_at) < self.takeover
    }
}

/// Turns for threads that sleep in [`crate::Cq::wait`].
impl QpInner {
    /// Gives the QP a turn, and prepares for a wait of the calling thread on its descriptor. Calls
    /// `add` with the descriptor and the time by which a turn is due. Returns false if there is
    /// nothing to wait for.
    pub(crate) fn wait_begins(&self, mut add: impl FnMut(RawFd, Option<Instant>)) -> bool {
        let mut locked = self.lock();
        let outcome = locked.driven.turn(&self.device.pool, self.device.now());
        self.settle(&mut locked, outcome, Driver::Consumer);
        let Locked {
            driven,
            registration,
            ..
        } = &mut *locked;
        let Some(llp) = &driven.llp else {
            return false;
        };
        let wanted = driven.interest(outcome);
        if !wanted.has_read() {
            // Nothing more will arrive. The background waits for room to send.
            return false;
        }
        if !registration.wait_begins(&self.device.background, llp.fd()) {
            return false;
        }
        registration.adjust(&self.device.background, llp.fd(), wanted);
        add(llp.fd().as_raw_fd(), driven.deadline());
        true
    }

    /// Gives the QP a turn after a wait, and hands it back to the background.
    pub(crate) fn wait_ends(&self) {
        let mut locked = self.lock();
        let outcome = locked.driven.turn(&self.device.pool, self.device.now());
        self.settle(&mut locked, outcome, Driver::Consumer);
        let Locked {
            driven,
            registration,
            retired,
            ..
        } = &mut *locked;
        let wanted = driven.interest(outcome);
        let fd = driven.llp.as_ref().map(|llp| llp.fd());
        registration.wait_ends(&self.device.background, fd, wanted);
        if !registration.owner.is_waited() {
            for (llp, place) in retired.drain(..) {
                self.close(llp, place);
            }
        }
    }
}
