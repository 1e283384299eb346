//! Connection request that waits for a decision: accept or reject.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_engine::state::QpState;
use uwarp_engine::times::after;
use uwarp_llp::{Llp, LlpError};
use uwarp_mpa::{
    Accept, ConfigError, Enhanced, FrameKind, Model, NO_AUTO, Request, Responder, Revision,
    StartupFrame,
};

use super::listener::Slot;
use crate::connection::inner::{Locked, PeerCharges, QpInner};
use crate::connection::observer::Observer;
use crate::device::DeviceInner;
use crate::progress::linger::linger;
use crate::qp::Qp;
use uwarp_engine::limits::{Charge, LimitReached, PeerAccount, ReadPlaces, What};
use uwarp_engine::peer::{self, PrivateDataLimit};
use uwarp_engine::setters;

/// Options of accepting (`rdma_conn_param`). Default: no private data, up to 16 Reads in each
/// direction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcceptOptions {
    /// Bytes for the peer's consumer: at most 512, or 508 with an enhanced Request.
    pub private_data: Vec<u8>,
    /// IRD: RDMA Reads and atomic operations that the peer may have outstanding. An enhanced
    /// Request may raise it up to the device's limit.
    pub ird: u16,
    /// ORD: RDMA Reads and atomic operations that this side wants to have outstanding. The peer's
    /// IRD bounds it.
    pub ord: u16,
}

setters! { AcceptOptions {
    ird: u16,
    ord: u16,
} }

impl AcceptOptions {
    /// Sets [`private_data`](#structfield.private_data), for example to the bytes of a
    /// [`RemoteBuffer`](crate::RemoteBuffer::to_bytes).
    #[must_use]
    pub fn private_data(mut self, private_data: impl Into<Vec<u8>>) -> Self {
        self.private_data = private_data.into();
        self
    }
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

/// Options of rejecting (`rdma_reject`). Default: no private data.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RejectOptions {
    /// Bytes for the peer's consumer: at most 512, or 508 with an enhanced Request.
    pub private_data: Vec<u8>,
    /// Number of Reads that this side needs to have outstanding (its ORD), if the peer's IRD is too
    /// small for it. Only the Reply to an enhanced Request carries it (RFC 6581 section 9.1).
    pub ord_needed: Option<u16>,
}

setters! { RejectOptions {
    ord_needed: Option<u16>,
} }

impl RejectOptions {
    /// Sets [`private_data`](#structfield.private_data), for example to the bytes of a
    /// [`RemoteBuffer`](crate::RemoteBuffer::to_bytes).
    #[must_use]
    pub fn private_data(mut self, private_data: impl Into<Vec<u8>>) -> Self {
        self.private_data = private_data.into();
        self
    }
}

