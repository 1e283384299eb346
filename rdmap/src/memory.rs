//! Interface to the owner of memory.

use uwarp_ddp::{STag, TaggedFault};

use crate::error::AtomicFault;

/// Interface of a stream to registered memory and to the receive queue.
///
/// Each check follows the order that [`TaggedFault`] describes. No check is called for a length of
/// 0, because STag and TO must then not be checked (5041-5.2-11, 5040-5.2.1-13).
pub trait Memory {
    /// Access to the bytes that a check allowed. Only a successful check creates one.
    type Target;

    /// Checks whether the peer may write `len` bytes at `to`.
    ///
    /// # Errors
    /// The first check that fails.
    fn check_write(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault>;

    /// Checks whether the peer may read `len` bytes from `to`. It is called when the Read Request
    /// is delivered, which is after all earlier payload of the peer was placed.
    ///
    /// # Errors
    /// The first check that fails.
    fn check_read(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault>;

    /// Checks whether the peer may do an Atomic Operation on the 8 bytes at `to`. It is called when
    /// the Atomic Request is delivered. The address at `to` must be a multiple of 8; the value of
    /// `to` itself does not matter (7306-5.2.1-01, 7306-8.2-04).
    ///
    /// # Errors
    /// The first check that fails. The alignment is checked last, because it needs a valid STag.
    fn check_atomic(&self, stag: STag, to: u64) -> Result<Self::Target, AtomicFault>;

    /// Checks whether the peer may invalidate this STag. The caller of
    /// [`Stream::receive`](crate::Stream::receive) invalidates it when the Send is delivered.
    ///
    /// # Errors
    /// The first check that fails.
    fn check_invalidate(&self, stag: STag) -> Result<(), TaggedFault>;

    /// Returns the length in bytes of the receive at the head of the receive queue; `None` if none
    /// is posted.
    fn receive_buffer(&self) -> Option<u32>;
}
