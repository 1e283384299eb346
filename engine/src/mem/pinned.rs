//! The regions that the requests of a queue name. The queue holds one reference to each region,
//! however many requests name it.
//!
//! Consecutive requests mostly name the same region. A reference for each request would take two
//! atomic operations, each as expensive as all other checks together. Here the number of requests
//! of a region is a plain number under the lock of the queue.

use std::sync::{Arc, Weak};

use super::error::LocalFaultKind;
use super::region::Region;
use super::run::PinnedRun;
use super::sge::Sge;
use super::table::{RegionTable, check_sge};
use super::target::TargetSource;

/// Source bytes of a request with a single element, in a region that the queue references.
///
/// The default has no bytes. An element with bytes belongs to one request, and is
/// [released](PinnedRegions::release) with that request.
#[derive(Clone, Copy, Default, Debug)]
pub struct Spot {
    place: u32,
    len: u32,
    /// Offset of the first byte in the region.
    offset: usize,
}

impl Spot {
    /// Returns true if the element has no bytes, and therefore no region.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// A region and the number of requests that name it. A place of the list without a region is free.
struct PinnedRegion {
    region: Option<Arc<Region>>,
    uses: u32,
}

/// The regions of one queue, in a list of reusable places.
#[derive(Default)]
pub struct PinnedRegions {
    places: Vec<PinnedRegion>,
    free: Vec<u32>,
    /// Places that no request uses, but whose region is still referenced.
    idle: Vec<u32>,
    latest: LastUsed,
}

/// The last region that was looked up in the table. It is cached from the second consecutive lookup
/// on.
///
/// A program that waits for each request empties the queue, and then names the same region again.
/// The reference is weak, so it does not keep the memory alive.
#[derive(Default)]
struct LastUsed {
    lkey: u32,
    region: Weak<Region>,
}

impl LastUsed {
    /// Returns the region with this key, if it is cached and valid.
    #[inline]
    fn get(&self, lkey: u32) -> Option<Arc<Region>> {
        if self.lkey != lkey {
            return None;
        }
        let region = self.region.upgrade()?;
        // An invalidated STag may name another region by now.
        (region.stag().0 == lkey && region.is_valid()).then_some(region)
    }

    /// Records a lookup in the table. The region is cached at the second consecutive lookup,
    /// because a cache is of no use to requests that each name another region.
    fn found(&mut self, lkey: u32, region: &Arc<Region>) {
        self.region = match self.lkey == lkey {
            true => Arc::downgrade(region),
            false => Weak::new(),
        };
        self.lkey = lkey;
    }
}

impl PinnedRegions {
    /// Resolves a non-empty source element for `qp` of `pd`.
    ///
    /// `before` is the element of the previous request. If it has the same region, the table lookup
    /// is skipped.
    #[inline]
    pub fn resolve(
        &mut self,
        before: Spot,
        table: &RegionTable,
        (pd, qp): (u32, u32),
        sge: &Sge,
    ) -> Result<Spot, LocalFaultKind> {
        let len = sge.len;
        if let Some(held) = self.used(before)
            && let Some(region) = &held.region
            // An invalidated STag may name another region by now.
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

    /// Adds a region with one use and returns its place. `None` if there are 2^32 places already.
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

    /// Ends the use of a region by a request. The region stays referenced at least until the next
    /// [`sweep`](Self::sweep).
    ///
    /// The caller releases each element from [`resolve`](Self::resolve) exactly once. A second
    /// release would end the use by another request, or make the count of uses wrap.
    #[inline]
    pub fn release(&mut self, spot: Spot) {
        let Some(held) = self.used(spot) else {
            return;
        };
        debug_assert!(held.uses > 0, "{spot:?} is released twice");
        held.uses -= 1;
        if held.uses == 0 {
            self.idle.push(spot.place);
        }
    }

    /// Drops the references to regions that no request names any more.
    #[inline]
    pub fn sweep(&mut self) {
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

    /// Returns the bytes as a payload, for framing. Deregistration waits until the guard is
    /// dropped. `None` if the region was revoked.
    pub fn source(&self, spot: Spot) -> Option<TargetSource<'_>> {
        let used = self.region(spot)?.enter()?;
        Some(TargetSource::new(used, spot.offset, spot.len as usize))
    }

    /// Pins a range of the bytes for sending it in place. Returns `None` and pins nothing if the
    /// region was revoked, or if the range is not inside the bytes.
    pub fn pin(&self, spot: Spot, offset: usize, len: usize) -> Option<PinnedRun> {
        let end = offset.checked_add(len)?;
        if end > spot.len as usize {
            return None;
        }
        let region = self.region(spot)?;
        let pinned = region.add_pin();
        pinned.then(|| PinnedRun::adopt(Arc::clone(region), spot.offset + offset, len))
    }

    /// Returns a guard for framing several requests in a row.
    #[inline]
    pub fn sources(&self) -> Sources<'_> {
        Sources {
            held: self,
            entered: None,
        }
    }
}

/// Gives the bytes of one request after the other, for framing.
///
/// A use of a region continues as long as requests name that region, instead of ending with each
/// request. So the guard must be dropped after framing, and before the thread waits.
pub struct Sources<'a> {
    held: &'a PinnedRegions,
    /// The place of the region in use, and its guard.
    entered: Option<(u32, TargetSource<'a>)>,
}

impl<'a> Sources<'a> {
    /// Returns the bytes of a request as [`PinnedRegions::source`] does.
    #[inline]
    pub fn source(&mut self, spot: Spot) -> Option<&TargetSource<'a>> {
        let goes_on = |(place, source): &(u32, TargetSource<'a>)| {
            *place == spot.place && !spot.is_empty() && source.is_valid()
        };
        if !self.entered.as_ref().is_some_and(goes_on) {
            // End the old use first. A thread that deregisters the old region thus does not have to
            // wait for the use of the new one.
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
    /// Number of referenced regions.
    pub(super) fn count(&self) -> usize {
        self.places
            .iter()
            .filter(|held| held.region.is_some())
            .count()
    }
}
