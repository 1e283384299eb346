//! Last active member of a group. While no other member receives, polls try this member alone.
//!
//! A program that exchanges small messages with one peer of many waits for that peer. A query of
//! the set followed by a turn of the connection costs two system calls, and work of the kernel for
//! the set. Trying the connection alone costs one call, as without a group. The result of a query
//! that finds no ready member is therefore used for a short time: [`ALONE_POLLS`] polls or
//! [`ALONE_NANOSECONDS`], whichever ends first. After the connection has received, the next poll
//! queries the set, so that other members do not wait any longer.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::policy::progress::{ALONE_NANOSECONDS, ALONE_POLLS};
use crate::policy::{Heuristic, is_on};

/// Value of `member` if no member is recorded.
const NO_MEMBER: u32 = u32::MAX;
/// Value of `queried_at` that makes the next poll query the set.
const NEVER: u64 = 0;

/// Recent results of queries. They are only hints: threads that poll at the same time may overwrite
/// each other's values. The next query then happens one poll too early or too late.
pub(super) struct LastActive {
    /// Index of the last member that received while no other did.
    member: AtomicU32,
    /// Time of the last query without ready members, in nanoseconds of the device's clock.
    queried_at: AtomicU64,
    /// Number of polls since that query.
    polls: AtomicU32,
}

impl Default for LastActive {
    fn default() -> Self {
        LastActive {
            member: AtomicU32::new(NO_MEMBER),
            queried_at: AtomicU64::new(NEVER),
            polls: AtomicU32::new(0),
        }
    }
}

impl LastActive {
    /// Returns the member that this poll tries instead of a query, and counts the poll. Returns
    /// `None` if the poll has to query the set.
    pub(super) fn poll_alone(&self, now: u64) -> Option<u32> {
        let member = self.member.load(Ordering::Relaxed);
        let queried_at = self.queried_at.load(Ordering::Relaxed);
        let polls = self.polls.load(Ordering::Relaxed);
        let is_due = queried_at == NEVER
            || polls >= ALONE_POLLS
            || now.saturating_sub(queried_at) >= ALONE_NANOSECONDS;
        if !is_on(Heuristic::LastActive) || member == NO_MEMBER || is_due {
            return None;
        }
        self.polls.store(polls + 1, Ordering::Relaxed);
        Some(member)
    }

    /// Makes the next poll query the set.
    pub(super) fn query_next(&self) {
        self.queried_at.store(NEVER, Ordering::Relaxed);
    }

    /// Records a query of the set, and the members that received in the turns after it.
    pub(super) fn note_query(&self, now: u64, received: Received) {
        match received {
            Received::None => {
                self.polls.store(0, Ordering::Relaxed);
                self.queried_at.store(now, Ordering::Relaxed);
            }
            Received::One(member) => {
                self.member.store(member, Ordering::Relaxed);
                self.query_next();
            }
            Received::Several => {
                self.member.store(NO_MEMBER, Ordering::Relaxed);
                self.query_next();
            }
        }
    }
}

/// Members that received after a query of the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    None,
    One(u32),
    Several,
}

impl Received {
    /// Returns this value with one more member that received.
    pub(super) fn with(self, member: u32) -> Self {
        match self {
            Received::None => Received::One(member),
            Received::One(_) | Received::Several => Received::Several,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    #[test]
    fn a_member_that_received_alone_is_polled_alone_after_a_query_without_ready_members() {
        let last_active = LastActive::default();
        last_active.note_query(NOW, Received::None);
        assert_eq!(
            last_active.poll_alone(NOW),
            None,
            "no member has received yet"
        );
        last_active.note_query(NOW, Received::None.with(7));
        assert_eq!(
            last_active.poll_alone(NOW),
            None,
            "other members may be ready by now"
        );
        last_active.note_query(NOW, Received::None);
        assert_eq!(last_active.poll_alone(NOW), Some(7));
        last_active.query_next();
        assert_eq!(last_active.poll_alone(NOW), None);
    }

    #[test]
    fn a_query_holds_for_a_number_of_polls_and_a_time() {
        let last_active = LastActive::default();
        last_active.note_query(NOW, Received::One(7));
        last_active.note_query(NOW, Received::None);
        for _ in 0..ALONE_POLLS {
            assert_eq!(last_active.poll_alone(NOW), Some(7));
        }
        assert_eq!(last_active.poll_alone(NOW), None);
        last_active.note_query(NOW, Received::None);
        assert_eq!(last_active.poll_alone(NOW + ALONE_NANOSECONDS - 1), Some(7));
        assert_eq!(last_active.poll_alone(NOW + ALONE_NANOSECONDS), None);
    }

    #[test]
    fn the_set_is_queried_if_several_members_received() {
        let last_active = LastActive::default();
        last_active.note_query(NOW, Received::One(7));
        last_active.note_query(NOW, Received::None.with(7).with(8));
        last_active.note_query(NOW, Received::None);
        assert_eq!(last_active.poll_alone(NOW), None);
    }
}
