//! A registered region: its memory, its rights and its current uses.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;

use parking_lot::Mutex;
use uwarp_ddp::STag;
use uwarp_mpa::Crc32c;

use super::backing::{Backing, Owner, RegionSpec};
use super::error::{AccessFailure, DeregisterError, OutOfRange};
use super::{Access, Buffer, raw};
use crate::short_wait::ShortWait;

/// Flag: the region is deregistered, and nothing may access the memory.
const RETIRED: u64 = 1 << 63;
/// Flag: the STag was invalidated, and no transfer may use it. The local program still may, because
/// it owns the memory.
const INVALID: u64 = 1 << 62;
const PIN: u64 = 1 << 32;
const PINS: u64 = INVALID - PIN;
const USERS: u64 = PIN - 1;

/// A registered region, or one binding of a memory window over part of a region.
///
/// The properties of a region never change. `state` says whether it may be used.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    to_base: u64,
    pd: u32,
    qp: Option<u32>,
    access: Access,
    /// True if data may be placed here. For a window this depends on the region that it is bound
    /// to.
    placeable: bool,
    /// True if the memory may be registered for local write.
    writable: bool,
    stag: STag,
    /// Number of memory windows bound to the region.
    windows: Mutex<u32>,
    /// `RETIRED | INVALID | pins (30 bits) | short users (32 bits)`. New uses and pins are refused
    /// once a flag is set; local uses by the program only once `RETIRED` is set. A refused use is
    /// counted for a moment.
    state: AtomicU64,
    owner: Owner,
}

// SAFETY: the memory is only accessed through the copies of `raw`, which allow for racing accesses.
// A copy runs only between `enter` and `leave`, between `add_pin` and `remove_pin`, or while an
// owner keeps the memory alive. `state` is atomic, `windows` has a lock, and the rest is constant.
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

    /// STag of the region, which is both lkey and rkey.
    pub fn stag(&self) -> STag {
        self.stag
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// TO of the first byte, and its local address in an SGE.
    pub fn to_base(&self) -> u64 {
        self.to_base
    }

    /// Returns true if only `qp` of `pd` may use the region.
    pub(super) fn is_exclusive_to(&self, pd: u32, qp: u32) -> bool {
        self.pd == pd && self.qp == Some(qp)
    }

    /// Access rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The buffer that the region owns, if any.
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.owner {
            Owner::Buffer(buffer) => Some(buffer),
            Owner::Program | Owner::Window(_) => None,
        }
    }

    /// The region that this window is bound to; `None` for a region.
    #[inline]
    pub(super) fn bound_to(&self) -> Option<&Arc<Region>> {
        match &self.owner {
            Owner::Window(region) => Some(region),
            Owner::Program | Owner::Buffer(_) => None,
        }
    }

    /// Protection domain.
    pub fn pd(&self) -> u32 {
        self.pd
    }

    /// The only QP that may use the region; `None` allows every QP of the PD.
    pub fn qp(&self) -> Option<u32> {
        self.qp
    }

    /// Returns true if data may be placed here: the region is registered for local write, or the
    /// window is bound to such a region.
    pub(super) fn is_placeable(&self) -> bool {
        self.placeable
    }

    /// Returns the memory of the region, for registering it again.
    pub(super) fn backing(&self) -> Backing {
        Backing::again(self.base, self.len, self.writable, self.owner.clone())
    }

    /// Returns true until the STag is invalidated or deregistered. A window is valid only while its
    /// region is.
    pub(super) fn is_valid(&self) -> bool {
        self.state.load(Ordering::Acquire) & (RETIRED | INVALID) == 0
            && self.bound_to().is_none_or(|region| region.is_valid())
    }

    /// Counts a window that is bound here. Returns false if the STag was invalidated or
    /// deregistered.
    pub(super) fn add_window(&self) -> bool {
        let mut windows = self.windows.lock();
        let valid = self.is_valid();
        *windows += u32::from(valid);
        valid
    }

    /// Removes a window from the count of those bound here.
    pub(super) fn remove_window(&self) {
        *self.windows.lock() -= 1;
    }

    /// Number of windows bound here.
    pub(super) fn windows(&self) -> u32 {
        *self.windows.lock()
    }

    /// Returns true if `qp` of `pd` may use the region.
    #[inline]
    pub(super) fn is_associated(&self, pd: u32, qp: u32) -> bool {
        self.pd == pd && self.qp.is_none_or(|only| only == qp)
    }

    /// Returns the offset of `to` (a TO or address) in the region, if the `len` bytes from `to` on
    /// are inside the region.
    #[inline]
    pub(super) fn offset_of(&self, to: u64, len: u64) -> Option<usize> {
        let offset = to.checked_sub(self.to_base)?;
        let size = self.len as u64;
        let inside = offset <= size && len <= size - offset;
        inside.then_some(offset as usize)
    }

    /// Begins a short use (one copy). `None` if the STag was invalidated or deregistered.
    #[inline]
    pub(super) fn enter(&self) -> Option<Use<'_>> {
        self.enter_unless(RETIRED | INVALID)
    }

    #[inline]
    fn enter_unless(&self, flags: u64) -> Option<Use<'_>> {
        // Adding first and checking the previous value takes only one atomic operation. A refused
        // use is counted for a moment, and a thread in `wait_for_users` waits that moment longer.
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

    /// Begins a long use: deregistration reports `Busy` until [`remove_pin`](Self::remove_pin).
    /// Returns false if the STag was invalidated or deregistered, or if there are 2^30 - 1 pins.
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

    /// Ends all use of the STag by transfers (RFC 5042 section 6.2.2). When this returns, no copy
    /// is in progress and none can start. Returns the number of pins; pinned bytes may still be
    /// sent.
    pub(super) fn invalidate(&self) -> u32 {
        let state = self.state.fetch_or(INVALID, Ordering::AcqRel);
        self.wait_for_users();
        pins(state)
    }

    /// Does the same as [`invalidate`](Self::invalidate), unless windows are bound here. In that
    /// case nothing changes, and the error is the number of windows.
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

    /// Ends all use of the memory. Fails without any change if the region is pinned or windows are
    /// bound to it.
    pub(super) fn retire(&self) -> Result<(), DeregisterError> {
        // `add_window` checks the state under the same lock, so no window is bound between this
        // check and the end.
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

    /// Ends all use of the memory except by existing pins. Cannot fail; used when the owner or the
    /// device goes away.
    pub(super) fn retire_at_once(&self) {
        self.state.fetch_or(RETIRED | INVALID, Ordering::AcqRel);
        self.wait_for_users();
    }

    /// Waits until no copy and no call of the LLP uses the memory.
    ///
    /// Both are short and do not block, with one exception: a capture that is written to a pipe
    /// that no program reads. A thread that uses the memory must not call this, because it would
    /// wait for itself. So guards leave this module only for framing, and a
    /// [`LentRun`](super::LentRun) is dropped before anything is invalidated.
    fn wait_for_users(&self) {
        let mut wait = ShortWait::default();
        while self.state.load(Ordering::Acquire) & USERS != 0 {
            wait.pause();
        }
    }

    /// Copies bytes out for the program that owns the memory. Works after the STag was invalidated,
    /// too: a program first revokes the STag, then reads the bytes (RFC 5042 section 6.2.2).
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        let _use = self.enter_local(offset, out.len())?;
        // SAFETY: the range was checked. The memory exists: it is owned, or in use and not
        // deregistered.
        let read = unsafe { raw::load(self.base.as_ptr().add(offset), out) };
        fence(Ordering::Acquire);
        read.then_some(()).ok_or(OutOfRange {
            offset,
            len: out.len(),
            size: 0,
        })
    }

    /// Copies bytes in for the program that owns the memory.
    ///
    /// Returns an error with a size of 0 if the memory is the program's own and not registered for
    /// local write, or if it is a read-only mapping.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        let _use = self.enter_local(offset, bytes.len())?;
        let ours = self.buffer().is_some_and(|buffer| buffer.is_writable());
        if !ours && !self.placeable {
            return Err(OutOfRange {
                offset,
                len: bytes.len(),
                size: 0,
            });
        }
        // SAFETY: as for `read_at`, and writable: an owned buffer, or memory registered for local
        // write.
        let written = unsafe { raw::store(self.base.as_ptr().add(offset), bytes) };
        written.then_some(()).ok_or(OutOfRange {
            offset,
            len: bytes.len(),
            size: 0,
        })
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

