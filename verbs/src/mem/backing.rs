//! What a region is made of: its memory, and what keeps that alive.

use core::ptr::NonNull;
use std::sync::Arc;

use super::error::RegisterError;
use super::region::Region;
use super::{Access, Buffer};

/// The memory behind a region, and what keeps it there.
pub(crate) struct Backing {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    /// Whether it may be registered for local write.
    writable: bool,
    pub(super) owner: Owner,
}

/// What keeps the memory of a region alive.
#[derive(Clone)]
pub(super) enum Owner {
    /// The program, as it promised in [`Backing::in_place`].
    Program,
    Buffer(Arc<Buffer>),
    /// A memory window: the region that it is bound to. A use of the window is a use of that region.
    Window(Arc<Region>),
}

impl Backing {
    /// All of an owned buffer.
    pub(crate) fn buffer(buffer: Arc<Buffer>) -> Self {
        Self {
            base: buffer.base(),
            len: buffer.len(),
            writable: buffer.is_writable(),
            owner: Owner::Buffer(buffer),
        }
    }

    /// A part of an owned buffer; `None` when it is not inside.
    pub(crate) fn part(buffer: Arc<Buffer>, offset: u64, len: u64) -> Option<Self> {
        let whole = Self::buffer(buffer);
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let inside = offset.checked_add(len).is_some_and(|end| end <= whole.len);
        inside.then(|| whole.cut(offset, len))
    }

    /// `len` bytes of a region from `offset` on, for a window; the range is inside.
    pub(super) fn window(region: Arc<Region>, offset: usize, len: usize) -> Self {
        let whole = region.backing();
        Self {
            owner: Owner::Window(region),
            ..whole.cut(offset, len)
        }
    }

    /// The memory of a region, for registering it anew.
    pub(super) fn again(base: NonNull<u8>, len: usize, writable: bool, owner: Owner) -> Self {
        Self {
            base,
            len,
            writable,
            owner,
        }
    }

    /// Memory of the program, used where it lies; `writable` says whether it may be registered for local write.
    ///
    /// # Safety
    /// From the registration until [`RegionTable::remove`](super::RegionTable::remove) has returned `Ok` for it, or
    /// [`RegionTable::revoke`](super::RegionTable::revoke) has returned (or the table is dropped) and every
    /// [`PinnedRun`](super::PinnedRun) of it is gone, `base..base + len` stays mapped, readable and, when `writable`,
    /// writable; and the program reaches it only in ways that allow for others reading and writing it at the same
    /// time (no Rust reference lives while a transfer may use it).
    pub(crate) unsafe fn in_place(base: NonNull<u8>, len: usize, writable: bool) -> Self {
        Self {
            base,
            len,
            writable,
            owner: Owner::Program,
        }
    }

    /// Whether it may be registered for local write.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// A part; the caller has checked that it is inside.
    fn cut(self, offset: usize, len: usize) -> Self {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        let start = self.base.as_ptr().wrapping_add(offset);
        Self {
            // Never null: the range is inside memory that there is.
            base: NonNull::new(start).unwrap_or(self.base),
            len,
            ..self
        }
    }
}

/// What to register.
pub(crate) struct RegionSpec {
    /// The memory.
    pub(crate) memory: Backing,
    /// TO (and local address) of the first byte; `None` is its address.
    pub(crate) to_base: Option<u64>,
    /// Protection domain.
    pub(crate) pd: u32,
    /// The one QP that may use it; `None` is every QP of the PD.
    pub(crate) qp: Option<u32>,
    /// What it may be used for.
    pub(crate) access: Access,
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
    let access = spec.access;
    if access.lacks_local_write() {
        return Err(RegisterError::NeedsLocalWrite { access });
    }
    if access.contains(Access::LOCAL_WRITE) && !spec.memory.is_writable() {
        return Err(RegisterError::ReadOnly { access });
    }
    Ok(())
}
