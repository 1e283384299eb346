//! Operations of one connection, from the post to the future that takes the result.
//!
//! Every work request has a slot, whose number is its `wr_id`. The slot owns the memory while the
//! work request is in progress, so a buffer stays alive and unavailable even if the task is
//! dropped.
//!
//! ```text
//!            start                  completion                 take
//!   Free ─────────────► InFlight ────────────────► Completed ──────────► Free
//!    │                     │ its future is dropped                         ▲ ▲
//!    │                     └──────────────► Abandoned ──── completion ─────┘ │
//!    │ start_unsignaled                                                      │
//!    └───────────────► Unsignaled ── its own error, or the completion ───────┘
//!                                    of a request that was posted later
//! ```
//!
//! An unsignaled request is complete when a request posted after it completes, because a send queue
//! completes in order. A post is known to precede another post if it returned before the other
//! began. `begun` and `posted` are timestamps of one counter. If two posts overlap, their order is
//! unknown. The slots are then freed by a request that was posted after both.
//!
//! The thread that completed the work requests delivers the completions here, after it has released
//! the lock of the QP. This is the posting thread, or the device's background thread after its
//! turn.
//!
//! In the child of a fork nothing completes. Operations that were posted before stay as they are,
//! and no lock is taken.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use uwarp_engine::fork_guard::ForkGuarded;

use super::buf::{InFlightBuf, RegisteredBuf};
use super::gate::{Gate, Ticket};
use super::srq::Shared;
use crate::completion::{Completion, CqInner};
use crate::connection::guard::Watcher;
use crate::mr::MemoryRegion;
use crate::policy::transfer::DELIVERED_AT_ONCE;
use crate::wakers::Wakers;

/// All operations of a connection, and the tasks that wait for them.
pub(super) struct Ops {
    /// Completions of the connection's CQ.
    completions: Arc<CqInner>,
    /// Shared receive queue, if the connection uses one.
    shared: Option<Arc<Shared>>,
    table: Mutex<Table>,
    /// Tasks that wait for the state of the connection to change.
    pub(super) changed: Wakers,
}

struct Table {
    /// Slots of the send queue, followed by the slots of the receive queue.
    slots: Box<[Slot]>,
    sends: u32,
    free_sends: Vec<u32>,
    free_recvs: Vec<u32>,
    /// Tasks that wait for a place in the send queue. Each unit of the gate is a slot in
    /// `free_sends`.
    room: Gate,
    /// Completed receives that no task has taken yet, oldest first.
    arrived: VecDeque<u32>,
    /// Completed receives of a shared queue that no task has taken yet, oldest first. The
    /// connection has no slots for them.
    arrived_shared: VecDeque<Outcome>,
    /// Counts the posts that have begun, and the unsignaled posts that have returned.
    clock: u64,
    /// Unsignaled requests whose post has returned, in the order of these returns.
    unsignaled: VecDeque<Unsignaled>,
    /// Number of slots in state `Unsignaled`.
    unsignaled_slots: u32,
    /// Tasks that wait for a message. Each unit of the gate is an entry of `arrived` or
    /// `arrived_shared`.
    messages: Gate,
}

/// Memory that a posted work request names.
pub(super) enum InFlightMemory {
    Buf(InFlightBuf),
    /// Bytes of the program, registered for this request.
    Region(MemoryRegion),
}

