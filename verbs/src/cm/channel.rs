//! Event channels: a descriptor that is readable while events of CM ids wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};

use super::event::{CmEvent, CmEventData};
use super::id::CmId;
use super::inner::IdInner;
use crate::clock::machine_now;
use crate::completion::EventFd;
use crate::device::{Device, DeviceInner};

/// Error of waiting for an event (`errno` of `rdma_get_cm_event`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmWaitError {
    /// No event is waiting, and the program made the descriptor non-blocking.
    #[error("no event of the connection manager is waiting")]
    WouldBlock,
    /// No event arrived within this time.
    #[error("no event of the connection manager arrived within {0:?}")]
    TimedOut(Duration),
    /// The channel was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The system refused to wait on the descriptor.
    #[error("waiting for an event of the connection manager failed: {0}")]
    Io(#[source] io::Error),
}

/// An event channel (`rdma_event_channel`), which receives the events of any number of [`CmId`]s of
/// any devices, in the order in which they happened.
///
/// # Order
///
/// * Requests whose MPA Requests have arrived are queued in the order in which their TCP
///   connections were accepted.
/// * `Established` of an accepted connection is queued before its MPA Reply is sent. A request that
///   the client makes after that Reply is queued later, even on another channel.
/// * If a connection has ended when a newer one arrives, the end is queued before the request of
///   the newer one. Exceptions: a polling thread was about to handle the end, or more than 64
///   connections had something to report at once.
///
/// Its descriptor may be polled, put into an epoll set, and made non-blocking with `fcntl`. It is
/// readable while events wait. The program must not read from it; use
/// [`get_event`](Self::get_event). Clones are handles to the same channel.
#[derive(Clone)]
pub struct EventChannel {
    inner: ForkGuarded<Arc<Inner>>,
}

struct Inner {
    fd: EventFd,
    /// While the lock is held, the descriptor's count equals the number of waiting events, so no
    /// read of the descriptor blocks.
    waiting: Mutex<VecDeque<Waiting>>,
    /// True if a device with manual progress sends events here. Calls then do not wait, because the
    /// device would make no progress meanwhile.
    manual: AtomicBool,
}

/// An event that was not fetched yet. It holds no handle of the id, so dropping the last handle
/// ends the id and removes the event.
pub(super) struct Waiting {
    owner: Arc<IdInner>,
    data: CmEventData,
}

impl EventChannel {
    /// Creates a channel without events (`rdma_create_event_channel`).
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let fd = EventFd::semaphore()?;
        Ok(EventChannel {
            inner: ForkGuarded::new(Arc::new(Inner {
                fd,
                waiting: Mutex::default(),
                manual: AtomicBool::new(false),
            })),
        })
    }

    /// Creates an id whose events go to this channel (`rdma_create_id`). `context` is a number of
    /// the program's choice.
    #[must_use]
    pub fn create_id(&self, device: &Device, context: u64) -> CmId {
        if let Ok(device) = device.inner() {
            self.sends_for(device);
        }
        CmId::new(device.guarded(), self.clone(), context)
    }

    /// Takes the next event, as `rdma_get_cm_event` does. If there is none, waits for one up to
    /// `timeout` (`None`: without limit). Returns at once if the program made the descriptor
    /// non-blocking, or if an id on this channel belongs to a device with
    /// [`Progress::Manual`](crate::Progress::Manual).
    ///
    /// # Errors
    /// [`CmWaitError::WouldBlock`] or [`CmWaitError::TimedOut`] if there is no event,
    /// [`CmWaitError::Io`] if the system refused to wait, [`CmWaitError::Inherited`] in the child
    /// of a fork.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<CmEvent, CmWaitError> {
        let timeout = if self.inner.get()?.manual.load(Ordering::Relaxed) {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        let deadline = timeout.and_then(|timeout| machine_now().checked_add(timeout));
        loop {
            let inner = self.inner.get()?;
            if let Some(event) = inner.take() {
                return Ok(event);
            }
            if inner.fd.is_nonblocking() {
                return Err(CmWaitError::WouldBlock);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(machine_now()));
            if !inner.fd.wait(left).map_err(CmWaitError::Io)? {
                return Err(CmWaitError::TimedOut(timeout.unwrap_or_default()));
            }
        }
    }

    /// Takes the next event, if one is waiting (`rdma_get_cm_event` without waiting).
    #[must_use]
    pub fn try_get_event(&self) -> Option<CmEvent> {
        self.inner.here()?.take()
    }

    /// Number of waiting events; 0 in the child of a fork.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner
            .here()
            .map_or(0, |inner| inner.waiting.lock().len())
    }

    /// Checks that the channel was created in this process. An id in the child of a fork cannot use
    /// a channel of the parent.
    pub(super) fn check(&self) -> Result<(), Inherited> {
        self.inner.get().map(|_| ())
    }

    /// Records that events of this device arrive here.
    pub(super) fn sends_for(&self, device: &DeviceInner) {
        if device.background.is_manual()
            && let Some(inner) = self.inner.here()
        {
            inner.manual.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn send(&self, owner: Arc<IdInner>, data: CmEventData) {
        if let Some(inner) = self.inner.here() {
            inner.append([Waiting { owner, data }]);
        }
    }

    /// Takes back the events of an id that were not fetched, from the queue and from the
    /// descriptor's count. The caller drops the result without holding a lock, because dropping a
    /// request event rejects the request.
    pub(super) fn take_back(&self, owner: &IdInner) -> VecDeque<Waiting> {
        let Some(inner) = self.inner.here() else {
            return VecDeque::new();
        };
        let mut waiting = inner.waiting.lock();
        let (taken, left): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut *waiting)
            .into_iter()
            .partition(|event| std::ptr::eq(Arc::as_ptr(&event.owner), owner));
        *waiting = left;
        for _ in &taken {
            inner.fd.take();
        }
        taken
    }

    /// Appends events of another channel.
    pub(super) fn append(&self, events: VecDeque<Waiting>) {
        if let Some(inner) = self.inner.here() {
            inner.append(events);
        }
    }
}

impl Inner {
    /// Takes the next event, if one is waiting.
    fn take(&self) -> Option<CmEvent> {
        loop {
            let Waiting { owner, data } = {
                let mut waiting = self.waiting.lock();
                let next = waiting.pop_front()?;
                self.fd.take();
                // Counted before the lock is released: a thread that destroys the id either takes
                // the event back or waits for its acknowledgement.
                next.owner.count_delivered();
                next
            };
            match owner.handle() {
                Some(handle) => return Some(CmEvent::new(handle, data)),
                // The last handle of the id is being dropped, together with its events.
                None => owner.acknowledge(1),
            }
        }
    }

    fn append(&self, events: impl IntoIterator<Item = Waiting>) {
        let mut waiting = self.waiting.lock();
        for event in events {
            waiting.push_back(event);
            self.fd.add();
        }
    }
}

impl AsFd for EventChannel {
    /// The descriptor is readable while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.unguarded().fd.as_fd()
    }
}

impl std::fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EventChannel({} events waiting)", self.waiting())
    }
}
