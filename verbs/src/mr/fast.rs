//! Fast registration: memory whose parts are registered by work requests.

use std::sync::Arc;

use uwarp_engine::mem::{Access, Buffer, FastRegister, OutOfRange, Purpose, RegisterError};

use crate::device::DeviceInner;
use crate::pd::Pd;
use uwarp_engine::limits::PdAccount;

/// Memory with a reserved STag that is not valid at first (the kernel's `ib_alloc_mr` and
/// `IB_WR_REG_MR`; RFC 5040 section 8.1.1). [`SendWr::register`](crate::SendWr::register) makes the
/// STag valid for a part of the memory, in order with the other work requests.
/// [`SendWr::local_invalidate`](crate::SendWr::local_invalidate) or a peer's Send with Invalidate
/// ends the registration. Each registration takes another key, so a used STag stays invalid.
///
/// It belongs to a protection domain ([`Pd::alloc_fast_region`](crate::Pd::alloc_fast_region)).
/// Dropping it ends the registration. The memory stays until the last transfer is done.
///
/// ```
/// use uwarp_verbs::{Access, Buffer, Device, SendWr, inc_rkey};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::tcp()?.alloc_pd()?;
/// let fast = pd.alloc_fast_region(Buffer::zeroed(1 << 16)?)?;
/// let stag = inc_rkey(fast.stag());
/// let part = fast.register(stag, 4096, 100, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
/// // The Send is posted after the registration, so the STag that it advertises is valid.
/// let tell = part.remote().to_bytes();
/// let wrs = [SendWr::register(1, &part), SendWr::send_inline(2, &tell)];
/// # let _ = wrs; Ok(()) }
/// ```
pub struct FastRegion {
    device: Arc<DeviceInner>,
    index: u32,
    buffer: Arc<Buffer>,
    _pd: Arc<PdAccount>,
}

impl Pd {
    /// Allocates memory for fast registration by work requests of this domain's QPs (the kernel's
    /// `ib_alloc_mr`). None of it is registered yet.
    ///
    /// # Errors
    /// [`RegisterError::TooMany`]: the memory counts as a region. [`RegisterError::Empty`] if the
    /// memory has no bytes.
    pub fn alloc_fast_region(
        &self,
        memory: impl Into<Arc<Buffer>>,
    ) -> Result<FastRegion, RegisterError> {
        FastRegion::new(self.device()?, self.account(), memory.into())
    }
}

impl FastRegion {
    pub(crate) fn new(
        device: &Arc<DeviceInner>,
        pd: &Arc<PdAccount>,
        buffer: Arc<Buffer>,
    ) -> Result<Self, RegisterError> {
        if buffer.is_empty() {
            return Err(RegisterError::Empty);
        }
        let purpose = Purpose::Fast(Arc::clone(&buffer));
        let stag = device.table.reserve(pd.id(), purpose)?;
        Ok(FastRegion {
            device: Arc::clone(device),
            index: stag.0 >> 8,
            buffer,
            _pd: Arc::clone(pd),
        })
    }

    /// STag of the current registration, or else of the last one (RFC 5040 section 8.1.1). Before
    /// the first registration it is the reserved STag.
    #[must_use]
    pub fn stag(&self) -> u32 {
        self.device.table.slot_stag(self.index).0
    }

    /// Returns true if a part of the memory is registered.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.device.table.slot_is_valid(self.index)
    }

    /// Returns the memory. The program may read and write it at any time, like the memory of a
    /// [`MemoryRegion`](crate::MemoryRegion).
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Copies bytes out of the memory.
    ///
    /// # Errors
    /// [`OutOfRange`] if the range is not inside the memory.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        self.buffer.read_at(offset, out)
    }

    /// Copies bytes into the memory.
    ///
    /// # Errors
    /// [`OutOfRange`] if they do not fit.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.buffer.write_at(offset, bytes)
    }

    /// Describes a registration for [`SendWr::register`](crate::SendWr::register) (`ib_reg_wr` of
    /// the kernel): `len` bytes from `offset` on under `stag`. Only the QP to which it is posted
    /// can use the registration. The address of the bytes for peers and in SGEs is their address in
    /// memory.
    #[must_use]
    pub fn register(&self, stag: u32, offset: u64, len: u64, access: Access) -> FastRegister {
        FastRegister {
            stag,
            offset,
            len,
            iova: self.buffer.addr().wrapping_add(offset),
            access,
            for_pd: false,
        }
    }
}

impl Drop for FastRegion {
    fn drop(&mut self) {
        self.device.table.free(self.index);
    }
}

impl std::fmt::Debug for FastRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FastRegion")
            .field("stag", &format_args!("{:#010x}", self.stag()))
            .field("valid", &self.is_valid())
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}
