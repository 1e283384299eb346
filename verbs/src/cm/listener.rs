//! Listening for connections: takes them from TCP, lets them bring their MPA Request, and hands those on.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_llp::{BoundPort, LlpError, LlpListener};
use uwarp_mpa::StartupError;

use super::incoming::{Incoming, RequestError, RequestSink, responder};
use super::request::ConnectRequest;
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
    /// Connections in startup or undecided that there may be at once.
    backlog: u32,
    sink: Weak<dyn RequestSink>,
    state: Mutex<State>,
}

struct State {
    llp: Option<Box<dyn LlpListener>>,
    /// Connections in startup or undecided.
    open: u32,
    /// When it said last that it ran into a limit of the system.
    told: Option<Instant>,
}

/// A place among the connections of a listener that are in startup or undecided; given back by its drop.
pub(super) struct Slot {
    listener: Weak<ListenerInner>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.upgrade()
            && listener.device.home.is_here()
        {
            listener.decided();
        }
    }
}

impl Listening {
    /// Begins to listen. At most `backlog` connections, and as many as the device's limit allows, are
    /// in startup or undecided at once; TCP's own backlog holds the rest, so that they wait.
    pub(super) fn open(
        device: &Arc<DeviceInner>,
        port: Box<dyn BoundPort>,
        backlog: u32,
        sink: Weak<dyn RequestSink>,
    ) -> Result<Listening, DeviceError> {
        // Settings that no connection could be answered with are refused now, not at each of them.
        responder(&device.settings)?;
        let backlog = backlog.clamp(1, device.settings.limits.max_startup.max(1));
        let llp = port.listen(backlog)?;
        let token = device.background.token();
        let inner = Arc::new_cyclic(|this| ListenerInner {
            this: Weak::clone(this),
            device: Arc::clone(device),
            token,
            local: llp.local_addr(),
            backlog,
            sink,
            state: Mutex::new(State {
                llp: Some(llp),
                open: 0,
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
        if !self.inner.device.home.is_here() {
            // The parent listens on.
            std::mem::forget(Arc::clone(&self.inner));
            return;
        }
        let llp = self.inner.state.lock().llp.take();
        if let Some(llp) = llp {
            self.inner.device.background.forget_fd(llp.fd());
        }
        self.inner.device.background.forget(self.inner.token);
    }
}

impl RequestSink for ListenerInner {
    fn request(&self, request: ConnectRequest) {
        let deadline = request.deadline;
        // A listener that is gone rejects: the request is dropped.
        if self.state.lock().llp.is_some()
            && let Some(sink) = self.sink.upgrade()
        {
            sink.request(request);
            self.device.background.at(self.token, deadline);
        }
    }

    fn failed(&self, peer: SocketAddr, error: StartupError) {
        if let Some(sink) = self.sink.upgrade() {
            sink.failed(peer, error);
        }
    }
}

impl ListenerInner {
    /// One connection less in startup.
    fn decided(&self) {
        let mut state = self.state.lock();
        let was_full = state.open >= self.backlog;
        state.open = state.open.saturating_sub(1);
        drop(state);
        if was_full {
            self.device.background.at(self.token, self.device.now());
        }
    }

    /// Takes what TCP has, as far as the limit allows.
    fn accept_all(&self) {
        let mut turn = 0;
        let down = loop {
            let llp = {
                let mut state = self.state.lock();
                let full = state.open >= self.backlog;
                let Some(listener) = &mut state.llp else {
                    return;
                };
                if full {
                    // Not armed again until a place is free: TCP's own backlog holds the rest.
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
                        break error;
                    }
                    Err(error) => {
                        self.short(&mut state, error);
                        return;
                    }
                }
            };
            // Given back when the connection has failed or is decided.
            let slot = Slot {
                listener: Weak::clone(&self.this),
            };
            let sink = Weak::clone(&self.this);
            let peer = llp.peer_addr();
            if let Err(error) = Incoming::start(sink, &self.device, llp, &[], Some(slot)) {
                tracing::warn!(%error, "a new connection could not be taken");
                if let (RequestError::Limit(limit), Some(sink)) = (error, self.sink.upgrade()) {
                    sink.failed(peer, limit.into());
                }
            }
        };
        if let Some(sink) = self.sink.upgrade() {
            sink.down(down);
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
                .events
                .push(AsyncEvent::ListenerShort { local, error });
        }
        self.device.background.at(self.token, now + PAUSE);
    }
}

impl Source for ListenerInner {
    fn attend(&self, now: Instant) -> Verdict {
        if let Some(sink) = self.sink.upgrade() {
            sink.expire(now);
        }
        self.accept_all();
        Verdict::Settled
    }
}
