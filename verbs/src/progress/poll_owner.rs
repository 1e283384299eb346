//! Owner of a connection's descriptor: the thread that watches it while the connection's lock is
//! free.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::background::{Background, Interest, Token};
use super::epoll_group::Member;
use crate::policy::progress::EPOLL_RETRY;

/// Owner of a connection's descriptor; see the diagram in [`crate::progress`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PollOwner {
    /// There is no descriptor.
    Off,
    /// Armed in the background's epoll set.
    Armed { interest: Interest },
    /// The one shot was used up while the program polled the CQ. The background checks again soon.
    Watched,
    /// `threads` threads of the program wait on the descriptor.
    Waited { threads: u32 },
    /// In the set of a group, which has an owner of its own. `threads` threads of the program also
    /// wait on the descriptor directly.
    Grouped { threads: u32 },
}

/// Event that changes the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PollOwnerEvent {
    /// The background, or a post that found the LLP full, wants the descriptor armed.
    Arm { interest: Interest },
    /// The one shot was used up while the program polled the CQ.
    FiredWhilePolled,
    /// A thread of the program starts to wait on the descriptor.
    WaitBegins,
    /// A thread of the program has stopped waiting.
    WaitEnds,
    /// A group has added the descriptor to its set.
    Joined,
    /// The LLP connection is gone.
    Gone,
}

impl PollOwner {
    /// Returns the owner after `event`. All combinations are legal, because threads may start and
    /// stop waiting at any time.
    fn next(self, event: PollOwnerEvent) -> PollOwner {
        use PollOwnerEvent as E;
        match (self, event) {
            (PollOwner::Waited { threads }, E::WaitBegins) => PollOwner::Waited {
                threads: threads + 1,
            },
            (PollOwner::Armed { .. } | PollOwner::Watched, E::WaitBegins) => {
                PollOwner::Waited { threads: 1 }
            }
            (PollOwner::Waited { threads }, E::WaitEnds) if threads > 1 => PollOwner::Waited {
                threads: threads - 1,
            },
            // The last thread has left: the background takes over if the connection still exists.
            (PollOwner::Waited { .. }, E::WaitEnds) => PollOwner::Watched,
            // Waiting threads keep the descriptor until they leave.
            (PollOwner::Waited { .. }, _) => self,
            (PollOwner::Grouped { threads }, E::WaitBegins) => PollOwner::Grouped {
                threads: threads + 1,
            },
            (PollOwner::Grouped { threads }, E::WaitEnds) => PollOwner::Grouped {
                threads: threads.saturating_sub(1),
            },
            (PollOwner::Grouped { threads: 0 }, E::Gone) => PollOwner::Off,
            (PollOwner::Grouped { threads }, E::Gone) => PollOwner::Waited { threads },
            (PollOwner::Grouped { .. }, _) => self,
            (_, E::Joined) => PollOwner::Grouped { threads: 0 },
            (PollOwner::Armed { .. }, E::FiredWhilePolled) => PollOwner::Watched,
            (_, E::Arm { interest }) => PollOwner::Armed { interest },
            (_, E::Gone) => PollOwner::Off,
            (PollOwner::Off, E::WaitBegins)
            | (PollOwner::Off | PollOwner::Watched, E::FiredWhilePolled)
            | (PollOwner::Off | PollOwner::Armed { .. } | PollOwner::Watched, E::WaitEnds) => self,
        }
    }

    /// Returns true if threads of the program have the descriptor in their own sets.
    pub(crate) fn is_waited(self) -> bool {
        match self {
            PollOwner::Waited { .. } => true,
            PollOwner::Grouped { threads } => threads > 0,
            PollOwner::Off | PollOwner::Armed { .. } | PollOwner::Watched => false,
        }
    }

    /// Returns true if the descriptor is in the set of a group.
    pub(crate) fn is_grouped(self) -> bool {
        matches!(self, PollOwner::Grouped { .. })
    }
}

/// Registration of a connection, a group or a port for datagrams with the background.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) token: Token,
    pub(crate) owner: PollOwner,
    /// Earliest timer of this registration that is set in the background.
    pub(crate) timer: Option<Instant>,
    /// Earliest timer after `timer`. It is recorded so that it is not set again after `timer` has
    /// expired. Otherwise timers would pile up.
    next_timer: Option<Instant>,
    /// Readiness that the group's set reports while `Grouped`. [`Interest::None`]: the descriptor
    /// is not in the set now.
    group_interest: Interest,
}

