//! Queue of a device's asynchronous events, with its descriptor and acknowledgements.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use uwarp_engine::fork_guard::ForkGuarded;
use uwarp_engine::times::after;

use crate::clock::machine_now;
use crate::completion::EventFd;
use crate::wait::wait_readable;
use uwarp_engine::event::{AsyncEvent, EventObject};

/// Maximum number of events kept for a consumer that does not read them. The oldest ones are
/// dropped and counted.
const KEEP: usize = 4096;

/// Events of a device in the order in which they were raised, with a descriptor that is readable
/// while any are queued.
pub(crate) struct EventQueue {
    /// Returns true for events that the reader wants.
    wanted: fn(&AsyncEvent) -> bool,
    queue: ForkGuarded<Queue>,
}

struct Queue {
    fd: EventFd,
    state: Mutex<State>,
    /// Notified at every acknowledgement.
    acked: Condvar,
}

/// State under the lock. While the lock is held, the descriptor's count equals the number of
/// waiting events, so no read of the descriptor blocks.
#[derive(Default)]
struct State {
    waiting: VecDeque<AsyncEvent>,
    /// For each object: number of events that were taken, minus the number of acknowledgements. It
    /// is negative if there were more acknowledgements. Entries of 0 are removed.
    unacked: HashMap<EventObject, i64>,
    lost: u64,
}

impl State {
    /// Changes the number of unacknowledged events of an object.
    fn count(&mut self, object: EventObject, change: i64) {
        let unacked = self.unacked.entry(object).or_default();
        *unacked = unacked.saturating_add(change);
        if *unacked == 0 {
            self.unacked.remove(&object);
        }
    }

    /// Returns the number of unacknowledged events of an object, unless it is zero or negative.
    fn unacked(&self, object: EventObject) -> Option<u64> {
        let unacked = u64::try_from(*self.unacked.get(&object)?).ok()?;
        (unacked > 0).then_some(unacked)
    }
}

impl EventQueue {
    /// Creates a queue of all events.
    #[cfg(test)]
    pub(crate) fn new() -> std::io::Result<Self> {
        Self::with_filter(|_| true)
    }

    /// Creates a queue of the events for which `wanted` returns true.
    pub(crate) fn with_filter(wanted: fn(&AsyncEvent) -> bool) -> std::io::Result<Self> {
        Ok(EventQueue {
            wanted,
            queue: ForkGuarded::new(Queue {
                fd: EventFd::semaphore()?,
                state: Mutex::default(),
                acked: Condvar::new(),
            }),
        })
    }

    pub(crate) fn push(&self, event: AsyncEvent) {
        if !(self.wanted)(&event) {
            return;
        }
        let Some(queue) = self.queue.here() else {
            return;
        };
        let mut state = queue.state.lock();
        if state.waiting.len() == KEEP {
            // One event is removed and one is added: the descriptor's count stays right.
            state.waiting.pop_front();
            state.lost += 1;
        } else {
            queue.fd.add();
        }
        state.waiting.push_back(event);
    }

    /// Takes the next event, which counts as acknowledged.
    pub(crate) fn pop(&self) -> Option<AsyncEvent> {
        let queue = self.queue.here()?;
        queue.take(&mut queue.state.lock())
    }

