//! All regions of a device, by STag.

use core::hash::{BuildHasherDefault, Hasher};
use core::ptr;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use uwarp_ddp::{STag, TaggedFault};

use super::backing::{RegionSpec, check_spec};
use super::error::{DeregisterError, RegisterError, ReregisterError};
use super::facts::{Named, StagFacts};
use super::region::Region;
use super::slot::Slot;
use super::stags::{INDEX_BITS, STagSource};
use super::target::Target;
use super::{Access, LocalFaultKind, Sge, fault};
use crate::fork_guard::ForkGuard;
use crate::mutants::mutate;
use crate::policy::TABLE_SHARDS;

/// Access that a peer requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)] // Avoids padding in `Target`; see there.
pub enum Need {
    /// Read memory for a Read Response.
    RemoteRead,
    /// Place a Write.
    RemoteWrite,
    /// Execute an Atomic Operation.
    RemoteAtomic,
}

/// The QP that requests an access, for the local program or the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// Protection domain of the QP.
    pub pd: u32,
    /// Number of the QP.
    pub qp: u32,
    /// Rights that the QP grants its peer. An access needs the right of the region as well.
    pub access: Access,
}

impl Need {
    /// Returns the right that the access needs.
    pub fn access(self) -> Access {
        match self {
            Self::RemoteRead => Access::REMOTE_READ,
            Self::RemoteWrite => Access::REMOTE_WRITE,
            Self::RemoteAtomic => Access::REMOTE_ATOMIC,
        }
    }
}

/// Upper limit of regions in a table, whatever the settings: half of the indices, so that a free
/// index is found quickly.
const MOST: usize = 1 << (INDEX_BITS - 1);

/// Object that an index names.
pub(super) struct Entry {
    /// Protection domain whose limit includes this entry.
    pub(super) pd: u32,
    /// Region that the STag names now. Always present unless there is a slot.
    pub(super) region: Option<Arc<Region>>,
    /// Slot of a memory window or fast region, which outlasts its regions.
    pub(super) slot: Option<Box<Slot>>,
}

type Map = HashMap<u32, Entry, BuildHasherDefault<IndexHasher>>;

/// A lock and its regions, on cache lines of their own.
#[repr(align(128))]
#[derive(Default)]
struct Shard(RwLock<Map>);

/// The regions of a device.
///
/// A lookup holds one of many read locks while it finds the region and counts a reference to it. A
/// registration takes the same lock for writing.
pub struct RegionTable {
    shards: Box<[Shard; TABLE_SHARDS]>,
    allocator: Mutex<StagAllocator>,
    limit: usize,
    limit_per_pd: usize,
    fork_guard: ForkGuard,
}

/// Generator of STags and the numbers of live entries, under one lock.
struct StagAllocator {
    stags: STagSource,
    live: usize,
    /// Number of live regions by protection domain. Domains without regions have no entry.
    live_in_pd: HashMap<u32, usize>,
}

impl StagAllocator {
    /// Checks whether a protection domain may have another region.
    fn check_room(&self, pd: u32, limit: usize) -> Result<(), RegisterError> {
        let live = self.live_in_pd.get(&pd).copied().unwrap_or(0);
        if live >= limit {
            return Err(RegisterError::TooManyInPd { limit });
        }
        Ok(())
    }

    fn added(&mut self, pd: u32) {
        self.live += 1;
        *self.live_in_pd.entry(pd).or_default() += 1;
    }

    fn removed(&mut self, pd: u32) {
        self.live -= 1;
        if let Some(live) = self.live_in_pd.get_mut(&pd) {
            *live -= 1;
            if *live == 0 {
                self.live_in_pd.remove(&pd);
            }
        }
    }
}

