//! Group of the connections of one CQ that share an epoll set.
//!
//! If every poll of a CQ gave a turn (see [`super::drive`]) to each of many connections, it would
//! cost a system call per connection. A CQ with more than
//! [`FEW_QPS`](crate::policy::progress::FEW_QPS) QPs therefore has a *group*: an epoll set with the
//! descriptors of all its connections. A poll runs a *round*: it queries the set once, and gives
//! turns to the connections that are ready and to *dirty* ones. A dirty connection has staged
//! requests. A waiting thread sleeps on the set. The background has the set as one descriptor in
//! its own set. As with a single connection, it leaves the group alone while the program polls, and
//! takes over when polling stops.
//!
//! ```text
//!            Cq::poll ──┐                      ┌── socket of QP 1
//!            Cq::wait ──┼──► set of the group ─┼── socket of QP 2
//!   set of background ──┘   (level-triggered)  └── ...
//! ```
//!
//! While only one connection receives, most polls try that connection alone, without a query of the
//! set: see [`last_active`].
//!
//! The send CQ and the receive CQ of a QP may both have many QPs. The QP is then in the group of
//! one CQ, and the other CQ drives that group as well. A QP stays in its first group as long as it
//! exists. Its descriptor is in the set while it has a connection.
//!
//! **No event is lost**, because the set is level-triggered. If a turn was refused (another thread
//! has the lock) or ended early, the next query reports the descriptor again. A descriptor must
//! therefore leave the set while its readiness is of no use (reading is paused, or both sides have
//! closed). [`Member::change`] does that after each turn. One query returns at most
//! [`GROUP_EVENTS`] descriptors, and the kernel moves these to the end of its ready list.
//!
//! A [`PollOwner`] records which thread watches a group's set, as for a single connection. Lock
//! order: QP, then any lock of a group. Locks of a group are taken one at a time, and none is held
//! while a connection has its turn.

mod dirty;
mod last_active;
mod members;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use rustix::event::{Timespec, epoll};

use self::dirty::DirtyList;
use self::last_active::{LastActive, Received};
pub(crate) use self::members::Member;
use uwarp_engine::times::after;

use self::members::Members;
use super::background::{Interest, Source, Verdict};
use super::poll_owner::{PollOwner, Registration};
use crate::connection::inner::QpInner;
use crate::device::DeviceInner;
use crate::policy::progress::{GROUP_EVENTS, GROUP_SPINS};
use crate::policy::{Heuristic, is_on};

/// Group of connections that are polled and waited for together.
pub(crate) struct EpollGroup {
    device: Arc<DeviceInner>,
    /// Epoll set with the descriptors of the members. It is level-triggered.
    set: OwnedFd,
    members: RwLock<Members>,
    dirty: DirtyList,
    last_active: LastActive,
    /// Time of the last query of the set by a polling thread, in nanoseconds of the device's clock.
    polled_at: AtomicU64,
    /// Number of polls since the background last received something, at most [`GROUP_SPINS`]. A
    /// poll that receives something sets the maximum.
    spins: AtomicU32,
    /// Registration of the set with the background.
    registration: Mutex<Registration>,
}

/// Kind of thread that runs a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// A polling thread, which skips connections that another thread has locked.
    Poll,
    /// A thread that is about to sleep, which skips nothing.
    Sleeper,
    /// The background, which skips connections that are polled through another CQ.
    Background,
}

/// Result of a turn or of a round of turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TurnResult {
    /// Bytes were sent or received.
    pub(crate) moved: bool,
    /// Bytes were received.
    pub(crate) received: bool,
    /// A connection was skipped because it is polled through another CQ.
    pub(crate) skipped: bool,
}

impl std::ops::BitOrAssign for TurnResult {
    fn bitor_assign(&mut self, other: TurnResult) {
        self.moved |= other.moved;
        self.received |= other.received;
        self.skipped |= other.skipped;
    }
}

