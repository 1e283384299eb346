//! Many connections of one CQ: looked after together.
//!
//! To give each of many connections a turn whenever their CQ is polled would cost a system call for each. So a CQ with more than
//! [`FEW`] QPs has a *crowd*: an epoll set of the descriptors of all of them. A poll asks the set once, and gives a turn
//! to those that are ready, and to those that are *hot*: posts have staged something there. A thread that waits sleeps
//! on the set. The background has the set in its own one, as one descriptor: it stands back from a crowd that is polled,
//! and takes it over when nobody polls it any more, as it does with a single connection.
//!
//! ```text
//!            Cq::poll ──┐                      ┌── socket of QP 1
//!            Cq::wait ──┼──► set of the crowd ─┼── socket of QP 2
//!   set of background ──┘   (level-triggered)  └── ...
//! ```
//!
//! While one connection alone receives, polls ask that one, and the set every so often: see [`latest`].
//!
//! A QP with a send and a receive CQ that both have many sits in the crowd of one of them, and the other CQ drives that
//! crowd too. A QP sits where it sat first, as long as it exists; its descriptor is in the set while there is a
//! connection.
//!
//! **Nothing is lost** because readiness is a state here: a descriptor whose turn was refused (another thread has the lock) or
//! ended early is ready at the next look. So it must not stay in the set while it is ready and not wanted (reading
//! is paused, both sides have closed): [`Member::change`] follows each turn. One look takes
//! [`EVENTS`] at most, and the kernel puts those behind the others.
//!
//! Who looks after a crowd while nobody polls it is a [`PollOwner`](super::poll_owner::PollOwner), as for a single
//! connection. Lock order: QP, then any lock of a crowd; those of a crowd are held one at a time, and never while a turn
//! is given.

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
use self::members::Members;
use super::background::{Interest, Source, Verdict};
use super::poll_owner::{PollOwner, Registration};
use crate::device::DeviceInner;
use crate::qp::inner::QpInner;
use crate::wait::after;

/// A CQ with more QPs than this has a crowd: a turn for each of so few costs about as much as a look at a set.
pub(crate) const FEW: usize = 4;
/// Connections that one look finds at most.
const EVENTS: usize = 64;
/// After so many polls since the background received something, a program is one that polls all the time. One that polls
/// once for each message, and looks at its memory in between, is to be served by the background at once.
const SPINS: u32 = 8;

/// Many connections that are looked after together.
pub(crate) struct EpollGroup {
    device: Arc<DeviceInner>,
    /// The epoll set.
    set: OwnedFd,
    members: RwLock<Members>,
    dirty: DirtyList,
    last_active: LastActive,
    /// When a thread that polls last asked the set, in nanoseconds of the device's clock.
    polled_at: AtomicU64,
    /// Polls since the background received something, up to [`SPINS`]. One that received counts for all of them.
    spins: AtomicU32,
    /// The set, as the background has it.
    registration: Mutex<Registration>,
}

/// Who gives turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// A thread that polls, and passes over whoever another thread is busy with.
    Poll,
    /// A thread that is about to sleep: it leaves nothing behind.
    Sleeper,
    /// The background. It leaves those alone that are polled by another CQ.
    Background,
}

/// What a turn, or a round of them, did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Done {
    /// Bytes went out or came in.
    pub(crate) moved: bool,
    /// Bytes came in.
    pub(crate) received: bool,
    /// Somebody is polled by another CQ, and was left alone.
    pub(crate) left: bool,
}

impl std::ops::BitOrAssign for Done {
    fn bitor_assign(&mut self, other: Done) {
        self.moved |= other.moved;
        self.received |= other.received;
        self.left |= other.left;
    }
}

