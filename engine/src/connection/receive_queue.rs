//! Source of a connection's receives: its own queue, or an SRQ that it shares with others.
//!
//! ```text
//!                    take (a message begins)          complete_taken (it was delivered)
//!   posted receives ─────────────────────────► taken ──────────────────────────────────► CQ
//!   (own, or SRQ)                                │
//!                                                └── flush ──────────────────────────────► CQ
//! ```
//!
//! A message takes its receive with its first segment. A taken receive belongs to this QP alone: it
//! completes in this QP's CQ, delivered or flushed. Receives that are still in an SRQ belong to all
//! its QPs, and no flush touches them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::mem::{LocalFault, RegionTable, SgList};

use super::post::{PostErrorKind, check_length};
use crate::cause::Cause;
use crate::completion::{Completion, FreedPlaces, Status, WcOpcode};
use crate::connection::SrqInner;
use crate::event::{AsyncEvent, ConnectionEvent};
use crate::wr::RecvWr;

/// A posted receive: a buffer for one message of a peer.
pub struct RecvWqe {
    /// Value that the program chose.
    pub wr_id: u64,
    pub(crate) data: SgList,
    pub(crate) len: u32,
    /// The first unusable element, if receives are checked late. `data` has the elements before it.
    pub(crate) fault: Option<Box<LocalFault>>,
}

/// Facts that a posted receive is checked against.
#[derive(Clone, Copy)]
pub(crate) struct PostRules<'a> {
    pub(crate) table: &'a RegionTable,
    pub(crate) pd: u32,
    /// Number of the QP that will use the receive; [`NO_QP`] in an SRQ.
    pub(crate) qp_num: u32,
    pub(crate) max_sge: u32,
    /// A receive with unusable memory is accepted, and fails when a message reaches that memory.
    pub(crate) late: bool,
}

/// Number that no QP has, so that a region that belongs to a single QP is never accepted.
pub(crate) const NO_QP: u32 = 0;

/// Receives that are posted and not taken, oldest first.
///
/// A taken receive keeps its place until the program has polled its completion.
#[derive(Default)]
pub(crate) struct RecvStore {
    depth: usize,
    /// Number of receives posted since the store was created.
    posted: u64,
    /// Count of places that polls have freed, and its value when it was last read.
    freed: Arc<FreedPlaces>,
    freed_seen: u64,
    wqes: VecDeque<RecvWqe>,
    /// Lists of completed receives, whose allocations are reused.
    spare: Vec<SgList>,
}

impl RecvStore {
    /// Creates an empty store of `depth` places. `freed` counts the places that polls have freed.
    pub(crate) fn new(depth: usize, freed: Arc<FreedPlaces>) -> Self {
        RecvStore {
            depth,
            freed,
            ..RecvStore::default()
        }
    }

    /// Returns the capacity of the store in receives.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of receives posted since the store was created.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Number of places in use.
    pub(crate) fn places_taken(&self) -> usize {
        self.taken_after(self.freed.count())
    }

    /// Returns true if there is room for a receive.
    ///
    /// Reads the count of freed places only if the store would be full without it, because another
    /// thread may be writing that count.
    #[inline]
    pub(crate) fn find_room(&mut self) -> bool {
        if self.taken_after(self.freed_seen) < self.depth {
            return true;
        }
        self.freed_seen = self.freed.count();
        self.taken_after(self.freed_seen) < self.depth
    }

    /// Number of places in use after `freed` of them were freed.
    #[inline]
    fn taken_after(&self, freed: u64) -> usize {
        // Never fails: the receives that occupy places fit into memory.
        usize::try_from(self.posted - freed).unwrap_or(usize::MAX)
    }

    /// Sets the number of places. Receives that are in the store stay.
    pub(crate) fn set_depth(&mut self, depth: usize) {
        self.depth = depth;
    }

    /// Number of receives in the store.
    pub(crate) fn len(&self) -> usize {
        self.wqes.len()
    }

