//! Who the peer is, where that makes a difference.

use core::fmt;

/// A peer profile: which departures from the RFCs this side is ready for.
///
/// What this side sends follows the RFCs with every profile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Peer {
    /// A peer that keeps to the RFCs. The Terminate Message of Linux siw is still recognized where no
    /// RFC allows it to be anything else.
    #[default]
    Rfc,
    /// Linux siw (Soft-iWARP, measured with Linux 6.1): a Terminate Message is read by siw's layout,
    /// unless only RFC 5040's can be meant.
    Siw,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Peer::Rfc => "RFC",
            Peer::Siw => "Linux siw",
        })
    }
}
