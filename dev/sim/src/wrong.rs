//! Invalid requests, and the codes with which the peer must refuse them.

/// Reason why a request is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// A Send that is longer than the receive.
    TooLong,
    /// A Write to an STag that does not exist.
    NoStag,
    /// A Write to an STag with a wrong key.
    Key,
    /// A Write to an STag that was invalidated.
    Dead,
    /// A Write to an STag that only another connection may use.
    Foreign,
    /// A Write to an STag in another protection domain.
    Domain,
    /// A Write past the end of a region.
    Bounds,
    /// A Write that starts before a region.
    Below,
    /// A Write past the largest TO.
    Wrap,
    /// A Write to a region without the right to remote writes.
    WriteRight,
    /// A Read from an STag that does not exist.
    ReadNoStag,
    /// A Read from an STag that was invalidated.
    ReadDead,
    /// A Read from an STag that only another connection may use.
    ReadForeign,
    /// A Read from an STag in another protection domain.
    ReadDomain,
    /// A Read past the end of a region.
    ReadBounds,
    /// A Read that starts before a region.
    ReadBelow,
    /// A Read past the largest TO.
    ReadWrap,
    /// A Read from a region without remote rights.
    ReadRight,
    /// An atomic on a region that permits only remote reads and writes.
    AtomicRight,
    /// An atomic on a misaligned address.
    AtomicAligned,
    /// A Send that invalidates an STag which other connections may use as well.
    Invalidate,
}

impl Wrong {
    pub(crate) const ALL: [Wrong; 21] = [
        Wrong::TooLong,
        Wrong::NoStag,
        Wrong::Key,
        Wrong::Dead,
        Wrong::Foreign,
        Wrong::Domain,
        Wrong::Bounds,
        Wrong::Below,
        Wrong::Wrap,
        Wrong::WriteRight,
        Wrong::ReadNoStag,
        Wrong::ReadDead,
        Wrong::ReadForeign,
        Wrong::ReadDomain,
        Wrong::ReadBounds,
        Wrong::ReadBelow,
        Wrong::ReadWrap,
        Wrong::ReadRight,
        Wrong::AtomicRight,
        Wrong::AtomicAligned,
        Wrong::Invalidate,
    ];

    /// Returns true if the request waits for a response from the peer.
    pub(crate) fn is_answered(self) -> bool {
        match self {
            Wrong::TooLong
            | Wrong::NoStag
            | Wrong::Key
            | Wrong::Dead
            | Wrong::Foreign
            | Wrong::Domain
            | Wrong::Bounds
            | Wrong::Below
            | Wrong::Wrap
            | Wrong::WriteRight
            | Wrong::Invalidate => false,
            Wrong::ReadNoStag
            | Wrong::ReadDead
            | Wrong::ReadForeign
            | Wrong::ReadDomain
            | Wrong::ReadBounds
            | Wrong::ReadBelow
            | Wrong::ReadWrap
            | Wrong::ReadRight
            | Wrong::AtomicRight
            | Wrong::AtomicAligned => true,
        }
    }

    /// Returns the codes that the peer's Terminate Message may carry: layer, Error Type and Error
    /// Code of RFC 5040 section 4.8, RFC 5041 section 7.2 and RFC 7306 section 8.2.
    pub(crate) fn codes(self) -> &'static [[u8; 3]] {
        match self {
            Wrong::TooLong => &[[1, 2, 5]],
            // DDP has no code for missing rights. For a Write, an STag without the right to write
            // is invalid.
            Wrong::NoStag | Wrong::Key | Wrong::Dead | Wrong::WriteRight => &[[1, 1, 0]],
            // The other connection and its STag may be gone when the request arrives.
            Wrong::Foreign | Wrong::Domain => &[[1, 1, 2], [1, 1, 0]],
            Wrong::ReadForeign | Wrong::ReadDomain => &[[0, 1, 3], [0, 1, 0]],
            Wrong::Bounds | Wrong::Below => &[[1, 1, 1]],
            Wrong::Wrap => &[[1, 1, 3]],
            Wrong::ReadNoStag | Wrong::ReadDead => &[[0, 1, 0]],
            Wrong::ReadBounds | Wrong::ReadBelow => &[[0, 1, 1]],
            Wrong::ReadWrap => &[[0, 1, 4]],
            Wrong::ReadRight | Wrong::AtomicRight => &[[0, 1, 2]],
            Wrong::AtomicAligned => &[[0, 2, 7]],
            Wrong::Invalidate => &[[0, 1, 9]],
        }
    }
}