impl Registration {
    /// Creates a registration whose descriptor nobody watches yet.
    pub(crate) fn new(token: Token) -> Self {
        Registration {
            token,
            owner: PollOwner::Off,
            timer: None,
            next_timer: None,
            group_interest: Interest::None,
        }
    }

    /// Arms the descriptor in the background's set for `wanted`. While threads of the program wait
    /// on it, arms it for writing only, if that is wanted.
    pub(crate) fn arm(&mut self, background: &Background, fd: BorrowedFd<'_>, wanted: Interest) {
        self.owner = self.owner.next(PollOwnerEvent::Arm { interest: wanted });
        let interest = match (self.owner.is_waited(), wanted.has_write()) {
            // The kernel reports errors and hang-ups even for a descriptor armed for no event, and
            // again at each arming.
            (false, _) if wanted == Interest::None => return,
            (false, _) => wanted,
            // The waiting threads handle only incoming bytes.
            (true, true) => Interest::Write,
            (true, false) => return,
        };
        background.arm(self.token, fd, interest);
    }

    /// Arms the descriptor after a turn of a thread other than the background, if it is not armed
    /// for an event that is wanted.
    pub(crate) fn adjust(&mut self, background: &Background, fd: BorrowedFd<'_>, wanted: Interest) {
        let missing = match self.owner {
            PollOwner::Armed { interest } => {
                (wanted.has_write() && !interest.has_write())
                    // The turn has resumed a connection that was starving.
                    || (wanted.has_read() && interest == Interest::Loss)
            }
            PollOwner::Waited { .. } => wanted.has_write(),
            PollOwner::Off | PollOwner::Watched | PollOwner::Grouped { .. } => false,
        };
        if missing {
            self.arm(background, fd, wanted);
        }
    }

    /// Adds the descriptor to the group's set after a turn, or updates it there. Returns false if
    /// the descriptor is not in a group afterwards: threads already wait on it, or the system lacks
    /// memory.
    pub(crate) fn join_group(
        &mut self,
        background: &Background,
        member: &Member,
        fd: BorrowedFd<'_>,
        wanted: Interest,
    ) -> bool {
        if matches!(self.owner, PollOwner::Waited { .. }) {
            return false;
        }
        if let Err(error) = member.change(fd, self.group_interest, wanted) {
            tracing::error!(token = self.token, %error, "epoll_ctl failed");
            if self.owner.is_grouped() {
                // The set could not be changed. A turn after the interval tries again.
                let again = background.now() + EPOLL_RETRY;
                self.set_timer(background, Some(again));
            }
            return self.owner.is_grouped();
        }
        self.group_interest = wanted;
        if !self.owner.is_grouped() {
            background.forget_fd(fd);
            self.owner = self.owner.next(PollOwnerEvent::Joined);
        }
        true
    }

    /// Removes the descriptor from the group's set before it is closed.
    pub(crate) fn leave_group(&mut self, member: Option<&Member>, fd: BorrowedFd<'_>) {
        if let Some(member) = member
            && self.owner.is_grouped()
        {
            let _ = member.change(fd, self.group_interest, Interest::None);
            self.group_interest = Interest::None;
            self.owner = self.owner.next(PollOwnerEvent::Gone);
        }
    }

    /// Leaves an event to the polling thread.
    pub(crate) fn fired_while_polled(&mut self) {
        self.owner = self.owner.next(PollOwnerEvent::FiredWhilePolled);
    }

    /// Makes sure that the background wakes up by `deadline`.
    pub(crate) fn set_timer(&mut self, background: &Background, deadline: Option<Instant>) {
        if let Some(deadline) = deadline
            && self.timer.is_none_or(|timer| deadline < timer)
        {
            self.next_timer = self.timer.replace(deadline);
            background.at(self.token, deadline);
        }
    }

    /// Removes the timers that have expired by `now`.
    pub(crate) fn drop_expired_timers(&mut self, now: Instant) {
        while self.timer.is_some_and(|timer| timer <= now) {
            self.timer = self.next_timer.take();
        }
    }

