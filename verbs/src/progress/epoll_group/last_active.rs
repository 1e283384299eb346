//! Last active member of a group. While it is the only one that receives, polls try it alone.
//!
//! A program that exchanges small messages with one peer of many waits for that peer. A query of
//! the set and then of the connection costs two system calls and the kernel's upkeep of the set.
//! Trying the connection alone costs one, as without a group. A query that finds no ready member
//! therefore holds for a short time: [`POLLS`] polls or [`NANOSECONDS`], whichever ends first.
//! After the connection has received, the next poll queries the set, so that no member waits for
//! the second message of another.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of polls that skip the set after a query without ready members.
const POLLS: u32 = 16;
/// The same limit as a time, for programs that poll rarely.
const NANOSECONDS: u64 = 10_000;
/// Value of `member` for none.
const NOBODY: u32 = u32::MAX;
/// Value of `queried_at` that makes the next poll query the set.
const NEVER: u64 = 0;

/// Hints only: threads that poll at the same time may overwrite each other's values. As a result
/// the set is queried a poll too early or too late.
pub(super) struct LastActive {
    /// Index of the last member that received while no other did.
    member: AtomicU32,
    /// Time of the last query without ready members, in nanoseconds of the device's clock.
    asked_at: AtomicU64,
    /// Polls since then.
    polls: AtomicU32,
}

impl Default for LastActive {
    fn default() -> Self {
        LastActive {
            member: AtomicU32::new(NOBODY),
            asked_at: AtomicU64::new(NEVER),
            polls: AtomicU32::new(0),
        }
    }
}

impl LastActive {
    /// Returns the member that this poll tries instead of the set, and counts the poll.
    pub(super) fn alone(&self, now: u64) -> Option<u32> {
        let member = self.member.load(Ordering::Relaxed);
        let asked_at = self.asked_at.load(Ordering::Relaxed);
        let polls = self.polls.load(Ordering::Relaxed);
        let mark_due =
            asked_at == NEVER || polls >= POLLS || now.saturating_sub(asked_at) >= NANOSECONDS;
        if member == NOBODY || mark_due {
            return None;
        }
        self.polls.store(polls + 1, Ordering::Relaxed);
        Some(member)
    }

    /// Makes the next poll query the set.
    pub(super) fn ask_next(&self) {
        self.asked_at.store(NEVER, Ordering::Relaxed);
    }

    /// Records a query of the set and the members that received.
    pub(super) fn asked(&self, now: u64, received: Received) {
        match received {
            Received::Nobody => {
                self.polls.store(0, Ordering::Relaxed);
                self.asked_at.store(now, Ordering::Relaxed);
            }
            Received::One(member) => {
                self.member.store(member, Ordering::Relaxed);
                self.ask_next();
            }
            Received::Several => {
                self.member.store(NOBODY, Ordering::Relaxed);
                self.ask_next();
            }
        }
    }
}

/// Members that received after a query of the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    Nobody,
    One(u32),
    Several,
}

impl Received {
    /// Adds a member.
    pub(super) fn and(self, member: u32) -> Self {
        match self {
            Received::Nobody => Received::One(member),
            Received::One(_) | Received::Several => Received::Several,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    #[test]
    fn who_received_by_itself_is_asked_alone_once_the_set_had_nobody() {
        let last_active = LastActive::default();
        last_active.asked(NOW, Received::Nobody);
        assert_eq!(last_active.alone(NOW), None, "nobody has received yet");
        last_active.asked(NOW, Received::Nobody.and(7));
        assert_eq!(
            last_active.alone(NOW),
            None,
            "the others may be ready by now"
        );
        last_active.asked(NOW, Received::Nobody);
        assert_eq!(last_active.alone(NOW), Some(7));
        last_active.ask_next();
        assert_eq!(last_active.alone(NOW), None);
    }

    #[test]
    fn a_look_at_the_set_is_good_for_so_many_polls_and_so_long() {
        let last_active = LastActive::default();
        last_active.asked(NOW, Received::One(7));
        last_active.asked(NOW, Received::Nobody);
        for _ in 0..POLLS {
            assert_eq!(last_active.alone(NOW), Some(7));
        }
        assert_eq!(last_active.alone(NOW), None);
        last_active.asked(NOW, Received::Nobody);
        assert_eq!(last_active.alone(NOW + NANOSECONDS - 1), Some(7));
        assert_eq!(last_active.alone(NOW + NANOSECONDS), None);
    }

    #[test]
    fn where_several_receive_the_set_is_asked() {
        let last_active = LastActive::default();
        last_active.asked(NOW, Received::One(7));
        last_active.asked(NOW, Received::Nobody.and(7).and(8));
        last_active.asked(NOW, Received::Nobody);
        assert_eq!(last_active.alone(NOW), None);
    }
}
