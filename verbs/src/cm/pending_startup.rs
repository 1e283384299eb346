//! Passive side of one connection, from TCP's accept to the complete MPA Request.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use uwarp_engine::fork_guard::Inherited;
use uwarp_engine::times::after;
use uwarp_llp::{Llp, LlpError, Recv};
use uwarp_mpa::{ConfigError, Request, Responder, ResponderConfig, StartupError};

use super::connect_request::ConnectRequest;
use super::listener::Slot;
use crate::device::Device;
use crate::device::DeviceInner;
use crate::device::startup_queue::{Startup, StartupQueue};
use crate::mutants::mutate;
use crate::progress::WouldWait;
use crate::progress::background::{Interest, Source, Token, Verdict};
use crate::progress::linger::linger;
use crate::settings::Settings;
use uwarp_engine::limits::{Charge, LimitReached, What};

/// Receiver of MPA Requests. Called without any lock of the CM.
pub(crate) trait RequestSink: Send + Sync {
    /// Takes a complete Request. Dropping it rejects it.
    fn request(&self, request: ConnectRequest);

    /// Reports a failed startup: no valid MPA Request arrived, or a limit is reached.
    fn failed(&self, peer: SocketAddr, error: StartupError);

    /// Reports that the listener accepts no more connections. Not called for a single stream.
    fn down(&self, _error: LlpError) {}

    /// Rejects the requests whose time for a decision has passed by `now`. Not called for a single
    /// stream.
    fn expire(&self, _now: Instant) {}
}

/// A connection whose MPA Request is incomplete.
pub(super) struct PendingStartup {
    sink: Weak<dyn RequestSink>,
    device: Arc<DeviceInner>,
    token: Token,
    /// Pending startups of the same listener.
    listener_queue: Option<Arc<StartupQueue>>,
    state: Mutex<Option<Awaiting>>,
}

struct Awaiting {
    llp: Box<dyn Llp>,
    responder: Responder,
    deadline: Instant,
    slot: Option<Slot>,
    /// Charge against the peer's limit of half-open connections.
    place: Charge,
}

/// Result of reading the MPA Request.
enum Step {
    More,
    Whole(Request),
    Failed(StartupError),
}

impl PendingStartup {
    /// Starts to wait for the Request on a connected stream. `read` are bytes that were already
    /// read from it.
    pub(super) fn start(
        sink: Weak<dyn RequestSink>,
        device: &Arc<DeviceInner>,
        llp: Box<dyn Llp>,
        read: &[u8],
        slot: Option<Slot>,
    ) -> Result<(), RequestError> {
        let account = device.accounts.peer(llp.peer_addr());
        let mut place = account.take(What::HalfOpen, 1);
        if let Err(limit) = &place
            && limit.peer().is_none()
            && device
                .startup_queue
                .displace(device.now(), limit.displaced())
        {
            place = account.take(What::HalfOpen, 1);
        }
        let place = match place {
            Ok(place) => place,
            Err(limit) => {
                refuse(llp);
                return Err(limit.into());
            }
        };
        let deadline = after(device.now(), device.settings.timeouts.request);
        let token = device.background.token();
        let mut awaiting = Awaiting {
            llp,
            responder: responder(&device.settings)?,
            deadline,
            slot,
            place,
        };
        // The Request may have arrived already, or its sender may be gone. Then the background need
        // not watch the connection.
        let step = awaiting
            .take(read)
            .unwrap_or_else(|| awaiting.turn(device.now()));
        let pending = Arc::new(PendingStartup {
            sink,
            device: Arc::clone(device),
            token,
            listener_queue: awaiting.slot.as_ref().and_then(Slot::startup_queue),
            state: Mutex::new(None),
        });
        match step {
            Step::Whole(request) => {
                pending.attend_older(device.now());
                pending.end(awaiting, Ok(request));
            }
            Step::Failed(error) => pending.end(awaiting, Err(error)),
            Step::More => pending.watch(awaiting)?,
        }
        Ok(())
    }

    /// Hands the connection to the background thread.
    fn watch(self: Arc<Self>, awaiting: Awaiting) -> Result<(), LlpError> {
        let (background, token) = (&self.device.background, self.token);
        let weak: Weak<PendingStartup> = Arc::downgrade(&self);
        background
            .register(
                token,
                Weak::<PendingStartup>::clone(&weak),
                awaiting.llp.fd(),
            )
            .map_err(|errno| LlpError::Io {
                op: "watch a new connection",
                errno: errno.raw_os_error(),
            })?;
        let mut state = self.state.lock();
        let kept: Arc<PendingStartup> = Arc::clone(&self);
        background.keep(token, kept);
        let now = background.now();
        for startup_queue in self.queues() {
            let this: Weak<dyn Startup> = Weak::<PendingStartup>::clone(&weak);
            startup_queue.insert(token, now, this);
        }
        background.at(token, awaiting.deadline);
        self.arm(state.insert(awaiting));
        Ok(())
    }

