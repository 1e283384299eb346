//! Where a connection takes its receives from: a queue of its own, or one that it shares with others.
//!
//! ```text
//!                    take (a message begins)          complete_taken (it was delivered)
//!   posted receives ─────────────────────────► taken ──────────────────────────────────► CQ
//!   (own, or SRQ)                                │
//!                                                └── flush ──────────────────────────────► CQ
//! ```
//!
//! A message has its receive from its first segment on. What was taken belongs to this QP alone: it ends in this
//! QP's CQ, delivered or flushed. What is still in an SRQ belongs to all its QPs, and no flush touches it.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::post::{PostErrorKind, check_length};
use crate::cause::Cause;
use crate::completion::{Completion, FreedPlaces, Status, WcOpcode};
use crate::event::AsyncEvent;
use crate::mem::{LocalFault, RegionTable, SgList};
use crate::qp::wr::RecvWr;
use crate::srq::SrqInner;

/// A receive: a buffer for one message of a peer.
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) data: SgList,
    pub(crate) len: u32,
    /// The first element that may not be used, where receives are checked late. `data` has those before it.
    pub(crate) fault: Option<Box<LocalFault>>,
}

/// What a receive is checked against when it is posted.
#[derive(Clone, Copy)]
pub(crate) struct PostRules<'a> {
    pub(crate) table: &'a RegionTable,
    pub(crate) pd: u32,
    /// The QP that alone will use the receive; [`NO_QP`] in an SRQ.
    pub(crate) qp_num: u32,
    pub(crate) max_sge: u32,
    /// A receive whose memory may not be used is taken, and fails when a message reaches that memory.
    pub(crate) late: bool,
}

/// No QP has this number, so a region that was registered for one QP alone never fits.
pub(crate) const NO_QP: u32 = 0;

/// Receives that are posted and not taken, oldest first. Those that were taken keep their places until the program has
/// polled their completions.
#[derive(Default)]
pub(crate) struct RecvStore {
    depth: usize,
    /// Receives that were posted since it was made.
    posted: u64,
    /// Places that polls have freed, and the number of them when it was last looked at.
    freed: Arc<FreedPlaces>,
    freed_seen: u64,
    wqes: VecDeque<RecvWqe>,
    /// Lists of receives that have completed: their memory is used again.
    spare: Vec<SgList>,
}

impl RecvStore {
    /// An empty one of `depth` places, which polls free in `freed`.
    pub(crate) fn new(depth: usize, freed: Arc<FreedPlaces>) -> Self {
        RecvStore {
            depth,
            freed,
            ..RecvStore::default()
        }
    }

    /// Number of places.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Receives that were posted since it was made.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Number of places that are taken.
    pub(crate) fn places_taken(&self) -> usize {
        self.taken_after(self.freed.count())
    }

    /// Returns true if it has room for a receive. Looks at what was polled only when it would be full otherwise:
    /// another thread may be writing there.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        if self.taken_after(self.freed_seen) < self.depth {
            return true;
        }
        self.freed_seen = self.freed.count();
        self.taken_after(self.freed_seen) < self.depth
    }

    /// Number of places that are taken after `freed` of them were freed.
    #[inline]
    fn taken_after(&self, freed: u64) -> usize {
        // No more than were ever posted and are in memory.
        usize::try_from(self.posted - freed).unwrap_or(usize::MAX)
    }

    /// From now on it takes so many; those that are in it stay.
    pub(crate) fn set_depth(&mut self, depth: usize) {
        self.depth = depth;
    }

    /// Receives in it.
    pub(crate) fn len(&self) -> usize {
        self.wqes.len()
    }

    /// Appends a receive; the caller has checked that there is room.
    pub(crate) fn post(
        &mut self,
        wr: &RecvWr<'_>,
        rules: PostRules<'_>,
    ) -> Result<(), PostErrorKind> {
        let max = rules.max_sge as usize;
        if wr.sges.len() > max {
            return Err(PostErrorKind::TooManySges {
                got: wr.sges.len(),
                max,
            });
        }
        let len = check_length(wr.sges)?;
        let PostRules {
            table,
            pd,
            qp_num,
            late,
            ..
        } = rules;
        // Its allocation is that of a receive before.
        let mut data = self.spare.pop().unwrap_or_default();
        let before = self.wqes.back().map(|before| &before.data);
        let resolved = data.resolve_behind(before, table, (pd, qp_num), wr.sges, true);
        let fault = match resolved {
            Ok(_) => None,
            Err(fault) if late => {
                // Those before the fault were good a moment ago: without them the receive takes less.
                let good = wr.sges.get(..fault.index).unwrap_or_default();
                let _ = data.resolve_behind(None, table, (pd, qp_num), good, true);
                Some(Box::new(fault))
            }
            Err(fault) => {
                // It was left empty.
                self.spare.push(data);
                return Err(fault.into());
            }
        };
        self.wqes.push_back(RecvWqe {
            wr_id: wr.wr_id,
            data,
            len,
            fault,
        });
        self.posted += 1;
        Ok(())
    }

    /// The oldest receive.
    pub(crate) fn front(&self) -> Option<&RecvWqe> {
        self.wqes.front()
    }

    /// Takes the oldest receive out.
    pub(crate) fn take(&mut self) -> Option<RecvWqe> {
        self.wqes.pop_front()
    }

    /// Gives back the list of a receive that has completed.
    pub(crate) fn give(&mut self, list: SgList) {
        self.spare.push(list);
        // Where it lies now: to clear it and move it then would cost more.
        if let Some(list) = self.spare.last_mut() {
            list.clear();
        }
    }
}