impl EpollGroup {
    /// Creates an empty group.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub(crate) fn new(device: &Arc<DeviceInner>) -> rustix::io::Result<Arc<Self>> {
        let background = &device.background;
        let token = background.token();
        let group = Arc::new(EpollGroup {
            device: Arc::clone(device),
            set: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            members: RwLock::default(),
            dirty: DirtyList::default(),
            last_active: LastActive::default(),
            polled_at: AtomicU64::new(0),
            spins: AtomicU32::new(0),
            registration: Mutex::new(Registration::new(token)),
        });
        let weak: Weak<EpollGroup> = Arc::downgrade(&group);
        background.register(token, weak, group.set.as_fd())?;
        let mut registration = group.registration.lock();
        registration.arm(background, group.set.as_fd(), Interest::Read);
        drop(registration);
        Ok(group)
    }

    /// Adds a QP to the group.
    pub(crate) fn member(self: &Arc<Self>, qp: Weak<QpInner>) -> Member {
        let (index, members) = self.members.write().insert(qp);
        self.dirty.reserve(members);
        Member::new(Arc::clone(self), index)
    }

    /// Runs a round on behalf of a polling thread. `stays`: the thread is expected to poll again,
    /// and is not about to sleep.
    pub(crate) fn poll(&self, now: Instant, stays: bool) {
        self.note_poll(now, stays);
        let done = self.round_by_poll(now);
        let spins = self.spins.load(Ordering::Relaxed);
        if spins < GROUP_SPINS {
            let counted = if done.received {
                GROUP_SPINS
            } else {
                spins + 1
            };
            self.spins.store(counted, Ordering::Relaxed);
        }
        if done.moved {
            // The program could not poll during the round, so the end of the round counts as the
            // time of the poll.
            self.note_poll(self.device.now(), stays);
        }
    }

    fn note_poll(&self, now: Instant, stays: bool) {
        if stays {
            let at = self.device.clock(now);
            self.polled_at.store(at, Ordering::Relaxed);
        }
    }

    /// Returns true if a thread polled less than `Settings::takeover` ago and is not about to
    /// sleep.
    pub(crate) fn is_polled(&self, now: Instant) -> bool {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        let takeover = self.device.settings.takeover.as_nanos();
        polled_at != 0 && u128::from(self.device.clock(now).saturating_sub(polled_at)) < takeover
    }

    /// Makes the background take over at once, because a notification was requested.
    pub(crate) fn hand_over(&self) {
        // Stored before the lock is taken. The background then either sees that no thread polls, or
        // has already set the owner to `Watched`, which is handled below.
        self.polled_at.store(0, Ordering::Relaxed);
        let was_polled = self.registration.lock().owner == PollOwner::Watched;
        let now = self.device.now();
        if was_polled {
            self.round(now, Caller::Sleeper);
            let mut registration = self.registration.lock();
            registration.arm(&self.device.background, self.set.as_fd(), Interest::Read);
        } else {
            self.serve_dirty(now, Caller::Sleeper);
        }
    }

    /// Prepares a sleep of the calling thread, which ends with [`Self::wait_ends`]. Returns the
    /// descriptor to sleep on.
    ///
    /// Sends all staged requests. Until the sleep ends, no requests are staged.
    pub(crate) fn wait_begins(&self) -> RawFd {
        let mut registration = self.registration.lock();
        registration.wait_begins(&self.device.background, self.set.as_fd());
        drop(registration);
        if self.dirty.sleep_begins() > 0 {
            self.serve_dirty(self.device.now(), Caller::Sleeper);
        }
        self.set.as_raw_fd()
    }

    /// Runs a round after a sleep, and hands the set back to the background.
    pub(crate) fn wait_ends(&self) {
        self.dirty.sleep_ends();
        self.round(self.device.now(), Caller::Sleeper);
        let mut registration = self.registration.lock();
        let fd = Some(self.set.as_fd());
        registration.wait_ends(&self.device.background, fd, Interest::Read);
    }

    /// Makes sure that a round follows within `takeover` even if the program does not poll again.
    fn schedule_round(&self) {
        let mut registration = self.registration.lock();
        // A watched set needs no timer, because the background checks it regularly.
        if registration.owner != PollOwner::Watched {
            let due = after(self.device.now(), self.device.settings.takeover);
            registration.set_timer(&self.device.background, Some(due));
        }
    }

    /// Gives turns to the dirty members, and then either to the last active member alone or to all
    /// ready members.
    fn round_by_poll(&self, now: Instant) -> TurnResult {
        let mut done = self.serve_dirty(now, Caller::Poll);
        let alone = self.last_active.poll_alone(self.device.clock(now));
        let given = alone.and_then(|member| self.at(member)?.turn_in_group(now, Caller::Poll));
        done |= match given {
            Some(given) => {
                if given.received {
                    self.last_active.query_next();
                }
                given
            }
            None => self.serve_ready(now, Caller::Poll),
        };
        done
    }

    /// Gives turns to the dirty members, and then to the ready ones.
    fn round(&self, now: Instant, caller: Caller) -> TurnResult {
        let mut done = self.serve_dirty(now, caller);
        done |= self.serve_ready(now, caller);
        done
    }

    /// Gives turns to the members that are dirty when it is called.
    fn serve_dirty(&self, now: Instant, caller: Caller) -> TurnResult {
        let mut done = TurnResult::default();
        let dirty = self.dirty.len();
        if dirty == 0 {
            return done;
        }
        // Staged requests must be sent even if the connection is polled through another CQ.
        let caller = match caller {
            Caller::Background => Caller::Sleeper,
            caller => caller,
        };
        for _ in 0..dirty {
            let Some(index) = self.dirty.pop() else {
                break;
            };
            let Some(qp) = self.at(index) else {
                continue;
            };
            let Some(member) = qp.member() else {
                continue;
            };
            member.clear_dirty();
            let given = match qp.turn_in_group(now, caller) {
                None if member.mark_dirty() => None,
                // Another thread has the lock, and the list refuses the member because a third
                // thread is about to sleep. This turn waits for the lock.
                None => qp.turn_in_group(now, Caller::Sleeper),
                given => given,
            };
            done |= given.unwrap_or_default();
        }
        if !self.dirty.is_empty() {
            // Members became dirty while the list was not empty, so their posts scheduled no round.
            self.schedule_round();
        }
        done
    }

    /// Gives turns to the members whose descriptors are ready.
    fn serve_ready(&self, now: Instant, caller: Caller) -> TurnResult {
        let mut done = TurnResult::default();
        let mut received = Received::None;
        let mut turn = |index| {
            let given = self.at(index).and_then(|qp| qp.turn_in_group(now, caller));
            let given = given.unwrap_or_default();
            if given.received {
                received = received.with(index);
            }
            done |= given;
        };
        let mut room = [const { MaybeUninit::uninit() }; GROUP_EVENTS];
        match super::epoll::wait(&self.set, &mut room[..], Some(&Timespec::default())) {
            Ok(events) => {
                for event in events {
                    // The data of an event is the index of a member.
                    turn(u32::try_from(event.data.u64()).unwrap_or(u32::MAX));
                }
            }
            // A signal interrupted the query. The next poll queries again.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll_wait failed"),
        }
        self.last_active
            .note_query(self.device.clock(now), received);
        done
    }

    fn at(&self, index: u32) -> Option<Arc<QpInner>> {
        self.members.read().get(index)
    }
}

