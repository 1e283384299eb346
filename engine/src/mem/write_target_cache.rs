//! Cache of the region that the peer wrote to last.
//!
//! Segments that arrive together mostly go to one region. Without the cache, each segment takes six
//! atomic operations: they lock the table, count a reference and a use, and undo all three. With
//! the cache only the first segment needs them. All checks are still made for each segment,
//! including whether the region is valid.

use std::sync::Arc;

use uwarp_ddp::{STag, TaggedFault};

use super::error::{AccessFailure, PlaceFault};
use super::region::Region;
use super::table::{Asker, Need, RegionTable, check_region};

/// Destination of a segment: bytes of the region in the [`WriteTargetCache`].
#[derive(Clone, Copy, Debug)]
pub struct Landing {
    /// Offset of the first byte in the region.
    offset: usize,
    len: u32,
}

/// The region that was found last, with a use that may continue over many segments.
///
/// While the use continues, every thread that invalidates or deregisters the region waits for its
/// end, also if the cache is leaked. So call [`leave`](Self::leave) before any step other than
/// placing Writes, and drop the cache at the end of the turn.
#[derive(Default)]
pub struct WriteTargetCache {
    region: Option<Arc<Region>>,
    entered: bool,
}

impl WriteTargetCache {
    /// Checks a Write as [`RegionTable::check`] does. [`place`](Self::place) then accesses the
    /// memory.
    #[inline]
    pub fn check_write(
        &mut self,
        table: &RegionTable,
        stag: STag,
        to: u64,
        len: u32,
        asker: &Asker,
    ) -> Result<Landing, TaggedFault> {
        let need = Need::RemoteWrite;
        if let Some(region) = &self.region
            && region.stag() == stag
            && region.is_valid()
        {
            let offset = check_region(region, stag, to, len, need, asker)?;
            return Ok(Landing { offset, len });
        }
        self.leave();
        self.region = None;
        let (region, offset) = table.check_region(stag, to, len, need, asker)?;
        self.region = Some(region);
        Ok(Landing { offset, len })
    }

    /// Places bytes at offset `at` of a checked destination. The last byte becomes visible last, so
    /// that a program may poll for it.
    ///
    /// # Errors
    /// `InvalidSTag` if the STag was revoked after the check, `BaseOrBounds` outside the
    /// destination, `Unmapped` if the memory is gone.
    #[inline]
    pub fn place(&mut self, landing: Landing, at: usize, bytes: &[u8]) -> Result<(), PlaceFault> {
        if at
            .checked_add(bytes.len())
            .is_none_or(|end| end > landing.len as usize)
        {
            return Err(TaggedFault::BaseOrBounds.into());
        }
        let region = self.region.as_deref().ok_or(TaggedFault::InvalidSTag)?;
        let used = if self.entered {
            region.resume()
        } else {
            region.enter().ok_or(TaggedFault::InvalidSTag)?
        };
        self.entered = true;
        // The sum is inside the region, by the check.
        let placed = region
            .is_valid()
            .then(|| used.place(landing.offset + at, bytes));
        used.keep();
        match placed {
            Some(Ok(())) => Ok(()),
            Some(Err(AccessFailure::NotAllowed)) => Err(TaggedFault::AccessRights.into()),
            Some(Err(AccessFailure::Unmapped)) => Err(PlaceFault::Unmapped),
            None => Err(TaggedFault::InvalidSTag.into()), // 5041-8.3.1-03
        }
    }

    /// Ends the use of the region.
    #[inline]
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.entered)
            && let Some(region) = &self.region
        {
            region.leave();
        }
    }
}

impl Drop for WriteTargetCache {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}
