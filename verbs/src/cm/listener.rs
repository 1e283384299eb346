//! Listening port: accepts TCP connections, waits for their MPA Requests, and passes the Requests
//! on.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_llp::{BoundPort, Llp, LlpError, LlpListener};
use uwarp_mpa::StartupError;

use super::connect_request::ConnectRequest;
use super::pending_startup::{PendingStartup, RequestError, RequestSink, refuse, responder};
use crate::device::startup_queue::StartupQueue;
use crate::device::{DeviceError, DeviceInner};
use crate::policy::progress::LISTENER_PAUSE;
use crate::policy::transfer::ACCEPTS_PER_TURN;
use crate::progress::background::{Interest, Source, Token, Verdict};
use uwarp_engine::event::AsyncEvent;
use uwarp_engine::headroom;

/// Interval between reports that a limit of the system was reached.
const SILENCE: Duration = Duration::from_secs(60);
/// Error of a listener in a process that has reached a limit of its memory.
const NO_MEMORY: LlpError = LlpError::Exhausted {
    op: "accept a connection",
    what: "memory in this process (`ulimit -v`, `ulimit -d`)",
};

/// A listening port that the background thread serves until `Listening` is dropped.
pub(crate) struct Listening {
    inner: ForkGuarded<Arc<ListenerInner>>,
}

pub(super) struct ListenerInner {
    this: Weak<ListenerInner>,
    device: Arc<DeviceInner>,
    token: Token,
    local: SocketAddr,
    /// Maximum number of requests that the program holds undecided.
    backlog: u32,
    /// Maximum number of connections from TCP's accept to the decision.
    places: u32,
    /// Connections of this listener whose Requests are incomplete.
    startup_queue: Arc<StartupQueue>,
    sink: Weak<dyn RequestSink>,
    state: Mutex<State>,
}

struct State {
    llp: Option<Box<dyn LlpListener>>,
    /// Number of connections from TCP's accept to the decision.
    open: u32,
    /// Number of requests that the program holds undecided.
    undecided: u32,
    /// Requests beyond the backlog, until the program has decided on others.
    waiting: VecDeque<ConnectRequest>,
    /// Time of the last report that a limit of the system was reached.
    last_report: Option<Instant>,
}

/// Place among the connections of a listener that are in startup or undecided. Dropping it frees
/// the place.
pub(super) struct Slot {
    listener: Weak<ListenerInner>,
    /// True if the program has the Request.
    pub(super) delivered: bool,
}

impl Slot {
    /// Returns the queue of pending startups of the listener.
    pub(super) fn startup_queue(&self) -> Option<Arc<StartupQueue>> {
        let listener = self.listener.upgrade()?;
        Some(Arc::clone(&listener.startup_queue))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.upgrade()
            && listener.device.is_here()
        {
            listener.decided(self.delivered);
        }
    }
}

impl Listening {
    /// Starts to listen. At most `backlog` Requests are undecided at once. The device's limit
    /// bounds the connections in startup or undecided, so silent peers occupy no place of a small
    /// backlog. Further Requests wait here, and further connections wait in TCP's own queue.
    pub(crate) fn open(
        device: &Arc<DeviceInner>,
        port: Box<dyn BoundPort>,
        backlog: u32,
        sink: Weak<dyn RequestSink>,
    ) -> Result<Listening, DeviceError> {
        // Settings that cannot answer any connection are refused here, and not at each connection.
        responder(&device.settings)?;
        let places = device.settings.limits.max_startup.max(1);
        let llp = port.listen(places)?;
        let token = device.background.listener_token();
        let inner = Arc::new_cyclic(|this| ListenerInner {
            this: Weak::clone(this),
            device: Arc::clone(device),
            token,
            local: llp.local_addr(),
            backlog: backlog.clamp(1, places),
            places,
            startup_queue: Arc::default(),
            sink,
            state: Mutex::new(State {
                llp: Some(llp),
                open: 0,
                undecided: 0,
                waiting: VecDeque::new(),
                last_report: None,
            }),
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
        Ok(Listening {
            inner: ForkGuarded::new(inner),
        })
    }

    /// Device of the listener.
    pub(super) fn device(&self) -> Result<&DeviceInner, Inherited> {
        Ok(&self.inner.get()?.device)
    }

    /// Address of the listener.
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.inner.unguarded().local
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // In the child of a fork: the parent continues to listen.
        let Some(inner) = self.inner.here_or_leak() else {
            return;
        };
        let (llp, waiting) = {
            let mut state = inner.state.lock();
            (state.llp.take(), std::mem::take(&mut state.waiting))
        };
        if let Some(llp) = llp {
            inner.device.background.forget_fd(llp.fd());
        }
        // Dropping the waiting requests rejects them, which takes other locks.
        drop(waiting);
        inner.device.background.forget(inner.token);
    }
}

impl RequestSink for ListenerInner {
    fn request(&self, request: ConnectRequest) {
        let deadline = request.deadline;
        let mut state = self.state.lock();
        if state.llp.is_none() {
            drop(state);
            // The listener is gone: dropping the request rejects it.
            return;
        }
        if state.undecided >= self.backlog || !state.waiting.is_empty() {
            state.waiting.push_back(request);
        } else {
            state.undecided += 1;
            drop(state);
            self.deliver(request);
        }
        self.device.background.at(self.token, deadline);
    }

