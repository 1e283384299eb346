//! Registering a region anew: other rights, another domain, other memory.

use std::ptr::NonNull;
use std::sync::Arc;

use super::MemoryRegion;
use crate::mem::{Access, Backing, Buffer, RegionSpec, ReregisterError};
use crate::pd::Pd;

/// A change of a registration about to be made (the arguments of `ibv_rereg_mr`); from [`MemoryRegion::reregister`].
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
#[must_use = "nothing changes before the end of the call"]
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

    /// Other rights (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Another protection domain of the same device (`IBV_REREG_MR_CHANGE_PD`). A region that was for one QP alone is
    /// then for every QP of that domain.
    pub fn pd(mut self, pd: &'a Pd) -> Self {
        self.pd = Some(pd);
        self
    }

    /// Another address of the first byte (`iova` of `ibv_reg_mr_iova`). Without it the region keeps its own, or, with
    /// other memory, gets the address of that.
    pub fn iova(mut self, iova: u64) -> Self {
        self.to_base = Some(iova);
        self
    }

    /// Peers and SGEs count from 0 (`IBV_ACCESS_ZERO_BASED`).
    pub fn zero_based(self) -> Self {
        self.iova(0)
    }

    /// Registers the same memory anew (`ibv_rereg_mr`).
    ///
    /// # Errors
    /// [`ReregisterError`]: what the new registration lacks, or why the old one cannot end now (a window is bound,
    /// bytes are with the network). Nothing has changed then: the old registration is as good as before.
    pub fn apply(self) -> Result<(), ReregisterError> {
        let same = self
            .region
            .region()
            .map(|old| (old.backing(), old.to_base()));
        match same {
            Some((memory, to_base)) => {
                let to_base = self.to_base.unwrap_or(to_base);
                self.replace(memory, Some(to_base))
            }
            None => Ok(()),
        }
    }

    /// Registers other memory in its place (`IBV_REREG_MR_CHANGE_TRANSLATION`).
    ///
    /// # Errors
    /// As [`Reregister::apply`].
    pub fn buffer(self, buffer: impl Into<Arc<Buffer>>) -> Result<(), ReregisterError> {
        let to_base = self.to_base;
        self.replace(Backing::buffer(buffer.into()), to_base)
    }

    /// Registers other memory of the program in its place, where that lies.
    ///
    /// # Errors
    /// As [`Reregister::apply`].
    ///
    /// # Safety
    /// As [`Pd::register_in_place`], for the rights that the region has then.
    #[expect(
        unsafe_code,
        reason = "the caller's promise is handed on to the memory module"
    )]
    pub unsafe fn in_place(self, base: NonNull<u8>, len: usize) -> Result<(), ReregisterError> {
        let own = self.region.region().map(|old| old.access());
        let access = self.access.or(own).unwrap_or_default();
        let writable = access.contains(Access::LOCAL_WRITE);
        // SAFETY: the same contract.
        let memory = unsafe { Backing::in_place(base, len, writable) };
        let to_base = self.to_base;
        self.replace(memory, to_base)
    }

    fn replace(self, memory: Backing, to_base: Option<u64>) -> Result<(), ReregisterError> {
        let device = Arc::clone(&self.region.device);
        if self.pd.is_some_and(|pd| !Arc::ptr_eq(pd.device(), &device)) {
            return Err(ReregisterError::OtherDevice);
        }
        let Some(old) = &mut self.region.region else {
            return Ok(());
        };
        let (pd, qp) = match self.pd.map(Pd::id) {
            Some(pd) if pd != old.pd() => (pd, None),
            Some(_) | None => (old.pd(), old.qp()),
        };
        let spec = RegionSpec {
            memory,
            to_base,
            pd,
            qp,
            access: self.access.unwrap_or(old.access()),
        };
        *old = device.table.replace(old, spec)?;
        if let Some(pd) = self.pd.filter(|pd| pd.id() == old.pd()) {
            self.region.holds.pd = Arc::clone(pd.account());
        }
        if old.qp().is_none() {
            self.region.holds.qp = None;
        }
        Ok(())
    }
}
