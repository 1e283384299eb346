//! Memory that passed the check of a remote access.

use core::cell::Cell;
use std::sync::Arc;

use uwarp_ddp::{STag, TaggedFault};
use uwarp_mpa::{Crc32c, Payload};

use super::error::AccessFailure;
use super::region::{Region, Use};
use super::run::LentRun;
use super::table::Need;

/// Memory that a peer may access; created only by the checks of a
/// [`RegionTable`](super::RegionTable).
///
/// It may be kept, for example while a Read Request waits for its turn. Each use checks again
/// whether the region is still valid.
///
/// A target is moved several times for each segment. Its fields fill whole words without padding.
/// With padding, a move would be several overlapping copies, each waiting for the one before.
#[derive(Clone)]
pub struct Target {
    region: Arc<Region>,
    offset: usize,
    len: u32,
    need: Need,
}

impl Target {
    pub(super) fn new(region: Arc<Region>, offset: usize, len: u32, need: Need) -> Self {
        Self {
            region,
            offset,
            len,
            need,
        }
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Offset in the region.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Access that the check granted.
    pub(super) fn need(&self) -> Need {
        self.need
    }

    /// Places bytes at offset `at` of the target, in address order, the last byte last. The tests
    /// compare it with [`WriteTargetCache`](super::WriteTargetCache), which places the segments of
    /// peers.
    ///
    /// # Errors
    /// * `InvalidSTag`: the STag was revoked after the check.
    /// * `BaseOrBounds`: the range is outside the target.
    /// * `AccessRights`: the check was not for a Write.
    #[cfg(test)]
    pub fn place(&self, at: usize, bytes: &[u8]) -> Result<(), TaggedFault> {
        if self.need != Need::RemoteWrite {
            return Err(TaggedFault::AccessRights);
        }
        if at
            .checked_add(bytes.len())
            .is_none_or(|end| end > self.len as usize)
        {
            return Err(TaggedFault::BaseOrBounds);
        }
        let region = self.region.enter().ok_or(TaggedFault::InvalidSTag)?; // 5041-8.3.1-03
        // The sum is inside the region, by the check of the target.
        let placed = region.place(self.offset + at, bytes);
        placed.map_err(|_| TaggedFault::AccessRights)
    }

    /// Returns the bytes of the target as a payload, for framing. Deregistration waits until the
    /// guard is dropped.
    ///
    /// # Errors
    /// `InvalidSTag` if the STag was revoked after the check, `AccessRights` if the check was not
    /// for a Read.
    pub fn source(&self) -> Result<TargetSource<'_>, TaggedFault> {
        if self.need != Need::RemoteRead {
            return Err(TaggedFault::AccessRights);
        }
        let region = self.region.enter().ok_or(TaggedFault::InvalidSTag)?;
        Ok(TargetSource::new(region, self.offset, self.len as usize))
    }

    /// Lends bytes of the target to the LLP, which reads them in place. `None` if the STag was
    /// revoked, or if the check was not for a Read of these bytes.
    pub fn lend(&self, offset: usize, len: usize) -> Option<LentRun> {
        let inside = offset.checked_add(len)? <= self.len as usize;
        if self.need != Need::RemoteRead || !inside {
            return None;
        }
        LentRun::enter(&self.region, self.offset + offset, len)
    }
}

impl core::fmt::Debug for Target {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            region,
            offset,
            len,
            need,
        } = self;
        write!(
            f,
            "Target({need:?} of {len} bytes at {offset} in STag {:#010x})",
            region.stag().0
        )
    }
}

/// A payload that may be in registered memory.
pub trait MemorySource: Payload {
    /// Returns the STag of memory that could not be read, because the program has unmapped it
    /// without deregistering it. The bytes that were copied are then wrong.
    fn unmapped(&self) -> Option<STag>;
}

impl MemorySource for [u8] {
    #[inline]
    fn unmapped(&self) -> Option<STag> {
        None
    }
}

/// The bytes of a [`Target`], readable while this guard lives. Must not be held while the thread
/// waits.
pub struct TargetSource<'a> {
    region: Use<'a>,
    offset: usize,
    len: usize,
    unmapped: Cell<bool>,
}

impl<'a> TargetSource<'a> {
    pub(super) fn new(region: Use<'a>, offset: usize, len: usize) -> Self {
        Self {
            region,
            offset,
            len,
            unmapped: Cell::new(false),
        }
    }

    /// Moves the guard to other bytes of the same region.
    #[inline]
    pub(super) fn aim(&mut self, offset: usize, len: usize) {
        (self.offset, self.len) = (offset, len);
    }

    /// Returns true if the region is still valid.
    #[inline]
    pub(super) fn is_valid(&self) -> bool {
        self.region.region().is_valid()
    }
}

impl TargetSource<'_> {
    /// Converts an offset in the source to one in the region. `None` if the `len` bytes from there
    /// on are not inside the source.
    #[inline]
    fn offset_of(&self, offset: usize, len: usize) -> Option<usize> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| self.offset + offset)
    }
}

impl Payload for TargetSource<'_> {
    #[inline]
    fn copy(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc32c>) {
        copied(out, crc, |out, crc| {
            let at = self.offset_of(offset, out.len());
            let at = at.ok_or(AccessFailure::NotAllowed)?;
            self.region.copy_out(at, out, crc)
        })
        .unwrap_or_else(|Unmapped| self.unmapped.set(true));
    }

    fn checksum(&self, offset: usize, len: usize, crc: &mut Crc32c) {
        let at = self.offset_of(offset, len);
        let done = at.map(|at| self.region.checksum(at, len, crc));
        debug_assert!(
            done.is_some(),
            "{len} bytes at {offset} are not in the source"
        );
        if done == Some(Err(AccessFailure::Unmapped)) {
            self.unmapped.set(true);
        }
    }
}

impl MemorySource for TargetSource<'_> {
    #[inline]
    fn unmapped(&self) -> Option<STag> {
        self.unmapped.get().then(|| self.region.region().stag())
    }
}

/// The memory to copy is not mapped.
pub(super) struct Unmapped;

/// Fills `out` by `copy`. If `copy` is not allowed, the range is outside the source, which no
/// caller in this crate requests. Then `out` is filled with zeros instead of old content, and the
/// CRC is that of zeros. Fails if the memory is not mapped; then `out` and the CRC are of no use.
#[inline]
pub(super) fn copied(
    out: &mut [u8],
    mut crc: Option<&mut Crc32c>,
    copy: impl FnOnce(&mut [u8], Option<&mut Crc32c>) -> Result<(), AccessFailure>,
) -> Result<(), Unmapped> {
    let before = crc.as_deref().copied();
    let done = match copy(out, crc.as_deref_mut()) {
        Ok(()) => true,
        Err(AccessFailure::NotAllowed) => false,
        Err(AccessFailure::Unmapped) => return Err(Unmapped),
    };
    debug_assert!(done, "{} bytes are not in the source", out.len());
    if !done {
        out.fill(0);
        if let (Some(crc), Some(before)) = (crc, before) {
            *crc = before;
            crc.update(out);
        }
    }
    Ok(())
}
