//! Protection domains.

use std::ptr::NonNull;
use std::sync::Arc;

use uwarp_ddp::STag;
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_engine::mem::RemoteBuffer;
use uwarp_engine::mem::{Access, Asker, Buffer, Need, RegisterError, WindowKind};

use crate::cq::Cq;
use crate::device::{DeviceError, DeviceInner};
use crate::event_queue::EventQueue;
use crate::mr::{FastRegion, MemoryRegion, RegionBuilder};
use crate::mw::MemoryWindow;
use crate::qp::builder::QpBuilder;
use crate::qp::{Qp, QpCaps};
use uwarp_engine::limits::{OfPd, PdAccount, PdCharge};

/// A protection domain (`ibv_pd`; RFC 5042 section 2.2.4). A QP reaches only the regions of its own
/// domain. Clones are handles to the same domain.
#[derive(Clone)]
pub struct Pd {
    device: ForkGuarded<Arc<DeviceInner>>,
    account: Arc<PdAccount>,
    /// Receives the events of the objects in the domain.
    events: Arc<EventQueue>,
}

impl Pd {
    pub(crate) fn new(
        device: ForkGuarded<Arc<DeviceInner>>,
        account: Arc<PdAccount>,
        events: Arc<EventQueue>,
    ) -> Self {
        Pd {
            device,
            account,
            events,
        }
    }

    /// Registers memory that the region owns (`ibv_reg_mr`). `data` is its initial content.
    ///
    /// # Errors
    /// [`RegisterError`]: an empty region, contradictory rights, or too many regions.
    pub fn register(&self, data: Vec<u8>, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.register_buffer(Buffer::from(data), access)
    }

    /// Registers a buffer that the region owns (`ibv_reg_mr`).
    ///
    /// A [`Buffer`] is also made from [`Bytes`](bytes::Bytes), which peers may only read, and from
    /// [`BytesMut`](bytes::BytesMut):
    /// ```
    /// use uwarp_verbs::{Access, Buffer, Device};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pd = Device::tcp()?.alloc_pd()?;
    /// let page = bytes::Bytes::from_static(b"for all peers");
    /// let region = pd.register_buffer(Buffer::from(page.clone()), Access::REMOTE_READ)?;
    /// assert_eq!((region.addr(), region.len()), (page.as_ptr() as u64, 13));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`Pd::register`].
    pub fn register_buffer(
        &self,
        buffer: Buffer,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.region().access(access).buffer(buffer)
    }

