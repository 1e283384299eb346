//! Completion queues.

use std::collections::{TryReserveError, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::channel::CompletionChannel;
use super::eventfd::EventFd;
use super::places::{FreedPlaces, QueueId, Queues, Run};
use super::wc::Completion;
use crate::clock::machine_now;
use crate::event::AsyncEvent;
use crate::fork_guard::Inherited;

/// Which completions send an event (`solicited_only` of `ibv_req_notify_cq`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Notify {
    /// Receives for which the peer asked for an event, and every completion in error.
    Solicited,
    /// Every completion.
    Any,
}

/// The CQ was full, now or before: the completion is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "completion queue {cq_num} is full with {capacity} entries; the completion of work request {wr_id} is lost"
)]
pub(crate) struct CqOverflow {
    pub(crate) cq_num: u32,
    pub(crate) capacity: usize,
    pub(crate) wr_id: u64,
    /// The CQ had not overflowed before.
    pub(crate) first: bool,
}

impl CqOverflow {
    /// Adds the device's asynchronous event, if this is the first completion that this CQ lost: one of `qp_num`.
    pub(crate) fn tell(self, qp_num: u32, events: &mut Vec<AsyncEvent>) -> Self {
        if self.first {
            events.push(AsyncEvent::CqOverflow {
                cq_num: self.cq_num,
                depth: self.capacity,
                qp_num,
            });
        }
        self
    }
}

/// Why a CQ has not the depth that was asked for (`ibv_resize_cq`); it is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeCqError {
    /// More completions are in it than it shall hold.
    #[error(
        "completion queue {cq_num} has {entries} completions and cannot be made for {depth}; poll it first"
    )]
    TooSmall {
        /// The CQ.
        cq_num: u32,
        /// Completions in it.
        entries: usize,
        /// The depth asked for.
        depth: u32,
    },
    /// The device does not allow such a depth.
    #[error(
        "the depth of completion queue {cq_num} is {got}, but this device allows 1 to {max} (Limits::max_cqe)"
    )]
    Size {
        /// The CQ.
        cq_num: u32,
        /// The depth asked for.
        got: u32,
        /// The most allowed.
        max: u32,
    },
    /// There is no memory for so many completions. The queue is as it was.
    #[error(
        "there is no memory to make completion queue {cq_num} for {depth} completions; ask for fewer"
    )]
    OutOfMemory {
        /// The CQ.
        cq_num: u32,
        /// The depth asked for.
        depth: u32,
    },
    /// It has lost a completion, and takes no more whatever its depth.
    #[error("completion queue {cq_num} has lost a completion and takes no more; make another one")]
    Overflowed {
        /// The CQ.
        cq_num: u32,
    },
    /// It was made before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
}

/// A completion queue: a ring of limited capacity, its arming, and its events. Dropping it takes the events back that
/// wait in the channel.
///
/// When a completion finds it full, that one is lost, and so is every later one, also when there is room again: what
/// the program polls is all that happened up to some moment, with no gap in between (a CQ in error, as
/// `IBV_EVENT_CQ_ERR` means it).
///
/// Locks, in the order they are taken: `state`, the channel's queue, `events`.
pub(crate) struct CqInner {
    num: u32,
    context: u64,
    /// This CQ, as its events hold it.
    this: Weak<CqInner>,
    channel: Option<CompletionChannel>,
    state: Mutex<State>,
    /// Entries, so that polling an empty CQ takes no lock.
    len: AtomicUsize,
    /// How often completions were taken, modulo 2^32.
    polls: AtomicU32,
    /// Whether `armed` of the state is set, for those who look without the lock.
    is_armed: AtomicBool,
    /// Threads between [`CqInner::wait_guard`] and the drop of what it gave.
    waiters: AtomicUsize,
    /// `wake` was signalled and not cleared since: one system call wakes for any number of completions.
    woken: AtomicBool,
    /// Made when a thread waits for the first time.
    wake: OnceLock<EventFd>,
    events: Mutex<Events>,
    acked: Condvar,
    /// It sends to no channel any more: it was destroyed. (Connections that are being closed keep it in memory.)
    left: AtomicBool,
}

