//! Places of work queues: a post takes one, and polling the completion frees it.
//!
//! ```text
//!          post                      completion                   poll
//!   free ────────► request or receive ──────────► entry of the CQ ──────► free
//!                       │                             ▲
//!                       └─ succeeded, unsignaled ─────┘ freed with the next entry of its queue
//! ```
//!
//! A queue therefore never has more entries in a CQ than it has places. A CQ that is as deep as all
//! its queues together never overflows, as `create_cq` of the verbs demands.

use std::ops::Deref;
use std::sync::Arc;

use super::cq::{CqInner, PushingToCq};
use uwarp_engine::completion::{CompletionQueue, FreedPlaces};

/// Number of a work queue in its CQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueueId(u32);

impl QueueId {
    /// Number that no queue has.
    pub(super) const NONE: QueueId = QueueId(u32::MAX);
}

/// Work queues that complete to one CQ.
#[derive(Default)]
pub(super) struct Queues {
    slots: Vec<Slot>,
    /// Numbers of the slots that are [`Slot::Free`].
    free: Vec<u32>,
    /// Number of slots that are [`Slot::Left`].
    left: usize,
}

enum Slot {
    Free,
    Attached(Arc<FreedPlaces>),
    /// The queue is gone. Entries of it may be in the CQ, so the number is not reused yet.
    Left(Arc<FreedPlaces>),
}

impl Queues {
    /// Frees `places` places of a queue.
    #[inline]
    pub(super) fn free(&self, queue: QueueId, places: u32) {
        if let Some(Slot::Attached(freed) | Slot::Left(freed)) = self.slots.get(queue.0 as usize) {
            freed.add(places);
        }
    }

    /// Adds a queue. `entries` yields the queues of all entries in the CQ.
    pub(super) fn attach(
        &mut self,
        freed: Arc<FreedPlaces>,
        entries: impl Iterator<Item = QueueId>,
    ) -> QueueId {
        if self.free.is_empty() && self.left > 0 {
            self.collect(entries);
        }
        let slot = Slot::Attached(freed);
        if let Some(number) = self.free.pop()
            && let Some(free) = self.slots.get_mut(number as usize)
        {
            *free = slot;
            return QueueId(number);
        }
        // A QP takes far more memory than 4 bytes, so there are fewer than 2^32 queues.
        let number = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(slot);
        QueueId(number)
    }

    /// Removes a queue. Its entries stay in the CQ, and free its places when they are polled.
    pub(super) fn detach(&mut self, queue: QueueId) {
        if let Some(slot) = self.slots.get_mut(queue.0 as usize)
            && let Slot::Attached(freed) = slot
        {
            *slot = Slot::Left(Arc::clone(freed));
            self.left += 1;
        }
    }

