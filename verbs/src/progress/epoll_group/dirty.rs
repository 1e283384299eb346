//! Members of a group that need a turn although nothing arrived, because posts staged requests
//! there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Members whose turn is due, oldest first. Each is listed once, because its
/// [`Member`](super::Member) has a flag for it.
#[derive(Default)]
pub(super) struct DirtyList {
    queue: Mutex<Queue>,
    /// Number of members, for polls that look without the lock. Code that must not miss one takes
    /// the lock.
    len: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    members: VecDeque<u32>,
    /// Threads that sleep on the group or are about to.
    sleepers: u32,
}

/// Result of listing a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Marked {
    /// The list was empty: the caller has to schedule a round.
    First,
    /// Listed after others.
    Queued,
    /// A thread sleeps on the group, so no round would follow.
    Refused,
}

impl DirtyList {
    /// Makes room for this many members, so that later calls do not allocate.
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

    /// Removes the member that has waited longest.
    pub(super) fn pop(&self) -> Option<u32> {
        let mut queue = self.queue.lock();
        let member = queue.members.pop_front();
        self.len.store(queue.members.len(), Ordering::Relaxed);
        member
    }

    /// Number of members, perhaps outdated.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns true if the list is empty, checked under the lock.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().members.is_empty()
    }

    /// Refuses members from now on, because a thread is about to sleep. Returns the number that
    /// must be served first; no member can be added after this count.
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
