//! A counter of units with a first-come, first-served queue of waiting tasks.
//!
//! The units are places in the send queue, or received messages.

use std::collections::VecDeque;
use std::task::Waker;

/// A counter whose units are granted to waiting tasks in the order of arrival.
///
/// The gate has no lock and calls no waker. It returns the wakers that the caller has to call after
/// releasing its own lock.
///
/// ```text
///   waiters:  granted │ granted │ waiting │ waiting │ ...
///                               ▲ `put` grants to the first that waits
/// ```
///
/// A granted unit is reserved for its waiter. A waiter that leaves without taking its unit passes
/// the unit on, so no unit is lost when a woken task is dropped.
#[derive(Default)]
pub(super) struct Gate {
    /// Number of units that are not granted to a waiter.
    free: usize,
    waiters: VecDeque<Waiter>,
    /// Number of waiters at the front of the queue that have been granted a unit.
    granted: usize,
    next: Ticket,
}

/// Identifies a waiter.
pub(super) type Ticket = u64;

struct Waiter {
    ticket: Ticket,
    waker: Option<Waker>,
}

impl Gate {
    pub(super) fn new(free: usize) -> Self {
        Gate {
            free,
            ..Gate::default()
        }
    }

    /// Takes a unit if one is free. No task waits while a unit is free.
    pub(super) fn try_take(&mut self) -> bool {
        let taken = self.free > 0;
        self.free -= usize::from(taken);
        taken
    }

    /// Adds one unit. Returns the waker of the task that it is granted to, if a task waits.
    #[must_use]
    pub(super) fn put(&mut self) -> Option<Waker> {
        match self.waiters.get_mut(self.granted) {
            Some(waiter) => {
                self.granted += 1;
                waiter.waker.take()
            }
            None => {
                self.free += 1;
                None
            }
        }
    }

    /// Adds a waiter to the end of the queue.
    pub(super) fn enter(&mut self, waker: Waker) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.waiters.push_back(Waiter {
            ticket,
            waker: Some(waker),
        });
        ticket
    }

    /// If the waiter was granted a unit, takes the unit, removes the waiter from the queue and
    /// returns true. Otherwise swaps `waker` with the stored waker and returns false.
    pub(super) fn poll(&mut self, ticket: Ticket, waker: &mut Option<Waker>) -> bool {
        let Some(at) = self.place(ticket) else {
            return false;
        };
        if at < self.granted {
            self.waiters.remove(at);
            self.granted -= 1;
            return true;
        }
        std::mem::swap(&mut self.waiters[at].waker, waker);
        false
    }

    /// Removes a waiter. If it was granted a unit, passes the unit to the next waiter. Returns a
    /// waker to call and a waker to drop, both after the caller has released its lock.
    #[must_use]
    pub(super) fn leave(&mut self, ticket: Ticket) -> [Option<Waker>; 2] {
        let Some(at) = self.place(ticket) else {
            return [None, None];
        };
        let own = self.waiters.remove(at).and_then(|waiter| waiter.waker);
        if at >= self.granted {
            return [None, own];
        }
        self.granted -= 1;
        [self.put(), own]
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.waiters
            .binary_search_by_key(&ticket, |waiter| waiter.ticket)
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(gate: &mut Gate) -> Ticket {
        gate.enter(Waker::noop().clone())
    }

    fn poll(gate: &mut Gate, ticket: Ticket) -> bool {
        gate.poll(ticket, &mut Some(Waker::noop().clone()))
    }

    #[test]
    fn units_are_granted_in_the_order_of_arrival() {
        let mut gate = Gate::new(1);
        assert!(gate.try_take());
        assert!(!gate.try_take());
        let (one, two) = (enter(&mut gate), enter(&mut gate));
        assert!(!poll(&mut gate, one));
        assert!(gate.put().is_some());
        assert!(!gate.try_take(), "the unit is granted already");
        assert!(!poll(&mut gate, two));
        assert!(poll(&mut gate, one));
        assert!(gate.put().is_some());
        assert!(poll(&mut gate, two));
        assert!(gate.put().is_none());
        assert!(gate.try_take());
    }

    #[test]
    fn a_waiter_that_leaves_passes_its_unit_on() {
        let mut gate = Gate::new(0);
        let tickets = [enter(&mut gate), enter(&mut gate), enter(&mut gate)];
        assert!(gate.put().is_some());
        let [next, _] = gate.leave(tickets[0]);
        assert!(next.is_some(), "the second is woken");
        let [next, own] = gate.leave(tickets[2]);
        assert!(next.is_none() && own.is_some(), "it had no unit");
        assert!(poll(&mut gate, tickets[1]));
        let last = enter(&mut gate);
        assert!(gate.put().is_some());
        let [next, _] = gate.leave(last);
        assert!(
            next.is_none() && gate.try_take(),
            "no task waits, so the unit is free"
        );
    }
}