struct State {
    ring: VecDeque<Entry>,
    capacity: usize,
    armed: Option<Notify>,
    overflowed: bool,
    /// The work queues that complete here.
    queues: Queues,
}

/// A completion that was not polled yet.
struct Entry {
    completion: Completion,
    queue: QueueId,
    /// Places of the queue that the poll frees.
    places: u32,
}

/// Events that the program took from the channel, and events that it acknowledged.
#[derive(Default)]
struct Events {
    delivered: u64,
    acked: u64,
}

/// The arming of a CQ after the program asked for a notification: the wider wish stays.
///
/// ```text
///              arm(Solicited)              arm(Any)
///   unarmed ─────────────────► Solicited ───────────► Any
///      ▲  └──────────────────────── arm(Any) ─────────▲│
///      └──── a completion that it is armed for: one event ┘
///            (from `Any` also a Write that nothing can complete behind: `Settings::event_on_write`)
/// ```
fn after_arming(armed: Option<Notify>, notify: Notify) -> Option<Notify> {
    armed.max(Some(notify))
}

/// The arming after a completion, and whether that completion sends an event.
fn after_completion(armed: Option<Notify>, completion: &Completion) -> (Option<Notify>, bool) {
    let fires = match armed {
        None => false,
        Some(Notify::Any) => true,
        Some(Notify::Solicited) => completion.solicited || !completion.status.is_success(),
    };
    (if fires { None } else { armed }, fires)
}

impl CqInner {
    /// An empty CQ that holds `capacity` completions. `num` is unique in the device; `context` is what events of it
    /// carry.
    pub(crate) fn new(
        num: u32,
        context: u64,
        capacity: usize,
        channel: Option<CompletionChannel>,
    ) -> Result<Arc<Self>, TryReserveError> {
        let mut ring = VecDeque::new();
        ring.try_reserve_exact(capacity)?;
        if let Some(channel) = &channel {
            channel.attach();
        }
        Ok(Arc::new_cyclic(|this| Self {
            num,
            context,
            this: Weak::clone(this),
            channel,
            state: Mutex::new(State {
                ring,
                capacity,
                armed: None,
                overflowed: false,
                queues: Queues::default(),
            }),
            len: AtomicUsize::new(0),
            polls: AtomicU32::new(0),
            is_armed: AtomicBool::new(false),
            waiters: AtomicUsize::new(0),
            woken: AtomicBool::new(false),
            wake: OnceLock::new(),
            events: Mutex::default(),
            acked: Condvar::new(),
            left: AtomicBool::new(false),
        }))
    }

    /// Number of the CQ in its device.
    pub(crate) fn num(&self) -> u32 {
        self.num
    }

