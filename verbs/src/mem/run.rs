//! Octets of registered memory that the LLP takes from where they lie.

use std::fmt;
use std::sync::Arc;

use uwarp_llp::Piece;

use super::region::Region;

/// A run of octets of a region that the LLP sends from where it lies. As long as it lives, the memory stays and
/// deregistration says Busy.
pub(crate) struct PinnedRun {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl PinnedRun {
    /// Takes over a pin that was added to the region.
    pub(super) fn adopt(region: Arc<Region>, offset: usize, len: usize) -> Self {
        Self {
            region,
            offset,
            len,
        }
    }

    /// Octets in the run.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The run without its first `skip` octets, for a gathering send.
    pub(crate) fn piece(&self, skip: usize) -> Piece<'_> {
        let skip = skip.min(self.len);
        match self.region.pointer(self.offset + skip, self.len - skip) {
            // SAFETY: the range is in the region, whose memory stays mapped and readable from any thread while it is
            // pinned, hence as long as `self` is borrowed, which is the lifetime of the piece. A region has at most
            // `isize::MAX` octets.
            Some(pointer) => unsafe { Piece::from_raw(pointer, self.len - skip) },
            None => Piece::from(&[]),
        }
    }

    /// Appends a copy of `len` octets from `skip` on (as many as there are) to `out`.
    pub(crate) fn copy_to(&self, skip: usize, len: usize, out: &mut Vec<u8>) {
        self.piece(skip).append_to(len, out);
    }
}

impl Drop for PinnedRun {
    fn drop(&mut self) {
        self.region.remove_pin();
    }
}

impl fmt::Debug for PinnedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            region,
            offset,
            len,
        } = self;
        write!(
            f,
            "PinnedRun({len} octets at {offset} in STag {:#010x})",
            region.stag().0
        )
    }
}
