//! CM ids: the calls of the connection manager.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;
use uwarp_llp::{Llp, LlpError};
use uwarp_mpa::ConfigError;

use super::channel::EventChannel;
use super::connect::{self, ConnectError, ConnectOptions};
use super::incoming::{Incoming, RequestError};
use super::inner::{IdInner, IdLocked};
use super::listener::Listening;
use super::observer::Observer;
use super::request::{AcceptError, AcceptOptions, ConnectRequest, RejectOptions};
use super::state::{CmInput, CmState, WrongState};
use crate::device::{DeviceError, DeviceInner};
use crate::home::Inherited;
use crate::qp::Qp;

/// Why a call of the connection manager was refused. What it began and then failed comes as an event
/// instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The id is not in a state for this call.
    #[error(transparent)]
    WrongState(#[from] WrongState),
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
    /// The id was made before a fork.
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
/// thread drives meanwhile. [`Qp::connect`] and [`Listener`](crate::Listener) do the same for programs that
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
/// let (pd, cq) = (device.alloc_pd(), device.create_cq(4)?);
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
        if self.inner.device.home.is_here() {
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

    /// The number that was given when the id was made. The id of a request begins with that of the one that
    /// listens.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner().context.load(Ordering::Relaxed)
    }

    /// Another number for [`context`](Self::context).
    pub fn set_context(&self, context: u64) {
        self.inner().context.store(context, Ordering::Relaxed);
    }

    /// The state it is in; in the child of a fork that is `Destroyed`.
    #[must_use]
    pub fn state(&self) -> CmState {
        self.locked().map_or(CmState::Destroyed, |id| id.state)
    }

    /// The channel that its events come to.
    ///
    /// # Errors
    /// [`CmError::Inherited`] in the child of a fork.
    pub fn channel(&self) -> Result<EventChannel, CmError> {
        Ok(self.locked()?.channel.clone())
    }

    /// Our address, as far as it is known: port 0 until one was chosen.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.locked().ok()?.local
    }

    /// The peer's address, once it is known.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.locked().ok()?.peer
    }

    /// The number of the QP that it connects or has connected; `None` also when that QP is gone.
    #[must_use]
    pub fn qp_num(&self) -> Option<u32> {
        let qp = self.locked().ok()?.qp.upgrade()?;
        Some(qp.ctx.qp_num)
    }

    /// Whether both are handles of one id.
    #[must_use]
    pub fn is(&self, other: &CmId) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Listens for connections at the address of [`bind_addr`](Self::bind_addr), or at any with a port that is
    /// chosen. Each request comes as `ConnectRequest`, with a new id on the same channel.
    ///
    /// At most `backlog` connections are in startup or wait for a decision (0: as many as
    /// [`Limits::max_startup`](crate::Limits::max_startup) allows, which bounds it in any case). More of them
    /// wait in the backlog of TCP, and are neither refused nor rejected. Who does not decide within
    /// [`Timeouts::decision`](crate::Timeouts::decision) rejects.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or what the network or the settings have against it.
    pub fn listen(&self, backlog: u32) -> Result<(), CmError> {
        let inner = self.inner();
        let mut id = self.locked()?;
        let next = id.state.next(CmInput::Listen)?;
        let any = ([0, 0, 0, 0], 0).into();
        let port = match id.port.take() {
            Some(port) => port,
            None => inner.device.network.reserve(id.bound.unwrap_or(any))?,
        };
        let backlog = match backlog {
            0 => u32::MAX,
            backlog => backlog,
        };
        let sink = Arc::downgrade(inner);
        let listening = Listening::open(&inner.device, port, backlog, sink)?;
        id.local = Some(listening.local_addr());
        id.listening = Some(listening);
        id.state = next;
        Ok(())
    }

    /// Connects `qp` to the resolved address. `options.local` means nothing here.
    ///
    /// `Established` comes when the peer has accepted, else `Rejected`, `Unreachable` or `ConnectError`; then the id
    /// may connect again, with a QP that is idle.
    ///
    /// # Errors
    /// When nothing was begun: [`CmError::WrongState`], [`CmError::OtherDevice`], or [`CmError::Connect`] for a QP
    /// in use and for options that cannot be put on the wire.
    pub fn connect(&self, qp: &Qp, options: &ConnectOptions) -> Result<(), CmError> {
        let inner = self.check_device(qp)?;
        let (to, bound, mut port) = {
            let mut id = inner.state.lock();
            let next = id.state.next(CmInput::Connect)?;
            let to = id.peer.ok_or(id.wrong("connect", "a resolved address"))?;
            id.state = next;
            id.qp = Arc::downgrade(qp.inner());
            (to, id.bound, id.port.take())
        };
        // A second try, with MPA revision 1, cannot have the same port: the first connection has it still.
        let again = Some((bound.map(|addr| SocketAddr::new(addr.ip(), 0)), to));
        let begun = connect::start(qp.inner(), to, options, again, || match port.take() {
            Some(port) => port.connect(to),
            None => inner.device.network.connect(bound, to),
        });
        if begun.is_err() {
            let mut id = inner.state.lock();
            id.advance(CmInput::Failed);
            if id.state != CmState::Destroyed {
                id.port = port;
            }
        }
        self.follow(qp, begun)
    }

    /// As [`connect`](Self::connect), on a new id, over a stream that is connected already. The peer takes it
    /// with [`request_over`](Self::request_over). (No octet can have been read ahead: the peer sends none before it
    /// has our Request. For a stream whose startup is done, see [`Qp::attach_stream`].)
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_over(
        &self,
        qp: &Qp,
        stream: Box<dyn Llp>,
        options: &ConnectOptions,
    ) -> Result<(), CmError> {
        let inner = self.check_device(qp)?;
        let to = stream.peer_addr();
        {
            let mut id = inner.state.lock();
            id.state = id.state.next(CmInput::ConnectOver)?;
            id.over_stream = true;
            id.qp = Arc::downgrade(qp.inner());
            (id.local, id.peer) = (Some(stream.local_addr()), Some(to));
        }
        let begun = connect::start(qp.inner(), to, options, None, || Ok(stream));
        if begun.is_err() {
            inner.state.lock().advance(CmInput::FailedOver);
        }
        self.follow(qp, begun)
    }

    /// On a new id: waits for the MPA Request on a stream that is connected already. `read` are octets that the
    /// program has read from it and that belong to the Request. It comes as `ConnectRequest`, with an id of its
    /// own; or an event tells what came instead.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or [`CmError::Request`] when the stream cannot be watched.
    pub fn request_over(&self, stream: Box<dyn Llp>, read: &[u8]) -> Result<(), CmError> {
        let inner = self.inner();
        {
            let mut id = self.locked()?;
            id.state = id.state.next(CmInput::Listen)?;
            id.over_stream = true;
            (id.local, id.peer) = (Some(stream.local_addr()), Some(stream.peer_addr()));
        }
        let sink = Arc::downgrade(inner);
        Ok(Incoming::start(sink, &inner.device, stream, read, None)?)
    }

    /// Accepts the request: the Reply goes out, and `qp` has the connection; post receives before this.
    /// `Established` follows at once. An initiator of the client-server model has to send first.
    ///
    /// # Errors
    /// [`CmError::WrongState`], [`CmError::OtherDevice`], or [`CmError::Accept`]; with the latter the request is rejected.
    pub fn accept(&self, qp: &Qp, options: &AcceptOptions) -> Result<(), CmError> {
        let inner = self.check_device(qp)?;
        let request = {
            let mut id = inner.state.lock();
            let request = id.take_request(CmInput::Accept)?;
            id.qp = Arc::downgrade(qp.inner());
            request
        };
        inner.decided();
        let begun = request.accept(qp, options);
        if begun.is_err() {
            inner.state.lock().advance(CmInput::Failed);
        }
        self.follow(qp, begun)
    }

    /// Rejects the request.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or [`CmError::Accept`] when the private data is too long; the request is rejected
    /// without it then.
    pub fn reject(&self, options: &RejectOptions) -> Result<(), CmError> {
        let inner = self.inner();
        let request = self.locked()?.take_request(CmInput::Reject)?;
        inner.decided();
        Ok(request.reject_with(options)?)
    }

    /// Ends the connection gracefully: what was posted is carried out, then FIN. `Disconnected` tells when it is over and
    /// all work is flushed. An attempt to connect is given up, and ends with `ConnectError`. Does nothing when the connection
    /// is over already.
    ///
    /// # Errors
    /// [`CmError::WrongState`] without a connection.
    pub fn disconnect(&self) -> Result<(), CmError> {
        let qp = {
            let id = self.locked()?;
            match id.state {
                CmState::Connecting | CmState::Accepting | CmState::Connected => id.qp.upgrade(),
                CmState::Disconnected => None,
                _ => return Err(id.wrong("disconnect", "a connection").into()),
            }
        };
        if let Some(qp) = qp {
            qp.with(crate::engine::Connection::disconnect);
        }
        Ok(())
    }

    /// Lets the events of this id come to another channel, those that wait among them. Events that were fetched
    /// before may still be acknowledged afterwards; `rdma_migrate_id` waits for that, and so does
    /// [`wait_acknowledged`](Self::wait_acknowledged).
    ///
    /// # Errors
    /// [`CmError::WrongState`] when it was destroyed.
    pub fn migrate(&self, to: &EventChannel) -> Result<(), CmError> {
        let inner = self.inner();
        // No event is sent meanwhile: that takes the lock of the id.
        let mut id = self.locked()?;
        if id.state == CmState::Destroyed {
            return Err(id.wrong("migrate", "an id that was not destroyed").into());
        }
        let events = id.channel.take_back(inner);
        to.append(events);
        id.channel = to.clone();
        Ok(())
    }

    /// Acknowledges events that were left unacknowledged.
    pub fn ack_events(&self, events: u32) {
        if self.inner().device.home.is_here() {
            self.inner().acknowledged(events.into());
        }
    }

    /// Waits until every event that was fetched is acknowledged.
    ///
    /// # Errors
    /// [`CmError::Unacknowledged`] when `timeout` passed first; `None` waits without end.
    pub fn wait_acknowledged(&self, timeout: Option<Duration>) -> Result<(), CmError> {
        self.inner().device.home.check()?;
        match self.inner().wait_acknowledged(timeout) {
            0 => Ok(()),
            events => Err(CmError::Unacknowledged { events }),
        }
    }

    /// Ends the id for all its handles (as the drop of the last one does), and waits until every event that was fetched is
    /// acknowledged (which a drop does not).
    ///
    /// # Errors
    /// [`CmError::Unacknowledged`] when `timeout` passed first; the id is destroyed all the same, and the call
    /// may be repeated.
    pub fn destroy(&self, timeout: Option<Duration>) -> Result<(), CmError> {
        self.inner().device.home.check()?;
        self.inner().shut_down();
        self.wait_acknowledged(timeout)
    }

    /// # Errors
    /// In the child of a fork, where a thread that is no more may hold the lock.
    pub(super) fn locked(&self) -> Result<MutexGuard<'_, IdLocked>, Inherited> {
        let inner = self.inner();
        inner.device.home.check()?;
        Ok(inner.state.lock())
    }

    fn check_device(&self, qp: &Qp) -> Result<&Arc<IdInner>, CmError> {
        let inner = self.inner();
        inner.device.home.check()?;
        if !Arc::ptr_eq(&inner.device, &qp.inner().device) {
            return Err(CmError::OtherDevice);
        }
        Ok(inner)
    }

    /// From here on the QP tells the id what becomes of its connection, and what has become of it so far.
    fn follow<E: Into<CmError>>(&self, qp: &Qp, begun: Result<(), E>) -> Result<(), CmError> {
        begun.map_err(Into::into)?;
        let inner = self.inner();
        let addrs = qp.inner().lock().addrs();
        if let Some(addrs) = addrs {
            // With the port that was chosen.
            inner.state.lock().local = Some(addrs.local);
        }
        let observer: Arc<dyn Observer> = Arc::<IdInner>::clone(inner);
        qp.inner().observe(observer);
        if inner.state.lock().state == CmState::Destroyed {
            // By another thread, which may have come before the QP knew the id.
            qp.inner().unobserve(&**inner);
        }
        Ok(())
    }
}

impl IdLocked {
    /// Moves on, where the state allows it: another thread may have destroyed the id.
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

    fn take_request(&mut self, input: CmInput) -> Result<ConnectRequest, CmError> {
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

impl std::fmt::Debug for CmId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CmId")
            .field("state", &self.state())
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}