    /// Registers memory of the program in place, as `ibv_reg_mr` does.
    ///
    /// # Errors
    /// See [`Pd::register`].
    ///
    /// # Safety
    /// The following must hold until [`MemoryRegion::deregister`] has returned `Ok`, or until the
    /// region was dropped *and* every QP of the domain is gone. `base..base + len` stays mapped,
    /// readable and (with [`Access::LOCAL_WRITE`]) writable. The program holds no Rust reference to
    /// bytes that a transfer may use at the same time: this side may write them at any moment, and
    /// so may the peer if it has remote rights.
    #[expect(
        unsafe_code,
        reason = "the caller's contract is passed on to the memory module"
    )]
    pub unsafe fn register_in_place(
        &self,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.region().access(access).in_place(base, len) }
    }

    /// Registers memory for one QP of this domain; only `qp` can access it. By a Send with
    /// Invalidate, a peer can invalidate only regions that were registered for its QP (RFC 5040
    /// section 8.1.1).
    ///
    /// # Errors
    /// See [`Pd::register`].
    pub fn register_for(
        &self,
        qp: &Qp,
        data: Vec<u8>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.region().access(access).for_qp(qp).vec(data)
    }

    /// Registers a buffer that the caller shares with other owners.
    pub(crate) fn register_shared(
        &self,
        buffer: &Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.region().access(access).buffer(Arc::clone(buffer))
    }

    /// Starts a registration with all options (`ibv_reg_mr_iova`): the address for peers, one QP
    /// only, files, memory shared between processes.
    pub fn region(&self) -> RegionBuilder {
        RegionBuilder::new(self.clone())
    }

    /// Allocates an unbound memory window in this domain (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// [`RegisterError::TooMany`]: windows count as regions.
    pub fn alloc_window(&self, kind: WindowKind) -> Result<MemoryWindow, RegisterError> {
        MemoryWindow::new(self.device()?, &self.account, kind)
    }

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
        FastRegion::new(self.device()?, &self.account, memory.into())
    }

    /// Creates a QP (`ibv_create_qp`). Its completions go to the two CQs, which may be the same.
    ///
    /// # Errors
    /// [`DeviceError`]: a size that the device does not allow, a limit, or a CQ of another device.
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, caps: QpCaps) -> Result<Qp, DeviceError> {
        self.qp().caps(caps).build(send_cq, recv_cq)
    }

    /// Starts the creation of a QP with further options (`ibv_create_qp_ex`).
    pub fn qp(&self) -> QpBuilder {
        QpBuilder::new(self)
    }

    /// Returns true if a peer's Write to this memory would pass the checks, on a QP of this domain
    /// that allows remote Writes. For `uwarp-bench`, which measures the checks.
    #[doc(hidden)]
    #[must_use]
    pub fn would_place(&self, memory: &RemoteBuffer) -> bool {
        let asker = Asker {
            pd: self.id(),
            qp: 0,
            access: Access::REMOTE_WRITE,
        };
        let RemoteBuffer { addr, len, rkey } = *memory;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.device.here().is_some_and(|device| {
            let checked = (device.table).check(STag(rkey), addr, len, Need::RemoteWrite, &asker);
            checked.is_ok()
        })
    }

    /// Returns the shared part of the device.
    ///
    /// # Errors
    /// [`Inherited`] in the child of a fork.
    pub(crate) fn device(&self) -> Result<&Arc<DeviceInner>, Inherited> {
        self.device.get()
    }

    /// Returns true if the domain belongs to `device`.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(self.device.unguarded(), device)
    }

    pub(crate) fn id(&self) -> u32 {
        self.account.id()
    }

    /// Returns the queue for the events of the objects in the domain.
    pub(crate) fn events(&self) -> &Arc<EventQueue> {
        &self.events
    }

    /// Returns the account, which each object in the domain keeps alive.
    pub(crate) fn account(&self) -> &Arc<PdAccount> {
        &self.account
    }

    /// Charges `amount` to the domain. Returns an error if that would exceed its limit.
    pub(crate) fn take(&self, what: OfPd, amount: u32) -> Result<PdCharge, DeviceError> {
        let limit = what.limit(&self.device()?.settings.limits.per_pd);
        let taken = self.account.take(what, amount, limit);
        taken.ok_or(match what {
            OfPd::Qps => DeviceError::PdLimit { what: "QPs", limit },
            OfPd::Srqs => DeviceError::PdLimit {
                what: "SRQs",
                limit,
            },
            OfPd::Reads => DeviceError::PdLimit {
                what: "places for RDMA Reads",
                limit,
            },
            OfPd::Receives => DeviceError::PdReceives {
                asked: amount,
                limit,
            },
        })
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pd")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Device, RemoteBuffer};

    #[test]
    fn what_a_write_may_reach_is_what_the_checks_let_pass() {
        let device = Device::tcp().unwrap();
        let (pd, other) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.register(vec![0; 64], open).unwrap();
        let closed = pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
        let memory = region.remote();
        assert!(pd.would_place(&memory));
        assert!(!other.would_place(&memory));
        assert!(!pd.would_place(&closed.remote()));
        let beyond = RemoteBuffer {
            addr: memory.addr + 1,
            ..memory
        };
        assert!(!pd.would_place(&beyond));
        region.deregister().unwrap();
        assert!(!pd.would_place(&memory));
    }
}