impl RegionTable {
    /// Creates an empty table for up to `limit` regions, and up to `limit_per_pd` for each
    /// protection domain. With a `seed` the STags are predictable (for simulation only).
    pub fn new(
        limit: usize,
        limit_per_pd: usize,
        seed: Option<u64>,
    ) -> Result<Self, RegisterError> {
        Ok(Self {
            shards: Box::new(core::array::from_fn(|_| Shard::default())),
            allocator: Mutex::new(StagAllocator {
                stags: STagSource::new(seed)?,
                live: 0,
                live_in_pd: HashMap::new(),
            }),
            limit: limit.min(MOST),
            limit_per_pd,
            fork_guard: ForkGuard::here(),
        })
    }

    /// Registers a region under a new STag.
    pub fn insert(&self, spec: RegionSpec) -> Result<Arc<Region>, RegisterError> {
        check_spec(&spec)?;
        if spec.memory.can_vanish() {
            fault::install();
        }
        let mut added = None;
        self.add(spec.pd, |stag| Entry {
            pd: spec.pd,
            region: Some(Arc::clone(added.insert(Arc::new(Region::new(spec, stag))))),
            slot: None,
        })?;
        // `add` succeeded, so `added` is set.
        added.ok_or(RegisterError::TooMany { limit: self.limit })
    }

    /// Adds the entry that `make` returns for a new STag.
    pub(super) fn add(
        &self,
        pd: u32,
        make: impl FnOnce(STag) -> Entry,
    ) -> Result<STag, RegisterError> {
        self.fork_guard.check()?;
        let mut allocator = self.allocator.lock();
        if allocator.live >= self.limit {
            return Err(RegisterError::TooMany { limit: self.limit });
        }
        allocator.check_room(pd, self.limit_per_pd)?;
        let stag = self.new_stag(&mut allocator)?;
        let index = stag.0 >> 8;
        self.shard(index).write().insert(index, make(stag));
        allocator.added(pd);
        Ok(stag)
    }

    /// Returns an STag with a free index.
    fn new_stag(&self, allocator: &mut StagAllocator) -> Result<STag, RegisterError> {
        let key = allocator.stags.next_key()?;
        // Terminates: there are more indices than regions.
        loop {
            let index = allocator.stags.next_index();
            if !self.shard(index).read().contains_key(&index) {
                return Ok(STag(index << 8 | u32::from(key)));
            }
        }
    }

    /// Registers the memory of a region of this table again, as [`replace`](Self::replace) does.
    pub fn register_again(
        &self,
        old: &Region,
        to_base: u64,
        pd: u32,
        qp: Option<u32>,
        access: Access,
    ) -> Result<Arc<Region>, ReregisterError> {
        let spec = RegionSpec {
            memory: old.backing(),
            to_base: Some(to_base),
            pd,
            qp,
            access,
        };
        self.replace(old, spec)
    }

    /// Registers a region of this table again under a new STag and ends the old registration; on
    /// error neither happens.
    pub fn replace(&self, old: &Region, spec: RegionSpec) -> Result<Arc<Region>, ReregisterError> {
        self.fork_guard.check().map_err(RegisterError::Inherited)?;
        check_spec(&spec)?;
        if spec.memory.can_vanish() {
            fault::install();
        }
        let pd = spec.pd;
        let mut allocator = self.allocator.lock();
        if pd != old.pd() {
            allocator.check_room(pd, self.limit_per_pd)?;
        }
        let former = old.stag().0 >> 8;
        let is_here = self.shard(former).read().get(&former).is_some_and(|entry| {
            (entry.region.as_deref()).is_some_and(|region| ptr::eq(region, old))
        });
        if !is_here {
            let stag = old.stag().0;
            return Err(DeregisterError::Unknown { stag }.into());
        }
        let stag = self.new_stag(&mut allocator)?;
        old.retire()?;
        // Nothing fails after this point.
        let region = Arc::new(Region::new(spec, stag));
        let index = stag.0 >> 8;
        let entry = Entry {
            pd,
            region: Some(Arc::clone(&region)),
            slot: None,
        };
        self.shard(index).write().insert(index, entry);
        allocator.added(pd);
        if let Some(former) = self.shard(former).write().remove(&former) {
            allocator.removed(former.pd);
        }
        Ok(region)
    }

