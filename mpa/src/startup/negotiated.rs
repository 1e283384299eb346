//! Result of startup.

use alloc::vec::Vec;

use super::options::{Revision, Rtr, RtrKinds};
use crate::error::MpaErrorCode;

/// The two sides of MPA startup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that sends the Request, usually the one that opened the TCP connection.
    Initiator,
    /// The side that sends the Reply, usually the one that accepted the TCP connection.
    Responder,
}

/// Parameters of Full Operation, as this side has to use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Role of this side.
    pub role: Role,
    /// Revision of the Reply, reported to the layers above (5044-3-12). DDP and RDMAP have the same
    /// version for all revisions.
    pub revision: Revision,
    /// True if IRD, ORD and the connection model were negotiated (RFC 6581).
    pub enhanced: bool,
    /// True if CRCs are generated and checked in both directions.
    pub crc: bool,
    /// True if this side sends Markers.
    pub tx_markers: bool,
    /// True if the peer sends Markers.
    pub rx_markers: bool,
    /// Number of inbound RDMA Reads that this side must have room for.
    pub ird: u16,
    /// Number of RDMA Reads that this side may have outstanding. [`NO_AUTO`](super::NO_AUTO) if
    /// this side requested that value and the peer set no limit; the ULPs then agree on a limit
    /// themselves.
    pub ord: u16,
    /// The IRD field of the peer's frame, for the ULP (6581-9.1-01).
    pub peer_ird: Option<u16>,
    /// The ORD field of the peer's frame, for the ULP (6581-9.1-01).
    pub peer_ord: Option<u16>,
    /// Initiator: the RTR indication to send before anything else. Responder: the RTR indication to
    /// expect, if only one kind is possible. `None` in the client-server model.
    pub rtr: Option<Rtr>,
    /// RTR kinds that the Reply names, which the responder has to accept. Empty in the
    /// client-server model.
    pub rtr_offered: RtrKinds,
    /// The Private Data of the peer's frame.
    pub private_data: Vec<u8>,
}

impl Negotiated {
    /// Returns the gate that decides when this side may send its first FPDU.
    #[must_use]
    pub const fn send_gate(&self) -> SendGate {
        match self.role {
            Role::Initiator => SendGate::Open,
            Role::Responder => SendGate::AwaitFirstFpdu,
        }
    }
}

/// The peer rejected the connection. MPA ends; the TCP connection stays open for the ULP
/// (5044-7.1.2-13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The Private Data of the Reply.
    pub private_data: Vec<u8>,
    /// IRD of the responder, if its Reply was an enhanced one (6581-9.1-09).
    pub peer_ird: Option<u16>,
    /// ORD of the responder, if its Reply was an enhanced one. If the responder rejects because
    /// this side's IRD is too small, this is the ORD that the responder needs (6581-9.1-05).
    pub peer_ord: Option<u16>,
    /// The responder's ORD, if it is above the IRD that this side offered. It is then the reason
    /// for the rejection, unless the Private Data gives another reason. Any other ORD in such a
    /// Reply has no meaning.
    pub ord_needed: Option<u16>,
}

/// Outcome of startup for an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Full Operation begins.
    Accepted(Negotiated),
    /// The responder rejected the connection.
    Rejected(Rejection),
    /// The responder accepted, but on terms that this side cannot keep. Full Operation begins only
    /// to carry a Terminate with this MPA error code, then the connection ends (6581-9.1-08,
    /// 6581-9.2-10).
    Impossible(Negotiated, MpaErrorCode),
}

/// Gate that holds back FPDUs until they may be sent.
///
/// A responder sends neither FPDU nor Marker before it has received and validated one FPDU
/// (5044-7.1.2-15), so that the initiator has time to get ready.
///
/// ```text
///   AwaitFirstFpdu --fpdu_validated--> Open
///    (responder)                    (initiator)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendGate {
    /// FPDUs may be sent.
    Open,
    /// This side is the responder and has received no valid FPDU yet.
    AwaitFirstFpdu,
}

impl SendGate {
    /// Returns true if an FPDU may be sent now.
    #[must_use]
    pub const fn may_send(self) -> bool {
        matches!(self, Self::Open)
    }

    /// Records that the deframer returned a verified FPDU. Returns true if this call opened the
    /// gate.
    pub fn fpdu_validated(&mut self) -> bool {
        core::mem::replace(self, Self::Open) == Self::AwaitFirstFpdu
    }
}