    /// Returns the queues that contain this startup while the background watches it.
    fn queues(&self) -> impl Iterator<Item = &StartupQueue> {
        let device = std::iter::once(&self.device.startup_queue);
        device.chain(self.listener_queue.as_deref())
    }

    /// Takes the connection back from the background thread.
    fn unwatch(&self, awaiting: &Awaiting) {
        self.device.background.forget_fd(awaiting.llp.fd());
        self.device.background.forget(self.token);
        for startup_queue in self.queues() {
            startup_queue.remove(self.token);
        }
    }

    /// Asks the background thread to read the next bytes.
    fn arm(&self, awaiting: &Awaiting) {
        let background = &self.device.background;
        background.arm(self.token, awaiting.llp.fd(), Interest::Read);
        if let Some(due) = awaiting.llp.deadline() {
            background.at(self.token, due.min(awaiting.deadline));
        }
    }

    /// Reports the result. Called when the background no longer watches the connection.
    fn end(&self, awaiting: Awaiting, result: Result<Request, StartupError>) {
        let background = &self.device.background;
        let Awaiting {
            llp,
            responder,
            slot,
            place,
            ..
        } = awaiting;
        match result {
            Ok(request) => {
                let request =
                    ConnectRequest::new(&self.device, (llp, responder), request, slot, place);
                let Some(sink) = self.sink.upgrade() else {
                    return;
                };
                let account = self.device.accounts.peer(request.peer_addr());
                let limit = account.check(What::Connections).map_err(StartupError::from);
                match limit.and_then(|()| account.admit(self.device.now())) {
                    Ok(()) => sink.request(request),
                    Err(limit) => {
                        // The drop rejects the request here. Otherwise the program would create a
                        // QP only to learn that accept fails.
                        tracing::info!(peer = %request.peer_addr(), %limit, "rejected");
                        sink.failed(request.peer_addr(), limit);
                    }
                }
            }
            Err(error) => {
                tracing::info!(peer = %llp.peer_addr(), %error, "MPA startup failed");
                if let Some(sink) = self.sink.upgrade() {
                    sink.failed(llp.peer_addr(), error);
                }
                drop(slot);
                // 5044-8-09: an invalid frame closes TCP at once.
                let limit = self.device.settings.timeouts.close;
                linger(background, llp, Some(place), Vec::new(), limit);
            }
        }
    }
}

impl Awaiting {
    /// Takes bytes of the Request. Returns `None` while it is incomplete.
    fn take(&mut self, bytes: &[u8]) -> Option<Step> {
        let count = bytes.len();
        match self.responder.receive(bytes) {
            // 5044-7.1.1-16: bytes after the Private Data mean that PD_Length is wrong, because an
            // initiator sends nothing more before it has the Reply.
            Ok((taken, Some(_))) if mutate!(taken < count, TrailingBytesTaken => false) => {
                let count = count - taken;
                Some(Step::Failed(StartupError::TrailingBytes { count }))
            }
            Ok((_, Some(request))) => Some(Step::Whole(request)),
            Ok((_, None)) => None,
            Err(error) => Some(Step::Failed(error)),
        }
    }

    fn turn(&mut self, now: Instant) -> Step {
        self.llp.clear_readiness();
        self.llp.drive();
        let mut bytes = [0; 600];
        loop {
            match self.llp.try_recv(&mut bytes) {
                Ok(Recv::Data(count)) => {
                    if let Some(step) = self.take(&bytes[..count]) {
                        return step;
                    }
                }
                Ok(Recv::WouldBlock) => break,
                Ok(Recv::Closed) => return Step::Failed(self.responder.closed(false)),
                Err(LlpError::Reset { .. } | LlpError::Broken { .. }) => {
                    return Step::Failed(self.responder.closed(true));
                }
                // The peer was silent for TCP's time limit, but has reset nothing.
                Err(error) => {
                    tracing::debug!(peer = %self.llp.peer_addr(), %error, "lost before the MPA Request");
                    return Step::Failed(self.responder.timed_out());
                }
            }
        }
        if self.deadline <= now {
            // 5044-7.1.2-18: two responders that face each other would wait forever.
            return Step::Failed(self.responder.timed_out());
        }
        Step::More
    }
}

impl Source for PendingStartup {
    fn attend(&self, now: Instant) -> Verdict {
        if let Some((awaiting, result)) = self.read_request(now) {
            self.unwatch(&awaiting);
            if result.is_ok() {
                self.attend_older(now);
            }
            self.end(awaiting, result);
        }
        Verdict::Settled
    }
}

impl PendingStartup {
    /// Reads what has arrived. Returns `None` if the Request is still incomplete, or if the startup
    /// ended before.
    fn read_request(&self, now: Instant) -> Option<(Awaiting, Result<Request, StartupError>)> {
        let mut state = self.state.lock();
        let awaiting = state.as_mut()?;
        let result = match awaiting.turn(now) {
            Step::More => {
                self.arm(awaiting);
                return None;
            }
            Step::Whole(request) => Ok(request),
            Step::Failed(error) => Err(error),
        };
        state.take().map(|ended| (ended, result))
    }