    /// Maximum number of regions and slots.
    pub fn limit(&self) -> u32 {
        u32::try_from(self.limit).unwrap_or(u32::MAX)
    }

    /// Number of STags, valid or not.
    pub fn live(&self) -> usize {
        self.allocator.lock().live
    }

    /// Returns false in the child of a fork, where the table is unusable.
    pub(super) fn is_here(&self) -> bool {
        self.fork_guard.is_here()
    }

    /// Calls `act` with the entry of an index, under its lock. `None` in the child of a fork.
    pub(super) fn with_entry<T>(&self, index: u32, act: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        if !self.fork_guard.is_here() {
            return None;
        }
        self.shard(index).write().get_mut(&index).map(act)
    }

    /// Removes the entry of an index and frees the index. Returns the entry, if there was one.
    pub(super) fn take_entry(&self, index: u32) -> Option<Entry> {
        let entry = self.shard(index).write().remove(&index)?;
        self.allocator.lock().removed(entry.pd);
        Some(entry)
    }

    /// Deregisters a region. When this returns `Ok`, nothing accesses the memory any more, and the
    /// STag is unknown. Fails without any change if the region is pinned or windows are bound to
    /// it.
    pub fn remove(&self, stag: STag) -> Result<(), DeregisterError> {
        if !self.fork_guard.is_here() {
            // The region belongs to the parent; the copy in this process is unusable anyway.
            return Ok(());
        }
        let unknown = DeregisterError::Unknown { stag: stag.0 };
        let region = self.find(stag).ok_or(unknown)?;
        region.retire()?;
        // If two threads deregister the same region, only one finds it here.
        self.take_entry(stag.0 >> 8).ok_or(unknown)?;
        Ok(())
    }

    /// Ends all use of an STag except by existing pins, before its owner deregisters it. Fails
    /// without any change if windows are bound to it. An unknown STag is no error.
    pub fn revoke_use(&self, stag: STag) -> Result<(), DeregisterError> {
        if !self.fork_guard.is_here() {
            return Ok(());
        }
        let Some(region) = self.find(stag) else {
            return Ok(());
        };
        let bound = region.invalidate_unless_bound();
        bound.map_err(|count| DeregisterError::WindowsBound { count })
    }

    /// Deregisters a region even if it is pinned or windows are bound to it, because its owner goes
    /// away. Only transfers with a pin still use the memory. An unknown STag is no error.
    pub fn revoke(&self, stag: STag) {
        if !self.fork_guard.is_here() {
            return;
        }
        if let Some(region) = self.find(stag) {
            region.retire_at_once();
            self.take_entry(stag.0 >> 8);
        }
    }

    /// Returns facts about an STag, for the report of an access that was refused.
    pub fn facts(&self, stag: STag) -> StagFacts {
        let index = stag.0 >> 8;
        let map = self.shard(index).read();
        let nothing = StagFacts::without_region(Named::Nothing);
        let Some(entry) = map.get(&index) else {
            return nothing;
        };
        match &entry.region {
            Some(region) if region.stag() == stag => StagFacts {
                named: match (region.is_valid(), region.bound_to()) {
                    (false, _) => Named::Invalidated,
                    (true, Some(_)) => Named::Window,
                    (true, None) => Named::Region,
                },
                base: region.to_base(),
                size: region.len() as u64,
                access: region.access(),
            },
            None if entry.slot.is_some() => StagFacts::without_region(Named::Unbound),
            None | Some(_) => StagFacts::without_region(Named::OtherKey),
        }
    }

    /// Describes an STag for the log.
    pub fn describe(&self, stag: STag) -> String {
        let index = stag.0 >> 8;
        let map = self.shard(index).read();
        let none = "no region that is registered now";
        let Some(Entry {
            region,
            slot,
            pd: _,
        }) = map.get(&index)
        else {
            return none.to_owned();
        };
        match (region, slot) {
            (Some(region), _) if region.stag() == stag => region.to_string(),
            (None, Some(slot)) => slot.describe(),
            _ => format!("{none} (one has the same index and another key)"),
        }
    }

