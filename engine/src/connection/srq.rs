//! State of a shared receive queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::mem::{RegionTable, SgList};
use parking_lot::Mutex;

use super::post::each;
use super::receive_queue::{NO_QP, PostRules, ReceiveWaiter, RecvStore, RecvWqe};
use super::{PostError, PostErrorKind};
use crate::completion::FreedPlaces;
use crate::wr::RecvWr;

/// Receives of an SRQ, its limit, and the connections that wait for a receive.
///
/// Lock order: QP, SRQ, CQ. Waiters are notified without the lock.
pub struct SrqInner {
    num: u32,
    pd: u32,
    max_sge: u32,
    /// See [`PostRules::late`].
    late_faults: bool,
    table: Arc<RegionTable>,
    /// Number of this SRQ's places that became free because completions of its receives were polled
    /// or discarded, from the CQ of any of its QPs.
    freed: Arc<FreedPlaces>,
    state: Mutex<State>,
    /// Number of receives, so that a connection on hold can check without the lock.
    len: AtomicUsize,
    /// Number of QPs that use the SRQ.
    qps: AtomicU32,
}

struct State {
    store: RecvStore,
    limit: Limit,
    /// Connections that found the queue empty, by QP number. The first one has waited longest.
    waiters: VecDeque<(u32, Weak<dyn ReceiveWaiter>)>,
}

impl State {
    fn enlist(&mut self, qp_num: u32, waiter: &Weak<dyn ReceiveWaiter>) {
        if !self.waiters.iter().any(|(waits, _)| *waits == qp_num) {
            self.waiters.push_back((qp_num, Weak::clone(waiter)));
        }
    }
}

/// Limit of an SRQ: one event for each arming.
///
/// ```text
///              modify(limit > 0), enough receives          fewer than `limit` left
///   Disarmed ──────────────────────────────────► Armed ─────────────────────────► Disarmed, event
///      ▲  └─ modify(limit > 0), fewer: event ───────┐ │
///      └─────────────── modify(limit 0) ────────────┴─┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// No event is raised.
    Disarmed,
    /// Raises an event when fewer receives than this are left.
    Armed(u32),
}

impl Limit {
    /// Returns the limit after a change to `left` receives, and whether the event is due.
    pub fn after(self, left: usize) -> (Limit, bool) {
        match self {
            Limit::Armed(limit) if left < limit as usize => (Limit::Disarmed, true),
            other => (other, false),
        }
    }
}

/// Result of taking a receive for a new message.
pub struct Taken {
    /// The receive; `None` if the queue is empty.
    pub wqe: Option<RecvWqe>,
    /// True if fewer receives than the limit are left, so that the event is due.
    pub limit_reached: bool,
}

/// Sizes and counts of an SRQ at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Number of places.
    pub max_wr: usize,
    /// Number of receives that are posted and not taken.
    pub posted: usize,
    /// Number of receives that are posted, plus those taken whose completions were not polled yet.
    pub places_taken: usize,
    /// Armed limit.
    pub limit: Limit,
}

impl Counts {
    /// Values for an SRQ in the child of a fork.
    pub const NOTHING: Counts = Counts {
        max_wr: 0,
        posted: 0,
        places_taken: 0,
        limit: Limit::Disarmed,
    };
}

impl SrqInner {
    /// Creates an empty queue with `max_wr` places, for receives of at most `max_sge` elements.
    /// `late_faults`: a receive with unusable memory is accepted, and fails when its turn comes.
    pub fn new(
        num: u32,
        pd: u32,
        table: Arc<RegionTable>,
        max_wr: usize,
        max_sge: u32,
        late_faults: bool,
    ) -> Self {
        let freed = Arc::<FreedPlaces>::default();
        SrqInner {
            num,
            pd,
            max_sge,
            late_faults,
            table,
            freed: Arc::clone(&freed),
            state: Mutex::new(State {
                store: RecvStore::new(max_wr, freed),
                limit: Limit::Disarmed,
                waiters: VecDeque::new(),
            }),
            len: AtomicUsize::new(0),
            qps: AtomicU32::new(0),
        }
    }

    /// Number of the SRQ in its device.
    pub fn num(&self) -> u32 {
        self.num
    }

