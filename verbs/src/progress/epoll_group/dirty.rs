//! Connections of a crowd that want a turn although nothing arrived: posts have staged something there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Seats whose turn is due, oldest first; each is in it once, for its [`Member`](super::Member) knows.
#[derive(Default)]
pub(super) struct DirtyList {
    queue: Mutex<Queue>,
    /// Seats in it, for polls that look without the lock. Who is to miss nothing takes the lock.
    len: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    members: VecDeque<u32>,
    /// Threads that sleep on the crowd, or are about to.
    sleepers: u32,
}

/// What became of a seat that wants a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Marked {
    /// It is the first one: somebody has to see to it that a round comes.
    First,
    /// It is behind others.
    Queued,
    /// A thread sleeps on the crowd: nobody would come.
    Refused,
}

impl DirtyList {
    /// Room for so many seats: later nothing allocates.
    pub(super) fn reserve(&self, members: usize) {
        let mut queue = self.queue.lock();
        let missing = members.saturating_sub(queue.members.len());
        queue.members.reserve(missing);
    }

    /// The seat wants a turn.
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

    /// The seat that has waited longest.
    pub(super) fn pop(&self) -> Option<u32> {
        let mut queue = self.queue.lock();
        let member = queue.members.pop_front();
        self.len.store(queue.members.len(), Ordering::Relaxed);
        member
    }

    /// How many there are, or were a moment ago.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there is none, without doubt.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().members.is_empty()
    }

    /// A thread is about to sleep: from now on none is taken in. Gives how many are to be served before; none
    /// slips in between.
    pub(super) fn sleep_begins(&self) -> usize {
        let mut queue = self.queue.lock();
        queue.sleepers += 1;
        queue.members.len()
    }

    /// It is awake.
    pub(super) fn sleep_ends(&self) {
        let mut queue = self.queue.lock();
        queue.sleepers = queue.sleepers.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_have_their_turn_in_the_order_in_which_they_asked() {
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
    fn whoever_asks_is_either_served_before_a_thread_sleeps_or_refused() {
        let dirty = DirtyList::default();
        dirty.push(1);
        assert_eq!(dirty.sleep_begins(), 1);
        assert_eq!(dirty.push(2), Marked::Refused);
        assert_eq!(dirty.sleep_begins(), 1, "two may sleep");
        dirty.sleep_ends();
        assert_eq!(dirty.push(2), Marked::Refused);
        dirty.sleep_ends();
        assert_eq!(dirty.push(2), Marked::Queued);
    }
}
