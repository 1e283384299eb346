//! Connections of a crowd that want a turn although nothing arrived: posts have staged something there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Seats whose turn is due, oldest first; each is in it once, for its [`Seat`](super::Seat) knows.
#[derive(Default)]
pub(super) struct Hot {
    queue: Mutex<Queue>,
    /// Seats in it, for polls that look without the lock. Who is to miss nothing takes the lock.
    len: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    seats: VecDeque<u32>,
    /// Threads that sleep on the crowd, or are about to.
    sleepers: u32,
}

/// What became of a seat that wants a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heated {
    /// It is the first one: somebody has to see to it that a round comes.
    First,
    /// It is behind others.
    Queued,
    /// A thread sleeps on the crowd: nobody would come.
    Refused,
}

impl Hot {
    /// Room for so many seats: later nothing allocates.
    pub(super) fn reserve(&self, seats: usize) {
        let mut queue = self.queue.lock();
        let missing = seats.saturating_sub(queue.seats.len());
        queue.seats.reserve(missing);
    }

    /// The seat wants a turn.
    pub(super) fn push(&self, seat: u32) -> Heated {
        let mut queue = self.queue.lock();
        if queue.sleepers > 0 {
            return Heated::Refused;
        }
        queue.seats.push_back(seat);
        self.len.store(queue.seats.len(), Ordering::Relaxed);
        match queue.seats.len() {
            1 => Heated::First,
            _ => Heated::Queued,
        }
    }

    /// The seat that has waited longest.
    pub(super) fn pop(&self) -> Option<u32> {
        let mut queue = self.queue.lock();
        let seat = queue.seats.pop_front();
        self.len.store(queue.seats.len(), Ordering::Relaxed);
        seat
    }

    /// How many there are, or were a moment ago.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there is none, without doubt.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().seats.is_empty()
    }

    /// A thread is about to sleep: from now on none is taken in. Gives how many are to be served before; none
    /// slips in between.
    pub(super) fn sleep_begins(&self) -> usize {
        let mut queue = self.queue.lock();
        queue.sleepers += 1;
        queue.seats.len()
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
        let hot = Hot::default();
        assert_eq!(hot.push(7), Heated::First);
        assert_eq!(hot.push(3), Heated::Queued);
        assert_eq!(hot.len(), 2);
        assert_eq!([hot.pop(), hot.pop(), hot.pop()], [Some(7), Some(3), None]);
        assert_eq!(hot.len(), 0);
        assert_eq!(hot.push(1), Heated::First);
    }

    #[test]
    fn whoever_asks_is_either_served_before_a_thread_sleeps_or_refused() {
        let hot = Hot::default();
        hot.push(1);
        assert_eq!(hot.sleep_begins(), 1);
        assert_eq!(hot.push(2), Heated::Refused);
        assert_eq!(hot.sleep_begins(), 1, "two may sleep");
        hot.sleep_ends();
        assert_eq!(hot.push(2), Heated::Refused);
        hot.sleep_ends();
        assert_eq!(hot.push(2), Heated::Queued);
    }
}
