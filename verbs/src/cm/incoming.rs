//! The passive side of one connection: from TCP's accept to the consumer's decision.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use uwarp_llp::{Llp, LlpError, Recv};
use uwarp_mpa::{
    Accept, ConfigError, Enhanced, Model, Request, Responder, ResponderConfig, Revision,
    StartupError,
};

use super::listener::ListenerInner;
use crate::device::DeviceInner;
use crate::peer::{self, PrivateDataLimit};
use crate::progress::background::{Interest, Source, Token, Verdict};
use crate::progress::linger::linger;
use crate::qp::Qp;
use crate::qp::state::QpState;
use crate::settings::Settings;
use crate::wait::{after, wait_readable};

/// A connection whose MPA Request has not come whole.
pub(super) struct Incoming {
    listener: Weak<ListenerInner>,
    device: Arc<DeviceInner>,
    token: Token,
    state: Mutex<Option<Awaiting>>,
}

struct Awaiting {
    llp: Box<dyn Llp>,
    responder: Responder,
    deadline: Instant,
}

/// How an MPA Request came out.
enum Step {
    More,
    Whole(Request),
    Failed(StartupError),
}

impl Incoming {
    /// Starts to wait for the Request of a connection that TCP has accepted.
    pub(super) fn start(
        listener: &Arc<ListenerInner>,
        device: &Arc<DeviceInner>,
        llp: Box<dyn Llp>,
        responder: Responder,
    ) -> Result<(), LlpError> {
        let deadline = after(Instant::now(), device.settings.timeouts.request);
        let token = device.background.token();
        let incoming = Arc::new(Incoming {
            listener: Arc::downgrade(listener),
            device: Arc::clone(device),
            token,
            state: Mutex::new(Some(Awaiting {
                llp,
                responder,
                deadline,
            })),
        });
        {
            let state = incoming.state.lock();
            if let Some(awaiting) = &*state {
                let weak: Weak<Incoming> = Arc::downgrade(&incoming);
                device
                    .background
                    .register(token, weak, awaiting.llp.fd())
                    .map_err(|errno| LlpError::Io {
                        op: "watch a new connection",
                        errno: errno.raw_os_error(),
                    })?;
            }
        }
        let kept: Arc<Incoming> = Arc::clone(&incoming);
        device.background.keep(token, kept);
        device.background.at(token, deadline);
        // The Request may be here already.
        incoming.attend(Instant::now());
        Ok(())
    }

    fn end(&self, awaiting: Awaiting, result: Result<Request, StartupError>) {
        self.device.background.forget_fd(awaiting.llp.fd());
        self.device.background.forget(self.token);
        let Some(listener) = self.listener.upgrade() else {
            return;
        };
        match result {
            Ok(request) => listener.ready(ConnectRequest {
                peer: awaiting.llp.peer_addr(),
                local: awaiting.llp.local_addr(),
                deadline: after(Instant::now(), self.device.settings.timeouts.decision),
                pending: Some((awaiting.llp, awaiting.responder)),
                request,
                device: Arc::clone(&self.device),
                listener: Arc::downgrade(&listener),
            }),
            Err(error) => {
                listener.failed(awaiting.llp.peer_addr(), error);
                // 5044-8-09: an invalid frame closes TCP at once.
                linger(
                    &self.device.background,
                    awaiting.llp,
                    Vec::new(),
                    self.device.settings.timeouts.close,
                );
            }
        }
    }
}

impl Awaiting {
    /// Takes octets of the Request. `None`: it is not whole yet.
    fn take(&mut self, octets: &[u8]) -> Option<Step> {
        let count = octets.len();
        match self.responder.receive(octets) {
            // 5044-7.1.1-16: octets behind the Private Data mean that PD_Length is wrong (an
            // initiator sends nothing more before it has the Reply).
            Ok((taken, Some(_))) if taken < count => {
                let count = count - taken;
                Some(Step::Failed(StartupError::TrailingOctets { count }))
            }
            Ok((_, Some(request))) => Some(Step::Whole(request)),
            Ok((_, None)) => None,
            Err(error) => Some(Step::Failed(error)),
        }
    }

    fn turn(&mut self, now: Instant) -> Step {
        self.llp.clear_readiness();
        self.llp.drive();
        let mut octets = [0; 600];
        loop {
            match self.llp.try_recv(&mut octets) {
                Ok(Recv::Data(count)) => {
                    if let Some(step) = self.take(&octets[..count]) {
                        return step;
                    }
                }
                Ok(Recv::WouldBlock) => break,
                Ok(Recv::Closed) => return Step::Failed(self.responder.closed(false)),
                Err(_) => return Step::Failed(self.responder.closed(true)),
            }
        }
        if self.deadline <= now {
            // 5044-7.1.2-18: two responders facing each other would wait for ever.
            return Step::Failed(self.responder.timed_out());
        }
        Step::More
    }
}

