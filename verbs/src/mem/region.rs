//! One registered region: its memory, its rights, and who is using it now.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;
use std::thread;

use uwarp_ddp::STag;

use super::error::{OutOfRange, RegisterError};
use super::{Access, Buffer, raw};

/// The memory behind a region, and what keeps it there.
pub(crate) struct Backing {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// What keeps the memory of a region alive.
enum Owner {
    /// The program, as it promised in [`Backing::in_place`].
    Program,
    Buffer(Arc<Buffer>),
}

impl Backing {
    /// All of an owned buffer.
    pub(crate) fn buffer(buffer: Arc<Buffer>) -> Self {
        Self {
            base: buffer.base(),
            len: buffer.len(),
            owner: Owner::Buffer(buffer),
        }
    }

    /// Memory of the program, used where it lies.
    ///
    /// # Safety
    /// From the registration until [`RegionTable::remove`](super::RegionTable::remove) has returned `Ok` for it, or
    /// [`RegionTable::revoke`](super::RegionTable::revoke) has returned (or the table is dropped) and every
    /// [`PinnedRun`](super::PinnedRun) of it is gone, `base..base + len` stays mapped, readable and, when registered for local write,
    /// writable; and the program reaches it only in ways that allow for others reading and writing it at the same
    /// time (no Rust reference lives while a transfer may use it).
    pub(crate) unsafe fn in_place(base: NonNull<u8>, len: usize) -> Self {
        Self {
            base,
            len,
            owner: Owner::Program,
        }
    }
}

/// What to register.
pub(crate) struct RegionSpec {
    /// The memory.
    pub(crate) memory: Backing,
    /// TO (and local address) of the first octet; `None` is its address.
    pub(crate) to_base: Option<u64>,
    /// Protection domain.
    pub(crate) pd: u32,
    /// The one QP that may use it; `None` is every QP of the PD.
    pub(crate) qp: Option<u32>,
    /// What it may be used for.
    pub(crate) access: Access,
}

/// Deregistered: nothing may touch the memory any more.
const RETIRED: u64 = 1 << 63;
/// The STag was invalidated: no transfer may use it. The local program still may, it owns the memory.
const INVALID: u64 = 1 << 62;
const PIN: u64 = 1 << 32;
const PINS: u64 = INVALID - PIN;
const USERS: u64 = PIN - 1;

/// A registered region. What it is never changes; whether it may be used is in `state`.
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    to_base: u64,
    pd: u32,
    qp: Option<u32>,
    access: Access,
    stag: STag,
    /// `RETIRED | INVALID | pins (30 bits) | short users (32 bits)`. Users and pins are only added while neither
    /// flag is set (local use by the program: while `RETIRED` is not), so both counts only fall once it is.
    state: AtomicU64,
    owner: Owner,
}

