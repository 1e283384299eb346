//! Re-registration of a region with other rights, another domain or other memory.

use std::ptr::NonNull;
use std::sync::Arc;

use uwarp_engine::mem::{Access, Backing, Buffer, RegionSpec, ReregisterError};

use super::MemoryRegion;
use crate::pd::Pd;

/// Builder of a re-registration (the arguments of `ibv_rereg_mr`), created by
/// [`MemoryRegion::reregister`].
///
/// ```
/// use uwarp_verbs::{Access, Device};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::tcp()?.alloc_pd()?;
/// let mut region = pd.register(vec![7; 4096], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// let old = region.rkey();
/// region.reregister().access(Access::REMOTE_READ).apply()?;
/// assert_ne!(region.rkey(), old);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "nothing changes until the last call of the chain"]
pub struct Reregister<'a> {
    region: &'a mut MemoryRegion,
    access: Option<Access>,
    pd: Option<&'a Pd>,
    to_base: Option<u64>,
}

impl<'a> Reregister<'a> {
    pub(super) fn new(region: &'a mut MemoryRegion) -> Self {
        Reregister {
            region,
            access: None,
            pd: None,
            to_base: None,
        }
    }

    /// Sets other rights (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Sets another protection domain of the same device (`IBV_REREG_MR_CHANGE_PD`). A region for
    /// one QP becomes a region for every QP of that domain.
    pub fn pd(mut self, pd: &'a Pd) -> Self {
        self.pd = Some(pd);
        self
    }

    /// Sets another address of the first byte (`iova` of `ibv_reg_mr_iova`). Default: the current
    /// address if the memory stays the same, otherwise the new memory's own address.
    pub fn iova(mut self, iova: u64) -> Self {
        self.to_base = Some(iova);
        self
    }

    /// Starts addresses for peers and SGEs at 0 (`IBV_ACCESS_ZERO_BASED`).
    pub fn zero_based(self) -> Self {
        self.iova(0)
    }

    /// Registers the same memory again (`ibv_rereg_mr`).
    ///
    /// # Errors
    /// [`ReregisterError`]: the new registration is not possible, or the old one cannot end (a
    /// window is bound to it, or some of its bytes wait to be sent). Nothing has changed then: the
    /// old registration stays valid.
    pub fn apply(self) -> Result<(), ReregisterError> {
        let to_base = self.to_base;
        self.replace(None, to_base)
    }

    /// Registers other memory instead (`IBV_REREG_MR_CHANGE_TRANSLATION`).
    ///
    /// # Errors
    /// See [`Reregister::apply`].
    pub fn buffer(self, buffer: impl Into<Arc<Buffer>>) -> Result<(), ReregisterError> {
        let to_base = self.to_base;
        self.replace(Some(Backing::buffer(buffer.into())), to_base)
    }

    /// Registers other memory of the program instead, in place.
    ///
    /// # Errors
    /// See [`Reregister::apply`].
    ///
    /// # Safety
    /// As [`Pd::register_in_place`], for the rights that the region has afterwards.
    #[expect(
        unsafe_code,
        reason = "the caller's contract is passed on to the memory module"
    )]
    pub unsafe fn in_place(self, base: NonNull<u8>, len: usize) -> Result<(), ReregisterError> {
        let own = self.region.region().map(|old| old.access());
        let access = self.access.or(own).unwrap_or_default();
        let writable = access.contains(Access::LOCAL_WRITE);
        // SAFETY: the caller upholds the contract of `Pd::register_in_place`.
        let memory = unsafe { Backing::in_place(base, len, writable) };
        let to_base = self.to_base;
        self.replace(Some(memory), to_base)
    }

    /// Registers `memory`, or the same memory again without it.
    fn replace(self, memory: Option<Backing>, to_base: Option<u64>) -> Result<(), ReregisterError> {
        let device = Arc::clone(&self.region.device);
        if self.pd.is_some_and(|pd| !pd.is_of(&device)) {
            return Err(ReregisterError::OtherDevice);
        }
        let Some(old) = &mut self.region.region else {
            return Ok(());
        };
        let (pd, qp) = match self.pd.map(Pd::id) {
            Some(pd) if pd != old.pd() => (pd, None),
            Some(_) | None => (old.pd(), old.qp()),
        };
        let access = self.access.unwrap_or(old.access());
        *old = match memory {
            Some(memory) => {
                let spec = RegionSpec {
                    memory,
                    to_base,
                    pd,
                    qp,
                    access,
                };
                device.table.replace(old, spec)?
            }
            None => {
                let to_base = to_base.unwrap_or(old.to_base());
                device.table.register_again(old, to_base, pd, qp, access)?
            }
        };
        if let Some(pd) = self.pd.filter(|pd| pd.id() == old.pd()) {
            self.region.holds.pd = Arc::clone(pd.account());
        }
        if old.qp().is_none() {
            self.region.holds.qp = None;
        }
        Ok(())
    }
}
