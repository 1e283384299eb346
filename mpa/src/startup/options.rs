//! Parameters that startup negotiates.

use core::fmt;

/// IRD or ORD value that means "no automatic negotiation": the ULPs agree on their own (RFC 6581
/// section 9.1). It is also the largest value of the 14-bit fields.
pub const NO_AUTO: u16 = 0x3FFF;

/// MPA revision that a startup frame declares.
///
/// Revision 0 (of the RDMA Consortium) and revisions above 2 are refused (5044-7.1.1-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// RFC 5044: no negotiation of IRD, ORD and RTR.
    One = 1,
    /// RFC 6581: the Private Data may begin with enhanced connection data.
    Two = 2,
}

impl Revision {
    /// Returns the value of the Rev field.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the revision with this Rev field; `None` if this crate does not support it.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }
}

/// Kind of a ready-to-receive indication: the first message of an initiator in the peer-to-peer
/// model, which allows the responder to send (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rtr {
    /// A Send of length zero, which the RFC calls "FULPDU" (flag B).
    Send,
    /// An RDMA Write of length zero (flag C).
    Write,
    /// An RDMA Read Request of length zero (flag D).
    Read,
}

impl fmt::Display for Rtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "Send",
            Self::Write => "Write",
            Self::Read => "Read",
        })
    }
}

/// A set of [`Rtr`] kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RtrKinds {
    /// True if [`Rtr::Send`] is in the set.
    pub send: bool,
    /// True if [`Rtr::Write`] is in the set.
    pub write: bool,
    /// True if [`Rtr::Read`] is in the set.
    pub read: bool,
}

impl RtrKinds {
    /// The empty set.
    pub const NONE: Self = Self {
        send: false,
        write: false,
        read: false,
    };
    /// All three kinds.
    pub const ALL: Self = Self {
        send: true,
        write: true,
        read: true,
    };

    /// Returns true if `kind` is in the set.
    #[must_use]
    pub const fn contains(self, kind: Rtr) -> bool {
        match kind {
            Rtr::Send => self.send,
            Rtr::Write => self.write,
            Rtr::Read => self.read,
        }
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !(self.send || self.write || self.read)
    }

    /// Returns the kinds that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Returns the kind in the set, if there is exactly one.
    #[must_use]
    pub const fn only(self) -> Option<Rtr> {
        match (self.send, self.write, self.read) {
            (true, false, false) => Some(Rtr::Send),
            (false, true, false) => Some(Rtr::Write),
            (false, false, true) => Some(Rtr::Read),
            _ => None,
        }
    }
}

impl From<Rtr> for RtrKinds {
    fn from(kind: Rtr) -> Self {
        Self {
            send: kind == Rtr::Send,
            write: kind == Rtr::Write,
            read: kind == Rtr::Read,
        }
    }
}

/// Connection model, which determines the side that may send first after startup (RFC 6581 section
/// 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// The initiator's ULP sends first, so no RTR indication is negotiated (flag A is 0).
    ClientServer,
    /// Either ULP may send first. The initiator's provider therefore sends an RTR indication before
    /// anything else (flag A is 1). In a Request, the set holds the kinds that the initiator can
    /// generate; in a Reply, the kinds that the responder accepts.
    PeerToPeer(RtrKinds),
}
