//! The interface of a connection to its completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Completion;
use crate::event::{AsyncEvent, ConnectionEvent};

/// Place of one work queue in the completion queue to which it completes.
pub trait CompletionQueue {
    /// Appends completions. It may hold a lock of the queue until it is dropped.
    type Pushing<'a>: Pushing
    where
        Self: 'a;

    /// Begins to append completions of the work queue.
    fn pushing(&self) -> Self::Pushing<'_>;

    /// Removes the completions of the work queue that were not polled.
    fn purge(&self);

    /// Number of freed places of the work queue.
    fn freed(&self) -> &Arc<FreedPlaces>;

    /// Returns true if both work queues complete to the same completion queue.
    fn is_same(&self, other: &Self) -> bool;

    /// Returns true if completions can send events.
    fn has_channel(&self) -> bool;

    /// Sends one event without a completion, if the completion queue is armed for any completion.
    fn event_without_completion(&self);
}

/// Appends completions of one work queue.
pub trait Pushing {
    /// Appends a completion, and sends the event if the queue is armed for it. Polling the
    /// completion frees `places` places of the work queue.
    ///
    /// # Errors
    /// The queue is full, or was full at an earlier completion: the completion is lost, the earlier
    /// ones stay, and the places are freed.
    fn push(&mut self, completion: Completion, places: u32) -> Result<(), CqOverflow>;
}

/// Error: the CQ was full, now or before, and the completion is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "completion queue {cq_num} is full with {capacity} entries; the completion of work request {wr_id} is lost"
)]
pub struct CqOverflow {
    /// Number of the CQ.
    pub cq_num: u32,
    /// Maximum number of completions that the CQ holds.
    pub capacity: usize,
    /// `wr_id` of the lost completion.
    pub wr_id: u64,
    /// True for the first completion that this CQ lost.
    pub first: bool,
}

impl CqOverflow {
    /// Adds the device's asynchronous event if this is the first completion that this CQ lost.
    /// `qp_num` is the QP of that completion.
    pub fn tell(self, qp_num: u32, events: &mut Vec<ConnectionEvent>) -> Self {
        if self.first {
            events.push(ConnectionEvent::Async(AsyncEvent::CqOverflow {
                cq_num: self.cq_num,
                depth: self.capacity,
                qp_num,
            }));
        }
        self
    }
}

/// Number of places of one work queue that were freed since it was created.
#[derive(Default, Debug)]
pub struct FreedPlaces(AtomicU64);

impl FreedPlaces {
    /// Number of places freed so far. The number of occupied places is the number of posted
    /// requests minus this count.
    #[inline]
    pub fn count(&self) -> u64 {
        // Relaxed, because no memory access depends on the count. A completion after a post takes
        // the lock of the CQ, and the poll held the same lock.
        self.0.load(Ordering::Relaxed)
    }

    /// Frees `places` places, which were occupied.
    #[inline]
    pub fn add(&self, places: u32) {
        self.0.fetch_add(places.into(), Ordering::Relaxed);
    }
}