    /// The program's value.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    /// Completions it holds at most.
    pub(crate) fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// Whether a notification is asked for; takes no lock.
    pub(crate) fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
    }

    fn set_armed(&self, state: &mut State, armed: Option<Notify>) {
        if armed != state.armed {
            state.armed = armed;
            self.is_armed.store(armed.is_some(), Ordering::Relaxed);
        }
    }

    /// Whether a completion was lost.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.state.lock().overflowed
    }

    /// Makes it hold `depth` completions, at most `max`. Those in it stay, in order, and so does the arming.
    pub(crate) fn resize(&self, depth: u32, max: u32) -> Result<(), ResizeCqError> {
        let cq_num = self.num;
        if !(1..=max).contains(&depth) {
            let got = depth;
            return Err(ResizeCqError::Size { cq_num, got, max });
        }
        let mut state = self.state.lock();
        if state.overflowed {
            return Err(ResizeCqError::Overflowed { cq_num });
        }
        let (entries, capacity) = (state.ring.len(), depth as usize);
        if entries > capacity {
            return Err(ResizeCqError::TooSmall {
                cq_num,
                entries,
                depth,
            });
        }
        // So that no push allocates.
        let reserved = state.ring.try_reserve_exact(capacity - entries);
        reserved.map_err(|_| ResizeCqError::OutOfMemory { cq_num, depth })?;
        state.ring.shrink_to(capacity);
        state.capacity = capacity;
        Ok(())
    }

    /// Completions in the queue; 0 without taking a lock.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    /// A number that is another one after completions were taken.
    #[inline]
    pub(crate) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// True when there is no completion.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a completion, and sends the event when the CQ is armed for it.
    ///
    /// # Errors
    /// When the queue is full, or was when an earlier completion came: the completion is lost, everything before
    /// stays.
    #[cfg(test)]
    pub(crate) fn push(&self, completion: Completion) -> Result<(), CqOverflow> {
        self.pushing_of(QueueId::NONE).push(completion, 0)
    }

    /// Appends completions of a queue, one after the other: the lock is taken once for all of them, and those who
    /// wait are woken once, when this is dropped.
    #[inline]
    pub(super) fn pushing_of(&self, queue: QueueId) -> Pushing<'_> {
        Pushing {
            cq: self,
            queue,
            state: None,
        }
    }

    /// Adds a work queue that completes here.
    pub(super) fn attach(&self, freed: Arc<FreedPlaces>) -> QueueId {
        let State { ring, queues, .. } = &mut *self.state.lock();
        queues.attach(freed, ring.iter().map(|entry| entry.queue))
    }

    /// Removes a work queue, which completes nothing any more.
    pub(super) fn detach(&self, queue: QueueId) {
        self.state.lock().queues.detach(queue);
    }

    /// A completion that somebody has to be told of: it finds no room, or the CQ is armed.
    #[cold]
    fn push_noticed(&self, state: &mut State, entry: Entry) -> Result<(), CqOverflow> {
        let completion = entry.completion;
        let result = self.append(state, entry);
        self.notify(state, &completion);
        result
    }

    fn append(&self, state: &mut State, entry: Entry) -> Result<(), CqOverflow> {
        let wr_id = entry.completion.wr_id;
        if state.ring.len() < state.capacity && !state.overflowed {
            state.ring.push_back(entry);
            // Who gets the event finds the completion.
            self.len.store(state.ring.len(), Ordering::SeqCst);
            return Ok(());
        }
        // Nobody can poll it. An SRQ has other QPs, whose CQs may be well.
        state.queues.free(entry.queue, entry.places);
        let first = !state.overflowed;
        state.overflowed = true;
        let (cq_num, capacity) = (self.num, state.capacity);
        Err(CqOverflow {
            cq_num,
            capacity,
            wr_id,
            first,
        })
    }

    /// One event for one arming, and only for a completion that comes after it. A lost completion counts too: the
    /// program that sleeps must wake up to find the full queue.
    fn notify(&self, state: &mut State, completion: &Completion) {
        let (armed, fires) = after_completion(state.armed, completion);
        self.set_armed(state, armed);
        if fires {
            self.send_event();
        }
    }

    /// To be called under the lock of the state, under which the CQ leaves its channel.
    fn send_event(&self) {
        if let Some(channel) = &self.channel
            && !self.left.load(Ordering::Relaxed)
        {
            channel.send(Weak::clone(&self.this));
        }
    }

    /// Whether its events go anywhere.
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// One event without a completion, for a program that waits for any and has something else to look at.
    pub(crate) fn event_without_completion(&self) {
        if !self.is_armed() {
            return;
        }
        let mut state = self.state.lock();
        if state.armed == Some(Notify::Any) {
            self.set_armed(&mut state, None);
            self.send_event();
        }
    }

    /// Moves the oldest completions to `out`; returns how many. An empty queue costs one load.
    pub(crate) fn poll(&self, out: &mut [Completion]) -> usize {
        if self.is_empty() || out.is_empty() {
            return 0;
        }
        let mut state = self.state.lock();
        let State { ring, queues, .. } = &mut *state;
        let count = ring.len().min(out.len());
        if let ([slot, ..], 1) = (&mut *out, count) {
            // To drain a queue of one costs several times as much.
            if let Some(entry) = ring.front() {
                *slot = entry.completion;
                queues.free(entry.queue, entry.places);
            }
            ring.pop_front();
        } else {
            let mut run = Run::new();
            // Read where they lie: to drain them would copy each of them twice.
            for (slot, entry) in out.iter_mut().zip(ring.iter()) {
                *slot = entry.completion;
                run.add(queues, entry.queue, entry.places);
            }
            run.end(queues);
            ring.drain(..count);
        }
        self.taken(&state);
        count
    }

    /// The oldest completion.
    #[cfg(test)]
    pub(crate) fn poll_one(&self) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.poll(&mut one) == 1).then_some(one[0])
    }

    /// Removes the completions of one QP, which nobody is to poll any more, and frees their places.
    pub(crate) fn purge(&self, qp_num: u32) {
        let mut state = self.state.lock();
        let State { ring, queues, .. } = &mut *state;
        ring.retain(|entry| {
            let stays = entry.completion.qp_num != qp_num;
            if !stays {
                queues.free(entry.queue, entry.places);
            }
            stays
        });
        self.len.store(ring.len(), Ordering::Release);
    }

    /// The program has taken completions.
    fn taken(&self, state: &State) {
        self.len.store(state.ring.len(), Ordering::Release);
        // Under the lock, so no count is lost.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
    }

    /// Asks for one event, for the next completion of this kind that comes after this call. Arming for any is not
    /// taken back by a later arming for solicited ones. Returns true when completions are in the queue already: they
    /// send no event, so the program polls once more before it sleeps.
    pub(crate) fn arm(&self, notify: Notify) -> bool {
        let mut state = self.state.lock();
        let armed = after_arming(state.armed, notify);
        self.set_armed(&mut state, armed);
        // Before the program looks at memory that a peer writes: see `Connection::tell_of_write`.
        fence(Ordering::SeqCst);
        !state.ring.is_empty()
    }

    /// Acknowledges events that the program took from the channel. The totals count, as in libibverbs: a program that
    /// acknowledges too many at first may acknowledge fewer later.
    pub(crate) fn ack_events(&self, count: u64) {
        let mut events = self.events.lock();
        events.acked = events.acked.saturating_add(count);
        self.acked.notify_all();
    }

    /// Events taken from the channel and not acknowledged yet.
    pub(crate) fn unacked(&self) -> u64 {
        let events = self.events.lock();
        events.delivered.saturating_sub(events.acked)
    }

    pub(super) fn delivered(&self) {
        self.events.lock().delivered += 1;
    }

    /// Ends the events of this CQ, as destroying it must: disarms it, takes those back that wait in the channel, and
    /// waits until every one that the program took is acknowledged. `false` when the time was over first; `None`
    /// waits without end.
    pub(crate) fn end_events(&self, timeout: Option<Duration>) -> bool {
        self.set_armed(&mut self.state.lock(), None);
        if let Some(channel) = &self.channel {
            channel.take_back(self);
        }
        let deadline = timeout.and_then(|timeout| machine_now().checked_add(timeout));
        let mut events = self.events.lock();
        while events.acked < events.delivered {
            match deadline {
                None => self.acked.wait(&mut events),
                Some(deadline) => {
                    if self.acked.wait_until(&mut events, deadline).timed_out() {
                        return events.acked >= events.delivered;
                    }
                }
            }
        }
        true
    }

    /// The channel is not used by this CQ any more.
    pub(crate) fn leave_channel(&self) {
        // Under the lock that a completion sends its event under: none is sent after this.
        let state = self.state.lock();
        let left = self.left.swap(true, Ordering::Relaxed);
        drop(state);
        if let Some(channel) = &self.channel
            && !left
        {
            channel.detach(self);
        }
    }

    /// Counts the calling thread as one that is about to sleep: from now on a push makes the descriptor of the guard
    /// readable. The order is: take the guard, poll the CQ, sleep, [`clear`](WaitGuard::clear), poll the CQ, and so on;
    /// then drop the guard.
    ///
    /// # Errors
    /// When the process has no descriptor left (the first time).
    pub(crate) fn wait_guard(&self) -> io::Result<WaitGuard<'_>> {
        let wake = match self.wake.get() {
            Some(wake) => wake,
            None => {
                let made = EventFd::flag()?;
                self.wake.get_or_init(|| made)
            }
        };
        // Under the lock that completions are pushed under: either the poll after this sees a completion, or its push sees the waiter.
        let state = self.state.lock();
        self.waiters.fetch_add(1, Ordering::SeqCst);
        drop(state);
        Ok(WaitGuard { cq: self, wake })
    }

    /// Threads that are about to sleep, or do.
    #[cfg(test)]
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.load(Ordering::SeqCst)
    }

    /// Wakes a thread that waits, also without a completion (something else it waits for has happened). Of several
    /// threads this may reach only one: the first that clears the descriptor.
    pub(crate) fn wake_waiters(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0
            && !self.woken.swap(true, Ordering::SeqCst)
            && let Some(wake) = self.wake.get()
        {
            wake.add();
        }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.leave_channel();
        // An SRQ outlives the CQ. Nobody can poll these completions any more.
        let State { ring, queues, .. } = self.state.get_mut();
        for entry in ring.iter() {
            queues.free(entry.queue, entry.places);
        }
    }
}

