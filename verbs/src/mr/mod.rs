//! Memory regions.

mod builder;
mod fast;
mod reregister;

pub use builder::RegionBuilder;
pub use fast::FastRegion;
pub use reregister::Reregister;

use std::sync::Arc;

use crate::device::DeviceInner;
use crate::limits::{Number, PdAccount};
use crate::mem::{Buffer, DeregisterError, OutOfRange, Region, Sge};

/// A registered memory region (MR): `ibv_mr` of the verbs (`ibv_reg_mr`).
///
/// It may be read and written by this program at any time, also while transfers use it: what a
/// transfer then sees, or what is read, is a mixture of old and new bytes. Wait for completions
/// where that matters.
///
/// Dropping it revokes its STag at once; memory that it owns stays until the last transfer is done.
pub struct MemoryRegion {
    /// `None` once it was deregistered.
    region: Option<Arc<Region>>,
    device: Arc<DeviceInner>,
    holds: Holds,
}

/// What a region keeps in existence, because the table knows its number only.
pub(crate) struct Holds {
    pub(crate) pd: Arc<PdAccount>,
    /// The number of the QP that the region is for.
    pub(crate) qp: Option<Arc<Number>>,
}

/// Memory of a peer, as it advertises it, by STag and tagged offset (RFC 5040 section 5.1): what an RDMA Write or Read
/// names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBuffer {
    /// Address (tagged offset) of the first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The STag.
    pub rkey: u32,
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

    /// The key for work requests of this side (`ibv_mr.lkey`). On iWARP it is the STag, as the rkey is.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.region().map_or(0, |region| region.stag().0)
    }

    /// The key for the peer (`ibv_mr.rkey`): the STag.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.lkey()
    }

    /// Address of the first byte: the tagged offset of RFC 5041 section 4.2.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.region().map_or(0, |region| region.to_base())
    }

    /// Its length in bytes (`ibv_mr.length`).
    #[must_use]
    pub fn len(&self) -> usize {
        self.region().map_or(0, |region| region.len())
    }

    /// False: a region has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A scatter/gather element for `len` bytes from byte `offset` of the region on (`ibv_sge`). Whether they lie in
    /// the region is checked when it is posted.
    #[must_use]
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.addr().wrapping_add(offset),
            len,
            lkey: self.lkey(),
        }
    }

    /// What to tell the peer, so that it can write or read this region (an Advertisement, RFC 5040 section 2.1).
    #[must_use]
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer {
            addr: self.addr(),
            len: self.len() as u64,
            rkey: self.rkey(),
        }
    }

    /// The buffer that the region owns (the verbs leave memory to the program); `None` for memory of the program.
    #[must_use]
    pub fn buffer(&self) -> Option<&Buffer> {
        let buffer = self.region()?.buffer()?;
        Some(buffer)
    }

    /// Registers anew (`ibv_rereg_mr`): other rights, another domain, other memory. The region gets a new STag, and the
    /// old one is not valid any more; or, with an error, nothing changes at all.
    pub fn reregister(&mut self) -> Reregister<'_> {
        Reregister::new(self)
    }

    /// Copies bytes out of the region (the verbs leave that to the program).
    ///
    /// # Errors
    /// When they do not lie in the region.
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

    /// Copies bytes into the region (the verbs leave that to the program).
    ///
    /// # Errors
    /// When they do not fit into the region.
    pub fn write_at(&self, offset: usize, octets: &[u8]) -> Result<(), OutOfRange> {
        let len = octets.len();
        self.region().map_or(
            Err(OutOfRange {
                offset,
                len,
                size: 0,
            }),
            |region| region.write_at(offset, octets),
        )
    }

    /// Revokes the STag and keeps the region: the first step of `ibv_dereg_mr` where the second has to wait. No transfer of
    /// this side or of a peer begins with it any more, and none is in a copy when this returns (RFC 5042 section 6.2.2). Bytes that are
    /// with the network already stay where they lie until they have left; [`deregister`](Self::deregister) says Busy until then.
    ///
    /// # Errors
    /// [`DeregisterError::WindowsBound`] while memory windows are bound to it: nothing has changed then.
    pub fn revoke(&self) -> Result<(), DeregisterError> {
        match &self.region {
            Some(region) => self.device.table.revoke_use(region.stag()),
            None => Ok(()),
        }
    }

    /// Revokes the STag, and waits for transfers that are copying right now (`ibv_dereg_mr`).
    ///
    /// # Errors
    /// [`DeregisterError::Busy`] when bytes of it are with the network, [`DeregisterError::WindowsBound`] while
    /// memory windows are bound to it: the region comes back, to be deregistered later.
    pub fn deregister(mut self) -> Result<(), (MemoryRegion, DeregisterError)> {
        let Some(region) = self.region.take() else {
            return Ok(());
        };
        match self.device.table.remove(region.stag()) {
            Err(error @ (DeregisterError::Busy { .. } | DeregisterError::WindowsBound { .. })) => {
                self.region = Some(region);
                Err((self, error))
            }
            Ok(()) | Err(DeregisterError::Unknown { .. }) => Ok(()),
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