    /// Appends a receive. The caller has checked that there is room.
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
        // Reuses the allocation of an earlier receive.
        let mut data = self.spare.pop().unwrap_or_default();
        let before = self.wqes.back().map(|before| &before.data);
        let resolved = data.resolve_behind(before, table, (pd, qp_num), wr.sges, true);
        let fault = match resolved {
            Ok(_) => None,
            Err(fault) if late => {
                // The elements before the fault have just been valid. If they no longer are, the
                // receive has room for fewer bytes.
                let good = wr.sges.get(..fault.index).unwrap_or_default();
                let _ = data.resolve_behind(None, table, (pd, qp_num), good, true);
                Some(Box::new(fault))
            }
            Err(fault) => {
                // A failed resolve leaves the list empty.
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

    /// Returns the oldest receive.
    pub(crate) fn front(&self) -> Option<&RecvWqe> {
        self.wqes.front()
    }

    /// Removes the oldest receive and returns it.
    pub(crate) fn take(&mut self) -> Option<RecvWqe> {
        self.wqes.pop_front()
    }

    /// Takes back the list of a completed receive, for reuse.
    pub(crate) fn give(&mut self, list: SgList) {
        self.spare.push(list);
        // Cleared at its destination: clearing it before the move would cost more.
        if let Some(list) = self.spare.last_mut() {
            list.clear();
        }
    }
}

/// A connection with a message that waits for a receive of the SRQ.
pub trait ReceiveWaiter: Send + Sync {
    /// Notifies the connection that a receive was posted. Called without any lock.
    fn receive_posted(&self);
}

/// The receives of one connection.
pub struct ReceiveQueue {
    source: Source,
    /// Receive of the current message.
    taken: Option<RecvWqe>,
    /// The current message has no receive and is dropped.
    drops: bool,
    /// Number of receives completed since the QP was created.
    completed: u64,
}

enum Source {
    Own(RecvStore),
    Shared(Shared),
    /// The QP is gone: its connection takes no more receives.
    Left,
}

/// State of one QP that uses an SRQ.
struct Shared {
    srq: Arc<SrqInner>,
    waiter: (u32, Option<Weak<dyn ReceiveWaiter>>),
    /// The waiter is in the list of the SRQ, or the SRQ has just removed it to notify it.
    enlisted: bool,
    /// List of the last completed receive. It goes back to the SRQ when the next receive is taken,
    /// under the same lock.
    spent: Option<SgList>,
}

impl ReceiveQueue {
    /// Creates the QP's own queue with `depth` places. `freed` counts the places that polls have
    /// freed.
    pub(crate) fn own(depth: usize, freed: Arc<FreedPlaces>) -> Self {
        Self::from(Source::Own(RecvStore::new(depth, freed)))
    }

    /// Creates a queue that takes its receives from an SRQ.
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
            drops: false,
            completed: 0,
        }
    }

    /// Sets the waiter to notify when a receive is posted to the SRQ.
    pub fn set_waiter(&mut self, waiter: Weak<dyn ReceiveWaiter>) {
        if let Source::Shared(shared) = &mut self.source {
            shared.waiter.1 = Some(waiter);
        }
    }

    /// Returns true if the receives come from an SRQ.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// Detaches from the source of receives, because the QP is gone. Other QPs may continue to use
    /// its SRQ. Call it after a flush.
    pub fn leave(&mut self) {
        self.source = Source::Left;
    }

