//! Listening for connections: takes them from TCP, lets them bring their MPA Request, and hands those on.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_llp::{BoundPort, Llp, LlpError, LlpListener};
use uwarp_mpa::StartupError;

use super::connect_request::ConnectRequest;
use super::pending_startup::{PendingStartup, RequestError, RequestSink, refuse, responder};
use super::startup_queue::StartupQueue;
use crate::device::{DeviceError, DeviceInner};
use crate::event::AsyncEvent;
use crate::progress::background::{Interest, Source, Token, Verdict};

/// How long a listener that ran into a limit of the system waits before it tries again.
const PAUSE: Duration = Duration::from_millis(50);
/// How long it says nothing more of that.
const SILENCE: Duration = Duration::from_secs(60);
/// Connections taken in one go, so that other sources get their turn.
const ACCEPTS: u32 = 64;

/// A listening port, in the care of the background thread, until it is dropped.
pub(super) struct Listening {
    inner: Arc<ListenerInner>,
}

pub(super) struct ListenerInner {
    this: Weak<ListenerInner>,
    device: Arc<DeviceInner>,
    token: Token,
    local: SocketAddr,
    /// Requests that the program may have before it decides.
    backlog: u32,
    /// Connections that there may be at once, from TCP's accept to the decision.
    places: u32,
    /// Those of them whose Requests have not come whole.
    startups: Arc<StartupQueue>,
    sink: Weak<dyn RequestSink>,
    state: Mutex<State>,
}

struct State {
    llp: Option<Box<dyn LlpListener>>,
    /// Connections from TCP's accept to the decision.
    open: u32,
    /// Those of them that the program has.
    undecided: u32,
    /// Requests beyond the backlog, until the program has decided on others.
    waiting: VecDeque<ConnectRequest>,
    /// When it said last that it ran into a limit of the system.
    told: Option<Instant>,
}

/// A place among the connections of a listener that are in startup or undecided; given back by its drop.
pub(super) struct Slot {
    listener: Weak<ListenerInner>,
    /// The program has its Request.
    pub(super) given: bool,
}

impl Slot {
    /// The connections in startup that it is one of.
    pub(super) fn startups(&self) -> Option<Arc<StartupQueue>> {
        let listener = self.listener.upgrade()?;
        Some(Arc::clone(&listener.startups))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.upgrade()
            && listener.device.fork_guard.is_here()
        {
            listener.decided(self.given);
        }
    }
}

