//! The region that the peer's Writes went to last.
//!
//! Segments that arrive together mostly go to one region. To look it up, to count a reference and a use of it, and to
//! take all of that back, are six atomic operations; here they are made for the first of them. All checks are made for
//! each segment, and so is the look whether the region is still valid.

use std::sync::Arc;

use uwarp_ddp::{STag, TaggedFault};

use super::region::Region;
use super::table::{Asker, Need, RegionTable, check_region};

/// Where a segment may be placed: bytes of the region that [`WriteTargetCache`] found last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing {
    /// Of the first byte in the region.
    offset: usize,
    len: u32,
}

/// The region that was found last, and whether it is in use. Not to be held across a wait. While the use lasts nobody can
/// end the region: [`leave`](Self::leave) before anything is done but placing Writes, and drop it with the turn.
#[derive(Default)]
pub(crate) struct WriteTargetCache {
    region: Option<Arc<Region>>,
    entered: bool,
}

impl WriteTargetCache {
    /// As [`RegionTable::check`] for a Write, after which nothing but [`place`](Self::place) reaches the memory.
    #[inline]
    pub(crate) fn check_write(
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

    /// Places bytes `at` bytes behind the start of what was checked last, in address order, the last byte last.
    ///
    /// # Errors
    /// `InvalidSTag` when the STag was revoked meanwhile, `BaseOrBounds` outside of it.
    #[inline]
    pub(crate) fn place(
        &mut self,
        landing: Landing,
        at: usize,
        octets: &[u8],
    ) -> Result<(), TaggedFault> {
        if at
            .checked_add(octets.len())
            .is_none_or(|end| end > landing.len as usize)
        {
            return Err(TaggedFault::BaseOrBounds);
        }
        let region = self.region.as_deref().ok_or(TaggedFault::InvalidSTag)?;
        let used = if self.entered {
            region.resume()
        } else {
            region.enter().ok_or(TaggedFault::InvalidSTag)?
        };
        self.entered = true;
        // The sum is inside the region: the check saw to that.
        let placed = region
            .is_valid()
            .then(|| used.place(landing.offset + at, octets));
        used.keep();
        match placed {
            Some(true) => Ok(()),
            Some(false) => Err(TaggedFault::AccessRights),
            None => Err(TaggedFault::InvalidSTag), // 5041-8.3.1-03
        }
    }

    /// Ends the use.
    #[inline]
    pub(crate) fn leave(&mut self) {
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