impl Source for Incoming {
    fn attend(&self, now: Instant) -> Verdict {
        let mut state = self.state.lock();
        let Some(awaiting) = &mut *state else {
            return Verdict::Settled;
        };
        match awaiting.turn(now) {
            Step::More => {
                self.device
                    .background
                    .arm(self.token, awaiting.llp.fd(), Interest::Read);
                if let Some(due) = awaiting.llp.deadline() {
                    self.device
                        .background
                        .at(self.token, due.min(awaiting.deadline));
                }
            }
            Step::Whole(request) => {
                if let Some(awaiting) = state.take() {
                    drop(state);
                    self.end(awaiting, Ok(request));
                }
            }
            Step::Failed(error) => {
                if let Some(awaiting) = state.take() {
                    drop(state);
                    self.end(awaiting, Err(error));
                }
            }
        }
        Verdict::Settled
    }
}

/// Why there is no MPA Request on a stream.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// What came is not an MPA Request, or none came in time.
    #[error("{peer}: {error}")]
    Startup {
        /// The other end.
        peer: SocketAddr,
        /// What was wrong.
        error: StartupError,
    },
    /// A setting of the device cannot be put on the wire.
    #[error("{0}")]
    Settings(#[from] ConfigError),
}

/// A responder with the settings of a device.
pub(super) fn responder(settings: &Settings) -> Result<Responder, ConfigError> {
    Responder::new(ResponderConfig {
        crc: settings.crc,
        markers: settings.markers,
        // Revision 1 makes this an endpoint that does not know RFC 6581.
        max_revision: settings.accept_revision,
        max_ird: settings.limits.max_ird,
        rtr: settings.rtr,
    })
}

/// Waits for the MPA Request on a stream that a program has connected itself.
pub(crate) fn request_over(
    device: &Arc<DeviceInner>,
    llp: Box<dyn Llp>,
    read: &[u8],
) -> Result<ConnectRequest, RequestError> {
    let timeouts = device.settings.timeouts;
    let responder = responder(&device.settings)?;
    let deadline = after(Instant::now(), timeouts.request);
    let mut awaiting = Awaiting {
        llp,
        responder,
        deadline,
    };
    let mut step = awaiting.take(read).unwrap_or(Step::More);
    while let Step::More = step {
        step = awaiting.turn(Instant::now());
        if let Step::More = step {
            let until = awaiting
                .llp
                .deadline()
                .map_or(deadline, |due| due.min(deadline));
            wait_readable(awaiting.llp.fd(), Some(until));
        }
    }
    let (peer, local) = (awaiting.llp.peer_addr(), awaiting.llp.local_addr());
    match step {
        Step::Whole(request) => Ok(ConnectRequest {
            pending: Some((awaiting.llp, awaiting.responder)),
            request,
            peer,
            local,
            deadline: after(Instant::now(), timeouts.decision),
            device: Arc::clone(device),
            listener: Weak::new(),
        }),
        Step::Failed(error) => {
            linger(&device.background, awaiting.llp, Vec::new(), timeouts.close);
            Err(RequestError::Startup { peer, error })
        }
        Step::More => Err(RequestError::Startup {
            peer,
            error: awaiting.responder.timed_out(),
        }),
    }
}

/// How to accept. `Default`: no private data, up to 16 Reads in each direction.
#[derive(Clone, Debug)]
pub struct AcceptOptions {
    /// Octets for the peer's consumer: at most 512, or 508 with an enhanced Request.
    pub private_data: Vec<u8>,
    /// IRD: RDMA Reads that the peer may have outstanding. An enhanced Request may raise it up to the
    /// device's limit.
    pub ird: u16,
    /// ORD: RDMA Reads that this side wants to have outstanding; the peer's IRD bounds it.
    pub ord: u16,
}

impl Default for AcceptOptions {
    fn default() -> Self {
        AcceptOptions {
            private_data: Vec::new(),
            ird: 16,
            ord: 16,
        }
    }
}