    /// Returns true after [`leave`](Self::leave).
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.source, Source::Left)
    }

    /// Posts a receive to the QP's own queue. Fails if the QP takes its receives from an SRQ.
    pub(crate) fn post(
        &mut self,
        wr: &RecvWr<'_>,
        rules: PostRules<'_>,
    ) -> Result<(), PostErrorKind> {
        match &mut self.source {
            Source::Own(store) => {
                if !store.find_room() {
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

    /// Takes a receive for the message that begins, unless it has one. Returns false if there is
    /// none.
    ///
    /// If `wait` is true, an empty SRQ notifies the waiter when a receive is posted.
    pub(crate) fn take(&mut self, wait: bool, events: &mut Vec<ConnectionEvent>) -> bool {
        if self.taken.is_none() {
            self.taken = match &mut self.source {
                Source::Own(store) => store.take(),
                Source::Shared(shared) => shared.take(wait, events),
                Source::Left => None,
            };
        }
        self.taken.is_some()
    }

    /// Takes a receive of the QP's own queue for a message that has `bytes` bytes and only one
    /// segment.
    ///
    /// Returns false, with no effect, if there is none, if the next one is too short, or if the
    /// receives come from an SRQ.
    #[inline]
    pub(crate) fn take_for(&mut self, bytes: u32) -> bool {
        let Source::Own(store) = &mut self.source else {
            return false;
        };
        if self.taken.is_some() || store.front().is_none_or(|wqe| wqe.len < bytes) {
            return false;
        }
        self.taken = store.take();
        self.taken.is_some()
    }

    /// Takes a receive for the message that begins. If there is none, the message is dropped.
    pub(crate) fn take_or_drop(&mut self, events: &mut Vec<ConnectionEvent>) {
        self.drops = !self.take(false, events);
    }

    /// Forgets that the current message is dropped: its stream is over.
    pub(crate) fn stream_over(&mut self) {
        self.drops = false;
    }

    /// Returns true if the current message is dropped.
    pub(crate) fn drops(&self) -> bool {
        self.drops
    }

    /// Returns the receive of the current message.
    pub(crate) fn taken(&self) -> Option<&RecvWqe> {
        self.taken.as_ref()
    }

    /// Returns the length of the current message's receive or, between messages, of the receive
    /// that the next message would take. A message that is dropped may have any length.
    pub(crate) fn next_len(&self) -> Option<u32> {
        if self.drops {
            return Some(u32::MAX);
        }
        match (&self.taken, &self.source) {
            (Some(wqe), _) => Some(wqe.len),
            (None, Source::Own(store)) => store.front().map(|wqe| wqe.len),
            (None, Source::Shared(shared)) => shared.srq.next_len(),
            (None, Source::Left) => None,
        }
    }

    /// Returns true if a waiting message would find a receive now. Otherwise makes sure that the
    /// SRQ notifies the waiter.
    ///
    /// The waiter is enlisted again if the SRQ had notified it, but another connection took the
    /// receive.
    pub(crate) fn find_or_await_receive(&mut self) -> bool {
        match &mut self.source {
            Source::Own(store) => store.len() > 0,
            Source::Shared(shared) => !shared.srq.is_empty() || shared.enlist(),
            Source::Left => false,
        }
    }

    /// Records that the SRQ has notified the waiter. The waiter is notified again only after it
    /// waits again.
    pub fn mark_notified(&mut self) {
        if let Source::Shared(shared) = &mut self.source {
            shared.enlisted = false;
        }
    }

    /// Completes the receive of the current message. Returns false if there is none.
    ///
    /// `complete` gets the `wr_id` of the receive. It is called after the memory is released, so
    /// that the program may hold the only reference to that memory when it polls the completion.
    #[inline]
    pub(crate) fn complete_taken(&mut self, complete: impl FnOnce(u64)) -> bool {
        let Some(wqe) = self.taken.take() else {
            self.drops = false;
            return false;
        };
        let wr_id = wqe.wr_id;
        self.retire(wqe);
        complete(wr_id);
        true
    }

    /// Completes the receives of this QP with an error.
    ///
    /// The oldest one gets `first`; the rest are flushed with the cause `flushed`. Receives in an
    /// SRQ stay there.
    pub(crate) fn flush(
        &mut self,
        first: Option<(Status, Cause)>,
        flushed: Cause,
        qp_num: u32,
        mut complete: impl FnMut(Completion),
    ) {
        self.stream_over();
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

    /// Returns the number of receives completed since the QP was created.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns the value that [`completed`](Self::completed) will have when all receives that this
    /// QP has now are complete.
    ///
    /// These are the receives of its own queue and the receive of the current message. Receives in
    /// an SRQ do not count.
    pub fn completed_when_drained(&self) -> u64 {
        match &self.source {
            Source::Own(store) => store.posted(),
            Source::Shared(_) | Source::Left => self.completed + u64::from(self.taken.is_some()),
        }
    }
}

impl Shared {
    /// Enlists the waiter in the SRQ, unless it is enlisted already. Returns true if the SRQ has a
    /// receive, and so did not enlist it.
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

    fn take(&mut self, wait: bool, events: &mut Vec<ConnectionEvent>) -> Option<RecvWqe> {
        let (qp_num, waiter) = &self.waiter;
        let waiter = waiter.as_ref().filter(|_| wait);
        let taken = self
            .srq
            .take(self.spent.take(), waiter.map(|waiter| (*qp_num, waiter)));
        self.enlisted |= taken.wqe.is_none() && waiter.is_some();
        if taken.limit_reached {
            let srq_num = self.srq.num();
            events.push(ConnectionEvent::Async(AsyncEvent::SrqLimitReached {
                srq_num,
            }));
        }
        taken.wqe
    }
}
