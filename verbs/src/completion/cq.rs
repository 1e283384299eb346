//! Ring, arming and events of a completion queue.

use std::collections::{TryReserveError, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use uwarp_engine::completion::{Completion, CqOverflow, FreedPlaces, Pushing};
use uwarp_engine::fork_guard::Inherited;

use super::channel::CompletionChannel;
use super::eventfd::EventFd;
use super::places::{QueueId, Queues, Run};
use crate::clock::machine_now;

/// Completions that send an event (`solicited_only` of `ibv_req_notify_cq`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Notify {
    /// Receives for which the peer requested an event, and every completion in error.
    Solicited,
    /// Every completion.
    Any,
}

/// Error of resizing a CQ (`ibv_resize_cq`). The CQ is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeCqError {
    /// The CQ holds more completions than the new depth.
    #[error(
        "completion queue {cq_num} has {entries} completions and cannot be made for {depth}; poll it first"
    )]
    TooSmall {
        /// Number of the CQ.
        cq_num: u32,
        /// Number of completions that it holds.
        entries: usize,
        /// The requested depth.
        depth: u32,
    },
    /// The device does not allow the depth.
    #[error(
        "the depth of completion queue {cq_num} is {got}, but this device allows 1 to {max} (Limits::max_cqe)"
    )]
    Size {
        /// Number of the CQ.
        cq_num: u32,
        /// The requested depth.
        got: u32,
        /// The largest allowed depth.
        max: u32,
    },
    /// There is no memory for that many completions.
    #[error(
        "there is no memory to make completion queue {cq_num} for {depth} completions; ask for fewer"
    )]
    OutOfMemory {
        /// Number of the CQ.
        cq_num: u32,
        /// The requested depth.
        depth: u32,
    },
    /// The CQ has lost a completion, and accepts no more at any depth.
    #[error("completion queue {cq_num} has lost a completion and takes no more; make another one")]
    Overflowed {
        /// Number of the CQ.
        cq_num: u32,
    },
    /// The CQ was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
}

/// A completion queue: a ring of limited capacity, its arming, and its events. Dropping it removes
/// its waiting events from the channel.
///
/// A completion that finds the queue full is lost, and so is every later one, even when there is
/// room again. The program therefore polls all completions up to the first lost one, without a gap.
/// Such a CQ is in error in the sense of `IBV_EVENT_CQ_ERR`.
///
/// Lock order: `state`, the channel's queue, `events`.
pub(crate) struct CqInner {
    num: u32,
    context: u64,
    /// Weak reference to this CQ, which its events carry.
    this: Weak<CqInner>,
    channel: Option<CompletionChannel>,
    state: Mutex<State>,
    /// Number of entries. It is kept outside the lock, so that polling an empty CQ takes no lock.
    len: AtomicUsize,
    /// Number of polls that took completions, modulo 2^32.
    polls: AtomicU32,
    /// True if `armed` of the state is set, for readers without the lock.
    is_armed: AtomicBool,
    /// Number of waiting threads: those between [`CqInner::wait_guard`] and the drop of the guard.
    waiters: AtomicUsize,
    /// True if `wake` was signalled and not cleared since. One system call thus wakes a thread for
    /// any number of completions.
    woken: AtomicBool,
    /// Descriptor that wakes the waiting threads. It is created when a thread waits for the first
    /// time.
    wake: OnceLock<EventFd>,
    events: Mutex<Events>,
    acked: Condvar,
    /// True if the CQ was destroyed and sends no more events. Closing connections may keep it in
    /// memory.
    destroyed: AtomicBool,
}

struct State {
    ring: VecDeque<Entry>,
    capacity: usize,
    armed: Option<Notify>,
    overflowed: bool,
    /// Work queues that complete here.
    queues: Queues,
}

/// A completion that was not polled yet.
struct Entry {
    completion: Completion,
    queue: QueueId,
    /// Number of places in the work queue that are freed when the completion is polled.
    places: u32,
}