    /// Returns the region of an STag, valid or not; `None` if no region has this index and key.
    #[inline]
    pub(super) fn find(&self, stag: STag) -> Option<Arc<Region>> {
        let index = stag.0 >> 8;
        let map = self.shard(index).read();
        map.get(&index)
            .and_then(|entry| entry.region.as_ref())
            .filter(|region| region.stag() == stag)
            .map(Arc::clone)
    }

    /// Checks whether the peer of `asker` may access `len` bytes (not 0) from `to` on.
    ///
    /// The order of the checks determines which error the peer gets: key and validity, PD and QP,
    /// right, wrap of the TO, bounds.
    #[inline]
    pub fn check(
        &self,
        stag: STag,
        to: u64,
        len: u32,
        need: Need,
        asker: &Asker,
    ) -> Result<Target, TaggedFault> {
        let (region, offset) = self.check_region(stag, to, len, need, asker)?;
        Ok(Target::new(region, offset, len, need))
    }

    /// Makes the same checks as [`check`](Self::check), and returns the region and the offset of
    /// the first byte.
    #[inline]
    pub(super) fn check_region(
        &self,
        stag: STag,
        to: u64,
        len: u32,
        need: Need,
        asker: &Asker,
    ) -> Result<(Arc<Region>, usize), TaggedFault> {
        let index = stag.0 >> 8;
        let map = self.shard(index).read();
        let region = map.get(&index).and_then(|entry| entry.region.as_ref());
        let region = region.ok_or(TaggedFault::InvalidSTag)?; // 5041-7.1-10
        let offset = check_region(region, stag, to, len, need, asker)?;
        Ok((Arc::clone(region), offset))
    }

    /// Checks whether the peer of `qp` may invalidate this STag. It may not if other QPs may use
    /// the STag too (5040-8.1.1-04), because the peer would take the memory away from them.
    pub fn check_invalidate(&self, stag: STag, pd: u32, qp: u32) -> Result<(), TaggedFault> {
        let region = self.find(stag).filter(|region| region.is_valid());
        let region = region.ok_or(TaggedFault::InvalidSTag)?; // 5040-7.2-04
        let shared = !region.is_exclusive_to(pd, qp);
        if mutate!(shared, InvalidateForeign => false) {
            return Err(TaggedFault::NotAssociated); // 5040-5.3-12
        }
        if region.windows() > 0 {
            // The windows bound to the region may be for other streams.
            return Err(TaggedFault::AccessRights);
        }
        Ok(())
    }

    /// Invalidates an STag. When this returns, no transfer uses it any more (5041-8.3.1-03).
    ///
    /// A region stays registered. A window or a fast region can be bound or registered again.
    /// Returns the number of pins, or `None` if the STag is not registered.
    pub fn invalidate(&self, stag: STag) -> Option<u32> {
        let region = self.find(stag)?;
        let pins = region.invalidate();
        self.vacate(&region);
        Some(pins)
    }

    /// Checks an SGE. `write`: the request places data there.
    pub fn check_sge(
        &self,
        sge: &Sge,
        write: bool,
        pd: u32,
        qp: u32,
    ) -> Result<(), LocalFaultKind> {
        self.check_local(sge, write, pd, qp).map(drop)
    }

    /// Checks an SGE. Returns its region and the offset of its first byte in the region. `write`:
    /// the request places data there.
    #[inline]
    pub(super) fn check_local(
        &self,
        sge: &Sge,
        write: bool,
        pd: u32,
        qp: u32,
    ) -> Result<(Arc<Region>, usize), LocalFaultKind> {
        let index = sge.lkey >> 8;
        let map = self.shard(index).read();
        let region = map
            .get(&index)
            .and_then(|entry| entry.region.as_ref())
            .ok_or(LocalFaultKind::InvalidKey { lkey: sge.lkey })?;
        let offset = check_sge(region, sge, write, pd, qp)?;
        Ok((Arc::clone(region), offset))
    }