    /// Waits up to `timeout` for an event and takes it, as [`Self::pop`] does.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Option<AsyncEvent> {
        self.wait_for(timeout, || self.pop())
    }

    /// Waits up to `timeout` for an event and takes it. The event has to be acknowledged. Does not
    /// wait if the program made the descriptor non-blocking.
    pub(crate) fn get(self: &Arc<Self>, timeout: Option<Duration>) -> Option<UnackedEvent> {
        let get = || {
            let queue = self.queue.here()?;
            let mut state = queue.state.lock();
            let event = queue.take(&mut state)?;
            // Counted before the lock is released: a thread that destroys the object either removes
            // the event from the queue or waits for its acknowledgement.
            state.count(event.object(), 1);
            Some(UnackedEvent {
                queue: Arc::clone(self),
                event,
                ack: true,
            })
        };
        if self.queue.here()?.fd.is_nonblocking() {
            return get();
        }
        self.wait_for(timeout, get)
    }

    fn wait_for<T>(
        &self,
        timeout: Option<Duration>,
        mut get: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let deadline = timeout.map(|timeout| after(machine_now(), timeout));
        loop {
            if let Some(got) = get() {
                return Some(got);
            }
            // In the child of a fork no event ever arrives.
            if !wait_readable(self.queue.here()?.fd.as_fd(), deadline) {
                return get();
            }
        }
    }

    /// Acknowledges `count` events of an object. Only the total counts: surplus acknowledgements
    /// make up for ones that are missing later.
    pub(crate) fn ack(&self, object: EventObject, count: u64) {
        let Some(queue) = self.queue.here() else {
            return;
        };
        let mut state = queue.state.lock();
        // Nothing is kept for an object without unacknowledged events, because the object may not
        // exist.
        if state.unacked.contains_key(&object) {
            state.count(
                object,
                i64::try_from(count).map_or(i64::MIN, |count| -count),
            );
        }
        drop(state);
        queue.acked.notify_all();
    }

    /// Ends an object: waits until its taken events are acknowledged, then removes its waiting
    /// events.
    ///
    /// # Errors
    /// The number of unacknowledged events, if `timeout` passed first. No event was removed then.
    pub(crate) fn retire(&self, object: EventObject, timeout: Option<Duration>) -> Result<(), u64> {
        let Some(queue) = self.queue.here() else {
            return Ok(());
        };
        let mut state = queue.state.lock();
        queue.wait_acknowledged(&mut state, object, timeout)?;
        state.unacked.remove(&object);
        queue.take_back(&mut state, object);
        Ok(())
    }

    /// Waits until the taken events of an object are acknowledged.
    ///
    /// # Errors
    /// See [`retire`](Self::retire).
    pub(crate) fn acknowledged(
        &self,
        object: EventObject,
        timeout: Option<Duration>,
    ) -> Result<(), u64> {
        self.queue.here().map_or(Ok(()), |queue| {
            queue.wait_acknowledged(&mut queue.state.lock(), object, timeout)
        })
    }

    /// Number of events that were dropped because the program did not fetch them.
    pub(crate) fn lost(&self) -> u64 {
        self.queue.here().map_or(0, |queue| queue.state.lock().lost)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.queue.unguarded().fd.as_fd()
    }
}