/// Describes the region, to follow "STag 0x...: " in a sentence.
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

/// A short use of a region, which keeps the memory alive. Held for a copy, never while the thread
/// waits.
pub(super) struct Use<'a> {
    region: &'a Region,
}

impl Use<'_> {
    /// Copies the bytes to `offset`, in address order, the last byte last. Copies nothing if
    /// the range is outside the region, or if the region (for a window: the region that it is bound
    /// to) is not registered for local write. Copies a part if the memory is gone.
    #[inline]
    pub(super) fn place(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessFailure> {
        let region = self.region;
        let inside = offset
            .checked_add(bytes.len())
            .is_some_and(|end| end <= region.len);
        if !inside || !region.placeable {
            return Err(AccessFailure::NotAllowed);
        }
        // SAFETY: the range lies in the region, which was registered as writable and whose memory
        // exists while a use is counted. No Rust reference to it exists: `Buffer` never hands one
        // out, and `Backing::in_place` requires it for the program's own memory. So the source
        // cannot overlap it either.
        let stored = unsafe { raw::store(region.base.as_ptr().add(offset), bytes) };
        stored.then_some(()).ok_or(AccessFailure::Unmapped)
    }

    /// Fills `out` with the bytes from `offset` on and adds them to `crc`, if given. Does
    /// nothing if the range is outside the region.
    #[inline]
    pub(super) fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: Option<&mut Crc32c>,
    ) -> Result<(), AccessFailure> {
        let from = self.region.pointer(offset, out.len());
        let from = from.ok_or(AccessFailure::NotAllowed)?;
        // SAFETY: as for `place`; every region is readable.
        let copied = unsafe {
            match crc {
                Some(crc) => raw::load_with_crc(from, out, crc),
                None => raw::load(from, out),
            }
        };
        copied.then_some(()).ok_or(AccessFailure::Unmapped)
    }

    /// Adds `len` bytes from `offset` on to the CRC. Does nothing if the range is outside the
    /// region.
    pub(super) fn checksum(
        &self,
        offset: usize,
        len: usize,
        crc: &mut Crc32c,
    ) -> Result<(), AccessFailure> {
        let from = self.region.pointer(offset, len);
        let from = from.ok_or(AccessFailure::NotAllowed)?;
        // SAFETY: as for `place`; every region is readable.
        let read = unsafe { raw::checksum(from, len, crc) };
        read.then_some(()).ok_or(AccessFailure::Unmapped)
    }

    pub(super) fn region(&self) -> &Region {
        self.region
    }

    /// Drops the guard without ending the use; [`Region::leave`] ends it.
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

    /// Returns the address of the byte at `offset`; `None` if the range is outside the region. The
    /// pointer is valid only while the region is in use or pinned.
    pub(super) fn pointer(&self, offset: usize, len: usize) -> Option<*const u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| self.base.as_ptr().wrapping_add(offset).cast_const())
    }

    /// Resumes a use that was [kept](Use::keep).
    pub(super) fn resume(&self) -> Use<'_> {
        Use { region: self }
    }
}
