//! Memory of a region, and the owner that keeps it alive.

use core::ptr::NonNull;
use std::sync::Arc;

use super::error::RegisterError;
use super::region::Region;
use super::{Access, Buffer};

/// The memory of a region, and its owner.
pub struct Backing {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    /// True if it may be registered for local write.
    writable: bool,
    pub(super) owner: Owner,
}

/// Keeps the memory of a region alive.
#[derive(Clone)]
pub(super) enum Owner {
    /// The program keeps the memory alive, as [`Backing::in_place`] requires.
    Program,
    Buffer(Arc<Buffer>),
    /// A memory window: the region that it is bound to. Using the window uses that region.
    Window(Arc<Region>),
}

impl Backing {
    /// Returns the memory of a whole owned buffer.
    pub fn buffer(buffer: Arc<Buffer>) -> Self {
        Self {
            base: buffer.base(),
            len: buffer.len(),
            writable: buffer.is_writable(),
            owner: Owner::Buffer(buffer),
        }
    }

    /// Returns part of an owned buffer; `None` if the range is not inside the buffer.
    pub fn part(buffer: Arc<Buffer>, offset: u64, len: u64) -> Option<Self> {
        let whole = Self::buffer(buffer);
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let inside = offset.checked_add(len).is_some_and(|end| end <= whole.len);
        inside.then(|| whole.cut(offset, len))
    }

    /// Returns `len` bytes of a region from `offset` on, for a window. The caller has checked the
    /// range.
    pub(super) fn window(region: Arc<Region>, offset: usize, len: usize) -> Self {
        let whole = region.backing();
        Self {
            owner: Owner::Window(region),
            ..whole.cut(offset, len)
        }
    }

    /// Returns the memory of an existing region, for registering it again.
    pub(super) fn again(base: NonNull<u8>, len: usize, writable: bool, owner: Owner) -> Self {
        Self {
            base,
            len,
            writable,
            owner,
        }
    }

    /// Returns the program's own memory, which is used in place. `writable`: it may be registered
    /// for local write.
    ///
    /// # Safety
    /// The range `base..base + len` must stay mapped, readable and, if `writable`, writable. The
    /// program may access it only in ways that allow concurrent reads and writes by others: no Rust
    /// reference to it exists while a transfer may use it.
    ///
    /// Both conditions apply from the registration until one of these events:
    /// * [`RegionTable::remove`](super::RegionTable::remove) has returned `Ok` for the region.
    /// * [`RegionTable::revoke`](super::RegionTable::revoke) has returned, or the table was
    ///   dropped, and every [`PinnedRun`](super::PinnedRun) of the region was dropped.
    ///
    /// In the child of a fork the table ends nothing. There the conditions apply as long as the
    /// child uses a [`Region`](super::Region) of before the fork.
    pub unsafe fn in_place(base: NonNull<u8>, len: usize, writable: bool) -> Self {
        Self {
            base,
            len,
            writable,
            owner: Owner::Program,
        }
    }

    /// Returns true if the memory can vanish while it is registered, by a mistake of this program
    /// or of another one: the program's own memory, or a file.
    pub(super) fn can_vanish(&self) -> bool {
        match &self.owner {
            Owner::Program => true,
            Owner::Buffer(buffer) => buffer.is_mapped(),
            Owner::Window(_) => false,
        }
    }

    /// Returns true if the memory may be registered for local write.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns part of the memory. The caller has checked the range.
    fn cut(self, offset: usize, len: usize) -> Self {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        let start = self.base.as_ptr().wrapping_add(offset);
        Self {
            // `start` is never null, because the range lies inside existing memory.
            base: NonNull::new(start).unwrap_or(self.base),
            len,
            ..self
        }
    }
}

/// Parameters of a registration.
pub struct RegionSpec {
    /// Memory of the region.
    pub memory: Backing,
    /// TO and local address of the first byte; `None` uses its memory address.
    pub to_base: Option<u64>,
    /// Protection domain.
    pub pd: u32,
    /// The only QP that may use the region; `None` allows every QP of the PD.
    pub qp: Option<u32>,
    /// Access rights.
    pub access: Access,
}

/// Checks the rules of a registration that do not depend on other regions.
pub(super) fn check_spec(spec: &RegionSpec) -> Result<(), RegisterError> {
    let len = spec.memory.len;
    let address = spec.memory.base.as_ptr().addr();
    // A program may name an empty range of its own memory (`ibv_reg_mr`). Every access to it fails,
    // except those of 0 bytes, which check nothing (5041-5.2-11).
    if len == 0 && !matches!(spec.memory.owner, Owner::Program) {
        return Err(RegisterError::Empty);
    }
    if len > isize::MAX as usize || address.checked_add(len).is_none() {
        return Err(RegisterError::Wraps {
            base: address as u64,
            len,
        });
    }
    let to_base = spec.to_base.unwrap_or(address as u64);
    // The end must be a valid TO as well: an access up to it must not look like a wrap
    // (5041-7.1-14).
    if to_base.checked_add(len as u64).is_none() {
        return Err(RegisterError::Wraps { base: to_base, len });
    }
    let access = spec.access;
    if access.lacks_local_write() {
        return Err(RegisterError::NeedsLocalWrite { access });
    }
    // Rust references point into `Bytes`, so nothing may write them. Every right to write needs
    // LOCAL_WRITE.
    if access.contains(Access::LOCAL_WRITE) && !spec.memory.is_writable() {
        return Err(RegisterError::ReadOnly { access });
    }
    Ok(())
}