    /// Records that a thread of the program starts to wait on the descriptor. Returns false if the
    /// owner is `Off`, because then there is no descriptor to wait on.
    pub(crate) fn wait_begins(&mut self, background: &Background, fd: BorrowedFd<'_>) -> bool {
        if matches!(self.owner, PollOwner::Armed { .. }) {
            background.arm(self.token, fd, Interest::None);
        }
        self.owner = self.owner.next(PollOwnerEvent::WaitBegins);
        self.owner.is_waited()
    }

    /// Records that a thread of the program has stopped waiting. The last one hands the descriptor
    /// back to the background.
    pub(crate) fn wait_ends(
        &mut self,
        background: &Background,
        fd: Option<BorrowedFd<'_>>,
        wanted: Interest,
    ) {
        let was_waited = self.owner.is_waited();
        self.owner = self.owner.next(PollOwnerEvent::WaitEnds);
        if was_waited && !self.owner.is_waited() {
            match fd {
                // The group has the descriptor.
                Some(_) if self.owner.is_grouped() => {}
                Some(fd) => self.arm(background, fd, wanted),
                None => self.gone(),
            }
        }
    }

    /// Records that the LLP connection is gone.
    pub(crate) fn gone(&mut self) {
        self.owner = self.owner.next(PollOwnerEvent::Gone);
        (self.timer, self.next_timer) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::super::background::{Source, Verdict};
    use super::*;
    use crate::clock::TimeSource;
    use crate::settings::Progress;

    /// Source that counts its turns.
    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Source for Counted {
        fn attend(&self, _: Instant) -> Verdict {
            self.0.fetch_add(1, Ordering::Relaxed);
            Verdict::Settled
        }
    }

    #[test]
    fn what_is_polled_is_left_alone_until_it_is_armed_again() {
        let background = Background::start(
            Duration::from_micros(50),
            Progress::Manual,
            TimeSource::default(),
        );
        let background = background.unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let fd = ours.as_fd();
        let source = Arc::new(Counted::default());
        let weak: std::sync::Weak<Counted> = Arc::downgrade(&source);
        let token = background.token();
        background.register(token, weak, fd).unwrap();
        let mut registration = Registration::new(token);
        let turns = || {
            background.progress();
            source.0.swap(0, Ordering::Relaxed)
        };

        registration.arm(&background, fd, Interest::Read);
        std::io::Write::write_all(&mut theirs, b"unread bytes").unwrap();
        assert_eq!(turns(), 1);
        for _ in 0..3 {
            registration.fired_while_polled();
        }
        assert_eq!(registration.owner, PollOwner::Watched);
        assert_eq!(turns(), 0);

        registration.arm(&background, fd, Interest::Read);
        assert_eq!(turns(), 1, "it is still ready");
        assert_eq!(turns(), 0, "only one shot");

        // A thread of the program waits on the descriptor, and the LLP is full. The descriptor is
        // armed for writing.
        registration.fired_while_polled();
        assert!(registration.wait_begins(&background, fd));
        registration.adjust(&background, fd, Interest::ReadWrite);
        assert_eq!(turns(), 1);
        registration.wait_ends(&background, Some(fd), Interest::Read);
        assert_eq!(turns(), 1, "still readable");
        background.forget_fd(fd);
        background.forget(token);
    }

    #[test]
    fn state_table() {
        let states = [
            PollOwner::Off,
            PollOwner::Armed {
                interest: Interest::Read,
            },
            PollOwner::Armed {
                interest: Interest::ReadWrite,
            },
            PollOwner::Watched,
            PollOwner::Waited { threads: 1 },
            PollOwner::Waited { threads: 2 },
            PollOwner::Grouped { threads: 0 },
            PollOwner::Grouped { threads: 1 },
        ];
        let events = [
            PollOwnerEvent::Arm {
                interest: Interest::Read,
            },
            PollOwnerEvent::Arm {
                interest: Interest::Write,
            },
            PollOwnerEvent::FiredWhilePolled,
            PollOwnerEvent::WaitBegins,
            PollOwnerEvent::WaitEnds,
            PollOwnerEvent::Joined,
            PollOwnerEvent::Gone,
        ];
        let mut table = String::new();
        for event in events {
            writeln!(table, "{event:?}").unwrap();
            for state in states {
                writeln!(
                    table,
                    "    {:32} -> {:?}",
                    format!("{state:?}"),
                    state.next(event)
                )
                .unwrap();
            }
        }
        insta::assert_snapshot!(table);
    }
}