    fn shard(&self, index: u32) -> &RwLock<Map> {
        // The low bits are as evenly spread as the high ones. The mask keeps the index in bounds.
        const { assert!(TABLE_SHARDS.is_power_of_two()) };
        &self.shards[index as usize & (TABLE_SHARDS - 1)].0
    }
}

impl Drop for RegionTable {
    fn drop(&mut self) {
        if !self.fork_guard.is_here() {
            // A transfer in progress at the fork never ends in this process.
            return;
        }
        // Targets may outlive the table, but must not access the program's memory afterwards.
        for shard in self.shards.iter_mut() {
            for entry in shard.0.get_mut().values() {
                if let Some(region) = &entry.region {
                    region.retire_at_once();
                }
            }
        }
    }
}

/// Checks a remote access to a known region; returns the offset of the first byte.
#[inline]
pub(super) fn check_region(
    region: &Region,
    stag: STag,
    to: u64,
    len: u32,
    need: Need,
    asker: &Asker,
) -> Result<usize, TaggedFault> {
    let other_key = mutate!(region.stag() != stag, StagKeyIgnored => false);
    if !region.is_valid() || other_key {
        return Err(TaggedFault::InvalidSTag); // 5041-7.1-10, 5040-7.2-06
    }
    let pd = mutate!(asker.pd, PdNotChecked => region.pd());
    let qp = mutate!(asker.qp, StreamNotChecked => region.qp().unwrap_or(asker.qp));
    if !region.is_associated(pd, qp) {
        return Err(TaggedFault::NotAssociated); // 5041-8.2-01, 5041-8.2-02, 5040-8.1.1-01
    }
    let right = need.access();
    let right = mutate!(right, WriteRightIgnored => if need == Need::RemoteWrite { Access::NONE } else { right });
    let right = mutate!(right, ReadRightIgnored => if need == Need::RemoteRead { Access::NONE } else { right });
    let right = mutate!(right, AtomicRightIgnored => if need == Need::RemoteAtomic { Access::NONE } else { right });
    if !region.access().contains(right) || !asker.access.contains(right) {
        return Err(TaggedFault::AccessRights); // 5041-7.1-11, 5040-3.2-i01
    }
    if to.checked_add(u64::from(len)).is_none() {
        // 5041-7.1-14, 5040-7.2-10: the sum itself must not wrap
        return mutate!(Err(TaggedFault::ToWrap), ToWrapTaken => if need == Need::RemoteWrite { Ok(0) } else { Err(TaggedFault::ToWrap) });
    }
    let to = mutate!(to, BaseNotChecked => to.max(region.to_base()));
    let len = mutate!(len, BoundsOffByOne => len - u32::from(need == Need::RemoteWrite));
    region
        .offset_of(to, u64::from(len))
        .ok_or(TaggedFault::BaseOrBounds) // 5041-7.1-12, 5041-7.1-13, 5041-8.3.1-01
}

/// Checks a local access; returns the offset of the first byte.
#[inline]
pub(super) fn check_sge(
    region: &Region,
    sge: &Sge,
    write: bool,
    pd: u32,
    qp: u32,
) -> Result<usize, LocalFaultKind> {
    let &Sge { addr, len, lkey } = sge;
    if !region.is_valid() || region.stag().0 != lkey {
        return Err(LocalFaultKind::InvalidKey { lkey });
    }
    if region.bound_to().is_some() {
        return Err(LocalFaultKind::Window { lkey });
    }
    if !region.is_associated(pd, qp) {
        return Err(LocalFaultKind::NotAssociated { lkey });
    }
    if write && !region.access().contains(Access::LOCAL_WRITE) {
        return Err(LocalFaultKind::NotWritable { lkey });
    }
    region
        .offset_of(addr, u64::from(len))
        .ok_or(LocalFaultKind::OutOfBounds { lkey, addr, len })
}

/// Hasher of the indices. The indices are random already, so it only has to fill the high bits,
/// which the map uses too. Peers cannot cause collisions: they choose the STags of lookups, but not
/// the STags of entries.
#[derive(Default)]
struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, index: u32) {
        self.0 = (self.0.rotate_left(24) ^ u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