/// Somebody whose peer sends, and who found no receive in the SRQ.
pub(crate) trait ReceiveWaiter: Send + Sync {
    /// A receive was posted: try again. Called without any lock.
    fn receive_posted(&self);
}

/// The receives of one connection.
pub(crate) struct ReceiveQueue {
    source: Source,
    /// The receive of the message under way.
    taken: Option<RecvWqe>,
    /// Receives that have completed since the QP was made.
    completed: u64,
}

enum Source {
    Own(RecvStore),
    Shared(Shared),
    /// The QP is gone: its connection takes no more receives.
    Left,
}

/// The part of an SRQ that one QP has.
struct Shared {
    srq: Arc<SrqInner>,
    waiter: (u32, Option<Weak<dyn ReceiveWaiter>>),
    /// The SRQ has the waiter among its own, or has just taken it from there to tell it.
    enlisted: bool,
    /// The list of the last receive; it goes back when the next one is taken: one lock for both.
    spent: Option<SgList>,
}

impl ReceiveQueue {
    /// A queue of its own of `depth` places, which polls free in `freed`.
    pub(crate) fn own(depth: usize, freed: Arc<FreedPlaces>) -> Self {
        Self::from(Source::Own(RecvStore::new(depth, freed)))
    }

    /// The receives of an SRQ, for this QP.
    pub(crate) fn shared(srq: Arc<SrqInner>, qp_num: u32) -> Self {
        Self::from(Source::Shared(Shared {
            srq,
            waiter: (qp_num, None),
            enlisted: false,
            spent: None,
        }))
    }

    fn from(source: Source) -> Self {
        ReceiveQueue {
            source,
            taken: None,
            completed: 0,
        }
    }

    /// Who is told when a receive is posted to the SRQ that this one waits for.
    pub(crate) fn set_waiter(&mut self, waiter: Weak<dyn ReceiveWaiter>) {
        if let Source::Shared(shared) = &mut self.source {
            shared.waiter.1 = Some(waiter);
        }
    }

    /// Whether the receives come from an SRQ.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// The QP is gone: nothing is taken any more, in particular not from an SRQ that others use. To be called
    /// after a flush.
    pub(crate) fn leave(&mut self) {
        self.source = Source::Left;
    }