/// The same memory when the work request is complete or was refused.
pub(super) enum ReclaimedMemory {
    Buf(RegisteredBuf),
    /// Dropped without the lock of the table, because the owner of the bytes may run code of the
    /// program. If the memory is still being sent in place, the connection drops it later.
    Region(#[expect(dead_code, reason = "only dropped")] MemoryRegion),
}

impl ReclaimedMemory {
    /// Unwraps the buffer of an operation that was posted with one.
    pub(super) fn buf(memory: Option<Self>) -> RegisteredBuf {
        match memory {
            Some(ReclaimedMemory::Buf(buf)) => buf,
            _ => unreachable!("a slot keeps its buffer until it is taken"),
        }
    }
}

#[derive(Default)]
struct Slot {
    state: State,
    memory: Option<InFlightMemory>,
    waker: Option<Waker>,
    /// Value of `clock` when the post of its request began.
    begun: u64,
}

/// An unsignaled request in flight. If its slot was reused, the slot has a different `begun`.
struct Unsignaled {
    slot: u32,
    begun: u64,
    posted: u64,
}

/// Slot number that [`Ops::message`] returns for a message from a shared queue, which has no slot.
const IN_SHARED: u32 = u32::MAX;

/// Memory to drop and a waker to call after the lock was released.
type Freed = (Option<ReclaimedMemory>, Option<Waker>);

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    Free,
    InFlight,
    Abandoned,
    Unsignaled,
    Completed(Completion),
}

/// Completion of a work request, and the memory that it used.
pub(super) type Outcome = (Completion, Option<ReclaimedMemory>);

impl Ops {
    pub(super) fn new(
        completions: Arc<CqInner>,
        sends: u32,
        recvs: u32,
        shared: Option<Arc<Shared>>,
    ) -> Arc<Self> {
        let slots = (0..sends + recvs).map(|_| Slot::default()).collect();
        Arc::new(Ops {
            completions,
            shared,
            table: Mutex::new(Table {
                slots,
                sends,
                free_sends: (0..sends).rev().collect(),
                free_recvs: (sends..sends + recvs).rev().collect(),
                room: Gate::new(sends as usize),
                arrived: VecDeque::with_capacity(recvs as usize),
                arrived_shared: VecDeque::new(),
                clock: 0,
                unsignaled: VecDeque::with_capacity(sends as usize / 2),
                unsignaled_slots: 0,
                messages: Gate::default(),
            }),
            changed: Wakers::default(),
        })
    }

