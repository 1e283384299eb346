//! One registered region: its memory, its rights, and who is using it now.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use uwarp_ddp::STag;
use uwarp_mpa::Crc32c;

use super::backing::{Backing, Owner, RegionSpec};
use super::error::{DeregisterError, OutOfRange};
use super::{Access, Buffer, raw};

/// Deregistered: nothing may touch the memory any more.
const RETIRED: u64 = 1 << 63;
/// The STag was invalidated: no transfer may use it. The local program still may, it owns the memory.
const INVALID: u64 = 1 << 62;
const PIN: u64 = 1 << 32;
const PINS: u64 = INVALID - PIN;
const USERS: u64 = PIN - 1;

/// A registered region, or what a memory window is bound to: each binding is one of these, over a part of a region.
/// What it is never changes; whether it may be used is in `state`.
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    to_base: u64,
    pd: u32,
    qp: Option<u32>,
    access: Access,
    /// Whether anything may be placed here: for a window, into the region that it is bound to.
    placeable: bool,
    /// Whether the memory may be registered for local write.
    writable: bool,
    stag: STag,
    /// Memory windows that are bound to it.
    windows: Mutex<u32>,
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
        let placeable = match &memory.owner {
            Owner::Window(region) => region.placeable,
            Owner::Program | Owner::Buffer(_) => access.contains(Access::LOCAL_WRITE),
        };
        Self {
            base: memory.base,
            len: memory.len,
            to_base: to_base.unwrap_or(address),
            pd,
            qp,
            access,
            placeable,
            writable: memory.is_writable(),
            stag,
            windows: Mutex::new(0),
            state: AtomicU64::new(0),
            owner: memory.owner,
        }
    }

    /// The STag; lkey and rkey are the same number.
    pub(crate) fn stag(&self) -> STag {
        self.stag
    }

    /// Bytes in the region.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// TO, and local address in an SGE, of the first byte.
    pub(crate) fn to_base(&self) -> u64 {
        self.to_base
    }

    /// True when `qp` of `pd` may use the region and no other QP may.
    pub(super) fn is_exclusive_to(&self, pd: u32, qp: u32) -> bool {
        self.pd == pd && self.qp == Some(qp)
    }

    /// The rights.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// The buffer that the region owns, when it owns one.
    pub(crate) fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.owner {
            Owner::Buffer(buffer) => Some(buffer),
            Owner::Program | Owner::Window(_) => None,
        }
    }

    /// The region that this window is bound to; `None` when it is a region itself.
    #[inline]
    pub(super) fn bound_to(&self) -> Option<&Arc<Region>> {
        match &self.owner {
            Owner::Window(region) => Some(region),
            Owner::Program | Owner::Buffer(_) => None,
        }
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// The one QP that may use it; `None` is every QP of the PD.
    pub(crate) fn qp(&self) -> Option<u32> {
        self.qp
    }

    /// Whether anything may be placed here: registered for local write, or a window over a region that is.
    pub(super) fn is_placeable(&self) -> bool {
        self.placeable
    }

    /// The same memory, for another registration.
    pub(crate) fn backing(&self) -> Backing {
        Backing::again(self.base, self.len, self.writable, self.owner.clone())
    }

    /// True until the STag is invalidated or deregistered; that of a window also when its region is.
    pub(super) fn is_valid(&self) -> bool {
        self.state.load(Ordering::Acquire) & (RETIRED | INVALID) == 0
            && self.bound_to().is_none_or(|region| region.is_valid())
    }

    /// Counts one more window that is bound here. `false` once the STag was invalidated or deregistered.
    pub(super) fn add_window(&self) -> bool {
        let mut windows = self.windows.lock();
        let valid = self.is_valid();
        *windows += u32::from(valid);
        valid
    }

    /// A window is not bound here any more.
    pub(super) fn remove_window(&self) {
        *self.windows.lock() -= 1;
    }

    /// Windows that are bound here.
    pub(super) fn windows(&self) -> u32 {
        *self.windows.lock()
    }

    /// True when `pd` and `qp` may use the region.
    #[inline]
    pub(super) fn is_associated(&self, pd: u32, qp: u32) -> bool {
        self.pd == pd && self.qp.is_none_or(|only| only == qp)
    }

    /// Offset of `len` bytes from TO (or address) `to` on, when all of them are in the region.
    #[inline]
    pub(super) fn offset_of(&self, to: u64, len: u64) -> Option<usize> {
        let offset = to.checked_sub(self.to_base)?;
        let size = self.len as u64;
        let inside = offset <= size && len <= size - offset;
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
        let entered = before & flags == 0
            && match &self.owner {
                Owner::Window(region) => region.enter_unless(flags).map(Use::keep).is_some(),
                Owner::Program | Owner::Buffer(_) => true,
            };
        if !entered {
            self.state.fetch_sub(1, Ordering::Release);
        }
        entered.then(|| Use { region: self })
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
    /// (RFC 5042 section 6.2.2). Pins that are still held are reported: their bytes may still be sent.
    pub(super) fn invalidate(&self) -> u32 {
        let state = self.state.fetch_or(INVALID, Ordering::AcqRel);
        self.wait_for_users();
        pins(state)
    }

    /// As [`invalidate`](Self::invalidate), unless windows are bound here: then nothing changes, and their count is the
    /// error.
    pub(super) fn invalidate_unless_bound(&self) -> Result<(), u32> {
        let windows = self.windows.lock();
        if *windows > 0 {
            return Err(*windows);
        }
        self.state.fetch_or(INVALID, Ordering::AcqRel);
        drop(windows);
        self.wait_for_users();
        Ok(())
    }

    /// Ends all use of the memory, unless it is pinned or windows are bound to it; then nothing changes.
    pub(super) fn retire(&self) -> Result<(), DeregisterError> {
        // No window is bound between this look and the end: `add_window` looks at the state under the same lock.
        let windows = self.windows.lock();
        if *windows > 0 {
            return Err(DeregisterError::WindowsBound { count: *windows });
        }
        let retire = |state: u64| (state & PINS == 0).then_some(state | RETIRED | INVALID);
        match self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, retire)
        {
            Ok(_) => {
                drop(windows);
                self.wait_for_users();
                Ok(())
            }
            Err(state) => Err(DeregisterError::Busy { pins: pins(state) }),
        }
    }

    /// Ends all use of the memory but for the pins that are held (the owner or the device is going away).
    pub(super) fn retire_at_once(&self) {
        self.state.fetch_or(RETIRED | INVALID, Ordering::AcqRel);
        self.wait_for_users();
    }

    /// Waits until no copy is going on, and no call of the LLP that takes bytes from here. Both are bounded and wait for nothing, so this is
    /// short (but where a capture is written into a pipe that nobody reads); it must not be called by a thread that is in one itself (guards
    /// leave this module for framing alone, and a [`LentRun`](super::LentRun) is given back before anything is invalidated).
    fn wait_for_users(&self) {
        let mut spins = 0_u32;
        while self.state.load(Ordering::Acquire) & USERS != 0 {
            match spins {
                0..64 => core::hint::spin_loop(),
                64..1024 => thread::yield_now(),
                // To yield gives nothing to a thread that was interrupted in its copy and has a lower priority.
                _ => thread::sleep(Duration::from_micros(50)),
            }
            spins = spins.saturating_add(1);
        }
    }

    /// Copies bytes out for the program that owns the memory, whatever became of the STag (RFC 5042 section 6.2.2:
    /// a program first revokes the STag, then looks at the bytes).
    pub(crate) fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        let _use = self.enter_local(offset, out.len())?;
        // SAFETY: the range was checked, and the memory is there: owned, or not deregistered and in use.
        unsafe { raw::load(self.base.as_ptr().add(offset), out) };
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies bytes in for the program that owns the memory. Refused, as if the region were empty, when it is the
    /// program's own memory and not registered for local write, or a mapping that is only for reading.
    pub(crate) fn write_at(&self, offset: usize, octets: &[u8]) -> Result<(), OutOfRange> {
        let _use = self.enter_local(offset, octets.len())?;
        let ours = self.buffer().is_some_and(|buffer| buffer.is_writable());
        if !ours && !self.placeable {
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
        let article = if self.is_valid() {
            "a"
        } else {
            "an invalidated"
        };
        match self.bound_to() {
            Some(region) => write!(
                f,
                "{article} memory window over STag {:#010x},",
                region.stag.0
            ),
            None => write!(f, "{article} region"),
        }?;
        write!(
            f,
            " of {} bytes from {:#x} on, with {}",
            self.len, self.to_base, self.access
        )?;
        match self.qp {
            Some(qp) => write!(f, ", for QP {qp}"),
            None => write!(f, ", for protection domain {}", self.pd),
        }?;
        match self.windows() {
            0 => Ok(()),
            1 => f.write_str(", with 1 memory window bound to it"),
            count => write!(f, ", with {count} memory windows bound to it"),
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
    /// Copies `octets` to `offset`, in address order, the last byte last. `false`, and nothing is copied, when the
    /// range is not in the region or the region is not registered for local write (a window: the region behind it).
    #[inline]
    pub(super) fn place(&self, offset: usize, octets: &[u8]) -> bool {
        let region = self.region;
        let inside = offset
            .checked_add(octets.len())
            .is_some_and(|end| end <= region.len);
        if !inside || !region.placeable {
            return false;
        }
        // SAFETY: the range is in the region, whose memory is there while a use is counted, and which was registered
        // as writable. No Rust reference to it exists: `Buffer` never hands one out, and for the program's own
        // memory `Backing::in_place` asks for it. So `octets` cannot overlap it either.
        unsafe { raw::store(region.base.as_ptr().add(offset), octets) };
        true
    }

    /// Copies bytes from `offset` on, and takes what was copied into the CRC, if there is one. `false`, and nothing is
    /// done, when the range is not in the region.
    #[inline]
    pub(super) fn copy_out(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc32c>) -> bool {
        let Some(from) = self.region.pointer(offset, out.len()) else {
            return false;
        };
        // SAFETY: as for `place`; every region is readable.
        unsafe {
            match crc {
                Some(crc) => raw::load_with_crc(from, out, crc),
                None => raw::load(from, out),
            }
        }
        true
    }

    /// Takes `len` bytes from `offset` on into the CRC. `false`, and nothing is done, when the range is not in the
    /// region.
    pub(super) fn checksum(&self, offset: usize, len: usize, crc: &mut Crc32c) -> bool {
        let Some(from) = self.region.pointer(offset, len) else {
            return false;
        };
        // SAFETY: as for `place`; every region is readable.
        unsafe { raw::checksum(from, len, crc) };
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
        if let Owner::Window(region) = &self.owner {
            region.leave();
        }
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Address of the byte at `offset`; `None` when the range is not in the region. The memory is there while the
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