    /// Handles the older connections of the listener before the Request of a newer one is reported.
    /// Requests are thus reported in the order of their connections.
    fn attend_older(&self, now: Instant) {
        let Some(listener_queue) = &self.listener_queue else {
            return;
        };
        for older in listener_queue.before(self.token, now) {
            older.read(now);
        }
    }
}

impl Startup for PendingStartup {
    fn make_room(&self, now: Instant, error: StartupError) -> bool {
        let Some(mut awaiting) = self.state.lock().take() else {
            return false;
        };
        self.unwatch(&awaiting);
        let error = match awaiting.turn(now) {
            Step::Whole(request) => {
                self.end(awaiting, Ok(request));
                return false;
            }
            Step::Failed(error) => error,
            Step::More => {
                self.device.startup_queue.count_displaced();
                error
            }
        };
        let peer = awaiting.llp.peer_addr();
        tracing::info!(%peer, %error, "MPA startup gave its place away");
        refuse(awaiting.llp);
        // Frees the places before the sink is notified.
        drop((awaiting.slot, awaiting.place));
        if let Some(sink) = self.sink.upgrade() {
            sink.failed(peer, error);
        }
        true
    }

    fn read(&self, now: Instant) {
        if let Some((awaiting, result)) = self.read_request(now) {
            self.unwatch(&awaiting);
            self.end(awaiting, result);
        }
    }
}

/// Error of waiting for an MPA Request on a stream (RFC 5044 section 7.1.2).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// No MPA Request arrived in time, or something else arrived.
    #[error("{peer}: {error}")]
    Startup {
        /// Address of the peer.
        peer: SocketAddr,
        /// Error of MPA startup.
        error: StartupError,
    },
    /// A setting of the device has no representation on the wire.
    #[error("{0}")]
    Settings(#[from] ConfigError),
    /// The device was opened before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The program drives the device, which would make no progress during a wait.
    #[error(transparent)]
    WouldWait(#[from] WouldWait),
    /// The background thread cannot watch the stream.
    #[error("{0}")]
    Llp(#[from] LlpError),
    /// The peer, or all peers together, have too many connections in startup.
    #[error("{0}")]
    Limit(#[from] LimitReached),
}

/// Resets a surplus connection. A graceful close would keep it for as long as the peer likes.
pub(super) fn refuse(mut llp: Box<dyn Llp>) {
    llp.abort();
}

/// Creates a responder with the settings of a device.
pub(super) fn responder(settings: &Settings) -> Result<Responder, ConfigError> {
    Responder::new(ResponderConfig {
        crc: settings.crc,
        markers: settings.markers,
        // With revision 1 this is an endpoint that does not know RFC 6581.
        max_revision: settings.accept_revision,
        max_ird: settings.limits.max_ird,
        rtr: settings.rtr,
    })
}

/// Sink for a single Request, for which a call waits.
#[derive(Default)]
struct SingleRequest {
    result: Mutex<Option<Result<ConnectRequest, RequestError>>>,
    changed: Condvar,
}

impl SingleRequest {
    fn put(&self, result: Result<ConnectRequest, RequestError>) {
        *self.result.lock() = Some(result);
        self.changed.notify_one();
    }
}

impl RequestSink for SingleRequest {
    fn request(&self, request: ConnectRequest) {
        self.put(Ok(request));
    }

    fn failed(&self, peer: SocketAddr, error: StartupError) {
        self.put(Err(RequestError::Startup { peer, error }));
    }
}

impl Device {
    /// Waits for the MPA Request on a stream that is already connected (RFC 5044 section 7.1.2),
    /// for at most [`Timeouts::request`](crate::Timeouts::request). `read` are bytes of the Request
    /// that the program has already read from the stream.
    ///
    /// # Errors
    /// [`RequestError`] with the fault in the Request. The stream is closed then.
    pub fn request_over(
        &self,
        stream: Box<dyn Llp>,
        read: &[u8],
    ) -> Result<ConnectRequest, RequestError> {
        request_over(self.inner()?, stream, read)
    }
}

/// Waits for the MPA Request on a stream that the program has connected itself.
fn request_over(
    device: &Arc<DeviceInner>,
    llp: Box<dyn Llp>,
    read: &[u8],
) -> Result<ConnectRequest, RequestError> {
    WouldWait::check(device)?;
    let single = Arc::new(SingleRequest::default());
    let sink: Weak<SingleRequest> = Arc::downgrade(&single);
    PendingStartup::start(sink, device, llp, read, None)?;
    let mut result = single.result.lock();
    loop {
        // The time limit for requests ends this loop at the latest.
        match result.take() {
            Some(result) => return result,
            None => single.changed.wait(&mut result),
        }
    }
}