    /// Waits for a place in the send queue. The caller passes the slot to [`start`](Self::start) at
    /// once.
    pub(super) fn room(&self) -> GateFuture<'_> {
        GateFuture::new(self, GateKind::Room)
    }

    /// Waits for a message. The caller passes the slot to [`take`](Self::take) at once.
    pub(super) fn message(&self) -> GateFuture<'_> {
        GateFuture::new(self, GateKind::Messages)
    }

    /// Takes a place in the receive queue for [`start`](Self::start), if one is free.
    pub(super) fn receive_slot(&self) -> Option<u32> {
        self.table.lock().free_recvs.pop()
    }

    /// Posts the work request of a slot. The slot gets the memory before the post, because the
    /// completion may arrive before `post` returns.
    ///
    /// # Errors
    /// The error of `post`, with the memory. The slot is free again.
    pub(super) fn start<E>(
        &self,
        slot: u32,
        memory: Option<InFlightMemory>,
        post: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<CompletionFuture<'_>, (E, Option<ReclaimedMemory>)> {
        self.table.lock().begin(slot, State::InFlight, memory);
        match post(u64::from(slot)) {
            Ok(()) => Ok(CompletionFuture {
                ops: ForkGuarded::new(self),
                slot: Some(slot),
            }),
            Err(error) => {
                let (memory, next) = self.table.lock().free(slot, None);
                next.into_iter().for_each(Waker::wake);
                Err((error, memory))
            }
        }
    }

    /// Posts the work request of a slot without waiting for it. Memory and slot become free when
    /// the request is complete.
    ///
    /// The second argument of `post` is true if the request has to be signaled. This is the case if
    /// the caller needs the completion (`needed`), or if half of the queue is unsignaled. Places
    /// become free only when a signaled request completes.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub(super) fn start_unsignaled<E>(
        &self,
        slot: u32,
        memory: Option<InFlightMemory>,
        needed: bool,
        post: impl FnOnce(u64, bool) -> Result<(), E>,
    ) -> Result<(), (E, Option<ReclaimedMemory>)> {
        let (signaled, begun) = {
            let mut table = self.table.lock();
            let signaled = needed || table.unsignaled_slots >= table.sends / 2;
            let state = match signaled {
                true => State::Abandoned,
                false => State::Unsignaled,
            };
            (signaled, table.begin(slot, state, memory))
        };
        let posted = post(u64::from(slot), signaled);
        let mut table = self.table.lock();
        match posted {
            Ok(()) => {
                if !signaled {
                    table.posted(slot, begun);
                }
                Ok(())
            }
            Err(error) => {
                let (memory, next) = table.free(slot, None);
                drop(table);
                next.into_iter().for_each(Waker::wake);
                Err((error, memory))
            }
        }
    }

    /// Takes the outcome of a slot; `None` before its work request has completed.
    pub(super) fn take(&self, slot: u32) -> Option<Outcome> {
        if slot == IN_SHARED {
            return self.table.lock().arrived_shared.pop_front();
        }
        let (outcome, next) = self.table.lock().take(slot)?;
        next.into_iter().for_each(Waker::wake);
        Some(outcome)
    }

    /// Abandons all operations: their buffers return to the pool when they complete.
    pub(super) fn abandon_all(&self) {
        let count = self.table.lock().slots.len();
        for slot in 0..u32::try_from(count).unwrap_or(u32::MAX) {
            self.abandon(slot);
        }
    }

    /// Marks an operation as abandoned, or frees its slot if it has completed.
    fn abandon(&self, slot: u32) {
        // Dropped or called after the lock was released.
        let mut left: (Option<Outcome>, Option<Waker>, Option<Waker>) = (None, None, None);
        let mut table = self.table.lock();
        if let Some((outcome, next)) = table.take(slot) {
            (left.0, left.1) = (Some(outcome), next);
        } else if let Some(place) = table.slots.get_mut(slot as usize)
            && place.state == State::InFlight
        {
            place.state = State::Abandoned;
            left.2 = place.waker.take();
        }
        drop(table);
        if let Some(next) = left.1 {
            next.wake();
        }
    }

    /// Moves completions from the CQ to their slots and wakes the tasks. The caller holds no lock.
    pub(super) fn deliver(&self) {
        let mut batch = [Completion::default(); DELIVERED_AT_ONCE];
        // The vector allocates only if there are unsignaled requests.
        let mut freed: Vec<Freed> = Vec::new();
        loop {
            let mut wakers: [Option<Waker>; DELIVERED_AT_ONCE] = Default::default();
            let mut abandoned: [Option<ReclaimedMemory>; DELIVERED_AT_ONCE] = Default::default();
            let mut table = self.table.lock();
            // Polled under the lock; otherwise two threads could deliver messages out of order.
            let count = self.completions.poll(&mut batch);
            for (at, completion) in batch[..count].iter().enumerate() {
                (abandoned[at], wakers[at]) = match &self.shared {
                    Some(shared) => match shared.reclaim(completion) {
                        Some(buf) => {
                            let memory = Some(ReclaimedMemory::Buf(buf));
                            (None, table.arrive((*completion, memory)))
                        }
                        None => table.complete(*completion, &mut freed),
                    },
                    None => table.complete(*completion, &mut freed),
                };
            }
            drop(table);
            for (memory, waker) in freed.drain(..) {
                drop(memory);
                waker.into_iter().for_each(Waker::wake);
            }
            if count == 0 {
                return;
            }
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

impl Drop for Ops {
    fn drop(&mut self) {
        // The QP kept a reference to its operations until it was destroyed, so no transfer is in
        // progress any more. Return the buffers of unsignaled requests that no later completion
        // freed.
        let table = self.table.get_mut();
        let count = u32::try_from(table.slots.len()).unwrap_or(u32::MAX);
        for slot in 0..count {
            if table.slots[slot as usize].state == State::Unsignaled {
                drop(table.free(slot, None));
            }
        }
    }
}

impl Watcher for Ops {
    fn unlocked(&self, changed: bool) {
        if !self.completions.is_empty() {
            self.deliver();
        }
        if changed {
            self.changed.wake();
        }
    }
}

impl Table {
    /// Records the start of a post in its slot and returns its timestamp.
    fn begin(&mut self, slot: u32, state: State, memory: Option<InFlightMemory>) -> u64 {
        self.clock += 1;
        if let Some(place) = self.slots.get_mut(slot as usize) {
            place.state = state;
            place.memory = memory;
            place.begun = self.clock;
            self.unsignaled_slots += u32::from(state == State::Unsignaled);
        }
        self.clock
    }

    /// Records that the post of an unsignaled request has returned.
    fn posted(&mut self, slot: u32, begun: u64) {
        self.clock += 1;
        let posted = self.clock;
        self.unsignaled.push_back(Unsignaled {
            slot,
            begun,
            posted,
        });
    }

    /// Frees the slots of the unsignaled requests whose post returned before `begun`.
    fn free_before(&mut self, begun: u64, freed: &mut Vec<Freed>) {
        while let Some(first) = self.unsignaled.front()
            && first.posted < begun
        {
            let Unsignaled { slot, begun, .. } = *first;
            self.unsignaled.pop_front();
            let is_it = self
                .slots
                .get(slot as usize)
                .is_some_and(|place| place.state == State::Unsignaled && place.begun == begun);
            if is_it {
                freed.push(self.free(slot, None));
            }
        }
    }

    /// Queues a message from a shared queue. Returns the waker of the task that it is granted to.
    fn arrive(&mut self, message: Outcome) -> Option<Waker> {
        self.arrived_shared.push_back(message);
        self.messages.put()
    }

    /// Records the completion of a work request. Returns the waker to call and, for an abandoned
    /// request, the memory to drop. Adds the wakers and the memory of earlier unsignaled requests
    /// to `freed`.
    fn complete(&mut self, completion: Completion, freed: &mut Vec<Freed>) -> Freed {
        let slot = u32::try_from(completion.wr_id).unwrap_or(u32::MAX);
        let Some(place) = self.slots.get_mut(slot as usize) else {
            return (None, None);
        };
        let (state, begun) = (place.state, place.begun);
        if slot < self.sends {
            self.free_before(begun, freed);
        }
        if matches!(state, State::Abandoned | State::Unsignaled) {
            return self.free(slot, Some(completion));
        }
        let place = &mut self.slots[slot as usize];
        place.state = State::Completed(completion);
        if slot < self.sends {
            return (None, place.waker.take());
        }
        self.arrived.push_back(slot);
        (None, self.messages.put())
    }

    fn take(&mut self, slot: u32) -> Option<(Outcome, Option<Waker>)> {
        let State::Completed(completion) = self.slots.get(slot as usize)?.state else {
            return None;
        };
        let (memory, next) = self.free(slot, Some(completion));
        Some(((completion, memory), next))
    }

    /// Frees a slot whose work request is complete. `completion` is `None` if the request was
    /// refused, or if an unsignaled request completed without a completion. Returns the memory of
    /// the slot, and the waker of the task that gets the place in the send queue.
    fn free(&mut self, slot: u32, completion: Option<Completion>) -> Freed {
        let Some(place) = self.slots.get_mut(slot as usize) else {
            return (None, None);
        };
        self.unsignaled_slots -= u32::from(place.state == State::Unsignaled);
        place.state = State::Free;
        let done = completion.filter(|completion| completion.status.is_success());
        let brought = done.filter(places_bytes);
        let memory = place.memory.take().map(|memory| match memory {
            InFlightMemory::Buf(buf) => {
                let brought = brought.map(|completion| completion.byte_len);
                // SAFETY: the only work request that names the buffer has completed or was refused.
                #[expect(unsafe_code, reason = "this is where the flight of a buffer ends")]
                ReclaimedMemory::Buf(unsafe { buf.reclaim(brought) })
            }
            InFlightMemory::Region(region) => ReclaimedMemory::Region(region),
        });
        if slot < self.sends {
            self.free_sends.push(slot);
            return (memory, self.room.put());
        }
        self.free_recvs.push(slot);
        (memory, None)
    }
}

/// Returns true if the operation placed `byte_len` bytes in local memory.
fn places_bytes(completion: &Completion) -> bool {
    use crate::completion::WcOpcode::{RdmaRead, Recv, RecvImmediate};
    matches!(completion.opcode, Recv | RecvImmediate | RdmaRead)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GateKind {
    Room,
    Messages,
}

/// Waits for a unit of a gate; resolves to a slot number.
pub(super) struct GateFuture<'a> {
    ops: ForkGuarded<&'a Ops>,
    kind: GateKind,
    ticket: Option<Ticket>,
}

impl<'a> GateFuture<'a> {
    fn new(ops: &'a Ops, kind: GateKind) -> Self {
        GateFuture {
            ops: ForkGuarded::new(ops),
            kind,
            ticket: None,
        }
    }
}

impl Table {
    fn gate(&mut self, kind: GateKind) -> &mut Gate {
        match kind {
            GateKind::Room => &mut self.room,
            GateKind::Messages => &mut self.messages,
        }
    }

    /// Takes the slot that belongs to a unit of the gate.
    fn unit(&mut self, kind: GateKind) -> Option<u32> {
        match kind {
            GateKind::Room => self.free_sends.pop(),
            GateKind::Messages => self
                .arrived
                .pop_front()
                .or(Some(IN_SHARED).filter(|_| !self.arrived_shared.is_empty())),
        }
    }
}

impl Future for GateFuture<'_> {
    type Output = u32;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u32> {
        let this = self.get_mut();
        let Some(ops) = this.ops.here() else {
            return Poll::Pending;
        };
        if this.ticket.is_none() {
            // Fast path without a waker.
            let mut table = ops.table.lock();
            if table.gate(this.kind).try_take()
                && let Some(slot) = table.unit(this.kind)
            {
                return Poll::Ready(slot);
            }
        }
        let mut waker = Some(cx.waker().clone());
        let mut table = ops.table.lock();
        let gate = table.gate(this.kind);
        let mine = match this.ticket {
            Some(ticket) => gate.poll(ticket, &mut waker),
            None => gate.try_take(),
        };
        if mine && let Some(slot) = table.unit(this.kind) {
            this.ticket = None;
            return Poll::Ready(slot);
        }
        if this.ticket.is_none()
            && let Some(waker) = waker.take()
        {
            this.ticket = Some(table.gate(this.kind).enter(waker));
        }
        // The lock is released before `waker` is dropped, because `waker` may be the previous
        // waker.
        drop(table);
        Poll::Pending
    }
}

impl Drop for GateFuture<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket
            && let Some(ops) = self.ops.here()
        {
            let [next, own] = ops.table.lock().gate(self.kind).leave(ticket);
            next.into_iter().for_each(Waker::wake);
            drop(own);
        }
    }
}

