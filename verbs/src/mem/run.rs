//! Bytes of registered memory that the LLP takes from where they lie.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use uwarp_llp::Piece;

use super::region::{Region, Use};

/// A run of bytes of a region, whose memory somebody keeps.
pub(crate) struct Run {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl Run {
    /// Bytes in the run.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The run without its first `skip` bytes, for a gathering send.
    pub(crate) fn piece(&self, skip: usize) -> Piece<'_> {
        let skip = skip.min(self.len);
        match self.region.pointer(self.offset + skip, self.len - skip) {
            // SAFETY: the range is in the region, whose memory stays mapped and readable from any thread while it is
            // pinned or in use, which it is as long as there is a run, hence as long as `self` is borrowed, which is the
            // lifetime of the piece. A region has at most `isize::MAX` bytes.
            Some(pointer) => unsafe { Piece::from_raw(pointer, self.len - skip) },
            None => Piece::from(&[]),
        }
    }

    /// Appends a copy of `len` bytes from `skip` on (as many as there are) to `out`.
    pub(crate) fn copy_to(&self, skip: usize, len: usize, out: &mut Vec<u8>) {
        self.piece(skip).append_to(len, out);
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

/// What this side sends: as long as it lives, the memory stays and deregistration says Busy.
#[derive(Debug)]
pub(crate) struct PinnedRun(Run);

impl PinnedRun {
    /// Takes over a pin that was added to the region.
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

/// What a peer reads: as long as it lives, the memory stays and deregistration waits, for the peer is not to be a
/// reason to say Busy. So it lives for as long as one call of the LLP takes, and its thread must not
/// invalidate the STag meanwhile.
#[derive(Debug)]
pub(crate) struct LentRun(Run);

impl LentRun {
    /// `None` once the STag was invalidated or deregistered.
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
