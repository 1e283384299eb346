//! A plain completion queue, for tests, simulation and programs that drive connections themselves.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::{Completion, CompletionQueue, CqOverflow, FreedPlaces, Pushing};

/// A completion queue of limited capacity. It wakes nobody. A completion that finds it full is
/// lost, and so is every later one.
#[derive(Debug)]
pub struct Ring {
    num: u32,
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    entries: VecDeque<Entry>,
    overflowed: bool,
    armed: bool,
    events: u32,
}

#[derive(Debug)]
struct Entry {
    completion: Completion,
    places: u32,
    /// Identifies the work queue.
    freed: Arc<FreedPlaces>,
}

impl Ring {
    /// Creates an empty queue that holds `capacity` completions. Errors name it by `num`.
    pub fn new(num: u32, capacity: usize) -> Arc<Self> {
        Arc::new(Ring {
            num,
            capacity,
            state: Mutex::default(),
        })
    }

    /// Attaches a work queue, whose freed places `freed` counts.
    pub fn attach(self: &Arc<Self>, freed: Arc<FreedPlaces>) -> QueueOfRing {
        QueueOfRing {
            ring: Arc::clone(self),
            freed,
        }
    }

    /// Takes the oldest completion.
    pub fn poll(&self) -> Option<Completion> {
        let entry = self.state.lock().entries.pop_front()?;
        entry.freed.add(entry.places);
        Some(entry.completion)
    }

    /// Number of completions.
    pub fn len(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Returns true if there is no completion.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests one event, for any completion.
    pub fn arm(&self) {
        self.state.lock().armed = true;
    }

    /// Takes the number of events since the last call.
    pub fn take_events(&self) -> u32 {
        std::mem::take(&mut self.state.lock().events)
    }
}

impl State {
    fn event(&mut self) {
        self.events += u32::from(std::mem::take(&mut self.armed));
    }
}

/// A work queue that completes to a [`Ring`].
#[derive(Clone, Debug)]
pub struct QueueOfRing {
    ring: Arc<Ring>,
    freed: Arc<FreedPlaces>,
}

/// Appends completions to a [`Ring`], whose lock it holds.
#[derive(Debug)]
pub struct PushingToRing<'a> {
    queue: &'a QueueOfRing,
    state: MutexGuard<'a, State>,
}

impl CompletionQueue for QueueOfRing {
    type Pushing<'a> = PushingToRing<'a>;

    fn pushing(&self) -> PushingToRing<'_> {
        PushingToRing {
            queue: self,
            state: self.ring.state.lock(),
        }
    }

    fn purge(&self) {
        let is_of_another = |entry: &Entry| !Arc::ptr_eq(&entry.freed, &self.freed);
        self.ring.state.lock().entries.retain(is_of_another);
    }

    fn freed(&self) -> &Arc<FreedPlaces> {
        &self.freed
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ring, &other.ring)
    }

    fn has_channel(&self) -> bool {
        true
    }

    fn event_without_completion(&self) {
        self.ring.state.lock().event();
    }
}

impl Pushing for PushingToRing<'_> {
    fn push(&mut self, completion: Completion, places: u32) -> Result<(), CqOverflow> {
        let (ring, state) = (&self.queue.ring, &mut *self.state);
        let is_lost = state.overflowed || state.entries.len() == ring.capacity;
        let result = if is_lost {
            self.queue.freed.add(places);
            Err(CqOverflow {
                cq_num: ring.num,
                capacity: ring.capacity,
                wr_id: completion.wr_id,
                first: !std::mem::replace(&mut state.overflowed, true),
            })
        } else {
            state.entries.push_back(Entry {
                completion,
                places,
                freed: Arc::clone(&self.queue.freed),
            });
            Ok(())
        };
        state.event();
        result
    }
}