// SAFETY: the memory is only reached through the copies of `raw`, which allow for racing accesses, and only between
// `enter` or `pin` and the matching leave, or when an owner keeps it alive; `state` is atomic, the rest constant.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn new(spec: RegionSpec, stag: STag) -> Self {
        let RegionSpec {
            memory,
            to_base,
            pd,
            qp,
            access,
        } = spec;
        let address = memory.base.as_ptr().expose_provenance() as u64;
        Self {
            base: memory.base,
            len: memory.len,
            to_base: to_base.unwrap_or(address),
            pd,
            qp,
            access,
            stag,
            state: AtomicU64::new(0),
            owner: memory.owner,
        }
    }

    /// The STag; lkey and rkey are the same number.
    pub(crate) fn stag(&self) -> STag {
        self.stag
    }

    /// Octets in the region.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// TO, and local address in an SGE, of the first octet.
    pub(crate) fn to_base(&self) -> u64 {
        self.to_base
    }

    /// The protection domain it belongs to.
    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    /// True when `qp` of `pd` may use the region and no other QP may.
    pub(super) fn is_exclusive_to(&self, pd: u32, qp: u32) -> bool {
        self.pd == pd && self.qp == Some(qp)
    }

    /// The rights.
    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// The buffer that the region owns, when it owns one.
    fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.owner {
            Owner::Buffer(buffer) => Some(buffer),
            Owner::Program => None,
        }
    }

    /// True until the STag is invalidated or deregistered.
    pub(super) fn is_valid(&self) -> bool {
        self.state.load(Ordering::Acquire) & (RETIRED | INVALID) == 0
    }

    /// True when `pd` and `qp` may use the region.
    #[inline]
    pub(super) fn is_associated(&self, pd: u32, qp: u32) -> bool {
        self.pd == pd && self.qp.is_none_or(|only| only == qp)
    }

    /// Offset of `len` octets from TO (or address) `to` on, when all of them are in the region.
    #[inline]
    pub(super) fn offset_of(&self, to: u64, len: u32) -> Option<usize> {
        let offset = to.checked_sub(self.to_base)?;
        let size = self.len as u64;
        let inside = offset <= size && u64::from(len) <= size - offset;
        inside.then_some(offset as usize)
    }

    /// Begins a short use (one copy). `None` once the STag was invalidated or deregistered.
    #[inline]
    pub(super) fn enter(&self) -> Option<Use<'_>> {
        self.enter_unless(RETIRED | INVALID)
    }

    #[inline]
    fn enter_unless(&self, flags: u64) -> Option<Use<'_>> {
        // Adding first and looking at what was there keeps this to one atomic operation. A late comer is counted
        // for a moment; who waits for the users to leave waits that moment longer.
        let before = self.state.fetch_add(1, Ordering::Acquire);
        let guard = Use { region: self };
        (before & flags == 0).then_some(guard)
    }

    /// Begins a long use: until [`remove_pin`](Self::remove_pin) deregistration says Busy. `false` once the STag was
    /// invalidated or deregistered (or in the case of 2^30 pins).
    pub(super) fn add_pin(&self) -> bool {
        let add = |state: u64| {
            let may = state & (RETIRED | INVALID) == 0 && state & PINS != PINS;
            may.then_some(state + PIN)
        };
        self.state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, add)
            .is_ok()
    }

    /// Ends a long use.
    pub(super) fn remove_pin(&self) {
        self.state.fetch_sub(PIN, Ordering::Release);
    }

    /// Ends all use of the STag by transfers: none starts any more, and none is in a copy when this returns
    /// (RFC 5042 section 6.2.2). Pins that are still held are reported: their octets may still be sent.
    pub(super) fn invalidate(&self) -> u32 {
        let state = self.state.fetch_or(INVALID, Ordering::AcqRel);
        self.wait_for_users();
        pins(state)
    }

    /// Ends all use of the memory, unless it is pinned; then nothing changes, and the pins are the error.
    pub(super) fn retire(&self) -> Result<(), u32> {
        let retire = |state: u64| (state & PINS == 0).then_some(state | RETIRED | INVALID);
        match self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, retire)
        {
            Ok(_) => {
                self.wait_for_users();
                Ok(())
            }
            Err(state) => Err(pins(state)),
        }
    }

    /// Ends all use of the memory but for the pins that are held (the owner or the device is going away).
    pub(super) fn retire_at_once(&self) {
        self.state.fetch_or(RETIRED | INVALID, Ordering::AcqRel);
        self.wait_for_users();
    }

    /// Waits until no copy is going on. A copy is bounded and never waits for anything, so this is short; it must
    /// not be called by a thread that is in a copy itself (guards do not leave this module but for framing).
    fn wait_for_users(&self) {
        let mut spins = 0_u32;
        while self.state.load(Ordering::Acquire) & USERS != 0 {
            if spins < 64 {
                core::hint::spin_loop();
            } else {
                thread::yield_now();
            }
            spins = spins.saturating_add(1);
        }
    }

    /// Copies octets out for the program that owns the memory, whatever became of the STag (RFC 5042 section 6.2.2:
    /// a program first revokes the STag, then looks at the octets).
    pub(crate) fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        let _use = self.enter_local(offset, out.len())?;
        // SAFETY: the range was checked, and the memory is there: owned, or not deregistered and in use.
        unsafe { raw::load(self.base.as_ptr().add(offset), out) };
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies octets in for the program that owns the memory. Refused, as if the region were empty, when it is the
    /// program's own memory and not registered for local write.
    pub(crate) fn write_at(&self, offset: usize, octets: &[u8]) -> Result<(), OutOfRange> {
        let _use = self.enter_local(offset, octets.len())?;
        if self.buffer().is_none() && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(OutOfRange {
                offset,
                len: octets.len(),
                size: 0,
            });
        }
        // SAFETY: as for `read_at`, and writable: our own buffer, or registered for local write.
        unsafe { raw::store(self.base.as_ptr().add(offset), octets) };
        Ok(())
    }

    fn enter_local(&self, offset: usize, len: usize) -> Result<Option<Use<'_>>, OutOfRange> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(OutOfRange {
                offset,
                len,
                size: self.len,
            });
        }
        if self.buffer().is_some() {
            return Ok(None);
        }
        match self.enter_unless(RETIRED) {
            Some(guard) => Ok(Some(guard)),
            None => Err(OutOfRange {
                offset,
                len,
                size: 0,
            }),
        }
    }
}