/// Error of accepting or rejecting a request (`rdma_accept`).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The program decided too late: the peer has given up or is about to.
    #[error(
        "the decision on the connection request of {peer} came too late; the time limit is a setting (timeouts.decision)"
    )]
    TooLate {
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// The QP already has a connection, or had one and was not reset.
    #[error("the QP is in state {state}; accept needs an idle one (reset it, or create another)")]
    QpInUse {
        /// State of the QP.
        state: QpState,
    },
    /// An option has no representation on the wire.
    #[error("{0}")]
    Options(#[from] ConfigError),
    /// The peer cannot take this much private data.
    #[error("{0}")]
    PrivateData(#[from] PrivateDataLimit),
    /// The request arrived before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The TCP connection is lost.
    #[error("{0}")]
    Llp(#[from] LlpError),
    /// The peer has as many connections as the settings allow.
    #[error("{0}")]
    Limit(#[from] LimitReached),
}

/// An MPA Request that waits for a decision (RFC 5044 section 7.1.1). Dropping it rejects it.
pub struct ConnectRequest {
    pending: Option<(Box<dyn Llp>, Responder)>,
    request: Request,
    peer: SocketAddr,
    local: SocketAddr,
    pub(super) deadline: Instant,
    device: ForkGuarded<Arc<DeviceInner>>,
    /// Place among the undecided connections of a listener, until the request is dropped.
    slot: Option<Slot>,
    /// Charge against the peer's limit of half-open connections, until TCP is closed or a QP has
    /// the connection.
    place: Option<Charge>,
}

impl ConnectRequest {
    pub(super) fn new(
        device: &Arc<DeviceInner>,
        (llp, responder): (Box<dyn Llp>, Responder),
        request: Request,
        slot: Option<Slot>,
        place: Charge,
    ) -> Self {
        ConnectRequest {
            peer: llp.peer_addr(),
            local: llp.local_addr(),
            deadline: after(device.now(), device.settings.timeouts.decision),
            pending: Some((llp, responder)),
            request,
            device: ForkGuarded::new(Arc::clone(device)),
            slot,
            place: Some(place),
        }
    }

    /// Marks the request as delivered to the program. From then on it counts as undecided.
    pub(super) fn mark_delivered(&mut self) {
        if let Some(slot) = &mut self.slot {
            slot.delivered = true;
        }
    }

    /// Time at which the decision comes too late.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Address of the peer (`rdma_get_peer_addr`).
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Local address of the connection (`rdma_get_local_addr`).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Private data from the peer's consumer (RFC 5044 section 7.1.4).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    /// The MPA revision of the Request (RFC 5044 section 7.1.1).
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.request.revision
    }

    /// IRD and ORD that the peer stated, in this order: the number of Reads that it can serve, and
    /// the number that it wants to have outstanding. `None` unless the Request is enhanced (RFC
    /// 6581 section 9).
    #[must_use]
    pub fn ird_ord(&self) -> Option<(u16, u16)> {
        self.request
            .enhanced
            .map(|Enhanced { ird, ord, .. }| (ird, ord))
    }

    /// Returns true if either side may send first (RFC 6581 section 9.2).
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

    /// Accepts the request (`rdma_accept`): sends the Reply and hands the connection to `qp`. Post
    /// receives before this call.
    ///
    /// # Errors
    /// See [`AcceptError`]. The request is then rejected, or closed if TCP no longer allows a
    /// reject.
    pub fn accept(self, qp: &Qp, options: &AcceptOptions) -> Result<(), AcceptError> {
        self.device.get()?;
        self.accept_observed(qp.inner()?, options, None)
    }

    /// Accepts, and reports the connection to `observer`. The establishment is reported before the
    /// Reply goes to TCP, so that no consequence of the Reply is reported first.
    pub(super) fn accept_observed(
        self,
        inner: &Arc<QpInner>,
        options: &AcceptOptions,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<(), AcceptError> {
        let mut locked = inner.lock();
        let conn = &locked.driven.conn;
        if conn.awaits_pair() {
            return Err(AcceptError::QpInUse { state: conn.state });
        }
        self.accept_locked(inner, &mut locked, options, observer)
    }

    /// Does [`accept_observed`](Self::accept_observed) under the lock of the QP.
    pub(crate) fn accept_locked(
        mut self,
        inner: &Arc<QpInner>,
        locked: &mut Locked,
        options: &AcceptOptions,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<(), AcceptError> {
        let device = self.device.get()?;
        let conn = &mut locked.driven.conn;
        if conn.state != QpState::Idle && !conn.awaits_pair() {
            return Err(AcceptError::QpInUse { state: conn.state });
        }
        if self.deadline <= device.now() {
            return Err(AcceptError::TooLate { peer: self.peer });
        }
        let Some((_, responder)) = &mut self.pending else {
            return Err(AcceptError::TooLate { peer: self.peer });
        };
        let settings = &device.settings;
        let enhanced = self.request.enhanced;
        peer::check_private_data(settings.peer, enhanced.is_some(), &options.private_data)?;
        let account = device.accounts.peer(self.peer);
        let place = account.take(What::Connections, 1)?;
        let limit = settings.limits.max_ird;
        let requested = enhanced.map(|theirs| theirs.ord);
        let ird = peer::responder_ird(settings.peer, options.ird, requested, limit);
        let mut places = places_for_reads(&account, inner, ird, enhanced);
        let granted = places.amount();
        responder.limit_ird(granted);
        let accept = Accept {
            ird: peer::ird(settings.peer, ird.min(granted), granted),
            ord: options.ord,
            private_data: &options.private_data,
        };
        let (reply, negotiated) = responder.accept(accept)?;
        places.shrink_to(negotiated.ird);
        let Some((llp, _)) = self.pending.take() else {
            return Err(AcceptError::TooLate { peer: self.peer });
        };
        conn.set_now(device.now());
        let request = as_frame(&self.request).emit().unwrap_or_default();
        conn.start_responder(&request, &reply, negotiated, llp.emss());
        let held = PeerCharges {
            peer: account,
            place: Some(place),
            ird: places,
        };
        self.place = None;
        locked.set_observer(observer);
        if let Err(error) = inner.attach(locked, llp, held, None) {
            // The caller gets the error, and no event.
            locked.set_observer(None);
            inner.not_attached(locked, error);
            return Err(error.into());
        }
        Ok(())
    }

    /// Rejects the request, with private data for the peer's consumer (`rdma_reject`).
    ///
    /// # Errors
    /// [`AcceptError::Options`] or [`AcceptError::PrivateData`] if the private data is too long.
    /// The request is then rejected without private data.
    pub fn reject(self, private_data: &[u8]) -> Result<(), AcceptError> {
        self.reject_with(&RejectOptions {
            private_data: private_data.to_vec(),
            ..RejectOptions::default()
        })
    }

    /// Rejects the request, with a reason (RFC 6581 section 9.1).
    ///
    /// # Errors
    /// See [`ConnectRequest::reject`].
    pub fn reject_with(mut self, options: &RejectOptions) -> Result<(), AcceptError> {
        self.send_reject(options)
    }

    fn send_reject(&mut self, options: &RejectOptions) -> Result<(), AcceptError> {
        let Some((llp, mut responder)) = self.pending.take() else {
            return Ok(());
        };
        let device = match self.device.get() {
            Ok(device) => device,
            Err(inherited) => {
                // The parent decides. This process must not even close the connection.
                std::mem::forget(llp);
                return Err(inherited.into());
            }
        };
        let enhanced = self.request.enhanced.is_some();
        let peer = device.settings.peer;
        let private_data = &options.private_data;
        let encoded = peer::check_private_data(peer, enhanced, private_data)
            .map_err(AcceptError::from)
            .and_then(|()| Ok(responder.reject(private_data, options.ord_needed)?));
        let (reply, result) = match encoded {
            Ok(reply) => (reply, Ok(())),
            Err(error) => (responder.reject(&[], None).unwrap_or_default(), Err(error)),
        };
        linger(
            &device.background,
            llp,
            self.place.take(),
            reply,
            device.settings.timeouts.close,
        );
        result
    }
}

/// Takes places for as many of the peer's Reads as the Reply may grant: this side's IRD, or the ORD
/// of an enhanced Request if that is larger. If fewer places are left, the Reply grants fewer, and
/// the peer lowers its ORD.
fn places_for_reads(
    account: &Arc<PeerAccount>,
    qp: &QpInner,
    ird: u16,
    enhanced: Option<Enhanced>,
) -> ReadPlaces {
    let requested = match enhanced {
        // 0x3FFF leaves the number to the consumers, so only this side's IRD counts.
        Some(Enhanced { ord: NO_AUTO, .. }) | None => 0,
        // An RTR indication that is a Read needs a place, even if no other Read follows.
        Some(Enhanced { ord, .. }) => ord.max(1),
    };
    let wanted = ird.max(requested).min(qp.device.settings.limits.max_ird);
    let places = ReadPlaces::up_to(wanted, account, qp.in_pd());
    if places.amount() < wanted {
        let granted = places.amount();
        let what = "few places for RDMA Reads are left: a smaller IRD is granted";
        tracing::warn!(?account, wanted, granted, what);
    }
    places
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        let _ = self.send_reject(&RejectOptions::default());
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

/// Returns the frame of the request, without reserved bits.
fn as_frame(request: &Request) -> StartupFrame {
    StartupFrame {
        kind: FrameKind::Request,
        markers: request.markers,
        crc: request.crc,
        rejected: false,
        revision: request.revision.code(),
        enhanced: request.enhanced,
        private_data: request.private_data.clone(),
    }
}
