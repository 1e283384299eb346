//! CM ids: handles, context, channel, acknowledgements, destruction.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
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

/// Error of a call of the connection manager (`errno` of librdmacm). Failures after the call has
/// returned arrive as events.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The id is not in a state that allows this call.
    #[error(transparent)]
    WrongState(#[from] WrongState),
    /// The name has no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The network refused the address, or refused to listen.
    #[error(transparent)]
    Network(#[from] LlpError),
    /// The device refused to listen.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The connection was not started.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The request could not be accepted or rejected.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The stream cannot be used.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// An option has no representation on the wire.
    #[error(transparent)]
    Options(#[from] ConfigError),
    /// The id or its channel was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The QP belongs to another device than the id.
    #[error("the queue pair belongs to another device than the id")]
    OtherDevice,
    /// Events were fetched and not acknowledged.
    #[error("{events} events of the id are not acknowledged; drop them, or call ack_events")]
    Unacknowledged {
        /// Number of events.
        events: u64,
    },
}

/// An id of the connection manager (`rdma_cm_id`): one connection, or one listener.
///
/// The calls that make and end connections do not wait. Results arrive as events on the id's
/// [`EventChannel`], and the device's background thread drives the connections.
/// [`Qp::connect`](crate::Qp::connect) and [`Listener`](crate::Listener) do the same with blocking
/// calls.
///
/// * The initiator calls [`resolve_addr`](Self::resolve_addr),
///   [`resolve_route`](Self::resolve_route) and [`connect`](Self::connect). Events: `AddrResolved`,
///   `RouteResolved`, then `Established`, `Rejected`, `Unreachable` or `ConnectError`.
/// * The responder calls [`bind_addr`](Self::bind_addr) and [`listen`](Self::listen), and on the id
///   of each request [`accept`](Self::accept) or [`reject`](Self::reject). Events:
///   `ConnectRequest`, then `Established`.
/// * Both call [`disconnect`](Self::disconnect). Event: `Disconnected`.
///
/// Clones are handles to the same id. When the last one is dropped, the id ends: it stops
/// listening, rejects its request, gives up an attempt to connect, and removes its waiting events.
/// An established connection belongs to the QP and stays, but reports no more events to the id.
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

/// State that all clones of a `CmId` share. Dropping it ends the id.
pub(super) struct Handle {
    inner: ForkGuarded<Arc<IdInner>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.here() {
            inner.shut_down();
        }
    }
}

impl CmId {
    pub(super) fn new(
        device: &ForkGuarded<Arc<DeviceInner>>,
        channel: EventChannel,
        context: u64,
    ) -> Self {
        let inner = IdInner::new(device.unguarded(), channel, context, None);
        Self::of(device.with(inner))
    }

    /// Creates the id of a request.
    pub(super) fn requested(
        device: &Arc<DeviceInner>,
        channel: EventChannel,
        context: u64,
        request: ConnectRequest,
    ) -> Self {
        let inner = IdInner::new(device, channel, context, Some(request));
        Self::of(ForkGuarded::new(inner))
    }

    fn of(inner: ForkGuarded<Arc<IdInner>>) -> Self {
        let handle = Arc::new(Handle { inner });
        let weak = Arc::downgrade(&handle);
        // The handle is new, so the cell is empty.
        let _ = handle.inner.unguarded().handle.set(weak);
        CmId { handle }
    }

    pub(super) fn from_handle(handle: Arc<Handle>) -> Self {
        CmId { handle }
    }

    /// Returns the shared part of the id.
    ///
    /// # Errors
    /// [`Inherited`] in the child of a fork.
    pub(super) fn inner(&self) -> Result<&Arc<IdInner>, Inherited> {
        self.handle.inner.get()
    }

    /// Returns the context, which a child may use as well.
    fn context_cell(&self) -> &AtomicU64 {
        &self.handle.inner.unguarded().context
    }

    /// Number that was given when the id was created (`rdma_cm_id.context`). The id of a request
    /// starts with the number of the listening id.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.context_cell().load(Ordering::Acquire)
    }

    /// Sets the [`context`](Self::context) (`context` of `rdma_cm_id`). If it is an address, a
    /// thread that reads it sees all writes to the memory there before this call.
    pub fn set_context(&self, context: u64) {
        self.context_cell().store(context, Ordering::Release);
    }

    /// State of the id; `Destroyed` in the child of a fork.
    #[must_use]
    pub fn state(&self) -> CmState {
        self.locked().map_or(CmState::Destroyed, |id| id.state)
    }

    /// Channel that receives the events of this id (`channel` of `rdma_cm_id`).
    ///
    /// # Errors
    /// [`CmError::Inherited`] in the child of a fork.
    pub fn channel(&self) -> Result<EventChannel, CmError> {
        Ok(self.locked()?.channel.clone())
    }

    /// Local address, as far as it is known (`rdma_get_local_addr`). The port is 0 until one is
    /// chosen.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.locked().ok()?.local
    }

    /// The peer's address, once it is known (`rdma_get_peer_addr`).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.locked().ok()?.peer
    }

    /// Number of the QP that the id connects or has connected (`qp` of `rdma_cm_id`); `None` if
    /// that QP no longer exists.
    #[must_use]
    pub fn qp_num(&self) -> Option<u32> {
        let qp = self.locked().ok()?.qp.upgrade()?;
        Some(qp.ctx.qp_num)
    }

    /// Takes the oldest failed startup of a listening id: the peer's address and the error. A
    /// startup fails, for example, if the peer is not iWARP or if a limit is reached
    /// ([`StartupError::NoPlace`], [`StartupError::TooManyConnections`]). A failed startup raises
    /// no event, as in librdmacm. The last 64 are kept.
    #[must_use]
    pub fn poll_failure(&self) -> Option<(SocketAddr, StartupError)> {
        self.locked().ok()?.failures.pop()
    }

    /// Number of failures that were dropped, oldest first, because the program did not take them.
    #[must_use]
    pub fn lost_failures(&self) -> u64 {
        self.locked().map_or(0, |id| id.failures.lost())
    }

    /// Returns true if both are handles to one id (the same `rdma_cm_id`).
    #[must_use]
    pub fn is(&self, other: &CmId) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Moves the id to another channel, together with its waiting events. Events that were fetched
    /// before may be acknowledged afterwards. Unlike `rdma_migrate_id`, this call does not wait for
    /// these acknowledgements; [`wait_acknowledged`](Self::wait_acknowledged) does.
    ///
    /// # Errors
    /// [`CmError::WrongState`] if the id was destroyed.
    pub fn migrate(&self, to: &EventChannel) -> Result<(), CmError> {
        let inner = self.inner()?;
        to.check()?;
        // No event is sent while this lock is held, because sending an event takes this lock.
        let mut id = inner.lock()?;
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
        if let Ok(inner) = self.inner() {
            inner.acknowledge(events.into());
        }
    }

    /// Waits until all fetched events are acknowledged (as `rdma_destroy_id` does).
    ///
    /// # Errors
    /// [`CmError::Unacknowledged`] if `timeout` passed first; `None` waits without limit.
    pub fn wait_acknowledged(&self, timeout: Option<Duration>) -> Result<(), CmError> {
        match self.inner()?.wait_acknowledged(timeout) {
            0 => Ok(()),
            events => Err(CmError::Unacknowledged { events }),
        }
    }

    /// Ends the id for all its handles, as dropping the last one does. Then waits until all fetched
    /// events are acknowledged, as `rdma_destroy_id` does; a drop does not wait.
    ///
    /// # Errors
    /// [`CmError::Unacknowledged`] if `timeout` passed first. The id is destroyed nevertheless, and
    /// the call may be repeated.
    pub fn destroy(&self, timeout: Option<Duration>) -> Result<(), CmError> {
        self.inner()?.shut_down();
        self.wait_acknowledged(timeout)
    }

    /// Locks the id.
    ///
    /// # Errors
    /// [`Inherited`] in the child of a fork, where a thread that does not exist may hold the lock.
    pub(super) fn locked(&self) -> Result<MutexGuard<'_, IdLocked>, Inherited> {
        self.inner()?.lock()
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