/// Number of events that the program took from the channel, and number of those that it
/// acknowledged.
#[derive(Default)]
struct Events {
    delivered: u64,
    acked: u64,
}

/// Returns the arming after a request for a notification: the wider of the two requests.
///
/// ```text
///              arm(Solicited)              arm(Any)
///   unarmed ─────────────────► Solicited ───────────► Any
///      ▲  └──────────────────────── arm(Any) ─────────▲│
///      └──── a completion that it is armed for: one event ┘
/// ```
///
/// An event for a Write without a completion (`Settings::event_on_write`) also leads from `Any` to
/// unarmed.
fn after_arming(armed: Option<Notify>, notify: Notify) -> Option<Notify> {
    armed.max(Some(notify))
}

/// Returns the arming after a completion, and whether that completion sends an event.
fn after_completion(armed: Option<Notify>, completion: &Completion) -> (Option<Notify>, bool) {
    let fires = match armed {
        None => false,
        Some(Notify::Any) => true,
        Some(Notify::Solicited) => completion.solicited || !completion.status.is_success(),
    };
    (if fires { None } else { armed }, fires)
}

impl CqInner {
    /// Creates an empty CQ that holds `capacity` completions. `num` is unique in the device. Events
    /// carry `context`.
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
            destroyed: AtomicBool::new(false),
        }))
    }

    /// Number of the CQ in its device.
    pub(crate) fn num(&self) -> u32 {
        self.num
    }

    /// Value chosen by the program (`cq_context`).
    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    /// Maximum number of completions.
    pub(crate) fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// Returns true if a notification is requested. Takes no lock.
    pub(crate) fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
    }

    fn set_armed(&self, state: &mut State, armed: Option<Notify>) {
        if armed != state.armed {
            state.armed = armed;
            self.is_armed.store(armed.is_some(), Ordering::Relaxed);
        }
    }

    /// Returns true if a completion was lost.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.state.lock().overflowed
    }

    /// Changes the capacity to `depth`, at most `max`. The completions, their order and the arming
    /// stay.
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
        // Reserved now, so that no push allocates.
        let reserved = state.ring.try_reserve_exact(capacity - entries);
        reserved.map_err(|_| ResizeCqError::OutOfMemory { cq_num, depth })?;
        state.ring.shrink_to(capacity);
        state.capacity = capacity;
        Ok(())
    }

    /// Number of completions in the queue. Takes no lock.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    /// A count that changes when completions are taken.
    #[inline]
    pub(crate) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Returns true if there is no completion.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a completion, and sends the event if the CQ is armed for it.
    ///
    /// # Errors
    /// The queue is full, or was full at an earlier completion: the completion is lost, and the
    /// earlier ones stay.
    #[cfg(test)]
    pub(crate) fn push(&self, completion: Completion) -> Result<(), CqOverflow> {
        self.pushing_of(QueueId::NONE).push(completion, 0)
    }

    /// Appends several completions of a queue. The lock is taken once for all of them, and waiters
    /// are woken once, when the result is dropped.
    #[inline]
    pub(super) fn pushing_of(&self, queue: QueueId) -> PushingToCq<'_> {
        PushingToCq {
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

    /// Removes a work queue that will complete nothing more.
    pub(super) fn detach(&self, queue: QueueId) {
        self.state.lock().queues.detach(queue);
    }

    /// Appends a completion that needs further action: it finds no room, or the CQ is armed.
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
            // Stored before the event is sent, so that a thread that gets the event finds the
            // completion.
            self.len.store(state.ring.len(), Ordering::SeqCst);
            return Ok(());
        }
        // The completion can never be polled, so its places are freed now. If they belong to an
        // SRQ, other QPs with intact CQs need them.
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

    /// Sends an event and disarms the CQ, if it is armed for this completion. A lost completion
    /// counts too, because a sleeping program must wake up to find the full queue.
    fn notify(&self, state: &mut State, completion: &Completion) {
        let (armed, fires) = after_completion(state.armed, completion);
        self.set_armed(state, armed);
        if fires {
            self.send_event();
        }
    }

    /// Sends one event to the channel, unless the CQ was destroyed. The caller holds the lock of
    /// the state. The CQ leaves its channel under the same lock.
    fn send_event(&self) {
        if let Some(channel) = &self.channel
            && !self.destroyed.load(Ordering::Relaxed)
        {
            channel.send(Weak::clone(&self.this));
        }
    }

    /// Returns true if its events go to a channel.
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// Sends one event without a completion, if the CQ is armed for any completion.
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

    /// Moves the oldest completions to `out` and returns their number. An empty queue costs one
    /// load.
    pub(crate) fn poll(&self, out: &mut [Completion]) -> usize {
        if self.is_empty() || out.is_empty() {
            return 0;
        }
        let mut state = self.state.lock();
        let State { ring, queues, .. } = &mut *state;
        let count = ring.len().min(out.len());
        if let ([slot, ..], 1) = (&mut *out, count) {
            // Draining the ring would cost several times as much for a single entry.
            if let Some(entry) = ring.front() {
                *slot = entry.completion;
                queues.free(entry.queue, entry.places);
            }
            ring.pop_front();
        } else {
            let mut run = Run::new();
            // The entries are read in place: draining would copy each of them twice.
            for (slot, entry) in out.iter_mut().zip(ring.iter()) {
                *slot = entry.completion;
                run.add(queues, entry.queue, entry.places);
            }
            run.end(queues);
            ring.drain(..count);
        }
        self.count_poll(&state);
        count
    }

    /// Takes the oldest completion.
    #[cfg(test)]
    pub(crate) fn poll_one(&self) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.poll(&mut one) == 1).then_some(one[0])
    }

    /// Removes the completions of one queue, which must not be polled any more, and frees their
    /// places.
    pub(super) fn purge(&self, queue: QueueId) {
        let mut state = self.state.lock();
        let State { ring, queues, .. } = &mut *state;
        ring.retain(|entry| {
            let stays = entry.queue != queue;
            if !stays {
                queues.free(entry.queue, entry.places);
            }
            stays
        });
        self.len.store(ring.len(), Ordering::Release);
    }

    /// Counts a poll that took completions, and records how many are left.
    fn count_poll(&self, state: &State) {
        self.len.store(state.ring.len(), Ordering::Release);
        // The lock is held, so no count is lost.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
    }

    /// Requests one event, for the next completion of this kind after this call. A later request
    /// for solicited completions does not narrow an arming for any completion. Returns true if
    /// completions are in the queue already: they send no event, so the program polls once more
    /// before it sleeps.
    pub(crate) fn arm(&self, notify: Notify) -> bool {
        let mut state = self.state.lock();
        let armed = after_arming(state.armed, notify);
        self.set_armed(&mut state, armed);
        // The arming is ordered before the program's reads of memory that a peer writes: see
        // `Connection::tell_of_write`.
        fence(Ordering::SeqCst);
        !state.ring.is_empty()
    }

    /// Acknowledges events that the program took from the channel. Only the totals count, as in
    /// libibverbs: a program that acknowledges too many at first may acknowledge fewer later.
    pub(crate) fn ack_events(&self, count: u64) {
        let mut events = self.events.lock();
        events.acked = events.acked.saturating_add(count);
        self.acked.notify_all();
    }

    /// Number of events that were taken from the channel and not acknowledged yet.
    pub(crate) fn unacked(&self) -> u64 {
        let events = self.events.lock();
        events.delivered.saturating_sub(events.acked)
    }

    pub(super) fn count_delivered(&self) {
        self.events.lock().delivered += 1;
    }

    /// Ends the events of this CQ before it is destroyed: disarms it, takes back its waiting
    /// events, and waits until all taken ones are acknowledged. Returns false if the timeout passed
    /// first; `None` waits without limit.
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

    /// Detaches the CQ from its channel.
    pub(crate) fn leave_channel(&self) {
        // Completions send their events under this lock: none is sent after this.
        let state = self.state.lock();
        let already = self.destroyed.swap(true, Ordering::Relaxed);
        drop(state);
        if let Some(channel) = &self.channel
            && !already
        {
            channel.detach(self);
        }
    }

    /// Counts the calling thread as a waiter: from now on a push makes the guard's descriptor
    /// readable. The order is: take the guard, poll the CQ, sleep, [`clear`](WaitGuard::clear),
    /// poll the CQ, and so on; then drop the guard.
    ///
    /// # Errors
    /// The process has no descriptor left (only at the first wait).
    pub(crate) fn wait_guard(&self) -> io::Result<WaitGuard<'_>> {
        let wake = match self.wake.get() {
            Some(wake) => wake,
            None => {
                let made = EventFd::flag()?;
                self.wake.get_or_init(|| made)
            }
        };
        // Completions are pushed under this lock. Either the next poll sees a completion, or the
        // push of that completion sees the waiter.
        let state = self.state.lock();
        self.waiters.fetch_add(1, Ordering::SeqCst);
        drop(state);
        Ok(WaitGuard { cq: self, wake })
    }

    /// Number of threads that wait or are about to.
    #[cfg(test)]
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.load(Ordering::SeqCst)
    }

    /// Wakes a waiting thread, after a completion or after another event that it waits for. If
    /// several threads wait, the call may wake only one of them: the first that clears the
    /// descriptor.
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
        // The completions left here can never be polled. Their places are freed, because they may
        // belong to an SRQ, which outlives the CQ.
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

