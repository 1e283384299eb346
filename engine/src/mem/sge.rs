//! Scatter/gather lists of work requests.

use core::cell::Cell;
use std::sync::Arc;

use uwarp_ddp::STag;
use uwarp_mpa::{Crc32c, Payload};

use super::error::{AccessFailure, LocalFault, LocalFaultKind};
use super::region::Region;
use super::run::PinnedRun;
use super::table::{RegionTable, check_sge};
use super::target::{MemorySource, Unmapped, copied};

/// A scatter/gather element (`ibv_sge`): a run of registered memory.
///
/// It has the layout of `ibv_sge`, so a C array of `ibv_sge` can be read as a slice of this type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte in the region's address space (the memory address, unless
    /// registered otherwise).
    pub addr: u64,
    /// Length in bytes. With 0, address and lkey are ignored.
    pub len: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// A resolved, non-empty element.
struct Entry {
    region: Arc<Region>,
    /// Offset in the region.
    offset: usize,
    /// Number of bytes of the message before this element.
    start: usize,
    len: usize,
    /// Index in the posted list.
    index: u32,
}

/// A non-empty element as the sink of a Read Request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SinkElement {
    pub stag: STag,
    pub to: u64,
    /// Number of bytes of the list before this element.
    pub start: u32,
    pub len: u32,
}

/// The registered memory of one work request. Clearing the list keeps its allocation for the next
/// request.
#[derive(Default)]
pub struct SgList {
    entries: Vec<Entry>,
    total: u32,
    writable: bool,
}