/// Waits for the completion of a posted work request. Dropping it does not cancel the work request.
pub(super) struct CompletionFuture<'a> {
    ops: ForkGuarded<&'a Ops>,
    slot: Option<u32>,
}

impl CompletionFuture<'_> {
    /// Consumes the future of a receive without abandoning it. [`Ops::message`] returns its slot
    /// after the completion.
    pub(super) fn detach(mut self) {
        self.slot = None;
    }
}

impl Future for CompletionFuture<'_> {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.get_mut();
        let (Some(slot), Some(ops)) = (this.slot, this.ops.here()) else {
            return Poll::Pending;
        };
        if let Some(outcome) = ops.take(slot) {
            this.slot = None;
            return Poll::Ready(outcome);
        }
        let mut waker = Some(cx.waker().clone());
        let mut table = ops.table.lock();
        if let Some(place) = table.slots.get_mut(slot as usize)
            && place.state == State::InFlight
        {
            std::mem::swap(&mut place.waker, &mut waker);
            drop(table);
            return Poll::Pending;
        }
        drop(table);
        // The request completed between `take` and the lock.
        this.slot = None;
        ops.take(slot).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for CompletionFuture<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot
            && let Some(ops) = self.ops.here()
        {
            ops.abandon(slot);
        }
    }
}
