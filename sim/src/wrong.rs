//! What can be wrong with a request, and what the peer has to say to it.

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// A Send that is longer than the receive.
    TooLong,
    /// It writes to an STag that is none.
    NoStag,
    /// It writes to one whose key is another.
    Key,
    /// It writes to one that was valid, and was given back.
    Dead,
    /// It writes to one that is for another connection alone.
    Foreign,
    /// It writes to one of another protection domain.
    Domain,
    /// It writes behind the end of a region.
    Bounds,
    /// It begins to write in front of a region.
    Below,
    /// It writes beyond the last TO that there is.
    Wrap,
    /// It writes where it may only read.
    WriteRight,
    /// It reads from an STag that is none.
    ReadNoStag,
    /// It reads from one that is dead.
    ReadDead,
    /// It reads from one that is for another connection alone.
    ReadForeign,
    /// It reads from one of another protection domain.
    ReadDomain,
    /// It reads behind the end of a region.
    ReadBounds,
    /// It begins to read in front of a region.
    ReadBelow,
    /// It reads beyond the last TO that there is.
    ReadWrap,
    /// It reads where it may do nothing.
    ReadRight,
    /// An atomic where it may only read and write.
    AtomicRight,
    /// An atomic that is not aligned.
    AtomicAligned,
    /// A Send that invalidates what other connections use, too.
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

    /// Whether it waits for the peer's answer.
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

    /// What the peer's Terminate Message has to say: layer, Error Type and Error Code of RFC 5040 section 4.8, RFC 5041
    /// section 7.2 and RFC 7306 section 8.2.
    pub(crate) fn codes(self) -> &'static [[u8; 3]] {
        match self {
            Wrong::TooLong => &[[1, 2, 5]],
            // DDP has no code for rights: such an STag has no buffer for a Write.
            Wrong::NoStag | Wrong::Key | Wrong::Dead | Wrong::WriteRight => &[[1, 1, 0]],
            // The other connection may be over when the request arrives, and its STag with it.
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