impl Source for EpollGroup {
    fn attend(&self, now: Instant) -> Verdict {
        let mut registration = self.registration.lock();
        registration.drop_expired_timers(now);
        let is_polled = self.spins.load(Ordering::Relaxed) >= GROUP_SPINS && self.is_polled(now);
        if is_on(Heuristic::StandBack) && is_polled {
            // A polling thread handles the event. If polling stops first, the background handles it
            // at a later check.
            registration.fired_while_polled();
            return Verdict::Watch;
        }
        let is_waited = registration.owner.is_waited();
        drop(registration);
        let mut done = self.serve_dirty(now, Caller::Background);
        if !is_waited {
            done |= self.serve_ready(now, Caller::Background);
        }
        if done.received {
            self.spins.store(0, Ordering::Relaxed);
        }
        let mut registration = self.registration.lock();
        if done.skipped || !self.dirty.is_empty() {
            // Two cases need another round. A ready member was skipped because another thread polls
            // it, and arming the set now would make the background spin. Or a member became dirty
            // meanwhile, and `schedule_round` (under this lock) set no timer because the set was
            // watched.
            registration.fired_while_polled();
            return Verdict::Watch;
        }
        registration.arm(&self.device.background, self.set.as_fd(), Interest::Read);
        Verdict::Settled
    }
}

impl Drop for EpollGroup {
    fn drop(&mut self) {
        // In the child of a fork the registration belongs to the parent.
        if self.device.is_here() {
            self.device.background.forget_fd(self.set.as_fd());
            self.device
                .background
                .forget(self.registration.get_mut().token);
        }
    }
}
