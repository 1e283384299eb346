//! Active side of a connection: TCP, then the MPA Request, then the Reply.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_engine::state::QpState;
use uwarp_llp::{Llp, LlpError};
use uwarp_mpa::{ConfigError, InitiatorConfig, Model, NO_AUTO, Revision, StartupError};

use super::attempts::{Attempt, Attempts, ResolveError, list, resolve};
use crate::connection::inner::{Locked, PeerCharges, QpInner};
use crate::connection::observer::Observer;
use crate::progress::WouldWait;
use crate::qp::Qp;
use uwarp_engine::event::EndReason;
use uwarp_engine::limits::ReadPlaces;
use uwarp_engine::peer::{self, PrivateDataLimit};
use uwarp_engine::setters;

/// Options of connecting (`rdma_conn_param`). Default: no private data, 16 Reads in each direction,
/// client-server model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Bytes for the peer's consumer: at most 512, or 508 with MPA revision 2.
    pub private_data: Vec<u8>,
    /// IRD: RDMA Reads and atomic operations that the peer may have outstanding
    /// (`responder_resources`). The limits of the device bound IRD and ORD. 0x3FFF leaves them to
    /// the two consumers (RFC 6581 section 9.1).
    pub ird: u16,
    /// ORD: RDMA Reads and atomic operations that this side wants to have outstanding
    /// (`initiator_depth`).
    pub ord: u16,
    /// Allows either side to send first (RFC 6581 section 9.2). False: this side sends first.
    pub peer_to_peer: bool,
    /// Address to connect from; `None`: the network chooses.
    pub local: Option<SocketAddr>,
}

setters! { ConnectOptions {
    ird: u16,
    ord: u16,
    peer_to_peer: bool,
    local: Option<SocketAddr>,
} }

impl ConnectOptions {
    /// Sets [`private_data`](#structfield.private_data), for example to the bytes of a
    /// [`RemoteBuffer`](crate::RemoteBuffer::to_bytes).
    #[must_use]
    pub fn private_data(mut self, private_data: impl Into<Vec<u8>>) -> Self {
        self.private_data = private_data.into();
        self
    }
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            private_data: Vec::new(),
            ird: 16,
            ord: 16,
            peer_to_peer: false,
            local: None,
        }
    }
}

/// Result of an accepted connection (RFC 6581 section 9).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connected {
    /// Private data of the Reply.
    pub private_data: Vec<u8>,
    /// RDMA Reads and atomic operations that the peer may have outstanding.
    pub ird: u16,
    /// RDMA Reads and atomic operations that this side may have outstanding.
    pub ord: u16,
}