    fn failed(&self, peer: SocketAddr, error: StartupError) {
        if let Some(sink) = self.sink.upgrade() {
            sink.failed(peer, error);
        }
    }
}

impl ListenerInner {
    /// Removes one connection. If the program held its request, the program has decided on it.
    fn decided(&self, delivered: bool) {
        let mut state = self.state.lock();
        let was_full = state.open >= self.places;
        state.open = state.open.saturating_sub(1);
        if delivered {
            state.undecided = state.undecided.saturating_sub(1);
        }
        let next = was_full || delivered && !state.waiting.is_empty();
        drop(state);
        if next {
            self.device.background.at(self.token, self.device.now());
        }
    }

    /// Passes a Request to the program. The Request is already counted as undecided. Called without
    /// a lock.
    fn deliver(&self, mut request: ConnectRequest) {
        request.mark_delivered();
        // If the program has dropped the listener, dropping the request rejects it.
        if let Some(sink) = self.sink.upgrade() {
            sink.request(request);
        }
    }

    /// Handles requests beyond the backlog: rejects late ones, and passes others to the program
    /// while there is room.
    fn deliver_waiting(&self, now: Instant) {
        loop {
            let mut state = self.state.lock();
            let Some(first) = state.waiting.front() else {
                return;
            };
            let late = first.deadline <= now;
            if !late && state.undecided >= self.backlog {
                return;
            }
            let request = state.waiting.pop_front();
            if !late {
                state.undecided += 1;
            }
            drop(state);
            // Dropping a late request rejects it.
            if let Some(request) = request.filter(|_| !late) {
                self.deliver(request);
            }
        }
    }

    /// Returns true if one more connection may be taken from TCP although all places are taken.
    /// This is the case if a connection in startup can be displaced. Otherwise schedules the next
    /// attempt.
    fn displace_or_schedule(&self) -> bool {
        match self.startup_queue.next() {
            Some(when) if when <= self.device.now() => true,
            Some(when) => {
                self.device.background.at(self.token, when);
                false
            }
            // The next attempt follows when a connection ends or the program decides on its
            // request.
            None => false,
        }
    }

    /// Accepts the connections that wait in TCP, up to the limit.
    fn accept_all(&self) {
        let mut turn = 0;
        let down = loop {
            let (llp, full) = {
                let mut state = self.state.lock();
                let full = state.open >= self.places;
                let Some(listener) = &mut state.llp else {
                    return;
                };
                if full && !self.displace_or_schedule() {
                    // The listener is armed again when there may be a place. Until then TCP's own
                    // queue holds the other connections.
                    return;
                }
                if turn == ACCEPTS_PER_TURN {
                    self.device.background.at(self.token, self.device.now());
                    return;
                }
                turn += 1;
                listener.clear_readiness();
                let is_free = headroom::allows_startup() || {
                    self.device.pool.clear();
                    headroom::allows_startup()
                };
                let accepted = if is_free {
                    listener.try_accept()
                } else {
                    Err(NO_MEMORY)
                };
                match accepted {
                    Ok(Some(llp)) => {
                        state.open += 1;
                        (llp, full)
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
                        tracing::warn!(%error, "the listener accepts no more connections");
                        break error;
                    }
                    Err(error) => {
                        self.short(&mut state, error);
                        return;
                    }
                }
            };
            self.admit(llp, full);
        };
        if let Some(sink) = self.sink.upgrade() {
            sink.down(down);
        }
    }

    /// Starts the startup of an accepted connection, if necessary by displacing another one.
    fn admit(&self, llp: Box<dyn Llp>, full: bool) {
        // The slot is freed when the connection fails or the program decides on its request.
        let slot = Slot {
            listener: Weak::clone(&self.this),
            delivered: false,
        };
        let peer = llp.peer_addr();
        if full {
            let error = StartupError::Displaced {
                limit: self.places,
                of_listener: true,
            };
            // The connection that could be displaced may just have become a request, which keeps
            // its place.
            if !self.startup_queue.displace(self.device.now(), error) {
                refuse(llp);
                drop(slot);
                if let Some(sink) = self.sink.upgrade() {
                    sink.failed(peer, error);
                }
                return;
            }
        }
        let sink = Weak::clone(&self.this);
        if let Err(error) = PendingStartup::start(sink, &self.device, llp, &[], Some(slot)) {
            tracing::warn!(%error, "a new connection could not be taken");
            if let (RequestError::Limit(limit), Some(sink)) = (error, self.sink.upgrade()) {
                sink.failed(peer, limit.into());
            }
        }
    }

    /// Reports, at intervals, that the system lacks a resource, and schedules the next attempt. The
    /// descriptor is armed only after all waiting connections were accepted, so the thread does not
    /// spin.
    fn short(&self, state: &mut State, error: LlpError) {
        let now = self.device.now();
        tracing::debug!(%error, "accept failed");
        if state
            .last_report
            .is_none_or(|last_report| now >= last_report + SILENCE)
        {
            state.last_report = Some(now);
            tracing::warn!(%error, local = %self.local, "a listener cannot take connections");
            let local = self.local;
            self.device
                .raise_for_all(AsyncEvent::ListenerShort { local, error });
        }
        self.device.background.at(self.token, now + LISTENER_PAUSE);
    }
}

impl Source for ListenerInner {
    fn attend(&self, now: Instant) -> Verdict {
        if let Some(sink) = self.sink.upgrade() {
            sink.expire(now);
        }
        self.deliver_waiting(now);
        self.accept_all();
        Verdict::Settled
    }
}