impl Queue {
    fn wait_acknowledged(
        &self,
        state: &mut MutexGuard<'_, State>,
        object: EventObject,
        timeout: Option<Duration>,
    ) -> Result<(), u64> {
        let deadline = timeout.map(|timeout| after(machine_now(), timeout));
        while let Some(unacked) = state.unacked(object) {
            match deadline {
                None => self.acked.wait(state),
                Some(deadline) => {
                    if self.acked.wait_until(state, deadline).timed_out()
                        && state.unacked(object).is_some()
                    {
                        return Err(unacked);
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&self, state: &mut State) -> Option<AsyncEvent> {
        let event = state.waiting.pop_front()?;
        self.fd.take();
        Some(event)
    }

    fn take_back(&self, state: &mut State, object: EventObject) {
        let before = state.waiting.len();
        state.waiting.retain(|event| event.object() != object);
        for _ in state.waiting.len()..before {
            self.fd.take();
        }
    }
}

/// An asynchronous event that was taken with [`Device::get_event`](crate::Device::get_event).
///
/// Dropping it acknowledges it (`ibv_ack_async_event`). Destroying the event's object
/// ([`Qp::destroy`](crate::Qp::destroy)) waits for the acknowledgement, so that no event outlives
/// its object.
#[must_use = "dropping the event acknowledges it"]
pub struct UnackedEvent {
    queue: Arc<EventQueue>,
    event: AsyncEvent,
    ack: bool,
}

impl UnackedEvent {
    /// Returns the event (`ibv_async_event`).
    #[must_use]
    pub fn event(&self) -> &AsyncEvent {
        &self.event
    }

    /// Leaves the event unacknowledged, as `ibv_get_async_event` does. Acknowledge it later with
    /// [`Device::ack_events`](crate::Device::ack_events) and its [`object`](AsyncEvent::object).
    pub fn ack_later(mut self) -> AsyncEvent {
        self.ack = false;
        self.event.clone()
    }
}

impl Deref for UnackedEvent {
    type Target = AsyncEvent;

    fn deref(&self) -> &AsyncEvent {
        &self.event
    }
}

impl Drop for UnackedEvent {
    fn drop(&mut self) {
        if self.ack {
            self.queue.ack(self.event.object(), 1);
        }
    }
}

impl fmt::Debug for UnackedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnackedEvent").field(&self.event).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_of(qps: &[u32]) -> Arc<EventQueue> {
        let queue = Arc::new(EventQueue::new().unwrap());
        for &qp_num in qps {
            queue.push(AsyncEvent::Established { qp_num });
        }
        queue
    }

    fn readable(queue: &EventQueue) -> bool {
        wait_readable(queue.fd(), Some(machine_now()))
    }

    #[test]
    fn an_object_ends_when_its_events_are_acknowledged_and_the_others_are_taken_back() {
        let queue = queue_of(&[7, 8, 7]);
        let event = queue.get(None).unwrap();
        assert_eq!(event.object(), EventObject::Qp(7));
        let seven = EventObject::Qp(7);
        assert_eq!(queue.retire(seven, Some(Duration::ZERO)), Err(1));
        drop(event);
        assert_eq!(queue.retire(seven, Some(Duration::ZERO)), Ok(()));
        assert_eq!(queue.pop().unwrap().object(), EventObject::Qp(8));
        assert!(queue.pop().is_none());
        assert!(!readable(&queue));
    }

    #[test]
    fn the_end_of_an_object_waits_for_another_thread_that_acknowledges() {
        let queue = queue_of(&[7, 7]);
        let later = [(); 2].map(|()| queue.get(None).unwrap().ack_later());
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| queue.retire(EventObject::Qp(7), None));
            for event in later {
                queue.ack(event.object(), 1);
            }
            assert_eq!(ending.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn the_total_of_acknowledgements_counts_and_ends_with_the_object() {
        let queue = queue_of(&[7, 7, 7]);
        let (seven, now) = (EventObject::Qp(7), Some(Duration::ZERO));
        // Acknowledgements of objects that do not exist, or have no events, are not kept.
        queue.ack(seven, 1);
        queue.get(None).unwrap().ack_later();
        assert_eq!(queue.retire(seven, now), Err(1));
        queue.ack(seven, 2);
        queue.get(None).unwrap().ack_later();
        assert_eq!(queue.retire(seven, now), Ok(()));
        // Another object may receive the number.
        queue.push(AsyncEvent::Established { qp_num: 7 });
        queue.get(None).unwrap().ack_later();
        queue.ack(seven, u64::MAX);
        assert_eq!(queue.retire(seven, now), Ok(()));
        queue.push(AsyncEvent::Established { qp_num: 7 });
        queue.get(None).unwrap().ack_later();
        assert_eq!(queue.retire(seven, now), Err(1));
    }

    #[test]
    fn events_that_nobody_fetches_are_bounded_and_the_oldest_are_counted_as_lost() {
        let queue = EventQueue::new().unwrap();
        for qp_num in 0..KEEP as u32 + 3 {
            queue.push(AsyncEvent::Established { qp_num });
        }
        assert_eq!(queue.lost(), 3);
        assert_eq!(queue.pop().unwrap().object(), EventObject::Qp(3));
        let mut rest = 0;
        while queue.pop().is_some() {
            rest += 1;
        }
        assert_eq!(rest, KEEP - 1);
        assert!(!readable(&queue));
    }

    #[test]
    fn a_program_that_makes_the_descriptor_non_blocking_gets_no_wait() {
        let queue = queue_of(&[]);
        rustix::fs::fcntl_setfl(queue.fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
        assert!(queue.get(None).is_none());
    }
}