/// Error of connecting (`rdma_connect`).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// TCP did not connect.
    #[error("{error}")]
    Llp {
        /// Error of TCP.
        error: LlpError,
    },
    /// TCP connected to none of several addresses.
    #[error("TCP connected to none of {} addresses: {}", .tried.len(), list(.tried))]
    NoneConnected {
        /// The addresses in the order of the attempts.
        tried: Vec<Attempt>,
    },
    /// There is no address to connect to.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// MPA startup failed, for example because the peer is not iWARP, speaks another revision, or
    /// is silent.
    #[error("{addr}: {error}")]
    Startup {
        /// Address of the peer.
        addr: SocketAddr,
        /// Error of MPA startup.
        error: StartupError,
    },
    /// The peer's consumer rejected the connection.
    #[error("{addr} rejected the connection{}", said(.private_data))]
    Rejected {
        /// Address of the peer.
        addr: SocketAddr,
        /// Private data of the Reply.
        private_data: Vec<u8>,
        /// IRD of an enhanced Reply (6581-9.1-09).
        peer_ird: Option<u16>,
        /// ORD of an enhanced Reply.
        peer_ord: Option<u16>,
        /// Number of Reads that the peer needs to have outstanding (its ORD), if the IRD of this
        /// side is too small for it. The peer then rejected for this reason (RFC 6581 section 9.1).
        ord_needed: Option<u16>,
    },
    /// The QP already has a connection, or had one and was not reset.
    #[error("the QP is in state {state}; connect needs an idle one (reset it, or create another)")]
    QpInUse {
        /// State of the QP.
        state: QpState,
    },
    /// The QP was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The program drives the device, which would make no progress during a wait.
    #[error(transparent)]
    WouldWait(#[from] WouldWait),
    /// An option has no representation on the wire.
    #[error("{0}")]
    Options(#[from] ConfigError),
    /// The peer cannot take this much private data.
    #[error("{0}")]
    PrivateData(#[from] PrivateDataLimit),
    /// The connection ended during its startup.
    #[error("{addr}: {reason}")]
    Ended {
        /// Address of the peer.
        addr: SocketAddr,
        /// Reason of the end.
        reason: Box<EndReason>,
    },
}

impl ConnectError {
    fn new(addr: SocketAddr, reason: EndReason) -> Self {
        match reason {
            EndReason::ConnectFailed { error } => ConnectError::Llp { error },
            EndReason::StartupFailed { error } => ConnectError::Startup { addr, error },
            EndReason::Rejected {
                private_data,
                peer_ird,
                peer_ord,
                ord_needed,
            } => ConnectError::Rejected {
                addr,
                private_data,
                peer_ird,
                peer_ord,
                ord_needed,
            },
            reason => ConnectError::Ended {
                addr,
                reason: Box::new(reason),
            },
        }
    }
}

/// Limits a depth to the device's limit. 0x3FFF is not a depth: it leaves the number to the
/// consumers.
fn within(depth: u16, limit: u16) -> u16 {
    if depth == NO_AUTO {
        depth
    } else {
        depth.min(limit)
    }
}

fn said(private_data: &[u8]) -> String {
    if private_data.is_empty() {
        return String::new();
    }
    format!(
        " and said \"{}\" ({} bytes)",
        private_data.escape_ascii(),
        private_data.len()
    )
}

impl Qp {
    /// Connects to an iWARP endpoint (`rdma_connect`; RFC 5044 section 7.1): TCP first, then MPA
    /// startup. Blocks until both are done.
    ///
    /// If `to` resolves to several addresses, as a host name may, they are tried in order until TCP
    /// connects to one. Receives posted before the call stay posted.
    ///
    /// # Errors
    /// See [`ConnectError`]: it names the step that failed, the side at fault, and the addresses
    /// that were tried.
    pub fn connect(
        &self,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> Result<Connected, ConnectError> {
        connect(self.guarded(), to, options)
    }

    /// Connects as [`Qp::connect`] does, but over an existing stream.
    ///
    /// This method is for programs that first exchange data over the stream (RFC 5044 section 7.1),
    /// or exchange addresses out of band. The peer accepts with
    /// [`Device::request_over`](crate::Device::request_over). `options.local` is ignored.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use uwarp_verbs::llp::kernel::KernelNetwork;
    /// use uwarp_verbs::{AcceptOptions, ConnectOptions, Device, QpCaps};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let mut ours = std::net::TcpStream::connect(tcp.local_addr()?)?;
    /// let server = std::thread::spawn(move || {
    ///     let (mut theirs, _) = tcp.accept().unwrap();
    ///     theirs.write_all(b"RDMA, please").unwrap();
    ///     let device = Device::tcp().unwrap();
    ///     let stream = KernelNetwork::default().adopt(theirs).unwrap();
    ///     let request = device.request_over(stream, b"").unwrap();
    ///     let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    ///     let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    ///     request.accept(&qp, &AcceptOptions::default()).unwrap();
    ///     qp.wait_closed(std::time::Duration::from_secs(5))
    /// });
    /// let mut said = [0; 12];
    /// ours.read_exact(&mut said)?;
    /// let device = Device::tcp()?;
    /// let (pd, cq) = (device.alloc_pd()?, device.create_cq(4)?);
    /// let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
    /// qp.connect_over(KernelNetwork::default().adopt(ours)?, &ConnectOptions::default())?;
    /// qp.disconnect();
    /// assert!(server.join().unwrap());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`Qp::connect`].
    pub fn connect_over(
        &self,
        stream: Box<dyn Llp>,
        options: &ConnectOptions,
    ) -> Result<Connected, ConnectError> {
        connect_over(self.inner()?, stream, options)
    }
}

/// Connects, and waits until MPA startup is done. The timeouts of the device bound every step.
fn connect(
    qp: &ForkGuarded<Arc<QpInner>>,
    to: impl ToSocketAddrs,
    options: &ConnectOptions,
) -> Result<Connected, ConnectError> {
    let inner = qp.get()?;
    WouldWait::check(&inner.device)?;
    let mut attempts = Attempts::new(qp, resolve(to)?, options);
    loop {
        let to = attempts.begin()?;
        if let Some(outcome) = attempts.judge(to, finish(inner, to)) {
            return outcome;
        }
    }
}

/// Connects like [`connect`], over a stream that is already connected.
fn connect_over(
    qp: &Arc<QpInner>,
    stream: Box<dyn Llp>,
    options: &ConnectOptions,
) -> Result<Connected, ConnectError> {
    WouldWait::check(&qp.device)?;
    let to = stream.peer_addr();
    let starter = Starter::Call {
        more_addresses: false,
    };
    start(qp, to, options, None, starter, || Ok(stream))?;
    finish(qp, to)
}

/// Originator of a connection.
pub(super) enum Starter {
    /// An id, to which the QP reports from the first step on.
    Id(Option<Arc<dyn Observer>>),
    /// A call that returns the outcome. With `more_addresses`, posted work is kept for the next
    /// address if TCP does not connect to this one.
    Call { more_addresses: bool },
    /// A QP that is connected by its number. It calls again by itself.
    Number,
}

/// Starts to connect. [`connect_outcome`] reports the outcome, even if `open` fails. An error here
/// means that nothing was started. Without a `target` there is no second attempt with revision 1.
pub(super) fn start(
    qp: &Arc<QpInner>,
    to: SocketAddr,
    options: &ConnectOptions,
    target: Option<(Option<SocketAddr>, SocketAddr)>,
    starter: Starter,
    open: impl FnOnce() -> Result<Box<dyn Llp>, LlpError>,
) -> Result<(), ConnectError> {
    let mut locked = qp.lock();
    let conn = &locked.driven.conn;
    if conn.awaits_pair() {
        return Err(ConnectError::QpInUse { state: conn.state });
    }
    start_locked(qp, &mut locked, to, options, target, starter, open)
}

/// Calls the peer of a QP that is connected by its number.
pub(crate) fn connect_pair(
    qp: &Arc<QpInner>,
    locked: &mut Locked,
    to: SocketAddr,
    options: &ConnectOptions,
) -> Result<(), ConnectError> {
    start_locked(qp, locked, to, options, None, Starter::Number, || {
        qp.device.network.connect(options.local, to)
    })
}

fn start_locked(
    qp: &Arc<QpInner>,
    locked: &mut Locked,
    to: SocketAddr,
    options: &ConnectOptions,
    target: Option<(Option<SocketAddr>, SocketAddr)>,
    starter: Starter,
    open: impl FnOnce() -> Result<Box<dyn Llp>, LlpError>,
) -> Result<(), ConnectError> {
    let settings = &qp.device.settings;
    let enhanced = settings.revision == Revision::Two;
    peer::check_private_data(settings.peer, enhanced, &options.private_data)?;
    // The Reply may raise the IRD to the limit of the device, so places up to this limit are taken.
    // After the Reply, places that exceed the negotiated IRD are returned. All places for Reads
    // come from the account (5042-7.2-01).
    let account = qp.device.accounts.peer(to);
    let places = ReadPlaces::up_to(settings.limits.max_ird, &account, qp.in_pd());
    let max_ird = places.amount();
    let held = PeerCharges {
        peer: account,
        place: None,
        ird: places,
    };
    let config = InitiatorConfig {
        revision: settings.revision,
        crc: settings.crc,
        markers: settings.markers,
        ird: peer::ird(settings.peer, within(options.ird, max_ird), max_ird),
        ord: within(options.ord, settings.limits.max_ord),
        max_ird,
        model: if options.peer_to_peer {
            Model::PeerToPeer(settings.rtr)
        } else {
            Model::ClientServer
        },
        private_data: options.private_data.clone(),
    };
    locked.driven.conn.set_now(qp.device.now());
    let state = locked.driven.conn.state;
    let again = target.is_some();
    if !locked.driven.conn.start_initiator(config, again)? {
        return Err(ConnectError::QpInUse { state });
    }
    match starter {
        Starter::Id(observer) => locked.set_observer(observer),
        Starter::Call { more_addresses } => locked.driven.conn.set_more_addresses(more_addresses),
        Starter::Number => {}
    }
    let attached = open().and_then(|llp| qp.attach(locked, llp, held, target));
    if let Err(error) = attached {
        qp.not_attached(locked, error);
    }
    Ok(())
}

/// Waits for the outcome.
fn finish(qp: &QpInner, to: SocketAddr) -> Result<Connected, ConnectError> {
    let outcome = qp.wait_until(None, |locked| connect_outcome(locked, to));
    outcome.unwrap_or(Err(ConnectError::QpInUse {
        state: QpState::Error,
    }))
}

/// Returns the outcome of connecting; `None` while it is in progress.
pub(crate) fn connect_outcome(
    locked: &Locked,
    to: SocketAddr,
) -> Option<Result<Connected, ConnectError>> {
    let conn = &locked.driven.conn;
    if let Some(reason) = conn.failed_attempt() {
        return Some(Err(ConnectError::new(to, reason.clone())));
    }
    match (&conn.negotiated, &conn.end) {
        // The connection was established. If the peer has closed it since, the QP reports the
        // close.
        (Some(negotiated), _) if conn.established => Some(Ok(Connected {
            private_data: negotiated.private_data.clone(),
            ird: negotiated.ird,
            ord: negotiated.ord,
        })),
        (_, Some(reason)) => Some(Err(ConnectError::new(to, reason.clone()))),
        _ => None,
    }
}
