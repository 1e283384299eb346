//! A shared receive queue behind its lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::completion::FreedPlaces;
use crate::engine::{NO_QP, PostErrorKind, PostRules, ReceiveWaiter, RecvStore, RecvWqe};
use crate::mem::{RegionTable, SgList};
use crate::qp::PostError;
use crate::qp::posting::each;
use crate::qp::wr::RecvWr;

/// The receives of an SRQ, its limit, and the connections that wait for a receive.
///
/// Its lock comes after that of a QP and before that of a CQ. Waiters are told without it.
pub(crate) struct SrqInner {
    num: u32,
    pd: u32,
    max_sge: u32,
    /// See [`PostRules::late`].
    late_faults: bool,
    table: Arc<RegionTable>,
    /// Places that polls have freed, of the CQs of all its QPs.
    freed: Arc<FreedPlaces>,
    state: Mutex<State>,
    /// Receives in it, so that a connection on hold looks without the lock.
    len: AtomicUsize,
    /// QPs that take their receives from it.
    qps: AtomicU32,
}

struct State {
    store: RecvStore,
    limit: Limit,
    /// Connections that found it empty, by the number of their QP; the first has waited longest.
    waiters: VecDeque<(u32, Weak<dyn ReceiveWaiter>)>,
}

impl State {
    fn enlist(&mut self, qp_num: u32, waiter: &Weak<dyn ReceiveWaiter>) {
        if !self.waiters.iter().any(|(waits, _)| *waits == qp_num) {
            self.waiters.push_back((qp_num, Weak::clone(waiter)));
        }
    }
}

/// The limit of an SRQ: one event for one arming.
///
/// ```text
///              modify(limit > 0), enough receives          fewer than `limit` are left
///   Disarmed ───────────────────────────────────► Armed ───────────────────────────────► Disarmed, event
///      ▲  └─ modify(limit > 0), fewer already: event ┐  │
///      └──────────────── modify(limit 0) ────────────┴──┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    /// No event.
    Disarmed,
    /// An event when fewer than so many are left.
    Armed(u32),
}

impl Limit {
    /// The limit when so many receives are left, and whether that raises the event.
    pub(super) fn after(self, left: usize) -> (Limit, bool) {
        match self {
            Limit::Armed(limit) if left < limit as usize => (Limit::Disarmed, true),
            other => (other, false),
        }
    }
}

/// What a message that begins gets.
pub(crate) struct Taken {
    pub(crate) wqe: Option<RecvWqe>,
    /// Fewer are left than the limit says: the event is due.
    pub(crate) limit_reached: bool,
}

/// What there is to know of an SRQ at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    pub(super) max_wr: usize,
    /// Receives that are posted and not taken.
    pub(super) posted: usize,
    /// Places that are taken: those, and receives whose completions were not polled.
    pub(super) places_taken: usize,
    pub(super) limit: Limit,
}

impl Counts {
    /// Those of an SRQ that is out of reach.
    pub(super) const NOTHING: Counts = Counts {
        max_wr: 0,
        posted: 0,
        places_taken: 0,
        limit: Limit::Disarmed,
    };
}

impl SrqInner {
    pub(crate) fn new(
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

    pub(crate) fn num(&self) -> u32 {
        self.num
    }

    /// Its places that were freed: the poll of a receive's completion frees one.
    pub(crate) fn freed(&self) -> &Arc<FreedPlaces> {
        &self.freed
    }

    pub(super) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(super) fn qps(&self) -> &AtomicU32 {
        &self.qps
    }

    /// Whether no receive is in it; takes no lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Appends receives, then has those go on that wait for one.
    pub(crate) fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
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
            if store.has_room() {
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

    /// Has waiters go on, the oldest first, as long as there are receives for them.
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
            // One that does not take a receive any more leaves it to the next.
            if let Some(waiter) = waiter.upgrade() {
                waiter.receive_posted();
            }
        }
    }

    /// Takes the oldest receive. `spent` is the list of a completed one, to be used again. When there is none,
    /// `waiter` is told of the next that is posted: either this finds a receive, or its post finds the waiter.
    pub(crate) fn take(
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

    /// `waiter` is told of the next receive that is posted. False when there is one now, and it is not.
    pub(crate) fn wait(&self, qp_num: u32, waiter: &Weak<dyn ReceiveWaiter>) -> bool {
        let mut state = self.state.lock();
        let waits = state.store.len() == 0;
        if waits {
            state.enlist(qp_num, waiter);
        }
        waits
    }

    /// Bytes of the receive that the next message takes.
    pub(crate) fn next_len(&self) -> Option<u32> {
        self.state.lock().store.front().map(|wqe| wqe.len)
    }

    /// Gives back the list of a completed receive.
    pub(crate) fn give(&self, list: SgList) {
        self.state.lock().store.give(list);
    }

    pub(super) fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts {
            max_wr: state.store.depth(),
            posted: state.store.len(),
            places_taken: state.store.places_taken(),
            limit: state.limit,
        }
    }

    /// Changes what is given, all or nothing, as far as `check` agrees with what is there. True when the limit was
    /// reached already: its event is due.
    pub(super) fn modify<E>(
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