impl Listening {
    /// Begins to listen. At most `backlog` Requests are undecided at once, and as many connections as the device's
    /// limit allows in startup or undecided: so who says nothing takes no place of a small backlog. What is more waits,
    /// at last in TCP.
    pub(super) fn open(
        device: &Arc<DeviceInner>,
        port: Box<dyn BoundPort>,
        backlog: u32,
        sink: Weak<dyn RequestSink>,
    ) -> Result<Listening, DeviceError> {
        // Settings that no connection could be answered with are refused now, not at each of them.
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
            startups: Arc::default(),
            sink,
            state: Mutex::new(State {
                llp: Some(llp),
                open: 0,
                undecided: 0,
                waiting: VecDeque::new(),
                told: None,
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
        Ok(Listening { inner })
    }

    /// Whose it is.
    pub(super) fn device(&self) -> &DeviceInner {
        &self.inner.device
    }

    /// Where it listens.
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if !self.inner.device.fork_guard.is_here() {
            // The parent listens on.
            std::mem::forget(Arc::clone(&self.inner));
            return;
        }
        let (llp, waiting) = {
            let mut state = self.inner.state.lock();
            (state.llp.take(), std::mem::take(&mut state.waiting))
        };
        if let Some(llp) = llp {
            self.inner.device.background.forget_fd(llp.fd());
        }
        // Rejects them, which takes other locks.
        drop(waiting);
        self.inner.device.background.forget(self.inner.token);
    }
}

impl RequestSink for ListenerInner {
    fn request(&self, request: ConnectRequest) {
        let deadline = request.deadline;
        let mut state = self.state.lock();
        if state.llp.is_none() {
            drop(state);
            // A listener that is gone rejects: the request is dropped.
            return;
        }
        if state.undecided >= self.backlog || !state.waiting.is_empty() {
            state.waiting.push_back(request);
        } else {
            state.undecided += 1;
            drop(state);
            self.give(request);
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
    /// One connection less; the program has decided on it, if it was given to it.
    fn decided(&self, given: bool) {
        let mut state = self.state.lock();
        let was_full = state.open >= self.places;
        state.open = state.open.saturating_sub(1);
        if given {
            state.undecided = state.undecided.saturating_sub(1);
        }
        let next = was_full || given && !state.waiting.is_empty();
        drop(state);
        if next {
            self.device.background.at(self.token, self.device.now());
        }
    }

    /// The program gets a Request, which is counted as undecided. Without a lock.
    fn give(&self, mut request: ConnectRequest) {
        request.given();
        // Who has dropped the listener rejects.
        if let Some(sink) = self.sink.upgrade() {
            sink.request(request);
        }
    }

    /// Requests beyond the backlog: those that are too late are rejected, and the program gets as many of the
    /// others as there is room for.
    fn give_waiting(&self, now: Instant) {
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
            // One that is late goes by its drop.
            if let Some(request) = request.filter(|_| !late) {
                self.give(request);
            }
        }
    }

    /// Whether one more may be taken from TCP, given that all places are taken: if one of those in startup can give
    /// way. Otherwise it is asked again when that may be so.
    fn can_displace(&self) -> bool {
        match self.startups.next() {
            Some(when) if when <= self.device.now() => true,
            Some(when) => {
                self.device.background.at(self.token, when);
                false
            }
            // The end of any of them asks again.
            None => false,
        }
    }

    /// Takes what TCP has, as far as the limit allows.
    fn accept_all(&self) {
        let mut turn = 0;
        let down = loop {
            let (llp, full) = {
                let mut state = self.state.lock();
                let full = state.open >= self.places;
                let Some(listener) = &mut state.llp else {
                    return;
                };
                if full && !self.can_displace() {
                    // Not armed again until there may be a place: TCP's own backlog holds the rest.
                    return;
                }
                if turn == ACCEPTS {
                    self.device.background.at(self.token, self.device.now());
                    return;
                }
                turn += 1;
                listener.clear_readiness();
                match listener.try_accept() {
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
                        tracing::warn!(%error, "the listener takes no more connections");
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

    /// Begins the startup of a connection that was just accepted, where need be in the place of another.
    fn admit(&self, llp: Box<dyn Llp>, full: bool) {
        // Given back when the connection has failed or is decided.
        let slot = Slot {
            listener: Weak::clone(&self.this),
            given: false,
        };
        let peer = llp.peer_addr();
        if full {
            let error = StartupError::Displaced {
                limit: self.places,
                of_listener: true,
            };
            // The one that could have given way may just have become a request, which keeps its place.
            if !self.startups.displace(self.device.now(), error) {
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

    /// The system is short of something: says so, once in a while, and tries again later. The descriptor is not
    /// armed until all that waits was taken, so nothing spins.
    fn short(&self, state: &mut State, error: LlpError) {
        let now = self.device.now();
        tracing::debug!(%error, "accept failed");
        if state.told.is_none_or(|told| now >= told + SILENCE) {
            state.told = Some(now);
            tracing::warn!(%error, local = %self.local, "a listener cannot take connections");
            let local = self.local;
            self.device
                .tell_all(AsyncEvent::ListenerShort { local, error });
        }
        self.device.background.at(self.token, now + PAUSE);
    }
}

impl Source for ListenerInner {
    fn attend(&self, now: Instant) -> Verdict {
        if let Some(sink) = self.sink.upgrade() {
            sink.expire(now);
        }
        self.give_waiting(now);
        self.accept_all();
        Verdict::Settled
    }
}
