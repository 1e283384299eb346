//! Protection domains and memory regions.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::cq::Cq;
use crate::device::{DeviceError, DeviceInner};
use crate::mem::{
    Access, Backing, Buffer, DeregisterError, OutOfRange, Region, RegionSpec, RegisterError, Sge,
};
use crate::qp::builder::QpBuilder;
use crate::qp::{Qp, QpCaps};

/// A protection domain. A QP reaches only regions of its own one. Clones are handles to the same.
#[derive(Clone)]
pub struct Pd {
    device: Arc<DeviceInner>,
    id: u32,
}

impl Pd {
    pub(crate) fn new(device: Arc<DeviceInner>, id: u32) -> Self {
        Pd { device, id }
    }

    /// Registers memory that the region then owns: `data` is its first content.
    ///
    /// # Errors
    /// [`RegisterError`]: no octets at all, rights that contradict each other, too many regions.
    pub fn register(&self, data: Vec<u8>, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.register_buffer(Buffer::from(data), access)
    }

    /// Registers a buffer that the region then owns.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn register_buffer(
        &self,
        buffer: Buffer,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.insert(Backing::buffer(Arc::new(buffer)), access)
    }

    /// Registers memory of the program where it lies, as `ibv_reg_mr` does.
    ///
    /// # Errors
    /// As [`Pd::register`].
    ///
    /// # Safety
    /// Until [`MemoryRegion::deregister`] has returned `Ok` or the region was dropped *and* every QP of
    /// the domain is gone, `base..base + len` stays mapped, readable and (with
    /// [`Access::LOCAL_WRITE`]) writable, and the program holds no Rust reference to octets that a
    /// transfer may use at the same time: this side and, with remote rights, the peer write them at any moment.
    #[expect(
        unsafe_code,
        reason = "the caller's promise is handed on to the memory module"
    )]
    pub unsafe fn register_in_place(
        &self,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        // SAFETY: the same contract.
        let backing = unsafe { Backing::in_place(base, len) };
        self.insert(backing, access)
    }

    /// Registers memory that only `qp` (of this domain) reaches. Such a region, and no other, may be
    /// invalidated by that QP's peer with a Send with Invalidate (RFC 5040 section 8.1.1).
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn register_for(
        &self,
        qp: &Qp,
        data: Vec<u8>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let memory = Backing::buffer(Arc::new(Buffer::from(data)));
        self.insert_for(memory, access, Some(qp.qp_num()))
    }

    fn insert(&self, memory: Backing, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.insert_for(memory, access, None)
    }

    fn insert_for(
        &self,
        memory: Backing,
        access: Access,
        qp: Option<u32>,
    ) -> Result<MemoryRegion, RegisterError> {
        let spec = RegionSpec {
            memory,
            to_base: None,
            pd: self.id,
            qp,
            access,
        };
        let region = self.device.table.insert(spec)?;
        Ok(MemoryRegion {
            region: Some(region),
            device: Arc::clone(&self.device),
        })
    }

    /// Creates a QP. Its completions go to the two CQs, which may be one and the same.
    ///
    /// # Errors
    /// [`DeviceError`]: a size that the device does not allow, a limit, a CQ of another device.
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, caps: QpCaps) -> Result<Qp, DeviceError> {
        self.qp().caps(caps).build(send_cq, recv_cq)
    }

    /// Begins to make a QP with more than the sizes of its queues.
    pub fn qp(&self) -> QpBuilder {
        QpBuilder::new(self)
    }

    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        &self.device
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pd")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A registered memory region (MR).
///
/// It may be read and written by this program at any time, also while transfers use it: what a
/// transfer then sees, or what is read, is a mixture of old and new octets. Wait for completions
/// where that matters.
///
/// Dropping it revokes its STag at once; memory that it owns stays until the last transfer is done.
pub struct MemoryRegion {
    /// `None` once it was deregistered.
    region: Option<Arc<Region>>,
    device: Arc<DeviceInner>,
}

/// Memory of a peer, as it advertises it: what an RDMA Write or Read names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBuffer {
    /// Address (tagged offset) of the first octet.
    pub addr: u64,
    /// Octets.
    pub len: u64,
    /// The STag.
    pub rkey: u32,
}

impl MemoryRegion {
    fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// The key for work requests of this side. On iWARP it is the STag, as the rkey is.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.region().map_or(0, |region| region.stag().0)
    }

    /// The key for the peer: the STag.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.lkey()
    }

    /// Address (tagged offset) of the first octet.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.region().map_or(0, |region| region.to_base())
    }

    /// Octets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region().map_or(0, |region| region.len())
    }

    /// False: a region has at least one octet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A scatter/gather element for `len` octets from `offset`. Whether they lie in the region is
    /// checked when it is posted.
    #[must_use]
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.addr().wrapping_add(offset),
            len,
            lkey: self.lkey(),
        }
    }

    /// What to tell the peer, so that it can write or read this region.
    #[must_use]
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer {
            addr: self.addr(),
            len: self.len() as u64,
            rkey: self.rkey(),
        }
    }

    /// Copies octets out of the region.
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

    /// Copies octets into the region.
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

    /// Revokes the STag, and waits for transfers that are copying right now.
    ///
    /// # Errors
    /// [`DeregisterError::Busy`] when octets of it are with the network: the region comes back, to be
    /// deregistered after their completion.
    pub fn deregister(mut self) -> Result<(), (MemoryRegion, DeregisterError)> {
        let Some(region) = self.region.take() else {
            return Ok(());
        };
        match self.device.table.remove(region.stag()) {
            Err(error @ DeregisterError::Busy { .. }) => {
                self.region = Some(region);
                Err((self, error))
            }
            // Unknown: the peer has invalidated it, which is as good.
            Ok(()) | Err(_) => Ok(()),
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