    /// Number of places freed by polls: polling a receive's completion frees one.
    pub fn freed(&self) -> &Arc<FreedPlaces> {
        &self.freed
    }

    /// Maximum number of elements of a receive.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Number of QPs that use the SRQ.
    pub fn qps(&self) -> &AtomicU32 {
        &self.qps
    }

    /// Returns true if the queue is empty. Takes no lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Appends receives, then wakes the connections that wait for one.
    pub fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let rules = PostRules {
            table: &self.table,
            pd: self.pd,
            qp_num: NO_QP,
            max_sge: self.max_sge,
            late: self.late_faults,
        };
        let mut state = self.state.lock();
        let store = &mut state.store;
        let result = each(wrs, |_, wr| {
            if store.find_room() {
                store.post(wr, rules)
            } else {
                let depth = store.depth();
                Err(PostErrorKind::SrqFull { depth })
            }
        });
        self.len.store(store.len(), Ordering::SeqCst);
        drop(state);
        self.wake();
        result
    }

    /// Wakes waiters, the oldest first, while there are receives.
    fn wake(&self) {
        loop {
            let waiter = {
                let mut state = self.state.lock();
                if state.store.len() == 0 {
                    return;
                }
                state.waiters.pop_front()
            };
            let Some((_, waiter)) = waiter else {
                return;
            };
            // A waiter that no longer takes a receive leaves it to the next waiter.
            if let Some(waiter) = waiter.upgrade() {
                waiter.receive_posted();
            }
        }
    }

    /// Takes the oldest receive. `spent` is the scatter/gather list of a completed receive, for
    /// reuse. If the queue is empty, `waiter` is notified at the next post. No post is missed:
    /// either this call finds a receive, or the post finds the waiter.
    pub fn take(
        &self,
        spent: Option<SgList>,
        waiter: Option<(u32, &Weak<dyn ReceiveWaiter>)>,
    ) -> Taken {
        let mut state = self.state.lock();
        if let Some(list) = spent {
            state.store.give(list);
        }
        let wqe = state.store.take();
        let left = state.store.len();
        self.len.store(left, Ordering::SeqCst);
        let mut limit_reached = false;
        if wqe.is_some() {
            (state.limit, limit_reached) = state.limit.after(left);
        } else if let Some((qp_num, waiter)) = waiter {
            state.enlist(qp_num, waiter);
        }
        Taken { wqe, limit_reached }
    }

    /// Registers `waiter` for the next post. Returns false, without registering, if the queue is
    /// not empty.
    pub(crate) fn wait(&self, qp_num: u32, waiter: &Weak<dyn ReceiveWaiter>) -> bool {
        let mut state = self.state.lock();
        let waits = state.store.len() == 0;
        if waits {
            state.enlist(qp_num, waiter);
        }
        waits
    }

    /// Length in bytes of the receive that the next message takes.
    pub(crate) fn next_len(&self) -> Option<u32> {
        self.state.lock().store.front().map(|wqe| wqe.len)
    }

    /// Takes back the scatter/gather list of a completed receive for reuse.
    pub(crate) fn give(&self, list: SgList) {
        self.state.lock().store.give(list);
    }

    /// Returns the sizes and counts of this moment.
    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts {
            max_wr: state.store.depth(),
            posted: state.store.len(),
            places_taken: state.store.places_taken(),
            limit: state.limit,
        }
    }

    /// Changes all given values, or none of them if `check` returns an error. Returns true if the
    /// limit was already reached and its event is due.
    pub fn modify<E>(
        &self,
        max_wr: Option<usize>,
        limit: Option<u32>,
        check: impl FnOnce(Counts) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut state = self.state.lock();
        check(Counts {
            max_wr: state.store.depth(),
            posted: state.store.len(),
            places_taken: state.store.places_taken(),
            limit: state.limit,
        })?;
        if let Some(max_wr) = max_wr {
            state.store.set_depth(max_wr);
        }
        let Some(limit) = limit else {
            return Ok(false);
        };
        let armed = if limit == 0 {
            Limit::Disarmed
        } else {
            Limit::Armed(limit)
        };
        let (limit, reached) = armed.after(state.store.len());
        state.limit = limit;
        Ok(reached)
    }
}
