//! Completion channels: a file descriptor that becomes readable when a CQ that was armed gets a completion.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::cq::CqInner;
use super::eventfd::EventFd;
use crate::clock::machine_now;
use crate::fork_guard::{ForkGuard, Inherited};

/// Why a channel gave no event (of `ibv_get_cq_event`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// There is none, and the program made the descriptor non-blocking.
    #[error("no completion event is waiting")]
    WouldBlock,
    /// There was none in time.
    #[error("no completion event came within {0:?}")]
    TimedOut(Duration),
    /// The channel was made before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The system refused to wait on the descriptor.
    #[error("waiting for a completion event failed: {0}")]
    Io(#[source] io::Error),
}

/// A completion channel (`ibv_comp_channel`): CQs send an event to it when they were armed and got a completion.
///
/// Its descriptor is real: it may be polled, put into an epoll set, and made non-blocking with `fcntl`. It is readable
/// while events wait. The program must not read from it; [`get_event`](Self::get_event) does. Clones are the same
/// channel.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fork_guard: ForkGuard,
    fd: EventFd,
    queue: Mutex<Queue>,
    /// Something sends here whose device the program drives: nobody would while a call waits.
    manual: AtomicBool,
}

/// While the lock is held, the descriptor's count is the number of waiting events: so no read of it ever blocks.
#[derive(Default)]
struct Queue {
    /// Weak, so that a CQ does not live on in events that nobody fetches; it takes them back when it goes.
    waiting: VecDeque<Weak<CqInner>>,
    /// CQs that send here.
    cqs: usize,
}

impl core::fmt::Debug for Queue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} events waiting, {} CQs", self.waiting.len(), self.cqs)
    }
}

impl CompletionChannel {
    /// A channel without events (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let fd = EventFd::semaphore()?;
        Ok(Self {
            inner: Arc::new(Inner {
                fork_guard: ForkGuard::here(),
                fd,
                queue: Mutex::default(),
                manual: AtomicBool::new(false),
            }),
        })
    }

    /// The next event, waiting for one up to `timeout` (`None`: without end), as `ibv_get_cq_event` does. Does not wait
    /// when the program made the descriptor non-blocking.
    ///
    /// Waiting here drives no connection; the device's background thread does meanwhile. Where the program drives the
    /// device of a CQ that sends here ([`Progress::Manual`](crate::Progress::Manual)), this does not wait.
    ///
    /// # Errors
    /// [`ChannelError::WouldBlock`] or [`ChannelError::TimedOut`] when there is none, [`ChannelError::Io`] when the
    /// system refused to wait.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<CqEvent, ChannelError> {
        let timeout = if self.inner.manual.load(Ordering::Relaxed) {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        let deadline = timeout.and_then(|timeout| machine_now().checked_add(timeout));
        loop {
            self.inner.fork_guard.check()?;
            if let Some(event) = self.try_get_event() {
                return Ok(event);
            }
            if self.inner.fd.is_nonblocking() {
                return Err(ChannelError::WouldBlock);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(machine_now()));
            let ready = self.inner.fd.wait(left).map_err(ChannelError::Io)?;
            if !ready {
                return Err(ChannelError::TimedOut(timeout.unwrap_or_default()));
            }
        }
    }

    /// The next event, if one is waiting (`ibv_get_cq_event` that does not wait).
    #[must_use]
    pub fn try_get_event(&self) -> Option<CqEvent> {
        self.inner.fork_guard.check().ok()?;
        let mut queue = self.inner.queue.lock();
        loop {
            let cq = queue.waiting.pop_front()?;
            self.inner.fd.take();
            // A CQ that is just being dropped has no events any more.
            if let Some(cq) = cq.upgrade() {
                // Counted before the lock goes: whoever destroys the CQ either takes the event back
                // or waits for its acknowledgement.
                cq.delivered();
                return Some(CqEvent {
                    cq,
                    ack: true,
                    fork_guard: self.inner.fork_guard,
                });
            }
        }
    }

    /// Events that wait (the verbs have no such count); none in the child of a fork.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.look(|queue| queue.waiting.len())
    }

    /// CQs that send to this channel (`refcnt` of `ibv_comp_channel`); while there are any, it must not be destroyed.
    /// None in the child of a fork.
    #[must_use]
    pub fn cq_count(&self) -> usize {
        self.look(|queue| queue.cqs)
    }

    /// 0 where a thread that is no more may hold the lock.
    fn look(&self, count: impl FnOnce(&Queue) -> usize) -> usize {
        if !self.inner.fork_guard.is_here() {
            return 0;
        }
        count(&self.inner.queue.lock())
    }

    /// Whether it was made in this process.
    pub(crate) fn check(&self) -> Result<(), Inherited> {
        self.inner.fork_guard.check()
    }

    /// A CQ is to send here whose device the program drives itself.
    pub(crate) fn mark_manual(&self) {
        self.inner.manual.store(true, Ordering::Relaxed);
    }

    pub(super) fn attach(&self) {
        self.inner.queue.lock().cqs += 1;
    }

    pub(super) fn send(&self, cq: Weak<CqInner>) {
        let mut queue = self.inner.queue.lock();
        queue.waiting.push_back(cq);
        self.inner.fd.add();
    }

    /// Takes the CQ's undelivered events back, from the queue and from the descriptor's count.
    pub(super) fn take_back(&self, cq: &CqInner) {
        self.inner.take_back(&mut self.inner.queue.lock(), cq);
    }

    /// The end of a CQ.
    pub(super) fn detach(&self, cq: &CqInner) {
        let mut queue = self.inner.queue.lock();
        self.inner.take_back(&mut queue, cq);
        queue.cqs = queue.cqs.saturating_sub(1);
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
    /// Readable while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

/// An event of a CQ (`ibv_get_cq_event`). Dropping it acknowledges it; destroying the CQ waits for that.
#[must_use = "dropping the event acknowledges it"]
pub struct CqEvent {
    cq: Arc<CqInner>,
    ack: bool,
    fork_guard: ForkGuard,
}

impl CqEvent {
    /// Number of the CQ (the verbs give the `ibv_cq` itself).
    #[must_use]
    pub fn cq_num(&self) -> u32 {
        self.cq.num()
    }

    /// The value that was given when the CQ was made (`ibv_cq.cq_context`).
    #[must_use]
    pub fn context(&self) -> u64 {
        self.cq.context()
    }

    /// Leaves the event unacknowledged; the CQ's `ack_events` does it later (`ibv_ack_cq_events`).
    pub fn ack_later(mut self) {
        self.ack = false;
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        if self.ack && self.fork_guard.is_here() {
            self.cq.ack_events(1);
        }
    }
}

impl core::fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "CqEvent(of CQ {}, context {:#x})",
            self.cq.num(),
            self.cq.context()
        )
    }
}