fn pins(state: u64) -> u32 {
    ((state & PINS) >> 32) as u32
}

/// In words, to follow "STag 0x...: " in a sentence.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        if state & (INVALID | RETIRED) != 0 {
            f.write_str("an invalidated region")?;
        } else {
            f.write_str("a region")?;
        }
        write!(
            f,
            " of {} octets from {:#x} on, with {}",
            self.len, self.to_base, self.access
        )?;
        match self.qp {
            Some(qp) => write!(f, ", for QP {qp}"),
            None => write!(f, ", for protection domain {}", self.pd),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        f.debug_struct("Region")
            .field("stag", &format_args!("{:#010x}", self.stag.0))
            .field("to_base", &format_args!("{:#x}", self.to_base))
            .field("len", &self.len)
            .field("pd", &self.pd)
            .field("qp", &self.qp)
            .field("access", &self.access)
            .field("invalid", &(state & INVALID != 0))
            .field("deregistered", &(state & RETIRED != 0))
            .field("pins", &pins(state))
            .finish_non_exhaustive()
    }
}

/// A short use of a region: while it lives the memory is there. Held for a copy, never across a wait.
pub(super) struct Use<'a> {
    region: &'a Region,
}

impl Use<'_> {
    /// Copies `octets` to `offset`, in address order, the last octet last. `false`, and nothing is copied, when the
    /// range is not in the region or the region is not registered for local write.
    #[inline]
    pub(super) fn place(&self, offset: usize, octets: &[u8]) -> bool {
        let region = self.region;
        let inside = offset
            .checked_add(octets.len())
            .is_some_and(|end| end <= region.len);
        if !inside || !region.access.contains(Access::LOCAL_WRITE) {
            return false;
        }
        // SAFETY: the range is in the region, whose memory is there while a use is counted, and which was registered
        // as writable. No Rust reference to it exists: `Backing` never hands one out, and for the program's own
        // memory `Backing::in_place` asks for it. So `octets` cannot overlap it either.
        unsafe { raw::store(region.base.as_ptr().add(offset), octets) };
        true
    }

    /// Copies octets from `offset` on. `false`, and nothing is copied, when the range is not in the region.
    #[inline]
    pub(super) fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        let region = self.region;
        if offset
            .checked_add(out.len())
            .is_none_or(|end| end > region.len)
        {
            return false;
        }
        // SAFETY: as for `place`; every region is readable.
        unsafe { raw::load(region.base.as_ptr().add(offset), out) };
        true
    }

    /// The region.
    pub(super) fn region(&self) -> &Region {
        self.region
    }

    /// Leaves without ending the use: [`Region::leave`] does.
    pub(super) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Use<'_> {
    #[inline]
    fn drop(&mut self) {
        self.region.leave();
    }
}

impl Region {
    /// Ends a use that was [kept](Use::keep).
    #[inline]
    pub(super) fn leave(&self) {
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Address of the octet at `offset`; `None` when the range is not in the region. The memory is there while the
    /// region is in use or pinned.
    pub(super) fn pointer(&self, offset: usize, len: usize) -> Option<*const u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| self.base.as_ptr().wrapping_add(offset).cast_const())
    }

    /// Takes up a use that was [kept](Use::keep), to keep it again or to end it.
    pub(super) fn resume(&self) -> Use<'_> {
        Use { region: self }
    }
}

/// The rules of a registration that do not depend on other regions.
pub(super) fn check_spec(spec: &RegionSpec) -> Result<(), RegisterError> {
    let len = spec.memory.len;
    let address = spec.memory.base.as_ptr().addr();
    if len == 0 {
        return Err(RegisterError::Empty);
    }
    if len > isize::MAX as usize || address.checked_add(len).is_none() {
        return Err(RegisterError::Wraps {
            base: address as u64,
            len,
        });
    }
    let to_base = spec.to_base.unwrap_or(address as u64);
    // The end must be a TO too: an access up to it must not look like a wrap (5041-7.1-14).
    if to_base.checked_add(len as u64).is_none() {
        return Err(RegisterError::Wraps { base: to_base, len });
    }
    if spec.access.lacks_local_write() {
        return Err(RegisterError::NeedsLocalWrite {
            access: spec.access,
        });
    }
    Ok(())
}
