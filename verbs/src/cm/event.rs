//! Events of the connection manager.

use std::fmt;
use std::net::SocketAddr;

use uwarp_llp::LlpError;
use uwarp_mpa::StartupError;

use super::id::CmId;
use crate::cause::Cause;
use crate::event::EndReason;

/// What happened to an id: the names of `rdma_cm_event_type`.
///
/// As on every iWARP device there is no ConnectResponse (both sides get `Established`) and no
/// TimewaitExit (after `Disconnected` the QP may be reset or dropped).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum CmEventKind {
    /// `resolve_addr` has found the own address.
    AddrResolved,
    /// It has not.
    AddrError,
    /// `resolve_route` is done.
    RouteResolved,
    /// There is no way any more.
    RouteError,
    /// Somebody wants a connection: [`CmEvent::id`] is a new id, [`CmEvent::listen_id`] the one that
    /// listens.
    ConnectRequest,
    /// There is no connection, for another reason than those of `Unreachable` and `Rejected`.
    ConnectError,
    /// No answer, or no way to the peer.
    Unreachable,
    /// Refused by the peer's TCP, closed by it, or rejected by its program.
    Rejected,
    /// The connection stands. The initiator gets it with the peer's Reply, the responder when its own has
    /// been handed to TCP, as with Linux siw: what it posts then waits for the first FPDU of the initiator
    /// (RFC 5044 section 7.1.2).
    Established,
    /// The connection is over, whoever ended it: all work was flushed.
    Disconnected,
    /// The network of the device has failed for good; every id of the device gets it once.
    DeviceRemoval,
}

/// Why, in words (librdmacm has but the number, `status` of `rdma_cm_event`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CmReason {
    /// What the network said to an address, or what happened to it.
    Network {
        /// Its words.
        error: LlpError,
    },
    /// How the connection, or the attempt, ended.
    Connection {
        /// Why.
        reason: EndReason,
    },
    /// What came over a stream ([`CmId::request_over`]) is no MPA Request.
    Startup {
        /// The other end.
        peer: SocketAddr,
        /// What was wrong.
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
    /// Who, which layer, which code, which demand of the RFCs; and a sentence with a hint.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            CmReason::Network { error } => Cause::from(*error),
            CmReason::Connection { reason } => reason.cause(),
            CmReason::Startup { error, .. } => Cause::from(*error),
        }
    }
}

/// What an event carries.
pub(super) struct CmEventData {
    pub(super) kind: CmEventKind,
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u16,
    pub(super) initiator_depth: u16,
    pub(super) peer_to_peer: bool,
    pub(super) reason: Option<CmReason>,
    /// The new id of a request.
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

    /// What the network said instead.
    pub(super) fn failure(kind: CmEventKind, error: LlpError) -> Self {
        CmEventData {
            status: super::status::of_llp(&error),
            reason: Some(CmReason::Network { error }),
            ..CmEventData::new(kind)
        }
    }
}

/// An event of an id, taken from its channel (`rdma_cm_event`). Dropping it acknowledges it; destroying the id waits for
/// that.
///
/// Of a [`ConnectRequest`](CmEventKind::ConnectRequest) nothing is left when it is dropped: clone
/// [`id`](Self::id) to keep the request, else it is rejected.
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

    /// What happened (`rdma_cm_event.event`).
    #[must_use]
    pub fn kind(&self) -> CmEventKind {
        self.data.kind
    }

    /// To which id (`rdma_cm_event.id`); for a request, the new one.
    #[must_use]
    pub fn id(&self) -> &CmId {
        self.data.child.as_ref().unwrap_or(&self.owner)
    }

    /// The id that listens, for a request (`rdma_cm_event.listen_id`). The acknowledgement of the event counts for it.
    #[must_use]
    pub fn listen_id(&self) -> Option<&CmId> {
        self.data.child.is_some().then_some(&self.owner)
    }

    /// 0, or why not, as a negative number of `errno.h` (`status` of `rdma_cm_event`): -ECONNREFUSED, -ECONNRESET,
    /// -ETIMEDOUT ...
    #[must_use]
    pub fn status(&self) -> i32 {
        self.data.status
    }

    /// Why not, in words; also why a connection is over.
    #[must_use]
    pub fn reason(&self) -> Option<&CmReason> {
        self.data.reason.as_ref()
    }

    /// Why not, or why it is over: who, which layer, which code; and a sentence with a hint. `None` where there is no
    /// [`reason`](Self::reason).
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.reason().map(CmReason::cause)
    }

    /// What the peer's program says (`rdma_conn_param.private_data`; RFC 5044 section 7.1.4): with a request, with the
    /// answer to ours, with a reject.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.data.private_data
    }

    /// RDMA Reads and Atomics that the peer wants to have outstanding (`ConnectRequest`), or may have (`Established`):
    /// our IRD (`responder_resources` of `rdma_conn_param`). A peer that does not say is taken to want what the device
    /// allows.
    #[must_use]
    pub fn responder_resources(&self) -> u16 {
        self.data.responder_resources
    }

    /// RDMA Reads and Atomics that the peer can take from us (`ConnectRequest`), or that we may have outstanding
    /// (`Established`): our ORD (`initiator_depth` of `rdma_conn_param`). A peer that does not say is taken to allow
    /// what the device does.
    #[must_use]
    pub fn initiator_depth(&self) -> u16 {
        self.data.initiator_depth
    }

    /// Whether the initiator lets either side send first (`ConnectRequest`, RFC 6581 section 9.2).
    #[must_use]
    pub fn is_peer_to_peer(&self) -> bool {
        self.data.peer_to_peer
    }

    /// Leaves the event unacknowledged (`rdma_ack_cm_event`); [`CmId::ack_events`] does it later (of
    /// [`listen_id`](Self::listen_id) for a request).
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
