//! Profiles of peers that need special handling.

use core::fmt;

/// Peer profile: selects the departures from the RFCs that this side accepts.
///
/// With every profile, this side sends only messages that follow the RFCs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Peer {
    /// A peer that follows the RFCs. Terminate Messages in the layout of Linux siw are still
    /// recognized if no RFC allows their bytes.
    #[default]
    Rfc,
    /// Linux siw (Soft-iWARP, measured with Linux 6.1). A Terminate Message is read in siw's
    /// layout, unless only RFC 5040's layout gives it a meaning.
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