/// Appends completions of one queue to a CQ. Holds the lock of the CQ from the first completion
/// until this is dropped.
pub(crate) struct PushingToCq<'a> {
    cq: &'a CqInner,
    /// Queue of the completions.
    queue: QueueId,
    state: Option<MutexGuard<'a, State>>,
}

impl Pushing for PushingToCq<'_> {
    /// Appends a completion, and sends the event if the CQ is armed for it. Polling the completion
    /// frees `places` places of the queue. Inlined on purpose: the completion is then built in the
    /// ring, and not copied there.
    ///
    /// # Errors
    /// The CQ is full, or was full at an earlier completion: the completion is lost, the earlier
    /// ones stay, and the places are freed.
    #[inline(always)]
    fn push(&mut self, completion: Completion, places: u32) -> Result<(), CqOverflow> {
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

impl Drop for PushingToCq<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(state) = self.state.take() else {
            return;
        };
        self.cq.len.store(state.ring.len(), Ordering::Release);
        // Waiters are counted under the same lock, so a relaxed load suffices.
        let waited = self.cq.waiters.load(Ordering::Relaxed) > 0;
        drop(state);
        if waited {
            self.cq.wake_waiters();
        }
    }
}

/// Registration of a thread that waits for completions on a descriptor.
pub(crate) struct WaitGuard<'a> {
    cq: &'a CqInner,
    wake: &'a EventFd,
}

impl WaitGuard<'_> {
    /// Returns the descriptor, which is readable after a push.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the descriptor unreadable again. Call it before polling the CQ.
    pub(crate) fn clear(&self) {
        // The descriptor is cleared before the flag. In the other order, a push between the two
        // steps would set the flag, this call would consume its signal, and no later push would
        // signal again. In this order, a push between the two steps does not signal. This thread
        // still finds its completion, by the next poll or by the check in the drop of the guard.
        // The flag is cleared under the lock that such a push held before, so the completion is
        // visible by then.
        self.wake.take();
        let state = self.cq.state.lock();
        self.cq.woken.store(false, Ordering::SeqCst);
        drop(state);
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        // The signal that this thread cleared may also have been meant for another waiter.
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
        let [plain, mut solicited, mut error] = [Completion::default(); 3];
        solicited.solicited = true;
        error.status = Status::WrFlush;
        let completions = [
            ("success", plain),
            ("solicited", solicited),
            ("error", error),
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
