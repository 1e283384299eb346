//! Events of the connection manager.

use std::fmt;
use std::net::SocketAddr;

use uwarp_llp::LlpError;
use uwarp_mpa::StartupError;

use super::id::CmId;
use uwarp_engine::cause::Cause;
use uwarp_engine::event::EndReason;

/// Kind of an event of an id, with the names of `rdma_cm_event_type`.
///
/// As on every iWARP device there is no ConnectResponse (both sides get `Established`) and no
/// TimewaitExit (after `Disconnected` the QP may be reset or dropped).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum CmEventKind {
    /// `resolve_addr` has found the local address.
    AddrResolved,
    /// `resolve_addr` has found no local address.
    AddrError,
    /// `resolve_route` is done.
    RouteResolved,
    /// There is no route any more.
    RouteError,
    /// A peer requests a connection: [`CmEvent::id`] is a new id, and [`CmEvent::listen_id`] is the
    /// listening one.
    ConnectRequest,
    /// The connection was not established, for reasons other than those of `Unreachable` and
    /// `Rejected`.
    ConnectError,
    /// The peer did not answer, or there is no route to it.
    Unreachable,
    /// The peer's TCP refused or closed the connection, or the peer's program rejected it.
    Rejected,
    /// The connection is established. The initiator gets this with the peer's Reply. The responder
    /// gets it when its own Reply has been handed to TCP, as with Linux siw. The responder may then
    /// post requests, but they are not sent before the first FPDU of the initiator (RFC 5044
    /// section 7.1.2).
    Established,
    /// The connection was ended by either side or has failed. All work was flushed.
    Disconnected,
    /// The network of the device has failed permanently. Every id of the device gets this once.
    DeviceRemoval,
}

/// Reason of an event, in words (librdmacm has only the number, `status` of `rdma_cm_event`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CmReason {
    /// The network refused an address, or failed.
    Network {
        /// Error of the network.
        error: LlpError,
    },
    /// The connection, or the attempt to connect, ended.
    Connection {
        /// Reason of the end.
        reason: EndReason,
    },
    /// No MPA Request arrived over a stream ([`CmId::request_over`]).
    Startup {
        /// Address of the peer.
        peer: SocketAddr,
        /// Error of MPA startup.
        error: StartupError,
    },
}

impl fmt::Display for CmReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CmReason::Network { error } => write!(f, "{error}"),
            CmReason::Connection { reason } => write!(f, "{reason}"),
            CmReason::Startup { peer, error } => write!(f, "{peer}: {error}"),
        }
    }
}

impl CmReason {
    /// Returns the cause: originator, layer, code, violated requirement, and a sentence with a
    /// hint.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            CmReason::Network { error } => Cause::from(*error),
            CmReason::Connection { reason } => reason.cause(),
            CmReason::Startup { error, .. } => Cause::from(*error),
        }
    }
}

/// Contents of an event.
pub(super) struct CmEventData {
    pub(super) kind: CmEventKind,
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u16,
    pub(super) initiator_depth: u16,
    pub(super) peer_to_peer: bool,
    pub(super) reason: Option<CmReason>,
    /// New id of a request.
    pub(super) child: Option<CmId>,
}

impl CmEventData {
    pub(super) fn new(kind: CmEventKind) -> Self {
        CmEventData {
            kind,
            status: 0,
            private_data: Vec::new(),
            responder_resources: 0,
            initiator_depth: 0,
            peer_to_peer: false,
            reason: None,
            child: None,
        }
    }

    /// Creates the event of a network error.
    pub(super) fn failure(kind: CmEventKind, error: LlpError) -> Self {
        CmEventData {
            status: super::status::of_llp(&error),
            reason: Some(CmReason::Network { error }),
            ..CmEventData::new(kind)
        }
    }
}

/// An event of an id, taken from its channel (`rdma_cm_event`). Dropping the event acknowledges it.
/// Destroying the id waits for the acknowledgement.
///
/// Dropping a [`ConnectRequest`](CmEventKind::ConnectRequest) event rejects the request, unless
/// [`id`](Self::id) was cloned.
#[must_use = "dropping the event acknowledges it"]
pub struct CmEvent {
    owner: CmId,
    data: CmEventData,
    ack: bool,
}

impl CmEvent {
    pub(super) fn new(owner: CmId, data: CmEventData) -> Self {
        CmEvent {
            owner,
            data,
            ack: true,
        }
    }

    /// Kind of the event (`rdma_cm_event.event`).
    #[must_use]
    pub fn kind(&self) -> CmEventKind {
        self.data.kind
    }

    /// Id of the event (`rdma_cm_event.id`); for a request, its new id.
    #[must_use]
    pub fn id(&self) -> &CmId {
        self.data.child.as_ref().unwrap_or(&self.owner)
    }

    /// The listening id of a request (`rdma_cm_event.listen_id`). The event counts as an event of
    /// this id when it is acknowledged.
    #[must_use]
    pub fn listen_id(&self) -> Option<&CmId> {
        self.data.child.is_some().then_some(&self.owner)
    }

    /// 0, or the failure as a negative number of `errno.h` (`status` of `rdma_cm_event`):
    /// -ECONNREFUSED, -ECONNRESET, -ETIMEDOUT ...
    #[must_use]
    pub fn status(&self) -> i32 {
        self.data.status
    }

    /// Reason of the failure, or of the end of a connection.
    #[must_use]
    pub fn reason(&self) -> Option<&CmReason> {
        self.data.reason.as_ref()
    }

    /// Cause of the [`reason`](Self::reason): originator, layer, code, and a sentence with a hint.
    /// `None` if there is no reason.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.reason().map(CmReason::cause)
    }

    /// Private data of the peer's program (`rdma_conn_param.private_data`; RFC 5044 section 7.1.4),
    /// from a request, a Reply or a reject.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.data.private_data
    }

    /// IRD of this side (`responder_resources` of `rdma_conn_param`): RDMA Reads and atomics that
    /// the peer wants to have outstanding (`ConnectRequest`), or may have (`Established`). It is
    /// the device's limit if the peer states no number.
    #[must_use]
    pub fn responder_resources(&self) -> u16 {
        self.data.responder_resources
    }

    /// ORD of this side (`initiator_depth` of `rdma_conn_param`): RDMA Reads and atomics that the
    /// peer can serve (`ConnectRequest`), or that this side may have outstanding (`Established`).
    /// It is the device's limit if the peer states no number.
    #[must_use]
    pub fn initiator_depth(&self) -> u16 {
        self.data.initiator_depth
    }

    /// Returns true if the initiator lets either side send first (`ConnectRequest`, RFC 6581
    /// section 9.2).
    #[must_use]
    pub fn is_peer_to_peer(&self) -> bool {
        self.data.peer_to_peer
    }

    /// Leaves the event unacknowledged. Acknowledge it later with [`CmId::ack_events`] of
    /// [`id`](Self::id) (`rdma_ack_cm_event`), or of [`listen_id`](Self::listen_id) if it is a
    /// request.
    pub fn ack_later(mut self) {
        self.ack = false;
    }
}

impl Drop for CmEvent {
    fn drop(&mut self) {
        if self.ack {
            self.owner.ack_events(1);
        }
    }
}

impl fmt::Debug for CmEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmEvent({:?}, status {}", self.kind(), self.status())?;
        if let Some(reason) = self.reason() {
            write!(f, ": {reason}")?;
        }
        write!(f, ")")
    }
}
