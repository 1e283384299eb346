//! CM ids: handles, context, channel, acknowledgement, end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;
use uwarp_llp::LlpError;
use uwarp_mpa::{ConfigError, StartupError};

use super::attempts::ResolveError;
use super::channel::EventChannel;
use super::connect::ConnectError;
use super::connect_request::{AcceptError, ConnectRequest};
use super::inner::{IdInner, IdLocked};
use super::pending_startup::RequestError;
use super::state::{CmState, WrongState};
use crate::device::{DeviceError, DeviceInner};
use crate::fork_guard::Inherited;

/// Why a call of the connection manager was refused (`errno` of librdmacm). What it began and then failed comes as an
/// event instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The id is not in a state for this call.
    #[error(transparent)]
    WrongState(#[from] WrongState),
    /// The name gave no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The network refused the address, or to listen.
    #[error(transparent)]
    Network(#[from] LlpError),
    /// The device refused to listen.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Connecting was not begun.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The request could not be accepted or rejected.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The stream could not be taken.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// An option cannot be put on the wire.
    #[error(transparent)]
    Options(#[from] ConfigError),
    /// The id, or its channel, was made before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The QP is of another device than the id.
    #[error("the queue pair belongs to another device than the id")]
    OtherDevice,
    /// Events were fetched and not acknowledged.
    #[error("{events} events of the id are not acknowledged; drop them, or call ack_events")]
    Unacknowledged {
        /// How many.
        events: u64,
    },
}

/// An id of the connection manager (`rdma_cm_id`): one connection, or one listener.
///
/// No call waits. What comes of it is told by events on the id's [`EventChannel`]; the device's background
/// thread drives meanwhile. [`Qp::connect`](crate::Qp::connect) and [`Listener`](crate::Listener) do the same for programs that
/// prefer to wait.
///
/// | who | calls | events |
/// |---|---|---|
/// | initiator | [`resolve_addr`](Self::resolve_addr), [`resolve_route`](Self::resolve_route), [`connect`](Self::connect) | `AddrResolved`, `RouteResolved`, then `Established`, `Rejected`, `Unreachable` or `ConnectError` |
/// | responder | [`bind_addr`](Self::bind_addr), [`listen`](Self::listen); on each request's id [`accept`](Self::accept) or [`reject`](Self::reject) | `ConnectRequest`; `Established` |
/// | both | [`disconnect`](Self::disconnect) | `Disconnected` |
///
/// Clones are the same id. When the last one goes, so does what the id does: it stops to listen, rejects a request,
/// gives up an attempt to connect, and its events that wait disappear. A connection that stands is the QP's, and
/// stays; only its events end.
///
/// ```
/// use uwarp_verbs::{AcceptOptions, CmEventKind, ConnectOptions, Device, EventChannel, QpCaps};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::tcp()?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(4)?);
/// let qp = || pd.create_qp(&cq, &cq, QpCaps::default());
/// let channel = EventChannel::new()?;
/// let next = |kind| {
///     let event = channel.get_event(Some(std::time::Duration::from_secs(5))).unwrap();
///     assert_eq!(event.kind(), kind, "{event:?}");
///     event.id().clone()
/// };
///
/// let server = channel.create_id(&device, 1);
/// server.bind_addr("127.0.0.1:0".parse()?)?;
/// server.listen(16)?;
///
/// let client = channel.create_id(&device, 2);
/// client.resolve_addr(None, server.local_addr().unwrap())?;
/// next(CmEventKind::AddrResolved);
/// client.resolve_route()?;
/// next(CmEventKind::RouteResolved);
/// let ours = qp()?;
/// client.connect(&ours, &ConnectOptions::default())?;
///
/// let request = next(CmEventKind::ConnectRequest);
/// let theirs = qp()?;
/// request.accept(&theirs, &AcceptOptions::default())?;
/// next(CmEventKind::Established);
/// next(CmEventKind::Established);
/// client.disconnect()?;
/// next(CmEventKind::Disconnected);
/// next(CmEventKind::Disconnected);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct CmId {
    handle: Arc<Handle>,
}

/// What all clones of a `CmId` share. Its drop is the end of the id.
pub(super) struct Handle {
    inner: Arc<IdInner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.inner.device.fork_guard.is_here() {
            self.inner.shut_down();
        }
    }
}

impl CmId {
    pub(super) fn new(device: &Arc<DeviceInner>, channel: EventChannel, context: u64) -> Self {
        Self::of(IdInner::new(device, channel, context, None))
    }

    /// The id of a request.
    pub(super) fn requested(
        device: &Arc<DeviceInner>,
        channel: EventChannel,
        context: u64,
        request: ConnectRequest,
    ) -> Self {
        Self::of(IdInner::new(device, channel, context, Some(request)))
    }

    fn of(inner: Arc<IdInner>) -> Self {
        let handle = Arc::new(Handle { inner });
        let weak = Arc::downgrade(&handle);
        // It is new, so the cell is empty.
        let _ = handle.inner.handle.set(weak);
        CmId { handle }
    }

    pub(super) fn from_handle(handle: Arc<Handle>) -> Self {
        CmId { handle }
    }

