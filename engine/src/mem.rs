//! Registered memory: the memory that a peer's STag and the SGEs of a work request refer to.
//!
//! The module's contract, in the order in which a message uses it:
//!
//! 1. `RegionTable` assigns STags and checks accesses. Only a successful check creates a `Target`
//!    (remote access). Only a successful `resolve` fills an `SgList` or creates a `Spot` (local
//!    access).
//! 2. `place` copies bytes into the memory. It fails if the region was revoked after the check.
//!    `source()` returns a short-lived guard, a `TargetSource` or `SgSource`, that copies bytes
//!    out. The guard *is* the `Payload` that the framer reads. The memory cannot go away while the
//!    guard lives, so reading cannot fail: every framed byte comes from the program's memory.
//!    Consecutive messages mostly name the same region. `Sources` (framing) and `WriteTargetCache`
//!    (placing Writes) therefore keep one guard for many messages. They check for each message
//!    whether the region is still valid. They are dropped at the end of a turn, and before any step
//!    that may wait until a region is unused.
//! 3. A large source that is sent in place (without a CRC, or with `Settings::send_in_place`) is
//!    pinned (`pin`) until the LLP has taken its last byte. A pinned region cannot be deregistered.
//!
//! Registered memory is shared on purpose: the application writes it while this library reads, and
//! peers write it while the application polls. So no Rust reference or slice points into it,
//! except to `Bytes`, which nobody writes. Only this module accesses it, through the instructions
//! in `raw`, and the copy of a [`Piece`](crate::Piece).
#![expect(
    unsafe_code,
    reason = "registered memory is reached by raw pointer only, and only here"
)]

mod access;
mod atomic;
mod backing;
mod buffer;
mod error;
mod facts;
mod fast;
mod fault;
mod inline;
mod loan;
mod mapped;
mod pinned;
mod raw;
mod region;
mod remote;
mod run;
mod sge;
mod slot;
mod stags;
mod table;
mod target;
mod write_target_cache;

pub use access::Access;
pub use buffer::{Buffer, BufferError};
pub use error::{
    DeregisterError, LocalFault, LocalFaultKind, MapError, OutOfRange, RegisterError,
    ReregisterError,
};
pub use fast::FastRegister;
pub use remote::RemoteBuffer;
pub use sge::Sge;
pub use slot::{WindowBind, WindowKind};
pub use stags::inc_rkey;

pub use atomic::{ATOMIC_LEN, AtomicFailure};
pub use backing::{Backing, RegionSpec};
pub use error::PlaceFault;
pub use facts::{Named, StagFacts};
pub use inline::InlineData;
pub use loan::{InFlight, Loan, Pieces};
pub use pinned::{PinnedRegions, Sources, Spot};
pub use region::Region;
pub use run::{LentRun, PinnedRun};
pub use sge::SgList;
pub use slot::{Purpose, SlotFault};
pub use table::{Asker, Need, RegionTable};
pub use target::{MemorySource, Target};
pub use write_target_cache::{Landing, WriteTargetCache};

#[cfg(test)]
mod tests;
