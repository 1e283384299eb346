//! Registered memory: what a peer's STag reaches, and what a work request's SGEs reach.
//!
//! The contract of this module, in the order a message meets it:
//!
//! 1. `RegionTable` hands out STags and answers checks. Only a successful check makes a `Target` (remote access), and
//!    only a successful `resolve` fills an `SgList` or makes a `Spot` (local access).
//! 2. Bytes go in through `place`, which can fail when the region was revoked in the meantime. They come out through
//!    a `TargetSource` or `SgSource`: a short-lived guard, made by `source()`, which *is* the `Payload` that the
//!    framer reads. While it lives the memory cannot go away, so reading has no error to report: what is framed is
//!    either the program's bytes or nothing.
//!    Messages that follow each other mostly name one region: `Sources` (framing) and `WriteTargetCache` (placing Writes) are such
//!    guards for many of them, which look at each message whether the region is still valid. They end with the turn, and
//!    before anything is done that may wait for the users of a region.
//! 3. A large source that is sent from where it lies (without a CRC, or with `Settings::send_in_place`) is pinned (`pin`)
//!    until the LLP has taken its last byte; a pinned region cannot be deregistered.
//!
//! Registered memory is shared on purpose: the application writes it while we read, peers write it while the
//! application polls. So no Rust reference or slice ever points into it. This module is the only one of the crate
//! that touches it, and its file `raw`, with what is in `raw/`, holds the only instructions that do.
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
mod inline;
mod loan;
mod mapped;
mod pinned;
mod raw;
mod region;
mod run;
mod sge;
mod slot;
mod stags;
mod table;
mod target;
mod wiped;
mod write_target_cache;

pub use access::Access;
pub use buffer::{Buffer, BufferError};
pub use error::{
    DeregisterError, LocalFault, LocalFaultKind, MapError, OutOfRange, RegisterError,
    ReregisterError,
};
pub use sge::Sge;
pub use slot::{FastRegister, WindowBind, WindowKind};

pub(crate) use atomic::ATOMIC_LEN;
pub(crate) use backing::{Backing, RegionSpec};
pub(crate) use facts::{Named, StagFacts};
pub(crate) use inline::InlineData;
pub(crate) use loan::{InFlight, Piece, Pieces};
pub(crate) use pinned::{PinnedRegions, Sources, Spot};
pub(crate) use region::Region;
pub(crate) use run::{LentRun, PinnedRun};
pub(crate) use sge::SgList;
pub(crate) use slot::{Purpose, SlotFault};
pub(crate) use table::{Asker, Need, RegionTable};
pub(crate) use target::Target;
pub(crate) use wiped::wiped_on_fork;
pub(crate) use write_target_cache::{Landing, WriteTargetCache};

#[cfg(test)]
mod tests;
