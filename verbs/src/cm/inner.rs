//! State of an id under its lock, and the events that report it.
//!
//! Lock order: QP, id, channel or acknowledgements. The network may be called under the lock of an
//! id, a QP may not.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use uwarp_engine::fork_guard::Inherited;
use uwarp_engine::times::after;
use uwarp_llp::{BoundPort, LlpError};
use uwarp_mpa::{NO_AUTO, Negotiated, Role, StartupError};

use super::channel::EventChannel;
use super::connect_request::{AcceptError, ConnectRequest};
use super::event::{CmEventData, CmEventKind, CmReason};
use super::failures::Failures;
use super::id::{CmError, CmId, Handle};
use super::listener::Listening;
use super::pending_startup::RequestSink;
use super::state::{CmInput, CmState, WrongState};
use super::status;
use crate::clock::machine_now;
use crate::connection::inner::QpInner;
use crate::connection::observer::Observer;
use crate::device::DeviceInner;
use crate::device::removal::Removable;
use crate::progress::background::{Source, Token, Verdict};
use crate::trace::Addrs;
use uwarp_engine::event::EndReason;

/// State that the handles of an id share with the sources of its events.
pub(crate) struct IdInner {
    this: Weak<IdInner>,
    pub(super) handle: OnceLock<Weak<Handle>>,
    pub(super) device: Arc<DeviceInner>,
    /// Timer token for the time limit of a request.
    token: Token,
    pub(super) context: AtomicU64,
    pub(super) state: Mutex<IdLocked>,
    /// Number of events that were fetched, minus the number of acknowledgements.
    unacked: Mutex<i64>,
    acked: Condvar,
}

/// State of an id under its lock.
pub(super) struct IdLocked {
    pub(super) state: CmState,
    pub(super) channel: EventChannel,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// Address bound by `bind_addr`.
    pub(super) bound: Option<SocketAddr>,
    pub(super) port: Option<Box<dyn BoundPort>>,
    pub(super) listening: Option<Listening>,
    /// Connections that failed before they became requests.
    pub(super) failures: Failures,
    /// True if the request or the connection uses a stream of the program.
    pub(super) over_stream: bool,
    pub(super) request: Option<ConnectRequest>,
    /// True if the request was not decided in time.
    pub(super) late: bool,
    pub(super) qp: Weak<QpInner>,
}

impl IdLocked {
    /// Changes the state, if the current state allows the input. Another thread may have destroyed
    /// the id.
    pub(super) fn advance(&mut self, input: CmInput) {
        if let Ok(next) = self.state.next(input) {
            self.state = next;
        }
    }

    pub(super) fn wrong(&self, call: &'static str, needs: &'static str) -> WrongState {
        WrongState {
            call,
            state: self.state,
            needs,
        }
    }

    pub(super) fn take_request(&mut self, input: CmInput) -> Result<ConnectRequest, CmError> {
        if self.late
            && let Some(peer) = self.peer
        {
            return Err(AcceptError::TooLate { peer }.into());
        }
        let next = self.state.next(input)?;
        let request = self.request.take();
        let request = request.ok_or(self.wrong("decide", "a request"))?;
        self.state = next;
        Ok(request)
    }
}

impl IdInner {
    pub(super) fn new(
        device: &Arc<DeviceInner>,
        channel: EventChannel,
        context: u64,
        request: Option<ConnectRequest>,
    ) -> Arc<Self> {
        let token = device.background.token();
        let deadline = request.as_ref().map(|request| request.deadline);
        let state = IdLocked {
            state: request
                .as_ref()
                .map_or(CmState::Idle, |_| CmState::Requested),
            channel,
            local: request.as_ref().map(ConnectRequest::local_addr),
            peer: request.as_ref().map(ConnectRequest::peer_addr),
            bound: None,
            port: None,
            listening: None,
            failures: Failures::default(),
            over_stream: false,
            request,
            late: false,
            qp: Weak::new(),
        };
        let id = Arc::new_cyclic(|this| IdInner {
            this: Weak::clone(this),
            handle: OnceLock::new(),
            device: Arc::clone(device),
            token,
            context: AtomicU64::new(context),
            state: Mutex::new(state),
            unacked: Mutex::new(0),
            acked: Condvar::new(),
        });
        if !device.is_here() {
            // In the child of a fork, every call on the id returns the error.
            return id;
        }
        let weak: Weak<IdInner> = Arc::downgrade(&id);
        device.ids.add(token, weak);
        if let Some(deadline) = deadline {
            let source: Weak<IdInner> = Weak::clone(&id.this);
            device.background.enlist(token, source);
            device.background.at(token, deadline);
        }
        id
    }

