//! Completion channels: a descriptor that becomes readable when an armed CQ gets a completion.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};

use super::cq::CqInner;
use super::eventfd::EventFd;
use crate::clock::machine_now;

/// Error of waiting for a completion event (`ibv_get_cq_event`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// No event is waiting, and the program made the descriptor non-blocking.
    #[error("no completion event is waiting")]
    WouldBlock,
    /// No event arrived within this time.
    #[error("no completion event arrived within {0:?}")]
    TimedOut(Duration),
    /// The channel was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The system refused to wait on the descriptor.
    #[error("waiting for a completion event failed: {0}")]
    Io(#[source] io::Error),
}

/// A completion channel (`ibv_comp_channel`), to which armed CQs send an event when they get a
/// completion.
///
/// Its descriptor may be polled, put into an epoll set, and made non-blocking with `fcntl`. It is
/// readable while events wait. The program must not read from it; use
/// [`get_event`](Self::get_event). Clones are handles to the same channel.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    inner: ForkGuarded<Arc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    fd: EventFd,
    queue: Mutex<Queue>,
    /// True if a device with manual progress sends events here. `get_event` then does not wait,
    /// because the device would make no progress meanwhile.
    manual: AtomicBool,
}

/// State under the lock. While the lock is held, the descriptor's count equals the number of
/// waiting events, so no read of the descriptor blocks.
#[derive(Default)]
struct Queue {
    /// Weak references, so that events that are not fetched do not keep a CQ alive. Dropping a CQ
    /// removes its events.
    waiting: VecDeque<Weak<CqInner>>,
    /// Number of CQs that send events to this channel.
    cqs: usize,
}

impl core::fmt::Debug for Queue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} events waiting, {} CQs", self.waiting.len(), self.cqs)
    }
}

impl CompletionChannel {
    /// Creates a channel without events (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let fd = EventFd::semaphore()?;
        Ok(Self {
            inner: ForkGuarded::new(Arc::new(Inner {
                fd,
                queue: Mutex::default(),
                manual: AtomicBool::new(false),
            })),
        })
    }

    /// Takes the next event, as `ibv_get_cq_event` does. If there is none, waits for one up to
    /// `timeout` (`None`: without limit). Returns at once if the program made the descriptor
    /// non-blocking.
    ///
    /// A thread that waits here drives no connection; the device's background thread does. The call
    /// does not wait if a CQ of this channel belongs to a device with
    /// [`Progress::Manual`](crate::Progress::Manual).
    ///
    /// # Errors
    /// [`ChannelError::WouldBlock`] or [`ChannelError::TimedOut`] if there is no event,
    /// [`ChannelError::Io`] if the system refused to wait, [`ChannelError::Inherited`] in the child
    /// of a fork.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<CqEvent, ChannelError> {
        let timeout = if self.inner.get()?.manual.load(Ordering::Relaxed) {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        let deadline = timeout.and_then(|timeout| machine_now().checked_add(timeout));
        loop {
            let inner = self.inner.get()?;
            if let Some(event) = self.try_get_event() {
                return Ok(event);
            }
            if inner.fd.is_nonblocking() {
                return Err(ChannelError::WouldBlock);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(machine_now()));
            let ready = inner.fd.wait(left).map_err(ChannelError::Io)?;
            if !ready {
                return Err(ChannelError::TimedOut(timeout.unwrap_or_default()));
            }
        }
    }

    /// Takes the next event, if one is waiting (`ibv_get_cq_event` without waiting).
    #[must_use]
    pub fn try_get_event(&self) -> Option<CqEvent> {
        let inner = self.inner.here()?;
        let mut queue = inner.queue.lock();
        loop {
            let cq = queue.waiting.pop_front()?;
            inner.fd.take();
            // A CQ that is being dropped has no events any more.
            if let Some(cq) = cq.upgrade() {
                // Counted before the lock is released: a thread that destroys the CQ either takes
                // the event back or waits for its acknowledgement.
                cq.count_delivered();
                return Some(CqEvent {
                    cq: self.inner.with(cq),
                    ack: true,
                });
            }
        }
    }

    /// Number of waiting events; 0 in the child of a fork.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.count(|queue| queue.waiting.len())
    }

    /// Number of CQs that send to this channel (`refcnt` of `ibv_comp_channel`). The channel must
    /// not be destroyed before the number is 0. The number is also 0 in the child of a fork.
    #[must_use]
    pub fn cq_count(&self) -> usize {
        self.count(|queue| queue.cqs)
    }

    /// Returns 0 in the child of a fork, where a thread that does not exist may hold the lock.
    fn count(&self, count: impl FnOnce(&Queue) -> usize) -> usize {
        self.inner
            .here()
            .map_or(0, |inner| count(&inner.queue.lock()))
    }

    /// Returns an error unless the channel was created in this process.
    pub(crate) fn check(&self) -> Result<(), Inherited> {
        self.inner.get().map(|_| ())
    }

    /// Records that a CQ of a device with manual progress sends events here.
    pub(crate) fn mark_manual(&self) {
        if let Some(inner) = self.inner.here() {
            inner.manual.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn attach(&self) {
        if let Some(inner) = self.inner.here() {
            inner.queue.lock().cqs += 1;
        }
    }

    pub(super) fn send(&self, cq: Weak<CqInner>) {
        if let Some(inner) = self.inner.here() {
            let mut queue = inner.queue.lock();
            queue.waiting.push_back(cq);
            inner.fd.add();
        }
    }

    /// Removes the CQ's unfetched events from the queue and from the descriptor's count.
    pub(super) fn take_back(&self, cq: &CqInner) {
        if let Some(inner) = self.inner.here() {
            inner.take_back(&mut inner.queue.lock(), cq);
        }
    }

    /// Removes a CQ and its waiting events.
    pub(super) fn detach(&self, cq: &CqInner) {
        if let Some(inner) = self.inner.here() {
            let mut queue = inner.queue.lock();
            inner.take_back(&mut queue, cq);
            queue.cqs = queue.cqs.saturating_sub(1);
        }
    }
}

impl Inner {
    fn take_back(&self, queue: &mut Queue, cq: &CqInner) {
        let before = queue.waiting.len();
        queue
            .waiting
            .retain(|waiting| !core::ptr::eq(waiting.as_ptr(), cq));
        for _ in queue.waiting.len()..before {
            self.fd.take();
        }
    }
}

impl AsFd for CompletionChannel {
    /// The descriptor is readable while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.unguarded().fd.as_fd()
    }
}

/// An event of a CQ (`ibv_get_cq_event`). Dropping it acknowledges it. Destroying the CQ waits
/// until all its events are acknowledged.
#[must_use = "dropping the event acknowledges it"]
pub struct CqEvent {
    cq: ForkGuarded<Arc<CqInner>>,
    ack: bool,
}

impl CqEvent {
    /// Number of the CQ.
    #[must_use]
    pub fn cq_num(&self) -> u32 {
        self.cq.unguarded().num()
    }

    /// The value given when the CQ was created (`ibv_cq.cq_context`).
    #[must_use]
    pub fn context(&self) -> u64 {
        self.cq.unguarded().context()
    }

    /// Leaves the event unacknowledged. Acknowledge it later with
    /// [`Cq::ack_events`](crate::Cq::ack_events) (`ibv_ack_cq_events`).
    pub fn ack_later(mut self) {
        self.ack = false;
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        if self.ack
            && let Some(cq) = self.cq.here()
        {
            cq.ack_events(1);
        }
    }
}

impl core::fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "CqEvent(of CQ {}, context {:#x})",
            self.cq_num(),
            self.context()
        )
    }
}