    pub(super) fn inner(&self) -> &Arc<IdInner> {
        &self.handle.inner
    }

    /// The number that was given when the id was made (`rdma_cm_id.context`). The id of a request begins with that of
    /// the one that listens.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner().context.load(Ordering::Acquire)
    }

    /// Sets another number for [`context`](Self::context) (`context` of `rdma_cm_id`). If it is an address, a thread that
    /// reads it sees what was written there before this call.
    pub fn set_context(&self, context: u64) {
        self.inner().context.store(context, Ordering::Release);
    }

    /// The state it is in; in the child of a fork that is `Destroyed`.
    #[must_use]
    pub fn state(&self) -> CmState {
        self.locked().map_or(CmState::Destroyed, |id| id.state)
    }

    /// The channel that its events come to (`channel` of `rdma_cm_id`).
    ///
    /// # Errors
    /// [`CmError::Inherited`] in the child of a fork.
    pub fn channel(&self) -> Result<EventChannel, CmError> {
        Ok(self.locked()?.channel.clone())
    }

    /// Our address, as far as it is known (`rdma_get_local_addr`): port 0 until one was chosen.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.locked().ok()?.local
    }

    /// The peer's address, once it is known (`rdma_get_peer_addr`).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.locked().ok()?.peer
    }

    /// The number of the QP that it connects or has connected (`qp` of `rdma_cm_id`); `None` also when that QP is gone.
    #[must_use]
    pub fn qp_num(&self) -> Option<u32> {
        let qp = self.locked().ok()?.qp.upgrade()?;
        Some(qp.ctx.qp_num)
    }

    /// Of an id that listens: the oldest connection that came to no request and was not looked at, because it
    /// is no iWARP, or because a limit is reached ([`StartupError::NoPlace`], [`StartupError::TooManyConnections`]):
    /// who it was, and what was wrong. There is no event for it, as librdmacm has none. The last 64 are kept.
    #[must_use]
    pub fn poll_failure(&self) -> Option<(SocketAddr, StartupError)> {
        self.locked().ok()?.failures.pop()
    }

    /// How many of these were dropped, the oldest first, because nobody looked (librdmacm has no such count).
    #[must_use]
    pub fn lost_failures(&self) -> u64 {
        self.locked().map_or(0, |id| id.failures.lost())
    }

    /// Whether both are handles of one id (the same `rdma_cm_id`).
    #[must_use]
    pub fn is(&self, other: &CmId) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Lets the events of this id come to another channel, those that wait among them. Events that were fetched
    /// before may still be acknowledged afterwards; `rdma_migrate_id` waits for that, and so does
    /// [`wait_acknowledged`](Self::wait_acknowledged).
    ///
    /// # Errors
    /// [`CmError::WrongState`] when it was destroyed.
    pub fn migrate(&self, to: &EventChannel) -> Result<(), CmError> {
        let inner = self.inner();
        to.check()?;
        // No event is sent meanwhile: that takes the lock of the id.
        let mut id = self.locked()?;
        if id.state == CmState::Destroyed {
            return Err(id.wrong("migrate", "an id that was not destroyed").into());
        }
        let events = id.channel.take_back(inner);
        to.append(events);
        to.sends_for(&inner.device);
        id.channel = to.clone();
        Ok(())
    }

    /// Acknowledges events that were left unacknowledged (`rdma_ack_cm_event`).
    pub fn ack_events(&self, events: u32) {
        if self.inner().device.fork_guard.is_here() {
            self.inner().acknowledged(events.into());
        }
    }

    /// Waits until every event that was fetched is acknowledged (as `rdma_destroy_id` does).
    ///
    /// # Errors
    /// [`CmError::Unacknowledged`] when `timeout` passed first; `None` waits without end.
    pub fn wait_acknowledged(&self, timeout: Option<Duration>) -> Result<(), CmError> {
        self.inner().device.fork_guard.check()?;
        match self.inner().wait_acknowledged(timeout) {
            0 => Ok(()),
            events => Err(CmError::Unacknowledged { events }),
        }
    }

    /// Ends the id for all its handles (as the drop of the last one does), and waits until every event that was fetched is
    /// acknowledged (which a drop does not), as `rdma_destroy_id` does.
    ///
    /// # Errors
    /// [`CmError::Unacknowledged`] when `timeout` passed first; the id is destroyed all the same, and the call
    /// may be repeated.
    pub fn destroy(&self, timeout: Option<Duration>) -> Result<(), CmError> {
        self.inner().device.fork_guard.check()?;
        self.inner().shut_down();
        self.wait_acknowledged(timeout)
    }

    /// # Errors
    /// In the child of a fork, where a thread that is no more may hold the lock.
    pub(super) fn locked(&self) -> Result<MutexGuard<'_, IdLocked>, Inherited> {
        let inner = self.inner();
        inner.device.fork_guard.check()?;
        let id = inner.state.lock();
        id.channel.check()?;
        Ok(id)
    }
}

impl std::fmt::Debug for CmId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CmId")
            .field("state", &self.state())
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}
