//! Protection domains.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::cq::Cq;
use crate::device::{DeviceError, DeviceInner};
use crate::limits::{PdAccount, PdQp};
use crate::mem::{Access, Backing, Buffer, RegionSpec, RegisterError};
use crate::mr::MemoryRegion;
use crate::qp::builder::QpBuilder;
use crate::qp::{Qp, QpCaps};

/// A protection domain. A QP reaches only regions of its own one. Clones are handles to the same.
#[derive(Clone)]
pub struct Pd {
    device: Arc<DeviceInner>,
    id: u32,
    account: Arc<PdAccount>,
}

impl Pd {
    pub(crate) fn new(device: Arc<DeviceInner>, id: u32) -> Self {
        Pd {
            device,
            id,
            account: Arc::default(),
        }
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

    /// Registers a buffer that others hold, too.
    pub(crate) fn register_shared(
        &self,
        buffer: &Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.insert(Backing::buffer(Arc::clone(buffer)), access)
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
        Ok(MemoryRegion::new(region, Arc::clone(&self.device)))
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

    /// Counts one more QP of this domain.
    pub(crate) fn take_qp(&self) -> Result<PdQp, DeviceError> {
        let limit = self.device.settings.limits.per_pd.max_qp;
        let what = "QPs";
        let taken = self.account.take_qp(limit);
        taken.ok_or(DeviceError::PdLimit { what, limit })
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pd")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