impl EpollGroup {
    /// A crowd of nobody.
    ///
    /// # Errors
    /// When the process has no descriptor left.
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
            registration: Mutex::new(Registration::of_set(token)),
        });
        let weak: Weak<EpollGroup> = Arc::downgrade(&group);
        background.register(token, weak, group.set.as_fd())?;
        let mut registration = group.registration.lock();
        registration.arm(background, group.set.as_fd(), Interest::Read);
        drop(registration);
        Ok(group)
    }

    /// A seat for a QP.
    pub(crate) fn member(self: &Arc<Self>, qp: Weak<QpInner>) -> Member {
        let (index, members) = self.members.write().take(qp);
        self.dirty.reserve(members);
        Member::new(Arc::clone(self), index)
    }

    /// A thread polls. `stays`: it is going to poll again, and not about to sleep.
    pub(crate) fn poll(&self, now: Instant, stays: bool) {
        self.note_poll(now, stays);
        let done = self.round_by_poll(now);
        let spins = self.spins.load(Ordering::Relaxed);
        if spins < SPINS {
            let counted = if done.received { SPINS } else { spins + 1 };
            self.spins.store(counted, Ordering::Relaxed);
        }
        if done.moved {
            // It took its time, in which the program could not have polled.
            self.note_poll(self.device.now(), stays);
        }
    }

    fn note_poll(&self, now: Instant, stays: bool) {
        if stays {
            let at = self.device.clock(now);
            self.polled_at.store(at, Ordering::Relaxed);
        }
    }

    /// Whether a thread has polled less than `Settings::takeover` ago, and is not about to sleep.
    pub(crate) fn is_polled(&self, now: Instant) -> bool {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        let takeover = self.device.settings.takeover.as_nanos();
        polled_at != 0 && u128::from(self.device.clock(now).saturating_sub(polled_at)) < takeover
    }

    /// A notification was requested: the background takes over at once.
    pub(crate) fn hand_over(&self) {
        // Before the lock: the background either sees this, or has left the crowd to us.
        self.polled_at.store(0, Ordering::Relaxed);
        let was_polled = self.registration.lock().owner == PollOwner::Watched;
        let now = self.device.now();
        if was_polled {
            self.round(now, By::Sleeper);
            let mut registration = self.registration.lock();
            registration.arm(&self.device.background, self.set.as_fd(), Interest::Read);
        } else {
            self.serve_dirty(now, By::Sleeper);
        }
    }

    /// The calling thread will sleep until this descriptor is readable, or until [`Self::wait_ends`]. Nothing is staged
    /// from now on, and what was is sent.
    pub(crate) fn wait_begins(&self) -> RawFd {
        let mut registration = self.registration.lock();
        registration.wait_begins(&self.device.background, self.set.as_fd());
        drop(registration);
        if self.dirty.sleep_begins() > 0 {
            self.serve_dirty(self.device.now(), By::Sleeper);
        }
        self.set.as_raw_fd()
    }

    /// The calling thread is awake: a round, and back to the background.
    pub(crate) fn wait_ends(&self) {
        self.dirty.sleep_ends();
        self.round(self.device.now(), By::Sleeper);
        let mut registration = self.registration.lock();
        let fd = Some(self.set.as_fd());
        registration.wait_ends(&self.device.background, fd, Interest::Read);
    }

    /// Sees to it that there is a round soon, whether the program comes back or not.
    fn see_to_it(&self) {
        let mut registration = self.registration.lock();
        // One that is watched is looked at every so often anyway.
        if registration.owner != PollOwner::Watched {
            let due = after(self.device.now(), self.device.settings.takeover);
            registration.set_timer(&self.device.background, Some(due));
        }
    }

    /// Turns for those that are hot, and for who received last or for those that are ready.
    fn round_by_poll(&self, now: Instant) -> Done {
        let mut done = self.serve_dirty(now, By::Poll);
        let alone = self.last_active.alone(self.device.clock(now));
        let given = alone.and_then(|member| self.at(member)?.turn_in_group(now, By::Poll));
        done |= match given {
            Some(given) => {
                if given.received {
                    self.last_active.ask_next();
                }
                given
            }
            None => self.serve_ready(now, By::Poll),
        };
        done
    }

    /// Turns for those that are hot, and for those that are ready.
    fn round(&self, now: Instant, by: By) -> Done {
        let mut done = self.serve_dirty(now, by);
        done |= self.serve_ready(now, by);
        done
    }

    /// Turns for those that were hot when it began.
    fn serve_dirty(&self, now: Instant, by: By) -> Done {
        let mut done = Done::default();
        let dirty = self.dirty.len();
        if dirty == 0 {
            return done;
        }
        // What was staged leaves, whoever else polls.
        let by = match by {
            By::Background => By::Sleeper,
            by => by,
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
            let given = match qp.turn_in_group(now, by) {
                None if member.mark_dirty() => None,
                // Another thread has the lock, and a third one is about to sleep.
                None => qp.turn_in_group(now, By::Sleeper),
                given => given,
            };
            done |= given.unwrap_or_default();
        }
        if !self.dirty.is_empty() {
            // These came behind one that is served now, and which somebody saw to.
            self.see_to_it();
        }
        done
    }

    /// Turns for those whose descriptors are ready.
    fn serve_ready(&self, now: Instant, by: By) -> Done {
        let mut done = Done::default();
        let mut received = Received::Nobody;
        let mut turn = |index| {
            let given = self.at(index).and_then(|qp| qp.turn_in_group(now, by));
            let given = given.unwrap_or_default();
            if given.received {
                received = received.and(index);
            }
            done |= given;
        };
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        match super::epoll::wait(&self.set, &mut room[..], Some(&Timespec::default())) {
            Ok(events) => {
                for event in events {
                    // What was put in is a number of a seat.
                    turn(u32::try_from(event.data.u64()).unwrap_or(u32::MAX));
                }
            }
            // A signal came first: the next poll looks again.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll_wait failed"),
        }
        self.last_active.asked(self.device.clock(now), received);
        done
    }

    fn at(&self, index: u32) -> Option<Arc<QpInner>> {
        self.members.read().get(index)
    }
}

impl Source for EpollGroup {
    fn attend(&self, now: Instant) -> Verdict {
        let mut registration = self.registration.lock();
        registration.timers_pass(now);
        if self.spins.load(Ordering::Relaxed) >= SPINS && self.is_polled(now) {
            // A thread that polls takes care of it. Whatever woke us is not lost: we look again.
            registration.fired_while_polled(&self.device.background, self.set.as_fd());
            return Verdict::Watch;
        }
        let is_waited = registration.owner.is_waited();
        drop(registration);
        let mut done = self.serve_dirty(now, By::Background);
        if !is_waited {
            done |= self.serve_ready(now, By::Background);
        }
        if done.received {
            self.spins.store(0, Ordering::Relaxed);
        }
        let mut registration = self.registration.lock();
        if done.left || !self.dirty.is_empty() {
            // Ready, and another thread's: to arm it now would be to spin. Or somebody became hot meanwhile, and saw that the
            // set is watched (`see_to_it`, under this lock).
            registration.fired_while_polled(&self.device.background, self.set.as_fd());
            return Verdict::Watch;
        }
        registration.arm(&self.device.background, self.set.as_fd(), Interest::Read);
        Verdict::Settled
    }
}

impl Drop for EpollGroup {
    fn drop(&mut self) {
        // In the child of a fork the set is the parent's too.
        if self.device.fork_guard.is_here() {
            self.device.background.forget_fd(self.set.as_fd());
            self.device
                .background
                .forget(self.registration.get_mut().token);
        }
    }
}
