//! Attaching a QP to a stream in Full Operation.

use uwarp_llp::Llp;
use uwarp_mpa::{Negotiated, Revision, Role, RtrKinds};

use super::connect::ConnectError;
use crate::connection::inner::PeerCharges;
use crate::qp::Qp;
use uwarp_engine::limits::ReadPlaces;
use uwarp_engine::setters;

/// Parameters of a stream on which two programs have agreed, by an MPA startup of their own or in
/// another way (RFC 5044 section 7.1). Default: initiator, CRC, no Markers, 16 Reads in each
/// direction.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StreamOptions {
    /// True if this side may send the first FPDU. The other side has to wait for this FPDU (RFC
    /// 5044 section 7.1.2). Exactly one side is the initiator.
    pub initiator: bool,
    /// True if FPDUs in both directions carry a CRC32C, which is checked.
    pub crc: bool,
    /// True if this side inserts Markers into what it sends.
    pub tx_markers: bool,
    /// True if the peer inserts Markers into what it sends.
    pub rx_markers: bool,
    /// IRD: RDMA Reads and atomic operations that the peer may have outstanding.
    pub ird: u16,
    /// ORD: RDMA Reads and atomic operations that this side may have outstanding.
    pub ord: u16,
}

setters! { const StreamOptions {
    initiator: bool,
    crc: bool,
    tx_markers: bool,
    rx_markers: bool,
    ird: u16,
    ord: u16,
} }

impl Default for StreamOptions {
    fn default() -> Self {
        StreamOptions {
            initiator: true,
            crc: true,
            tx_markers: false,
            rx_markers: false,
            ird: 16,
            ord: 16,
        }
    }
}

impl Qp {
    /// Attaches the QP to a connected stream whose MPA startup is done. In the iWARP verbs this is
    /// Modify QP to RTS with the handle of a stream. `read` are bytes of the first FPDUs that the
    /// program has already read from the stream. Returns at once; the QP is then in state RTS. The
    /// limits of the device, of the peer and of the protection domain may lower IRD and ORD.
    ///
    /// For streams without startup see [`Qp::connect_over`] and
    /// [`Device::request_over`](crate::Device::request_over), or [`CmId`](crate::CmId) if no call
    /// may wait.
    ///
    /// # Errors
    /// [`ConnectError::QpInUse`], or [`ConnectError::Llp`] if the stream cannot be watched.
    pub fn attach_stream(
        &self,
        stream: Box<dyn Llp>,
        read: &[u8],
        options: &StreamOptions,
    ) -> Result<(), ConnectError> {
        let inner = self.inner()?;
        let peer = inner.device.accounts.peer(stream.peer_addr());
        let ird = options.ird.min(inner.device.settings.limits.max_ird);
        let places = ReadPlaces::up_to(ird, &peer, inner.in_pd());
        let negotiated = Negotiated {
            role: if options.initiator {
                Role::Initiator
            } else {
                Role::Responder
            },
            revision: Revision::One,
            enhanced: false,
            crc: options.crc,
            tx_markers: options.tx_markers,
            rx_markers: options.rx_markers,
            ird: places.amount(),
            ord: options.ord,
            peer_ird: None,
            peer_ord: None,
            rtr: None,
            rtr_offered: RtrKinds::NONE,
            private_data: Vec::new(),
        };
        let held = PeerCharges {
            peer,
            place: None,
            ird: places,
        };
        let mut locked = inner.lock();
        let conn = &mut locked.driven.conn;
        conn.set_now(inner.device.now());
        let state = conn.state;
        if !conn.start_open(negotiated, stream.emss()) {
            return Err(ConnectError::QpInUse { state });
        }
        locked.driven.feed(&inner.device.pool, read);
        if let Err(error) = inner.attach(&mut locked, stream, held, None) {
            inner.not_attached(&mut locked, error);
            return Err(ConnectError::Llp { error });
        }
        Ok(())
    }
}