    /// Frees the slots of queues that are gone and have no entry in the CQ any more.
    fn collect(&mut self, entries: impl Iterator<Item = QueueId>) {
        let mut has_entries = vec![false; self.slots.len()];
        for queue in entries {
            if let Some(has) = has_entries.get_mut(queue.0 as usize) {
                *has = true;
            }
        }
        for (number, (slot, has_entries)) in (0..).zip(self.slots.iter_mut().zip(has_entries)) {
            if !has_entries && matches!(slot, Slot::Left(_)) {
                *slot = Slot::Free;
                self.left -= 1;
                self.free.push(number);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.slots.len()
    }
}

/// Collects the places of adjacent entries of one queue, so that one atomic operation frees them
/// all.
pub(super) struct Run {
    queue: QueueId,
    places: u32,
}

impl Run {
    pub(super) fn new() -> Self {
        Run {
            queue: QueueId::NONE,
            places: 0,
        }
    }

    /// Adds the places of the next entry.
    #[inline]
    pub(super) fn add(&mut self, queues: &Queues, queue: QueueId, places: u32) {
        if self.queue == queue {
            self.places += places;
        } else {
            queues.free(self.queue, self.places);
            *self = Run { queue, places };
        }
    }

    /// Frees the collected places.
    #[inline]
    pub(super) fn end(self, queues: &Queues) {
        queues.free(self.queue, self.places);
    }
}

/// Attachment of a work queue to its CQ, which lasts until this is dropped.
pub(crate) struct CqOfQueue {
    cq: Arc<CqInner>,
    queue: QueueId,
    freed: Arc<FreedPlaces>,
}

impl CqOfQueue {
    /// Attaches a queue. `freed` counts its freed places; QPs with a common SRQ share the same
    /// `freed`.
    pub(crate) fn new(cq: &Arc<CqInner>, freed: Arc<FreedPlaces>) -> Self {
        CqOfQueue {
            cq: Arc::clone(cq),
            queue: cq.attach(Arc::clone(&freed)),
            freed,
        }
    }
}

impl CompletionQueue for CqOfQueue {
    type Pushing<'a> = PushingToCq<'a>;

    #[inline]
    fn pushing(&self) -> PushingToCq<'_> {
        self.cq.pushing_of(self.queue)
    }

    /// Removes the completions of the queue from the CQ. Those of another QP stay, even if it had
    /// the same number before.
    fn purge(&self) {
        self.cq.purge(self.queue);
    }

    fn freed(&self) -> &Arc<FreedPlaces> {
        &self.freed
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cq, &other.cq)
    }

    fn has_channel(&self) -> bool {
        self.cq.has_channel()
    }

    fn event_without_completion(&self) {
        self.cq.event_without_completion();
    }
}

impl Deref for CqOfQueue {
    type Target = CqInner;

    #[inline]
    fn deref(&self) -> &CqInner {
        &self.cq
    }
}

impl Drop for CqOfQueue {
    fn drop(&mut self) {
        self.cq.detach(self.queue);
    }
}

#[cfg(test)]
mod tests {
    use uwarp_engine::completion::Pushing as _;

    use super::*;
    use crate::completion::Completion;

    #[test]
    fn a_number_is_used_again_when_the_last_entry_of_its_queue_was_polled() {
        let cq = CqInner::new(1, 0, 8, None).unwrap();
        let freed = [(); 3].map(|()| Arc::new(FreedPlaces::default()));
        let counts = || freed.each_ref().map(|freed| freed.count());
        let first = CqOfQueue::new(&cq, Arc::clone(&freed[0]));
        for _ in 0..2 {
            first.pushing().push(Completion::default(), 3).unwrap();
        }
        drop(first);
        let second = CqOfQueue::new(&cq, Arc::clone(&freed[1]));
        second.pushing().push(Completion::default(), 1).unwrap();
        // The first queue is gone, but its entries still free its own places.
        cq.poll(&mut [Completion::default(); 2]);
        assert_eq!(counts(), [6, 0, 0]);
        let third = CqOfQueue::new(&cq, Arc::clone(&freed[2]));
        third.pushing().push(Completion::default(), 5).unwrap();
        cq.poll(&mut [Completion::default(); 2]);
        assert_eq!(counts(), [6, 1, 5]);
        assert_eq!((second.queue, third.queue), (QueueId(1), QueueId(0)));
    }

    #[test]
    fn a_cq_that_is_dropped_frees_the_places_of_its_entries() {
        let cq = CqInner::new(1, 0, 8, None).unwrap();
        let freed = Arc::<FreedPlaces>::default();
        let queue = CqOfQueue::new(&cq, Arc::clone(&freed));
        queue.pushing().push(Completion::default(), 3).unwrap();
        drop(queue);
        drop(cq);
        assert_eq!(freed.count(), 3);
    }

    #[test]
    fn queues_that_come_and_go_take_no_more_memory() {
        let mut queues = Queues::default();
        for _ in 0..100 {
            let made = [(); 3].map(|()| queues.attach(Arc::default(), std::iter::empty()));
            for queue in made {
                queues.detach(queue);
            }
        }
        assert!(queues.len() <= 6, "{}", queues.len());
    }
}
