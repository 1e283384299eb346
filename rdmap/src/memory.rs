//! What a stream asks of the owner of memory.

use uwarp_ddp::{STag, TaggedFault};

use crate::error::AtomicFault;

/// The memory and the receive queue that one stream may reach.
///
/// The checks are made in the order that [`TaggedFault`] describes. They are never called for a
/// length of 0, for which neither STag nor TO may be checked (5041-5.2-11, 5040-5.2.1-13).
pub trait Memory {
    /// The proof that an access was allowed, and the way to the octets. It comes only from a check
    /// that succeeded.
    type Target;

    /// May the peer write `len` octets at `to`?
    ///
    /// # Errors
    /// The first check that fails.
    fn check_write(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault>;

    /// May the peer read `len` octets from `to`? It is asked when the Read Request is delivered,
    /// which is when everything that the peer sent before it was placed.
    ///
    /// # Errors
    /// The first check that fails.
    fn check_read(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault>;

    /// May the peer do an Atomic Operation on the 8 octets at `to`? Asked when the Atomic Request is
    /// delivered. The address that `to` stands for must be a multiple of 8; what `to` itself is does
    /// not matter (7306-5.2.1-01, 7306-8.2-04).
    ///
    /// # Errors
    /// The first check that fails; the alignment, which only a valid STag has, comes last.
    fn check_atomic(&self, stag: STag, to: u64) -> Result<Self::Target, AtomicFault>;

    /// May the peer invalidate this STag? The caller of [`Stream::receive`](crate::Stream::receive)
    /// invalidates it when the Send is delivered.
    ///
    /// # Errors
    /// The first check that fails.
    fn check_invalidate(&self, stag: STag) -> Result<(), TaggedFault>;

    /// Octets of the receive at the head of the receive queue; `None` if none is posted.
    fn receive_buffer(&self) -> Option<u32>;
}
