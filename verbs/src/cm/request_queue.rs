//! Listener with a queue of connection requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_engine::times::after;
use uwarp_llp::LlpError;
use uwarp_mpa::StartupError;

use super::connect_request::ConnectRequest;
use super::failures::Failures;
use super::listener::Listening;
use super::pending_startup::RequestSink;
use crate::clock::machine_now;
use crate::completion::EventFd;
use crate::device::Device;
use crate::device::{DeviceError, DeviceInner};
use crate::wakers::Wakers;

/// A listener (`rdma_listen`; RFC 5044 section 7.1). It accepts TCP connections, waits for their
/// MPA Requests and passes the Requests to the consumer.
///
/// Its descriptor is readable while a request waits, and permanently after the network has failed
/// ([`fault`](Self::fault)). Non-blocking programs may prefer a listening [`CmId`](crate::CmId):
/// its requests arrive with all other events of the connection manager on one descriptor.
pub struct Listener {
    // Dropped first: then no more requests arrive, and waiting requests are rejected.
    listening: Listening,
    queue: ForkGuarded<Arc<RequestQueue>>,
}

/// Error of waiting for a connection request (`rdma_listen`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// No request arrived in time.
    #[error("no connection request arrived within {waited:?}")]
    TimedOut {
        /// Duration of the wait.
        waited: Duration,
    },
    /// The listener was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// No more requests will arrive, because the network has failed.
    #[error("the listener accepts no more connections: {error}")]
    Down {
        /// Error of the network.
        error: LlpError,
    },
}

/// Event at a listener (RFC 5044 section 7.1.2).
#[derive(Debug)]
#[non_exhaustive]
pub enum Arrival {
    /// An MPA Request, to be accepted or rejected.
    Request(Box<ConnectRequest>),
    /// A connection whose startup failed, or that was rejected because of a limit
    /// ([`Limits`](crate::Limits)). The connection is closed.
    Failed {
        /// Address of the peer.
        peer: SocketAddr,
        /// Reason of the failure.
        error: StartupError,
    },
}

struct RequestQueue {
    /// While the lock of `state` is held, its count is the number of waiting requests, plus 1 if
    /// the network is down.
    fd: EventFd,
    state: Mutex<State>,
    /// Notified when a request arrives or the network is down.
    requested: Condvar,
    /// Async tasks that are woken like the threads of `requested`.
    tasks: Wakers,
    /// Notified like `requested`, and also of failures. `requested` is separate, so that a flood of
    /// failures wakes no thread that waits only for requests.
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<ConnectRequest>,
    failures: Failures,
    down: Option<LlpError>,
}

impl Device {
    /// Listens for iWARP connections (`rdma_listen`; RFC 5044 section 7.1). Port 0 selects a free
    /// port.
    ///
    /// # Errors
    /// [`DeviceError::Network`] with the reason.
    pub fn listen(&self, addr: SocketAddr) -> Result<Listener, DeviceError> {
        Listener::open(self.inner()?, addr)
    }
}

impl Listener {
    pub(crate) fn open(
        device: &Arc<DeviceInner>,
        addr: SocketAddr,
    ) -> Result<Listener, DeviceError> {
        let fd = EventFd::semaphore().map_err(|error| DeviceError::System {
            op: "make an event descriptor",
            error,
        })?;
        let queue = Arc::new(RequestQueue {
            fd,
            state: Mutex::default(),
            requested: Condvar::new(),
            tasks: Wakers::default(),
            arrived: Condvar::new(),
        });
        let sink: Weak<RequestQueue> = Arc::downgrade(&queue);
        let port = device.network.reserve(addr)?;
        let backlog = device.settings.limits.max_startup;
        Ok(Listener {
            listening: Listening::open(device, port, backlog, sink)?,
            queue: ForkGuarded::new(queue),
        })
    }