impl SgList {
    /// Removes the elements; keeps the allocation.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.total = 0;
        self.writable = false;
    }

    /// Fills the list from a work request of `qp` and returns its length in bytes.
    ///
    /// `need_local_write` is true if data will be placed (a receive, the sink of a Read). Otherwise
    /// the list is only a source. After an error the list is empty.
    pub fn resolve(
        &mut self,
        table: &RegionTable,
        pd: u32,
        qp: u32,
        sges: &[Sge],
        need_local_write: bool,
    ) -> Result<u32, LocalFault> {
        self.resolve_behind(None, table, (pd, qp), sges, need_local_write)
    }

    /// Does the same as [`Self::resolve`]. `before` is the list of the previous request in the
    /// queue. Consecutive requests mostly name the same region, so the region of that list's last
    /// element is not looked up again.
    #[inline]
    pub fn resolve_behind(
        &mut self,
        before: Option<&SgList>,
        table: &RegionTable,
        (pd, qp): (u32, u32),
        sges: &[Sge],
        need_local_write: bool,
    ) -> Result<u32, LocalFault> {
        let last = before.and_then(|list| list.entries.last());
        let check = |sge: &Sge| {
            // An invalidated STag may name another region by now.
            let named =
                |entry: &&Entry| entry.region.stag().0 == sge.lkey && entry.region.is_valid();
            let Some(Entry { region, .. }) = last.filter(named) else {
                return table.check_local(sge, need_local_write, pd, qp);
            };
            let offset = check_sge(region, sge, need_local_write, pd, qp)?;
            Ok((Arc::clone(region), offset))
        };
        if !self.entries.is_empty() {
            self.clear();
        }
        self.total = 0;
        self.writable = need_local_write;
        for (index, sge) in sges.iter().enumerate() {
            if let Err(kind) = self.push(index, sge, &check) {
                self.clear();
                return Err(LocalFault { index, kind });
            }
        }
        Ok(self.total)
    }

    #[inline]
    fn push(
        &mut self,
        index: usize,
        sge: &Sge,
        check: &impl Fn(&Sge) -> Result<(Arc<Region>, usize), LocalFaultKind>,
    ) -> Result<(), LocalFaultKind> {
        if sge.len == 0 {
            return Ok(());
        }
        let (region, offset) = check(sge)?;
        let total = self
            .total
            .checked_add(sge.len)
            .ok_or(LocalFaultKind::TooLong)?;
        let start = self.total as usize;
        let index = u32::try_from(index).map_err(|_| LocalFaultKind::TooLong)?;
        self.entries.push(Entry {
            region,
            offset,
            start,
            len: sge.len as usize,
            index,
        });
        self.total = total;
        Ok(())
    }

    /// Returns the non-empty element with `nth` non-empty ones before it.
    #[inline]
    pub fn element(&self, nth: usize) -> Option<SinkElement> {
        let entry = self.entries.get(nth)?;
        Some(SinkElement {
            stag: entry.region.stag(),
            to: entry.region.to_base() + entry.offset as u64,
            start: u32::try_from(entry.start).ok()?,
            len: u32::try_from(entry.len).ok()?,
        })
    }

    /// Places bytes at an offset of the message, in address order, the last byte last.
    ///
    /// # Errors
    /// A fault if a region was revoked, if the list is too short (nothing is placed), or if the
    /// list was resolved as a source.
    #[inline]
    pub fn place(&self, message_offset: usize, bytes: &[u8]) -> Result<(), LocalFault> {
        self.check_range(message_offset, bytes.len())?;
        if let Some(first) = self.entries.first()
            && !bytes.is_empty()
            && bytes.len() <= first.len.saturating_sub(message_offset)
        {
            return self.place_in(first, message_offset, bytes);
        }
        let mut rest = bytes;
        for part in self.parts(message_offset, bytes.len()) {
            let (now, later) = rest.split_at_checked(part.len).unwrap_or((rest, &[]));
            self.place_in(part.entry, part.at, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Places bytes at offset `at` of an element. The caller has checked that they fit.
    #[inline]
    fn place_in(&self, entry: &Entry, at: usize, bytes: &[u8]) -> Result<(), LocalFault> {
        let lkey = entry.region.stag().0;
        let Some(region) = entry.region.enter() else {
            return Err(entry.fault(LocalFaultKind::InvalidKey { lkey }));
        };
        let placed = if self.writable {
            region.place(entry.offset + at, bytes)
        } else {
            Err(AccessFailure::NotAllowed)
        };
        placed.map_err(|failure| {
            entry.fault(match failure {
                AccessFailure::NotAllowed => LocalFaultKind::NotWritable { lkey },
                AccessFailure::Unmapped => LocalFaultKind::Unmapped { lkey },
            })
        })
    }

    /// Returns a range of the message as a payload, for framing. Deregistration waits until the
    /// guard is dropped. Offsets count from the start of the message.
    ///
    /// # Errors
    /// A fault if a region of the range was revoked, or if the list is too short.
    pub fn source(&self, offset: usize, len: usize) -> Result<SgSource<'_>, LocalFault> {
        self.check_range(offset, len)?;
        let mut source = SgSource {
            list: self,
            offset,
            len,
            entered: offset,
            unmapped: Cell::new(None),
        };
        for part in self.parts(offset, len) {
            let lkey = part.entry.region.stag().0;
            let fault = part.entry.fault(LocalFaultKind::InvalidKey { lkey });
            // On an error the guard is dropped and leaves the regions entered so far.
            part.entry.region.enter().ok_or(fault)?.keep();
            source.entered += part.len;
        }
        Ok(source)
    }

    /// Pins the memory of a range for sending it in place. Passes one [`PinnedRun`] for each
    /// element to `each`, in the order of the message. Returns false and pins nothing if a region
    /// was revoked or the list is too short.
    pub fn pin(&self, offset: usize, len: usize, each: impl FnMut(PinnedRun)) -> bool {
        if self.check_range(offset, len).is_err() {
            return false;
        }
        for (count, part) in self.parts(offset, len).enumerate() {
            if !part.entry.region.add_pin() {
                for pinned in self.parts(offset, len).take(count) {
                    pinned.entry.region.remove_pin();
                }
                return false;
            }
        }
        let adopt = |part: Part<'_>| {
            let entry = part.entry;
            PinnedRun::adopt(Arc::clone(&entry.region), entry.offset + part.at, part.len)
        };
        self.parts(offset, len).map(adopt).for_each(each);
        true
    }

    fn check_range(&self, offset: usize, len: usize) -> Result<(), LocalFault> {
        if offset
            .checked_add(len)
            .is_some_and(|end| end <= self.total as usize)
        {
            return Ok(());
        }
        let kind = LocalFaultKind::OutsideList {
            offset,
            len,
            total: self.total,
        };
        Err(LocalFault {
            index: self.entries.len(),
            kind,
        })
    }

    /// Returns the parts of the elements that together form a range of the message; none is empty.
    #[inline]
    fn parts(&self, offset: usize, len: usize) -> impl Iterator<Item = Part<'_>> {
        let end = offset.saturating_add(len);
        self.entries
            .iter()
            .skip_while(move |entry| entry.start + entry.len <= offset)
            .take_while(move |entry| offset < end && entry.start < end)
            .map(move |entry| {
                let at = offset.saturating_sub(entry.start);
                let stop = entry.len.min(end - entry.start);
                Part {
                    entry,
                    at,
                    len: stop - at,
                }
            })
    }
}

