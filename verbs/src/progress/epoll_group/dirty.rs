//! List of the dirty members of a group. A dirty member has staged requests, so it needs a turn
//! although nothing arrived.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Dirty members, in the order in which they became dirty. Each is listed at most once, because a
/// flag in its [`Member`](super::Member) records that it is listed.
#[derive(Default)]
pub(super) struct DirtyList {
    queue: Mutex<Queue>,
    /// Number of listed members, which polls read without the lock. Code that must not miss a
    /// member takes the lock.
    len: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    members: VecDeque<u32>,
    /// Number of threads that sleep on the group or are about to.
    sleepers: u32,
}

/// Result of listing a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Marked {
    /// The list was empty: the caller has to schedule a round.
    First,
    /// The list was not empty, so a round is already due.
    Queued,
    /// The member was not listed: a thread sleeps on the group, so no round would follow soon.
    Refused,
}

impl DirtyList {
    /// Allocates room for `members` members, so that later calls do not allocate.
    pub(super) fn reserve(&self, members: usize) {
        let mut queue = self.queue.lock();
        let missing = members.saturating_sub(queue.members.len());
        queue.members.reserve(missing);
    }

    /// Lists a member for a turn.
    pub(super) fn push(&self, member: u32) -> Marked {
        let mut queue = self.queue.lock();
        if queue.sleepers > 0 {
            return Marked::Refused;
        }
        queue.members.push_back(member);
        self.len.store(queue.members.len(), Ordering::Relaxed);
        match queue.members.len() {
            1 => Marked::First,
            _ => Marked::Queued,
        }
    }

    /// Removes and returns the member that has been listed longest.
    pub(super) fn pop(&self) -> Option<u32> {
        let mut queue = self.queue.lock();
        let member = queue.members.pop_front();
        self.len.store(queue.members.len(), Ordering::Relaxed);
        member
    }

    /// Returns the number of listed members. It is read without the lock, so it may be outdated.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns true if the list is empty, checked under the lock.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().members.is_empty()
    }

    /// Refuses new members from now on, because a thread is about to sleep. Returns the number of
    /// listed members, which must be served before the sleep.
    pub(super) fn sleep_begins(&self) -> usize {
        let mut queue = self.queue.lock();
        queue.sleepers += 1;
        queue.members.len()
    }

    /// Records that a sleeping thread woke up.
    pub(super) fn sleep_ends(&self) {
        let mut queue = self.queue.lock();
        queue.sleepers = queue.sleepers.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_get_their_turn_in_the_order_in_which_they_were_listed() {
        let dirty = DirtyList::default();
        assert_eq!(dirty.push(7), Marked::First);
        assert_eq!(dirty.push(3), Marked::Queued);
        assert_eq!(dirty.len(), 2);
        assert_eq!(
            [dirty.pop(), dirty.pop(), dirty.pop()],
            [Some(7), Some(3), None]
        );
        assert_eq!(dirty.len(), 0);
        assert_eq!(dirty.push(1), Marked::First);
    }

    #[test]
    fn a_member_is_either_served_before_a_thread_sleeps_or_refused() {
        let dirty = DirtyList::default();
        dirty.push(1);
        assert_eq!(dirty.sleep_begins(), 1);
        assert_eq!(dirty.push(2), Marked::Refused);
        assert_eq!(dirty.sleep_begins(), 1, "a second thread may sleep");
        dirty.sleep_ends();
        assert_eq!(dirty.push(2), Marked::Refused);
        dirty.sleep_ends();
        assert_eq!(dirty.push(2), Marked::Queued);
    }
}
