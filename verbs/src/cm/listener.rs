//! Listening for connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use uwarp_llp::LlpListener;
use uwarp_mpa::StartupError;

use super::incoming::{ConnectRequest, Incoming, responder};
use crate::device::{DeviceError, DeviceInner};
use crate::progress::background::{Interest, Source, Token, Verdict};
use crate::wait::after;

/// How long a listener that ran into a limit of the system waits before it tries again.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections taken in one go, so that other sources get their turn.
const ACCEPTS: u32 = 64;
/// Failed startups remembered for the consumer to look at.
const FAILURES: usize = 64;

/// A listener: takes TCP connections, waits for their MPA Requests, and hands those to the consumer.
///
/// Its descriptor is readable while a request waits.
pub struct Listener {
    inner: Arc<ListenerInner>,
}

/// No request came in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no connection request came within {waited:?}")]
pub struct AcceptTimeout {
    /// How long was waited.
    pub waited: Duration,
}

pub(super) struct ListenerInner {
    this: Weak<ListenerInner>,
    device: Arc<DeviceInner>,
    token: Token,
    local: SocketAddr,
    /// Counts the requests that wait.
    fd: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    llp: Option<Box<dyn LlpListener>>,
    requests: VecDeque<ConnectRequest>,
    failures: VecDeque<(SocketAddr, StartupError)>,
    /// Connections in startup or undecided.
    open: u32,
}

impl Listener {
    pub(crate) fn open(
        device: &Arc<DeviceInner>,
        addr: SocketAddr,
    ) -> Result<Listener, DeviceError> {
        // Settings that no connection could be answered with are refused now, not at each of them.
        responder(&device.settings)?;
        let llp = device
            .network
            .listen(addr, device.settings.limits.max_startup)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let fd = eventfd(0, flags).map_err(|errno| DeviceError::System {
            op: "make an event descriptor",
            error: errno.into(),
        })?;
        let token = device.background.token();
        let inner = Arc::new_cyclic(|this| ListenerInner {
            this: Weak::clone(this),
            device: Arc::clone(device),
            token,
            local: llp.local_addr(),
            fd,
            state: Mutex::new(State {
                llp: Some(llp),
                requests: VecDeque::new(),
                failures: VecDeque::new(),
                open: 0,
            }),
            changed: Condvar::new(),
        });
        let weak: Weak<ListenerInner> = Arc::downgrade(&inner);
        let state = inner.state.lock();
        if let Some(llp) = &state.llp {
            device
                .background
                .register(token, weak, llp.fd())
                .map_err(|errno| DeviceError::System {
                    op: "watch the listener",
                    error: errno.into(),
                })?;
            device.background.arm(token, llp.fd(), Interest::Read);
        }
        drop(state);
        Ok(Listener { inner })
    }

    /// Where it listens, with the port that was chosen.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }

    /// The next request, if one waits.
    #[must_use]
    pub fn poll_request(&self) -> Option<ConnectRequest> {
        let mut state = self.inner.state.lock();
        self.inner.next_request(&mut state)
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// [`AcceptTimeout`] when `timeout` passed first; `None` waits for ever.
    pub fn wait_request(&self, timeout: Option<Duration>) -> Result<ConnectRequest, AcceptTimeout> {
        let deadline = timeout.map(|timeout| after(Instant::now(), timeout));
        let mut state = self.inner.state.lock();
        loop {
            if let Some(request) = self.inner.next_request(&mut state) {
                return Ok(request);
            }
            match deadline {
                None => self.inner.changed.wait(&mut state),
                Some(deadline) => {
                    if self
                        .inner
                        .changed
                        .wait_until(&mut state, deadline)
                        .timed_out()
                    {
                        return Err(AcceptTimeout {
                            waited: timeout.unwrap_or_default(),
                        });
                    }
                }
            }
        }
    }

    /// The oldest startup that failed and was not looked at: who it was, and what was wrong.
    #[must_use]
    pub fn poll_failure(&self) -> Option<(SocketAddr, StartupError)> {
        self.inner.state.lock().failures.pop_front()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (llp, requests) = {
            let mut state = self.inner.state.lock();
            (state.llp.take(), std::mem::take(&mut state.requests))
        };
        if let Some(llp) = llp {
            self.inner.device.background.forget_fd(llp.fd());
        }
        self.inner.device.background.forget(self.inner.token);
        // Rejects what waits; outside of the lock, which their drop takes.
        drop(requests);
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("local", &self.inner.local)
            .finish_non_exhaustive()
    }
}

impl ListenerInner {
    fn next_request(&self, state: &mut State) -> Option<ConnectRequest> {
        let request = state.requests.pop_front()?;
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
        Some(request)
    }

