//! The turns that threads of the program give a QP: by polls of its own, with its crowd, by polls of other CQs, and by
//! waiting on its descriptor.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::progress::epoll_group::{By, Done};
use crate::progress::orphan_polling::Given;
use crate::progress::poll_owner::PollOwner;
use crate::qp::guard::QpGuard;
use crate::qp::inner::{Driver, Locked, QpInner};

/// So many bytes pass in a turn without the clock being looked at after it: the few microseconds count for nothing.
const QUICK: u64 = 4096;

/// The polls.
impl QpInner {
    /// A turn by a thread that polls: skipped when another thread has the lock. `stays`: the thread is
    /// going to poll again, and not about to sleep. True when it received something.
    pub(crate) fn poll(&self, now: Instant, stays: bool) -> bool {
        let at = self.device.clock(now);
        if stays {
            self.polled_at.store(at, Ordering::Relaxed);
        }
        let Some(mut locked) = self.try_lock_to_poll() else {
            return false;
        };
        locked.driven.llp.is_some() && self.turn_by_poll(&mut locked, now, at, stays)
    }

    /// The lock, if it is free.
    fn try_lock_to_poll(&self) -> Option<QpGuard<'_>> {
        let locked = self.try_lock();
        match locked {
            Some(_) => self.lock_misses.got_in(),
            None if self.lock_misses.found_taken() => self.device.lock_yield.mark_due(),
            None => {}
        }
        locked
    }

    /// A turn by a thread that polls other CQs ([`crate::progress::orphan_polling`]), which gave it the last one at `polled_at`. `None`
    /// when it has gone, or when somebody else looks after it.
    pub(crate) fn poll_astray(&self, now: Instant, polled_at: u64) -> Option<Given> {
        let last = self.polled_at.load(Ordering::Relaxed);
        let is_ours = last == polled_at || (polled_at == 0 && !self.polled_alone(now));
        if !is_ours || self.is_armed() {
            return None;
        }
        let Some(mut locked) = self.try_lock_to_poll() else {
            return Some(Given::Nothing);
        };
        let owner = locked.registration.owner;
        if locked.driven.llp.is_none() || owner.is_seated() || owner.is_waited() {
            return None;
        }
        let (moved, _, polled_at) = self.turn_of_poll(&mut locked, now, self.device.clock(now));
        self.polled_at.store(polled_at, Ordering::Relaxed);
        let moved = moved > 0;
        Some(Given::Turn { moved, polled_at })
    }

    /// A turn that a thread gives which polls, `now`, which is `at` by the device's clock. True when it received something.
    pub(super) fn turn_by_poll(
        &self,
        locked: &mut Locked,
        now: Instant,
        at: u64,
        stays: bool,
    ) -> bool {
        let (_, received, end) = self.turn_of_poll(locked, now, at);
        if stays {
            self.polled_at.store(end, Ordering::Relaxed);
            locked.driven.doorbell.polled(end);
        }
        received
    }

    /// Such a turn: the bytes that moved, whether some were received, and when, by the device's clock, the program could poll again.
    fn turn_of_poll(&self, locked: &mut Locked, now: Instant, at: u64) -> (u64, bool, u64) {
        let (sent, received) = locked.driven.moved();
        let outcome = locked.driven.turn(&self.device.pool, now);
        self.settle(locked, outcome, Driver::Consumer);
        let (sent_now, received_now) = locked.driven.moved();
        locked.polls_receive |= received != received_now;
        // A connection that ended counts from 0 again.
        let moved = sent_now
            .abs_diff(sent)
            .saturating_add(received_now.abs_diff(received));
        // It took its time, in which the program could not have polled.
        let end = match moved > QUICK {
            true => self.device.clock(self.device.now()),
            false => at,
        };
        (moved, received != received_now, end)
    }

    /// A turn that comes of a round of its crowd. `None` when a thread that polls finds the lock taken.
    pub(crate) fn turn_in_group(&self, now: Instant, by: By) -> Option<Done> {
        let mut locked = match by {
            By::Poll => self.try_lock_to_poll()?,
            By::Sleeper | By::Background => self.lock(),
        };
        let driver = match by {
            By::Poll | By::Sleeper => Driver::Consumer,
            By::Background
                if locked.polls_receive && !self.is_armed() && self.polled_alone(now) =>
            {
                let left = true;
                return Some(Done {
                    left,
                    ..Done::default()
                });
            }
            By::Background => Driver::Background,
        };
        if locked.driven.llp.is_none() {
            return Some(Done::default());
        }
        let before = locked.driven.moved();
        let outcome = locked.driven.turn(&self.device.pool, now);
        self.settle(&mut locked, outcome, driver);
        let after = locked.driven.moved();
        let received = before.1 != after.1;
        if driver == Driver::Background {
            locked.polls_receive &= !received;
        }
        Some(Done {
            moved: before != after,
            received,
            left: false,
        })
    }

    /// A notification was requested on a CQ of this QP: the consumer is about to sleep, so the
    /// background takes over at once. What has come until now is received here, but for a crowd's: it may look at memory before it sleeps,
    /// and where it posts and polls without a pause, the background gets neither the processor nor the lock for many milliseconds.
    pub(crate) fn hand_over(&self) {
        self.polled_at.store(0, Ordering::Relaxed);
        let mut locked = self.lock();
        locked.driven.doorbell.sleeps();
        locked.driven.conn.tx.sleeps();
        let owner = locked.registration.owner;
        if !owner.is_seated() || locked.driven.doorbell.is_staged() {
            let driver = match owner {
                // It is in the background's set already.
                PollOwner::Armed { .. } => Driver::Consumer,
                _ => Driver::Background,
            };
            let outcome = locked.driven.turn(&self.device.pool, self.device.now());
            self.settle(&mut locked, outcome, driver);
        }
        let member = self.taken_member(&locked);
        drop(locked);
        // The background has perhaps left the crowd alone because of this QP, or because of polls of its other CQ. Who
        // polls that again is seen again.
        if let Some(member) = member {
            member.group().hand_over();
        }
    }

    /// Whether the program is about to sleep until something completes here.
    fn is_armed(&self) -> bool {
        self.ctx.send_cq.is_armed() || self.ctx.recv_cq.is_armed()
    }

    /// Whether a thread polls it, by itself or with its crowd.
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

/// The waits of [`crate::Cq::wait`].
impl QpInner {
    /// The calling thread will wait on the descriptor itself. Calls `add` with it, and with the time
    /// by which a turn is due.
    pub(crate) fn wait_begins(&self, mut add: impl FnMut(RawFd, Option<Instant>)) -> bool {
        let mut locked = self.lock();
        let outcome = locked.driven.turn(&self.device.pool, self.device.now());
        self.settle(&mut locked, outcome, Driver::Consumer);
        let Locked {
            driven,
            registration,
            ..
        } = &mut *locked;
        driven.conn.tx.sleeps();
        let Some(llp) = &driven.llp else {
            return false;
        };
        let wanted = driven.interest(outcome);
        if !wanted.has_read() {
            // Nothing more will arrive: there is nothing to wait for but room, and the background does that.
            return false;
        }
        if !registration.wait_begins(&self.device.background, llp.fd()) {
            return false;
        }
        registration.adjust(&self.device.background, llp.fd(), wanted);
        add(llp.fd().as_raw_fd(), driven.deadline());
        true
    }

    /// The calling thread has stopped waiting: a turn, and back to the background.
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
