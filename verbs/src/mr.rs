//! Memory regions.

mod builder;
mod fast;
mod reregister;

pub use builder::RegionBuilder;
pub use fast::FastRegion;
pub use reregister::Reregister;

use std::sync::Arc;

use uwarp_engine::mem::{Buffer, DeregisterError, OutOfRange, Region, RemoteBuffer, Sge};

use crate::device::DeviceInner;
use uwarp_engine::limits::{Number, PdAccount};

/// A registered memory region (MR; `ibv_mr`, `ibv_reg_mr`).
///
/// The program may read and write it at any time, even while transfers use it. The transfer or the
/// reader then sees a mixture of old and new bytes: wait for completions where that matters.
///
/// Dropping it revokes its STag at once. Memory that it owns stays until the last transfer is done.
pub struct MemoryRegion {
    /// `None` after deregistration.
    region: Option<Arc<Region>>,
    device: Arc<DeviceInner>,
    holds: Holds,
}

/// Objects that a region keeps alive, because the region table knows only their numbers.
pub(crate) struct Holds {
    pub(crate) pd: Arc<PdAccount>,
    /// Number of the QP for which the region was registered.
    pub(crate) qp: Option<Arc<Number>>,
}

impl MemoryRegion {
    pub(crate) fn new(region: Arc<Region>, device: Arc<DeviceInner>, holds: Holds) -> Self {
        MemoryRegion {
            region: Some(region),
            device,
            holds,
        }
    }

    fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// Key for work requests of this side (`ibv_mr.lkey`). On iWARP it is the STag, like the rkey.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.region().map_or(0, |region| region.stag().0)
    }

    /// Key for the peer (`ibv_mr.rkey`): the STag.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.lkey()
    }

    /// Address of the first byte: the tagged offset of RFC 5041 section 4.2.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.region().map_or(0, |region| region.to_base())
    }

    /// Length in bytes (`ibv_mr.length`).
    #[must_use]
    pub fn len(&self) -> usize {
        self.region().map_or(0, |region| region.len())
    }

    /// Returns false, because a region has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a scatter/gather element for `len` bytes from `offset` on (`ibv_sge`). The range is
    /// checked when the element is posted.
    #[must_use]
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.addr().wrapping_add(offset),
            len,
            lkey: self.lkey(),
        }
    }

    /// Returns the address, length and STag with which the peer can access this region (an
    /// Advertisement, RFC 5040 section 2.1).
    #[must_use]
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer {
            addr: self.addr(),
            len: self.len() as u64,
            rkey: self.rkey(),
        }
    }

    /// Returns the buffer that the region owns, or `None` for memory of the program.
    #[must_use]
    pub fn buffer(&self) -> Option<&Buffer> {
        let buffer = self.region()?.buffer()?;
        Some(buffer)
    }

    /// Starts a re-registration (`ibv_rereg_mr`) with other rights, another domain or other memory.
    /// The region gets a new STag, and the old one becomes invalid. On error nothing changes.
    pub fn reregister(&mut self) -> Reregister<'_> {
        Reregister::new(self)
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// [`OutOfRange`] if they do not lie in the region.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        let len = out.len();
        self.region().map_or(
            Err(OutOfRange {
                offset,
                len,
                size: 0,
            }),
            |region| region.read_at(offset, out),
        )
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// [`OutOfRange`] if they do not fit into the region.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        let len = bytes.len();
        self.region().map_or(
            Err(OutOfRange {
                offset,
                len,
                size: 0,
            }),
            |region| region.write_at(offset, bytes),
        )
    }

    /// Revokes the STag and keeps the region: the first step of `ibv_dereg_mr`, for a program whose
    /// second step has to wait. No new transfer of this side or of a peer can use it, and no copy
    /// is in progress when this returns (RFC 5042 section 6.2.2). Bytes that the network has not
    /// sent yet stay in place; until they are sent, [`deregister`](Self::deregister) returns
    /// [`DeregisterError::Busy`].
    ///
    /// # Errors
    /// [`DeregisterError::WindowsBound`] while memory windows are bound to it. Nothing has changed
    /// then.
    pub fn revoke(&self) -> Result<(), DeregisterError> {
        match &self.region {
            Some(region) => self.device.table.revoke_use(region.stag()),
            None => Ok(()),
        }
    }

    /// Revokes the STag, and waits for copies that are in progress (`ibv_dereg_mr`).
    ///
    /// # Errors
    /// [`DeregisterError::Busy`] while bytes of the region wait to be sent,
    /// [`DeregisterError::WindowsBound`] while memory windows are bound to it. The region is
    /// returned, to be deregistered later.
    pub fn deregister(mut self) -> Result<(), (MemoryRegion, DeregisterError)> {
        let Some(region) = self.region.take() else {
            return Ok(());
        };
        match self.device.table.remove(region.stag()) {
            Ok(()) | Err(DeregisterError::Unknown { .. }) => Ok(()),
            Err(error) => {
                self.region = Some(region);
                Err((self, error))
            }
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.device.table.revoke(region.stag());
        }
    }
}

impl std::fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("rkey", &format_args!("{:#010x}", self.rkey()))
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
