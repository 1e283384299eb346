//! What an STag names, in numbers, for the report of an access that was refused.

use super::Access;

/// What an STag names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// Nothing that is registered now.
    Nothing,
    /// Nothing, but a region has the same index and another key.
    OtherKey,
    /// A region that may be used.
    Region,
    /// A memory window that may be used.
    Window,
    /// A memory window that is bound to nothing, or a fast region that is not registered.
    Unbound,
    /// A region or window that was invalidated.
    Invalidated,
    /// A region that went away while it was used.
    Withdrawn,
}

/// What an STag names, its bounds and its rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StagFacts {
    pub(crate) named: Named,
    /// TO of the first byte.
    pub(crate) base: u64,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) access: Access,
}

impl StagFacts {
    /// An STag without a region.
    pub(crate) const fn without_region(named: Named) -> Self {
        StagFacts {
            named,
            base: 0,
            size: 0,
            access: Access::NONE,
        }
    }
}
