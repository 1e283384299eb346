//! Facts about an STag, for the report of an access that was refused.

use super::Access;

/// Kind of object that an STag names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// No registered object.
    Nothing,
    /// No object, but a region has the same index with another key.
    OtherKey,
    /// A valid region.
    Region,
    /// A valid memory window.
    Window,
    /// A memory window that is not bound, or a fast region that is not registered.
    Unbound,
    /// A region or window that was invalidated.
    Invalidated,
    /// A region that was revoked while the peer was reading it.
    RevokedDuringRead,
}

/// Object that an STag names, with its bounds and rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagFacts {
    /// Kind of the object.
    pub named: Named,
    /// TO of the first byte.
    pub base: u64,
    /// Length in bytes.
    pub size: u64,
    /// Rights.
    pub access: Access,
}

impl StagFacts {
    /// Returns the facts of an STag that names no region: no bounds and no rights.
    pub const fn without_region(named: Named) -> Self {
        StagFacts {
            named,
            base: 0,
            size: 0,
            access: Access::NONE,
        }
    }
}