    /// Locks the id for a call of the program.
    ///
    /// # Errors
    /// [`Inherited`] if the channel of the id belongs to the parent process.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, IdLocked>, Inherited> {
        let id = self.state.lock();
        id.channel.check()?;
        Ok(id)
    }

    pub(super) fn handle(&self) -> Option<CmId> {
        self.handle.get()?.upgrade().map(CmId::from_handle)
    }

    /// Queues an event, unless the id was destroyed.
    pub(super) fn queue_event(&self, data: CmEventData) {
        let id = self.state.lock();
        let refused = self.queue_event_locked(&id, data);
        drop(id);
        // Dropping a refused `ConnectRequest` rejects it, which takes other locks.
        drop(refused);
    }

    pub(super) fn queue_event_locked(
        &self,
        id: &IdLocked,
        data: CmEventData,
    ) -> Option<CmEventData> {
        match self.this.upgrade() {
            Some(owner) if id.state != CmState::Destroyed => {
                tracing::debug!(kind = ?data.kind, status = data.status, "CM event");
                id.channel.send(owner, data);
                None
            }
            _ => Some(data),
        }
    }

    /// Ends the time limit of the request, because the program has decided.
    pub(super) fn decided(&self) {
        self.device.background.forget(self.token);
    }

    /// Ends all activities of the id, and takes back the events that were not fetched. An
    /// established connection stays with its QP; an unfinished one ends.
    pub(super) fn shut_down(&self) {
        let mut id = self.state.lock();
        let before = id.state;
        if before == CmState::Destroyed {
            return;
        }
        id.advance(CmInput::Destroy);
        let held = (id.port.take(), id.listening.take(), id.request.take());
        let events = id.channel.take_back(self);
        let qp = std::mem::take(&mut id.qp).upgrade();
        drop(id);
        // Dropping these objects takes other locks.
        drop(held);
        drop(events);
        self.device.background.forget(self.token);
        if let Some(qp) = qp {
            qp.unobserve(self);
            if matches!(before, CmState::Connecting | CmState::Accepting) {
                qp.with(crate::connection::Connection::disconnect);
            }
        }
    }

    /// Counts an event that the program fetches.
    pub(super) fn count_delivered(&self) {
        *self.unacked.lock() += 1;
    }

    pub(super) fn acknowledge(&self, events: u64) {
        let mut unacked = self.unacked.lock();
        *unacked = unacked.saturating_sub_unsigned(events);
        if *unacked <= 0 {
            self.acked.notify_all();
        }
    }

    /// Waits up to `timeout` until all events are acknowledged. Returns the number of events that
    /// are then still not acknowledged.
    pub(super) fn wait_acknowledged(&self, timeout: Option<Duration>) -> u64 {
        let deadline = (self.device.patience(timeout)).map(|timeout| after(machine_now(), timeout));
        let mut unacked = self.unacked.lock();
        while *unacked > 0 {
            match deadline {
                None => self.acked.wait(&mut unacked),
                Some(deadline) => {
                    if self.acked.wait_until(&mut unacked, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        u64::try_from(*unacked).unwrap_or(0)
    }

    /// Returns the depth that the peer has stated, or else the device's limit.
    fn stated(depth: Option<u16>, limit: u16) -> u16 {
        depth.filter(|depth| *depth != NO_AUTO).unwrap_or(limit)
    }
}

impl Drop for IdInner {
    fn drop(&mut self) {
        if self.device.is_here() {
            self.device.ids.forget(self.token);
        } else {
            // The parent still uses the port, and returning it would take locks of the network.
            std::mem::forget(self.state.get_mut().port.take());
        }
    }
}

impl RequestSink for IdInner {
    fn request(&self, request: ConnectRequest) {
        let (is_listening, channel) = {
            let id = self.state.lock();
            (id.state == CmState::Listening, id.channel.clone())
        };
        if !is_listening {
            return;
        }
        let limits = &self.device.settings.limits;
        let stated = request.ird_ord();
        let (ird, ord) = (stated.map(|stated| stated.0), stated.map(|stated| stated.1));
        let data = CmEventData {
            private_data: request.private_data().to_vec(),
            responder_resources: Self::stated(ord, limits.max_ird),
            initiator_depth: Self::stated(ird, limits.max_ord),
            peer_to_peer: request.is_peer_to_peer(),
            ..CmEventData::new(CmEventKind::ConnectRequest)
        };
        let context = self.context.load(Ordering::Acquire);
        let child = CmId::requested(&self.device, channel, context, request);
        self.queue_event(CmEventData {
            child: Some(child),
            ..data
        });
    }

    fn failed(&self, peer: SocketAddr, error: StartupError) {
        let mut id = self.state.lock();
        if !id.over_stream {
            // As with any listener, a failed startup raises no event. Programs for librdmacm expect
            // only requests here, and a flood of events would need unbounded memory.
            id.failures.push(peer, error);
            return;
        }
        id.advance(CmInput::FailedOver);
        drop(id);
        let (kind, status) = status::of_failure(&EndReason::StartupFailed { error });
        self.queue_event(CmEventData {
            status,
            reason: Some(CmReason::Startup { peer, error }),
            ..CmEventData::new(kind)
        });
    }
}

impl Observer for IdInner {
    fn established(&self, negotiated: &Negotiated, addrs: Option<Addrs>) {
        let mut id = self.state.lock();
        let Ok(next) = id.state.next(CmInput::Established) else {
            return;
        };
        id.state = next;
        if let Some(addrs) = addrs {
            (id.local, id.peer) = (Some(addrs.local), Some(addrs.peer));
        }
        let private_data = match negotiated.role {
            Role::Initiator => negotiated.private_data.clone(),
            // The private data of a responder's peer arrived with the request.
            Role::Responder => Vec::new(),
        };
        let _ = self.queue_event_locked(
            &id,
            CmEventData {
                private_data,
                responder_resources: negotiated.ird,
                initiator_depth: negotiated.ord,
                ..CmEventData::new(CmEventKind::Established)
            },
        );
    }

    fn over(&self, reason: &EndReason) {
        let mut id = self.state.lock();
        let failed = if id.over_stream {
            CmInput::FailedOver
        } else {
            CmInput::Failed
        };
        let (kind, status) = match id.state {
            CmState::Connected => (CmEventKind::Disconnected, status::of_end(reason)),
            _ => status::of_failure(reason),
        };
        let next = id
            .state
            .next(CmInput::Over)
            .or_else(|_| id.state.next(failed));
        let Ok(next) = next else {
            return;
        };
        id.state = next;
        let private_data = match reason {
            EndReason::Rejected { private_data, .. } => private_data.clone(),
            _ => Vec::new(),
        };
        let reason = Some(CmReason::Connection {
            reason: reason.clone(),
        });
        let _ = self.queue_event_locked(
            &id,
            CmEventData {
                status,
                private_data,
                reason,
                ..CmEventData::new(kind)
            },
        );
    }
}

/// Time limit of a request that waits for its decision.
impl Source for IdInner {
    fn attend(&self, now: Instant) -> Verdict {
        let mut id = self.state.lock();
        let late = id
            .request
            .as_ref()
            .is_some_and(|request| request.deadline <= now);
        if late && let Ok(next) = id.state.next(CmInput::Reject) {
            id.state = next;
            id.late = true;
            let request = id.request.take();
            drop(id);
            drop(request);
            self.decided();
        }
        Verdict::Settled
    }
}

impl Removable for IdInner {
    fn report_removal(&self, error: LlpError) {
        self.queue_event(CmEventData::failure(CmEventKind::DeviceRemoval, error));
    }
}