impl core::fmt::Debug for CqInner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CqInner")
            .field("num", &self.num)
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// Completions on their way into a CQ. Its lock is held from the first one on.
pub(crate) struct Pushing<'a> {
    cq: &'a CqInner,
    /// The queue that they are of.
    queue: QueueId,
    state: Option<MutexGuard<'a, State>>,
}

impl Pushing<'_> {
    /// Appends a completion, whose poll frees `places` places of the queue, and sends the event when the CQ is armed
    /// for it. Inlined on purpose: a completion is then made where it stays, in the ring, and not copied there.
    ///
    /// # Errors
    /// When the CQ is full, or was when an earlier completion came: the completion is lost, everything before stays,
    /// and the places are free.
    #[inline(always)]
    pub(crate) fn push(&mut self, completion: Completion, places: u32) -> Result<(), CqOverflow> {
        let (cq, queue) = (self.cq, self.queue);
        let state = self.state.get_or_insert_with(|| cq.state.lock());
        let entry = Entry {
            completion,
            queue,
            places,
        };
        if state.ring.len() >= state.capacity || state.overflowed || state.armed.is_some() {
            return cq.push_noticed(state, entry);
        }
        state.ring.push_back(entry);
        Ok(())
    }
}

impl Drop for Pushing<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(state) = self.state.take() else {
            return;
        };
        self.cq.len.store(state.ring.len(), Ordering::Release);
        // Waiters are counted under the lock, so that no order between the two has to be paid for with each push.
        let waited = self.cq.waiters.load(Ordering::Relaxed) > 0;
        drop(state);
        if waited {
            self.cq.wake_waiters();
        }
    }
}