    /// Address of the listener, with the chosen port (`rdma_get_local_addr`).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.local_addr()
    }

    /// Takes the next request, if one waits (`rdma_get_request` without waiting).
    #[must_use]
    pub fn poll_request(&self) -> Option<ConnectRequest> {
        let queue = self.queue.here()?;
        queue.next_request(&mut queue.state.lock())
    }

    /// Waits for the next request (`rdma_get_request`). Failed startups are kept for
    /// [`poll_failure`](Self::poll_failure).
    ///
    /// # Errors
    /// [`ListenError::TimedOut`] if `timeout` passed first (`None` waits without limit),
    /// [`ListenError::Down`] if the network has failed.
    pub fn wait_request(&self, timeout: Option<Duration>) -> Result<ConnectRequest, ListenError> {
        let queue = self.queue.get()?;
        let timeout = self.listening.device()?.patience(timeout);
        queue.wait(&queue.requested, timeout, RequestQueue::next_request)
    }

    /// Takes the next request, if one waits. Otherwise registers `waker`, which is woken when one
    /// arrives.
    pub(crate) fn poll_next(&self, waker: &Waker) -> Option<Result<ConnectRequest, ListenError>> {
        let queue = match self.queue.get() {
            Ok(queue) => queue,
            Err(inherited) => return Some(Err(inherited.into())),
        };
        queue.try_next().or_else(|| {
            queue.tasks.register(waker);
            queue.try_next()
        })
    }

    /// Waits for the next request or failed startup (RFC 5044 section 7.1.2).
    ///
    /// # Errors
    /// See [`Listener::wait_request`].
    pub fn wait_arrival(&self, timeout: Option<Duration>) -> Result<Arrival, ListenError> {
        let queue = self.queue.get()?;
        let timeout = self.listening.device()?.patience(timeout);
        queue.wait(&queue.arrived, timeout, |queue, state| {
            if let Some((peer, error)) = state.failures.pop() {
                return Some(Arrival::Failed { peer, error });
            }
            let request = queue.next_request(state)?;
            Some(Arrival::Request(Box::new(request)))
        })
    }

    /// Takes the oldest failed startup: the peer's address and the error (RFC 5044 section 7.1.2).
    /// Includes connections that a limit refused or rejected ([`StartupError::NoPlace`],
    /// [`StartupError::TooManyConnections`]), and those that a newer connection displaced
    /// ([`StartupError::Displaced`]). The last 64 are kept.
    #[must_use]
    pub fn poll_failure(&self) -> Option<(SocketAddr, StartupError)> {
        self.queue.here()?.state.lock().failures.pop()
    }

    /// Number of failures that were dropped, oldest first, because the program did not take them.
    #[must_use]
    pub fn lost_failures(&self) -> u64 {
        self.queue
            .here()
            .map_or(0, |queue| queue.state.lock().failures.lost())
    }

    /// Error of the network, if it has failed and no more connections arrive. The closest
    /// equivalent in librdmacm is `RDMA_CM_EVENT_DEVICE_REMOVAL`.
    #[must_use]
    pub fn fault(&self) -> Option<LlpError> {
        self.queue.here()?.state.lock().down
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.unguarded().fd.as_fd()
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("local", &self.local_addr())
            .finish_non_exhaustive()
    }
}

impl RequestQueue {
    fn next_request(&self, state: &mut State) -> Option<ConnectRequest> {
        let request = state.requests.pop_front()?;
        self.fd.take();
        Some(request)
    }

    fn try_next(&self) -> Option<Result<ConnectRequest, ListenError>> {
        let mut state = self.state.lock();
        let request = self.next_request(&mut state).map(Ok);
        request.or_else(|| Some(Err(ListenError::Down { error: state.down? })))
    }

    /// Wakes the threads and tasks that wait for requests. Called without a lock.
    fn wake(&self) {
        // Notifies all of them: a thread in `wait_arrival` may take a failure, and leave the
        // request to another thread.
        self.requested.notify_all();
        self.arrived.notify_all();
        self.tasks.wake();
    }

    fn wait<T>(
        &self,
        changed: &Condvar,
        timeout: Option<Duration>,
        next: impl Fn(&Self, &mut State) -> Option<T>,
    ) -> Result<T, ListenError> {
        let deadline = timeout.map(|timeout| after(machine_now(), timeout));
        let mut state = self.state.lock();
        loop {
            if let Some(value) = next(self, &mut state) {
                return Ok(value);
            }
            if let Some(error) = state.down {
                return Err(ListenError::Down { error });
            }
            match deadline {
                None => changed.wait(&mut state),
                Some(deadline) => {
                    if changed.wait_until(&mut state, deadline).timed_out() {
                        let waited = timeout.unwrap_or_default();
                        return next(self, &mut state).ok_or(ListenError::TimedOut { waited });
                    }
                }
            }
        }
    }
}

impl RequestSink for RequestQueue {
    fn request(&self, request: ConnectRequest) {
        let mut state = self.state.lock();
        state.requests.push_back(request);
        // Called under the lock, so that the count always matches the queue.
        self.fd.add();
        drop(state);
        self.wake();
    }

    fn failed(&self, peer: SocketAddr, error: StartupError) {
        let mut state = self.state.lock();
        state.failures.push(peer, error);
        drop(state);
        self.arrived.notify_all();
    }

    fn down(&self, error: LlpError) {
        let mut state = self.state.lock();
        if state.down.replace(error).is_none() {
            self.fd.add();
        }
        drop(state);
        self.wake();
    }

    fn expire(&self, now: Instant) {
        let mut late = Vec::new();
        {
            let mut state = self.state.lock();
            while state
                .requests
                .front()
                .is_some_and(|request| request.deadline <= now)
            {
                late.extend(self.next_request(&mut state));
            }
        }
        // Dropping the late requests rejects them, which takes other locks.
        drop(late);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn requests() -> RequestQueue {
        RequestQueue {
            fd: EventFd::semaphore().unwrap(),
            state: Mutex::default(),
            requested: Condvar::new(),
            tasks: Wakers::default(),
            arrived: Condvar::new(),
        }
    }

    #[test]
    fn a_failed_startup_wakes_nobody_who_waits_for_requests_alone() {
        let (requests, count) = (requests(), Arc::new(Count::default()));
        let addr = SocketAddr::from(([192, 0, 2, 1], 1));
        requests.tasks.register(&Waker::from(Arc::clone(&count)));
        requests.failed(addr, StartupError::RtrMissing);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        requests.down(LlpError::Broken { addr });
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