#[cfg(test)]
impl SgList {
    pub(super) fn len(&self) -> u32 {
        self.total
    }

    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}

impl Entry {
    fn fault(&self, kind: LocalFaultKind) -> LocalFault {
        LocalFault {
            index: self.index as usize,
            kind,
        }
    }
}

/// Part of an element.
struct Part<'a> {
    entry: &'a Entry,
    /// Offset of the part's first byte in the element.
    at: usize,
    len: usize,
}

impl core::fmt::Debug for SgList {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "SgList({} bytes in {} elements)",
            self.total,
            self.entries.len()
        )
    }
}

/// A range of an [`SgList`], readable while this guard lives. Must not be held while the thread
/// waits.
pub struct SgSource<'a> {
    list: &'a SgList,
    offset: usize,
    len: usize,
    /// Offset in the message up to which the regions were entered.
    entered: usize,
    unmapped: Cell<Option<STag>>,
}

impl SgSource<'_> {
    /// Returns true if these bytes of the message are in the range.
    fn has(&self, offset: usize, len: usize) -> bool {
        let end = offset.checked_add(len);
        offset >= self.offset && end.is_some_and(|end| end <= self.offset + self.len)
    }

    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        mut crc: Option<&mut Crc32c>,
    ) -> Result<(), AccessFailure> {
        if !self.has(offset, out.len()) {
            return Err(AccessFailure::NotAllowed);
        }
        let mut rest = out;
        for part in self.list.parts(offset, rest.len()) {
            let Some((now, later)) = core::mem::take(&mut rest).split_at_mut_checked(part.len)
            else {
                return Err(AccessFailure::NotAllowed);
            };
            let region = part.entry.region.resume();
            let done = region.copy_out(part.entry.offset + part.at, now, crc.as_deref_mut());
            region.keep();
            self.check(part.entry, done)?;
            rest = later;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(AccessFailure::NotAllowed)
        }
    }

    fn take_in(&self, offset: usize, len: usize, crc: &mut Crc32c) -> bool {
        if !self.has(offset, len) {
            return false;
        }
        for part in self.list.parts(offset, len) {
            let region = part.entry.region.resume();
            let done = region.checksum(part.entry.offset + part.at, part.len, crc);
            region.keep();
            if self.check(part.entry, done).is_err() {
                break;
            }
        }
        true
    }

    /// Records an element whose memory is gone.
    #[inline]
    fn check(&self, entry: &Entry, done: Result<(), AccessFailure>) -> Result<(), AccessFailure> {
        if done == Err(AccessFailure::Unmapped) {
            self.unmapped.set(Some(entry.region.stag()));
        }
        done
    }
}

impl Payload for SgSource<'_> {
    fn copy(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc32c>) {
        // `check` has recorded where.
        let _: Result<(), Unmapped> = copied(out, crc, |out, crc| self.copy_out(offset, out, crc));
    }

    fn checksum(&self, offset: usize, len: usize, crc: &mut Crc32c) {
        let done = self.take_in(offset, len, crc);
        debug_assert!(done, "{len} bytes at {offset} are not in the source");
    }
}

impl MemorySource for SgSource<'_> {
    #[inline]
    fn unmapped(&self) -> Option<STag> {
        self.unmapped.get()
    }
}

impl Drop for SgSource<'_> {
    fn drop(&mut self) {
        for part in self.list.parts(self.offset, self.entered - self.offset) {
            part.entry.region.leave();
        }
    }
}