/// A thread that waits for completions itself.
pub(crate) struct WaitGuard<'a> {
    cq: &'a CqInner,
    wake: &'a EventFd,
}

impl WaitGuard<'_> {
    /// Readable after a push.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the descriptor unreadable again; to be called before polling the CQ, not after.
    pub(crate) fn clear(&self) {
        // First the descriptor, then the flag: the other way round, a push in between would set the flag, its signal
        // would be taken here, and no later push would signal again. A push in between this way does not signal; its
        // completion is seen by this thread's next poll, or by the check when the guard is dropped: the flag is cleared under the lock, and a
        // push that finds it set was under the lock before.
        self.wake.take();
        let state = self.cq.state.lock();
        self.cq.woken.store(false, Ordering::SeqCst);
        drop(state);
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        // What this thread cleared may have been meant for another one too.
        if self.cq.waiters.fetch_sub(1, Ordering::SeqCst) > 1 && !self.cq.is_empty() {
            self.cq.wake_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::Status;
    use std::fmt::Write;

    #[test]
    fn arming_table() {
        let plain = Completion::default();
        let completions = [
            ("success", plain),
            (
                "solicited",
                Completion {
                    solicited: true,
                    ..plain
                },
            ),
            (
                "error",
                Completion {
                    status: Status::WrFlush,
                    ..plain
                },
            ),
        ];
        let mut table = String::new();
        for armed in [None, Some(Notify::Solicited), Some(Notify::Any)] {
            for notify in [Notify::Solicited, Notify::Any] {
                let next = after_arming(armed, notify);
                writeln!(table, "{armed:?}, arm {notify:?} -> {next:?}").unwrap();
            }
            for (name, completion) in &completions {
                let (next, fires) = after_completion(armed, completion);
                writeln!(table, "{armed:?}, {name} -> {next:?}, event: {fires}").unwrap();
            }
        }
        insta::assert_snapshot!(table);
    }
}
