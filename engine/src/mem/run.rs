//! Bytes of registered memory that the LLP reads in place.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::region::{Region, Use};
use crate::llp::Piece;

/// A run of bytes of a region whose memory is kept alive.
pub struct Run {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl Run {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the run without its first `skip` bytes, for a gathering send.
    pub fn piece(&self, skip: usize) -> Piece<'_> {
        let skip = skip.min(self.len);
        match self.region.pointer(self.offset + skip, self.len - skip) {
            // SAFETY: the range lies in the region. Its memory stays mapped and readable from any
            // thread while the region is pinned or in use. A run keeps it pinned or in use, and the
            // piece borrows `self`. A region has at most `isize::MAX` bytes.
            Some(pointer) => unsafe { Piece::from_raw(pointer, self.len - skip) },
            None => Piece::from(&[]),
        }
    }

    /// Appends a copy of at most `len` bytes from `skip` on to `out`. Returns false if the memory
    /// is not mapped; zeros are then appended.
    #[must_use]
    pub fn copy_to(&self, skip: usize, len: usize, out: &mut Vec<u8>) -> bool {
        self.piece(skip).append_to(len, out)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            region,
            offset,
            len,
        } = self;
        write!(
            f,
            "Run({len} bytes at {offset} in STag {:#010x})",
            region.stag().0
        )
    }
}

/// A run that this side sends. It keeps the memory alive; deregistration reports `Busy` until it is
/// dropped.
#[derive(Debug)]
pub struct PinnedRun(Run);

impl PinnedRun {
    /// Takes over a pin of the region.
    pub(super) fn adopt(region: Arc<Region>, offset: usize, len: usize) -> Self {
        Self(Run {
            region,
            offset,
            len,
        })
    }
}

impl Deref for PinnedRun {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.0
    }
}

impl Drop for PinnedRun {
    fn drop(&mut self) {
        self.0.region.remove_pin();
    }
}

/// A run that a peer reads. It keeps the memory alive; deregistration waits until it is dropped.
///
/// A peer must not make deregistration fail with `Busy`. So the run lives only during one call of
/// the LLP, and its thread must not invalidate the STag meanwhile.
#[derive(Debug)]
pub struct LentRun(Run);

impl LentRun {
    /// Enters the region; `None` if the STag was invalidated or deregistered.
    pub(super) fn enter(region: &Arc<Region>, offset: usize, len: usize) -> Option<Self> {
        region.enter().map(Use::keep)?;
        Some(Self(Run {
            region: Arc::clone(region),
            offset,
            len,
        }))
    }
}

impl Deref for LentRun {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.0
    }
}

impl Drop for LentRun {
    fn drop(&mut self) {
        self.0.region.leave();
    }
}
