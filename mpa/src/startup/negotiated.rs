//! What startup comes to.

use alloc::vec::Vec;

use super::options::{Revision, Rtr, RtrKinds};
use crate::error::MpaErrorCode;

/// The two sides of MPA startup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends the Request; its TCP usually connected.
    Initiator,
    /// Sends the Reply; its TCP usually listened.
    Responder,
}

/// The parameters of Full Operation, as this side has to use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Which side we are.
    pub role: Role,
    /// The revision of the Reply. The layers above are told (5044-3-12); both have one version for them all.
    pub revision: Revision,
    /// IRD, ORD and the connection model were negotiated (RFC 6581).
    pub enhanced: bool,
    /// CRCs are generated and checked, both ways.
    pub crc: bool,
    /// We put Markers into what we send.
    pub tx_markers: bool,
    /// The peer puts Markers into what it sends.
    pub rx_markers: bool,
    /// How many inbound RDMA Reads we have to have room for.
    pub ird: u16,
    /// How many RDMA Reads we may have outstanding. [`NO_AUTO`](super::NO_AUTO) if that was our
    /// own value and the ULPs see to it themselves.
    pub ord: u16,
    /// The IRD field of the peer's frame, for the ULP (6581-9.1-01).
    pub peer_ird: Option<u16>,
    /// The ORD field of the peer's frame, for the ULP (6581-9.1-01).
    pub peer_ord: Option<u16>,
    /// Initiator: the RTR indication that goes out before anything else. Responder: the one that
    /// will come, if only one kind can. `None` in the client-server model.
    pub rtr: Option<Rtr>,
    /// The kinds of RTR indication that the Reply names: those that the responder has to take.
    /// Empty in the client-server model.
    pub rtr_offered: RtrKinds,
    /// The Private Data of the peer's frame.
    pub private_data: Vec<u8>,
}

impl Negotiated {
    /// The gate that our first FPDU has to pass.
    #[must_use]
    pub const fn send_gate(&self) -> SendGate {
        match self.role {
            Role::Initiator => SendGate::Open,
            Role::Responder => SendGate::AwaitFirstFpdu,
        }
    }
}

/// The peer said no. MPA is left; the TCP connection stays open for the ULP (5044-7.1.2-13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The Private Data of the Reply.
    pub private_data: Vec<u8>,
    /// The responder's IRD, if its Reply was an enhanced one (6581-9.1-09).
    pub peer_ird: Option<u16>,
    /// The responder's ORD likewise: where it rejects for want of our IRD, the ORD it needs
    /// (6581-9.1-05).
    pub peer_ord: Option<u16>,
    /// That ORD, if it is more than the IRD we have offered: the reason for the rejection, as far as it has one. Any other
    /// ORD in such a Reply says nothing.
    pub ord_needed: Option<u16>,
}

/// How startup ended for an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Full Operation begins.
    Accepted(Negotiated),
    /// The responder rejected the connection.
    Rejected(Rejection),
    /// The responder accepted, but on terms that we cannot keep. Full Operation begins only to
    /// carry a Terminate with this MPA error code, then the connection ends (6581-9.1-08,
    /// 6581-9.2-10).
    Impossible(Negotiated, MpaErrorCode),
}

/// Whether FPDUs may be sent yet.
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
    /// We are the responder and nothing valid has come yet.
    AwaitFirstFpdu,
}

impl SendGate {
    /// Whether an FPDU may be sent now.
    #[must_use]
    pub const fn may_send(self) -> bool {
        matches!(self, Self::Open)
    }

    /// The deframer gave out a verified FPDU. Returns whether this opened the gate.
    pub fn fpdu_validated(&mut self) -> bool {
        core::mem::replace(self, Self::Open) == Self::AwaitFirstFpdu
    }
}