    /// A Request has come whole.
    pub(super) fn ready(self: &Arc<Self>, request: ConnectRequest) {
        let deadline = request.deadline;
        let refused = {
            let mut state = self.state.lock();
            if state.llp.is_some() {
                state.requests.push_back(request);
                // Under the lock, so that the count is never behind the queue.
                let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
                None
            } else {
                Some(request)
            }
        };
        if refused.is_none() {
            self.changed.notify_one();
            self.device.background.at(self.token, deadline);
        }
        // A listener that is gone rejects.
        drop(refused);
    }

    /// A startup has failed.
    pub(super) fn failed(&self, peer: SocketAddr, error: StartupError) {
        tracing::info!(%peer, %error, "MPA startup failed");
        let mut state = self.state.lock();
        if state.failures.len() == FAILURES {
            state.failures.pop_front();
        }
        state.failures.push_back((peer, error));
        drop(state);
        self.decided();
    }

    /// One connection less in startup.
    pub(super) fn decided(&self) {
        let mut state = self.state.lock();
        let was_full = state.open >= self.device.settings.limits.max_startup;
        state.open = state.open.saturating_sub(1);
        drop(state);
        if was_full {
            self.device.background.at(self.token, Instant::now());
        }
    }

    /// Takes what TCP has, as far as the limit allows.
    fn accept_all(self: &Arc<Self>) {
        let mut turn = 0;
        loop {
            let llp = {
                let mut state = self.state.lock();
                let full = state.open >= self.device.settings.limits.max_startup;
                let Some(listener) = &mut state.llp else {
                    return;
                };
                if full {
                    // Not armed again until a place is free: TCP's own backlog holds the rest.
                    return;
                }
                if turn == ACCEPTS {
                    self.device.background.at(self.token, Instant::now());
                    return;
                }
                turn += 1;
                listener.clear_readiness();
                match listener.try_accept() {
                    Ok(Some(llp)) => {
                        state.open += 1;
                        llp
                    }
                    Ok(None) => {
                        let due = listener.deadline();
                        self.device
                            .background
                            .arm(self.token, listener.fd(), Interest::Read);
                        if let Some(due) = due {
                            self.device.background.at(self.token, due);
                        }
                        return;
                    }
                    Err(error) if self.device.network.fault().is_some() => {
                        tracing::warn!(%error, "the listener takes no more connections");
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        self.device
                            .background
                            .at(self.token, Instant::now() + PAUSE);
                        return;
                    }
                }
            };
            if let Err(error) = self.start(llp) {
                tracing::warn!(%error, "a new connection could not be taken");
                self.decided();
            }
        }
    }

    fn start(
        self: &Arc<Self>,
        llp: Box<dyn uwarp_llp::Llp>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let responder = responder(&self.device.settings)?;
        Incoming::start(self, &self.device, llp, responder)?;
        Ok(())
    }

    /// Requests that nobody decided in time are rejected.
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
        drop(late);
    }
}

impl Source for ListenerInner {
    fn attend(&self, now: Instant) -> Verdict {
        self.expire(now);
        if let Some(this) = self.this.upgrade() {
            this.accept_all();
        }
        Verdict::Settled
    }
}