    /// Whether the QP is gone.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.source, Source::Left)
    }

    /// Posts a receive to the own queue.
    pub(crate) fn post(
        &mut self,
        wr: &RecvWr<'_>,
        rules: PostRules<'_>,
    ) -> Result<(), PostErrorKind> {
        match &mut self.source {
            Source::Own(store) => {
                if !store.has_room() {
                    let depth = store.depth();
                    return Err(PostErrorKind::RecvQueueFull { depth });
                }
                store.post(wr, rules)
            }
            Source::Shared(shared) => Err(PostErrorKind::HasSrq {
                srq_num: shared.srq.num(),
            }),
            Source::Left => Err(PostErrorKind::RecvQueueFull { depth: 0 }),
        }
    }

    /// Takes a receive for the message that begins. `false` when there is none; with `wait` the SRQ then tells the
    /// waiter when one was posted.
    pub(crate) fn take(&mut self, wait: bool, events: &mut Vec<AsyncEvent>) -> bool {
        if self.taken.is_none() {
            self.taken = match &mut self.source {
                Source::Own(store) => store.take(),
                Source::Shared(shared) => shared.take(wait, events),
                Source::Left => None,
            };
        }
        self.taken.is_some()
    }

    /// Takes a receive of the own queue for a message of so many bytes that begins and ends now. False, and nothing has happened, when
    /// the next one is not long enough, or there is none, or it is not as simple.
    #[inline]
    pub(crate) fn take_for(&mut self, octets: u32) -> bool {
        let Source::Own(store) = &mut self.source else {
            return false;
        };
        if self.taken.is_some() || store.front().is_none_or(|wqe| wqe.len < octets) {
            return false;
        }
        self.taken = store.take();
        self.taken.is_some()
    }

    /// The receive of the message under way.
    pub(crate) fn taken(&self) -> Option<&RecvWqe> {
        self.taken.as_ref()
    }

    /// Bytes of the receive of the message under way; between messages, of the one that the next message would
    /// take.
    pub(crate) fn next_len(&self) -> Option<u32> {
        match (&self.taken, &self.source) {
            (Some(wqe), _) => Some(wqe.len),
            (None, Source::Own(store)) => store.front().map(|wqe| wqe.len),
            (None, Source::Shared(shared)) => shared.srq.next_len(),
            (None, Source::Left) => None,
        }
    }

    /// Whether a message that waits would find a receive now. Where the SRQ has told the waiter, and another connection was
    /// quicker, it is to be told again.
    pub(crate) fn has_receive(&mut self) -> bool {
        match &mut self.source {
            Source::Own(store) => store.len() > 0,
            Source::Shared(shared) => !shared.srq.is_empty() || shared.enlist(),
            Source::Left => false,
        }
    }

    /// The SRQ has told the waiter, and does so no more until it waits again.
    pub(crate) fn told(&mut self) {
        if let Source::Shared(shared) = &mut self.source {
            shared.enlisted = false;
        }
    }

    /// Completes the receive of the message under way, which has this `wr_id`, once its memory is let go: who sees the completion may have
    /// the only reference to it then. False when there is none.
    #[inline]
    pub(crate) fn complete_taken(&mut self, complete: impl FnOnce(u64)) -> bool {
        let Some(wqe) = self.taken.take() else {
            return false;
        };
        let wr_id = wqe.wr_id;
        self.retire(wqe);
        complete(wr_id);
        true
    }

    /// Completes with an error what this QP has: the oldest with `first`, the rest as flushed, because of `flushed`. What is in an SRQ
    /// stays there.
    pub(crate) fn flush(
        &mut self,
        first: Option<(Status, Cause)>,
        flushed: Cause,
        qp_num: u32,
        mut complete: impl FnMut(Completion),
    ) {
        let mut first = first;
        while let Some(wqe) = self.taken.take().or_else(|| match &mut self.source {
            Source::Own(store) => store.take(),
            Source::Shared(_) | Source::Left => None,
        }) {
            let (status, cause) = first.take().unwrap_or((Status::WrFlush, flushed));
            complete(Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: WcOpcode::Recv,
                qp_num,
                cause: Some(cause),
                ..Completion::default()
            });
            self.retire(wqe);
        }
        if let Source::Shared(shared) = &mut self.source
            && let Some(list) = shared.spent.take()
        {
            shared.srq.give(list);
        }
    }

    fn retire(&mut self, wqe: RecvWqe) {
        self.completed += 1;
        match &mut self.source {
            Source::Own(store) => store.give(wqe.data),
            Source::Shared(shared) => shared.spent.insert(wqe.data).clear(),
            Source::Left => {}
        }
    }

    /// Receives completed since the QP was made.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// [`completed`](Self::completed) once all that this QP has now are complete: those in its own queue, and the
    /// one of a message under way.
    pub(crate) fn completed_when_drained(&self) -> u64 {
        match &self.source {
            Source::Own(store) => store.posted(),
            Source::Shared(_) | Source::Left => self.completed + u64::from(self.taken.is_some()),
        }
    }
}

impl Shared {
    /// Waits in the SRQ, unless it does so already. True when there is a receive after all.
    fn enlist(&mut self) -> bool {
        let (qp_num, Some(waiter)) = &self.waiter else {
            return false;
        };
        if !self.enlisted {
            self.enlisted = self.srq.wait(*qp_num, waiter);
            return !self.enlisted;
        }
        false
    }

    fn take(&mut self, wait: bool, events: &mut Vec<AsyncEvent>) -> Option<RecvWqe> {
        let (qp_num, waiter) = &self.waiter;
        let waiter = waiter.as_ref().filter(|_| wait);
        let taken = self
            .srq
            .take(self.spent.take(), waiter.map(|waiter| (*qp_num, waiter)));
        self.enlisted |= taken.wqe.is_none() && waiter.is_some();
        if taken.limit_reached {
            let srq_num = self.srq.num();
            events.push(AsyncEvent::SrqLimitReached { srq_num });
        }
        taken.wqe
    }
}