/// Why a request could not be accepted or rejected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The decision came too late; the peer has given up or is about to.
    #[error(
        "the decision on the connection request of {peer} came too late; the time limit is a setting (timeouts.decision)"
    )]
    TooLate {
        /// Who asked.
        peer: SocketAddr,
    },
    /// The QP already has a connection, or had one and was not reset.
    #[error("the QP is in state {state}; accept needs an idle one (reset it, or create another)")]
    QpInUse {
        /// The state it is in.
        state: QpState,
    },
    /// An option cannot be put on the wire.
    #[error("{0}")]
    Options(#[from] ConfigError),
    /// The peer cannot take so much private data.
    #[error("{0}")]
    PrivateData(#[from] PrivateDataLimit),
    /// TCP is gone.
    #[error("{0}")]
    Llp(#[from] LlpError),
}

/// An MPA Request that waits for a decision. Dropping it rejects it.
pub struct ConnectRequest {
    pending: Option<(Box<dyn Llp>, Responder)>,
    request: Request,
    peer: SocketAddr,
    local: SocketAddr,
    pub(super) deadline: Instant,
    device: Arc<DeviceInner>,
    listener: Weak<ListenerInner>,
}

impl ConnectRequest {
    /// Who asks.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The address it was asked at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What its consumer says.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    /// The MPA revision of the Request.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.request.revision
    }

    /// IRD and ORD as the peer stated them (enhanced Requests only): it can serve so many Reads, and
    /// wants so many outstanding.
    #[must_use]
    pub fn ird_ord(&self) -> Option<(u16, u16)> {
        self.request
            .enhanced
            .map(|Enhanced { ird, ord, .. }| (ird, ord))
    }

    /// Whether either side may send first.
    #[must_use]
    pub fn is_peer_to_peer(&self) -> bool {
        matches!(
            self.request.enhanced,
            Some(Enhanced {
                model: Model::PeerToPeer(_),
                ..
            })
        )
    }

    /// Accepts: the Reply goes out, and `qp` has the connection. Post receives before this.
    ///
    /// # Errors
    /// See [`AcceptError`]. The request is then rejected, or closed where TCP does not allow that any more.
    pub fn accept(mut self, qp: &Qp, options: &AcceptOptions) -> Result<(), AcceptError> {
        let inner = qp.inner();
        let mut locked = inner.lock();
        let conn = &mut locked.driven.conn;
        if conn.state != QpState::Idle {
            return Err(AcceptError::QpInUse { state: conn.state });
        }
        if self.deadline <= Instant::now() {
            return Err(AcceptError::TooLate { peer: self.peer });
        }
        let Some((_, responder)) = &mut self.pending else {
            return Err(AcceptError::TooLate { peer: self.peer });
        };
        let settings = &self.device.settings;
        let enhanced = self.request.enhanced;
        peer::check_private_data(settings.peer, enhanced.is_some(), &options.private_data)?;
        let accept = Accept {
            ird: peer::responder_ird(settings, options.ird, enhanced.map(|theirs| theirs.ord)),
            ord: options.ord,
            private_data: &options.private_data,
        };
        let (reply, negotiated) = responder.accept(accept)?;
        let Some((llp, _)) = self.pending.take() else {
            return Err(AcceptError::TooLate { peer: self.peer });
        };
        conn.set_now(Instant::now());
        conn.start_responder(&reply, negotiated, llp.emss());
        if let Err(error) = inner.attach(&mut locked, llp, None) {
            locked.driven.conn.lost(error);
            inner.publish(&mut locked);
            return Err(error.into());
        }
        Ok(())
    }

    /// Rejects, with octets for the peer's consumer.
    ///
    /// # Errors
    /// [`AcceptError::Options`] or [`AcceptError::PrivateData`] when the private data is too long; the request is then rejected
    /// without it.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), AcceptError> {
        self.send_reject(private_data)
    }

    fn send_reject(&mut self, private_data: &[u8]) -> Result<(), AcceptError> {
        let Some((llp, mut responder)) = self.pending.take() else {
            return Ok(());
        };
        let enhanced = self.request.enhanced.is_some();
        let peer = self.device.settings.peer;
        let told = peer::check_private_data(peer, enhanced, private_data)
            .map_err(AcceptError::from)
            .and_then(|()| Ok(responder.reject(private_data, None)?));
        let (reply, result) = match told {
            Ok(reply) => (reply, Ok(())),
            Err(error) => (responder.reject(&[], None).unwrap_or_default(), Err(error)),
        };
        linger(
            &self.device.background,
            llp,
            reply,
            self.device.settings.timeouts.close,
        );
        result
    }
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        let _ = self.send_reject(&[]);
        if let Some(listener) = self.listener.upgrade() {
            listener.decided();
        }
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("peer", &self.peer)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}
