//! Waiting in line for something that comes in units: places in the send queue, messages that have come.

use std::collections::VecDeque;
use std::task::Waker;

/// A counter that is taken from in the order of arrival. It has no lock of its own and calls no waker: it hands
/// out those that are to be called when the caller's lock is gone.
///
/// ```text
///   waiters:  granted │ granted │ waiting │ waiting │ ...
///                               ▲ `put` grants to the first that waits
/// ```
///
/// A unit that is granted belongs to its waiter; one that leaves without it passes it on. So no unit is lost with
/// a task that was woken and dropped.
#[derive(Default)]
pub(super) struct Gate {
    /// Units that nobody has been granted.
    free: usize,
    waiters: VecDeque<Waiter>,
    /// The first so many waiters have a unit.
    granted: usize,
    next: Ticket,
}

/// A place in the line.
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

    /// Takes a unit if one is free and nobody waits for it.
    pub(super) fn try_take(&mut self) -> bool {
        let taken = self.free > 0;
        self.free -= usize::from(taken);
        taken
    }

    /// One unit more. The waker of whom it is granted to, if anybody waits.
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

    /// Stands in line.
    pub(super) fn enter(&mut self, waker: Waker) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.waiters.push_back(Waiter {
            ticket,
            waker: Some(waker),
        });
        ticket
    }

    /// True: the unit is the caller's, who is not in line any more. False: `waker` is kept, and holds the old one.
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

    /// Leaves the line without a unit. Wakers to call, and to drop, when the lock is gone.
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
        assert!(next.is_none() && own.is_some(), "it had nothing");
        assert!(poll(&mut gate, tickets[1]));
        let last = enter(&mut gate);
        assert!(gate.put().is_some());
        let [next, _] = gate.leave(last);
        assert!(
            next.is_none() && gate.try_take(),
            "nobody waits: it is free"
        );
    }
}
