//! The regions that the requests of a queue name: each is held once, however many requests name it.
//!
//! Requests that follow each other mostly name one region. To count a reference to it for each of them and to give it
//! back are two atomic operations, each of which costs as much as all other checks together; here they are a number
//! under the lock of the queue.

use std::sync::{Arc, Weak};

use super::error::LocalFaultKind;
use super::region::Region;
use super::run::PinnedRun;
use super::sge::Sge;
use super::table::{RegionTable, check_sge};
use super::target::TargetSource;

/// The only element of a request, resolved: bytes to be sent of a region that the queue holds. The default has none.
/// One that has some belongs to one request, and is [released](PinnedRegions::release) with it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Spot {
    place: u32,
    len: u32,
    /// Of the first byte in the region.
    offset: usize,
}

impl Spot {
    /// Whether it has no bytes, and so no region.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// A region, and how many requests name it. Without a region the place is free.
struct PinnedRegion {
    region: Option<Arc<Region>>,
    uses: u32,
}

/// The regions of one queue.
#[derive(Default)]
pub(crate) struct PinnedRegions {
    places: Vec<PinnedRegion>,
    free: Vec<u32>,
    /// Places without a use whose region has not been let go.
    idle: Vec<u32>,
    latest: LastUsed,
}

/// The region that was looked up more than once in a row: a program that waits for each request names it again when the queue is
/// empty. It is not held: its memory goes when nobody else has it.
#[derive(Default)]
struct LastUsed {
    lkey: u32,
    region: Weak<Region>,
}

impl LastUsed {
    /// The region that has this key, if it is known and valid.
    #[inline]
    fn get(&self, lkey: u32) -> Option<Arc<Region>> {
        if self.lkey != lkey {
            return None;
        }
        let region = self.region.upgrade()?;
        // An STag that was invalidated may stand for another region by now.
        (region.stag().0 == lkey && region.is_valid()).then_some(region)
    }

    /// It was found in the table. Noted the second time: where each request names another region, that would be for nothing.
    fn found(&mut self, lkey: u32, region: &Arc<Region>) {
        self.region = match self.lkey == lkey {
            true => Arc::downgrade(region),
            false => Weak::new(),
        };
        self.lkey = lkey;
    }
}

impl PinnedRegions {
    /// Resolves an element that is not empty, and only a source, for `qp` of `pd`. `before` is that of the request
    /// before it, whose region is mostly named again, and is not looked up then.
    #[inline]
    pub(crate) fn resolve(
        &mut self,
        before: Spot,
        table: &RegionTable,
        (pd, qp): (u32, u32),
        sge: &Sge,
    ) -> Result<Spot, LocalFaultKind> {
        let len = sge.len;
        if let Some(held) = self.used(before)
            && let Some(region) = &held.region
            // An STag that was invalidated may stand for another region by now.
            && region.stag().0 == sge.lkey
            && region.is_valid()
        {
            let offset = check_sge(region, sge, false, pd, qp)?;
            held.uses += 1;
            let place = before.place;
            return Ok(Spot { place, len, offset });
        }
        let (region, offset) = match self.latest.get(sge.lkey) {
            Some(region) => {
                let offset = check_sge(&region, sge, false, pd, qp)?;
                (region, offset)
            }
            None => {
                let (region, offset) = table.check_local(sge, false, pd, qp)?;
                self.latest.found(sge.lkey, &region);
                (region, offset)
            }
        };
        let place = self.hold(region).ok_or(LocalFaultKind::TooLong)?;
        Ok(Spot { place, len, offset })
    }

    #[inline]
    fn used(&mut self, spot: Spot) -> Option<&mut PinnedRegion> {
        if spot.is_empty() {
            return None;
        }
        self.places.get_mut(spot.place as usize)
    }

    /// Holds one region more, with one use. `None` with more than 2^32, which no queue can name.
    fn hold(&mut self, region: Arc<Region>) -> Option<u32> {
        let held = PinnedRegion {
            region: Some(region),
            uses: 1,
        };
        if let Some(place) = self.free.pop() {
            *self.places.get_mut(place as usize)? = held;
            return Some(place);
        }
        let place = u32::try_from(self.places.len()).ok()?;
        self.places.push(held);
        Some(place)
    }

    /// A request is done with its bytes. Its region stays held until the next [`sweep`](Self::sweep), at least.
    #[inline]
    pub(crate) fn release(&mut self, spot: Spot) {
        let Some(held) = self.used(spot) else {
            return;
        };
        held.uses -= 1;
        if held.uses == 0 {
            self.idle.push(spot.place);
        }
    }

    /// Lets the regions go that no request names any more.
    #[inline]
    pub(crate) fn sweep(&mut self) {
        while let Some(place) = self.idle.pop() {
            if let Some(held) = self.places.get_mut(place as usize) {
                held.region = None;
                self.free.push(place);
            }
        }
    }

    fn region(&self, spot: Spot) -> Option<&Arc<Region>> {
        if spot.is_empty() {
            return None;
        }
        self.places.get(spot.place as usize)?.region.as_ref()
    }

    /// The bytes as a payload, for as long as framing takes: deregistration waits for the guard. `None` when the region
    /// was revoked meanwhile.
    pub(crate) fn source(&self, spot: Spot) -> Option<TargetSource<'_>> {
        let used = self.region(spot)?.enter()?;
        Some(TargetSource::new(used, spot.offset, spot.len as usize))
    }

    /// Pins a range of the bytes, for sending it from where it lies. `None`, and nothing is pinned, when the region was
    /// revoked meanwhile, or the range is not in the bytes.
    pub(crate) fn pin(&self, spot: Spot, offset: usize, len: usize) -> Option<PinnedRun> {
        let end = offset.checked_add(len)?;
        if end > spot.len as usize {
            return None;
        }
        let region = self.region(spot)?;
        let pinned = region.add_pin();
        pinned.then(|| PinnedRun::adopt(Arc::clone(region), spot.offset + offset, len))
    }

    /// For framing requests one after the other.
    #[inline]
    pub(crate) fn sources(&self) -> Sources<'_> {
        Sources {
            held: self,
            entered: None,
        }
    }
}

/// The bytes of one request after the other. The use of a region goes on while they name the same: it is not ended and
/// begun again for each of them. So this is not to be held across a wait, nor while anything but framing is done.
pub(crate) struct Sources<'a> {
    held: &'a PinnedRegions,
    /// The use, and the place of its region.
    entered: Option<(u32, TargetSource<'a>)>,
}

impl<'a> Sources<'a> {
    /// As [`PinnedRegions::source`].
    #[inline]
    pub(crate) fn source(&mut self, spot: Spot) -> Option<&TargetSource<'a>> {
        let goes_on = |(place, source): &(u32, TargetSource<'a>)| {
            *place == spot.place && !spot.is_empty() && source.is_valid()
        };
        if !self.entered.as_ref().is_some_and(goes_on) {
            // One use at a time: who ends a region must not wait for a use of another.
            self.entered = None;
            self.entered = Some((spot.place, self.held.source(spot)?));
        }
        let (_, source) = self.entered.as_mut()?;
        source.aim(spot.offset, spot.len as usize);
        Some(source)
    }
}

#[cfg(test)]
impl PinnedRegions {
    /// Regions that are held now.
    pub(super) fn count(&self) -> usize {
        self.places
            .iter()
            .filter(|held| held.region.is_some())
            .count()
    }
}
