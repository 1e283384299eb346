//! Registration, with everything that may be chosen.

use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Holds, MemoryRegion};
use crate::limits::Number;
use crate::mem::{Access, Backing, Buffer, MapError, OutOfRange, RegionSpec, RegisterError};
use crate::pd::Pd;
use crate::qp::Qp;

/// A registration about to be made (the arguments of `ibv_reg_mr`); from [`Pd::region`]. What to register comes last.
///
/// ```
/// use uwarp_verbs::{Access, Buffer, Device};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::tcp()?.alloc_pd()?;
/// // Peers count from 0, and may only read.
/// let table = pd.region().access(Access::REMOTE_READ).zero_based().vec(vec![1, 2, 3])?;
/// assert_eq!((table.addr(), table.len()), (0, 3));
/// // Memory that another process can map, too; peers count from 0x10_0000.
/// let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
/// let inbox = pd.region().access(rights).iova(0x10_0000).shared("inbox", 4096)?;
/// assert_eq!(inbox.remote().addr, 0x10_0000);
/// assert!(inbox.buffer().and_then(Buffer::as_fd).is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is registered before the memory is named"]
pub struct RegionBuilder {
    pd: Pd,
    access: Access,
    to_base: Option<u64>,
    qp: Option<ForQp>,
}

/// The QP that a region is for.
#[derive(Clone)]
struct ForQp {
    pd: u32,
    num: Arc<Number>,
}

impl std::fmt::Debug for ForQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QP {}", self.num.get())
    }
}

impl RegionBuilder {
    pub(crate) fn new(pd: Pd) -> Self {
        RegionBuilder {
            pd,
            access: Access::NONE,
            to_base: None,
            qp: None,
        }
    }

    /// What the region may be used for (`ibv_access_flags`). Default: local read only.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// The address of the first byte for peers (its tagged offset) and in SGEs (`ibv_reg_mr_iova`). Default: where it
    /// lies in memory.
    pub fn iova(mut self, iova: u64) -> Self {
        self.to_base = Some(iova);
        self
    }

    /// Peers and SGEs count from 0 (`IBV_ACCESS_ZERO_BASED`): an address tells nobody where the memory lies.
    pub fn zero_based(self) -> Self {
        self.iova(0)
    }

    /// Only `qp` of the same domain reaches the region (5042-6.1.1-01). Of regions, such a one alone may be invalidated by
    /// that QP's peer with a Send with Invalidate (RFC 5040 section 8.1.1); so may windows of type 2 and fast
    /// registrations for one QP.
    pub fn for_qp(mut self, qp: &Qp) -> Self {
        self.qp = Some(ForQp {
            pd: qp.pd().id(),
            num: qp.inner().number(),
        });
        self
    }

    /// Registers a vector, which the region then owns (`ibv_reg_mr`).
    ///
    /// # Errors
    /// [`RegisterError`]: no bytes at all, rights that contradict each other, too many regions.
    pub fn vec(self, octets: Vec<u8>) -> Result<MemoryRegion, RegisterError> {
        self.buffer(Buffer::from(octets))
    }

    /// Registers a buffer, or one that is shared with the program or with other regions (`ibv_reg_mr`).
    ///
    /// # Errors
    /// As [`RegionBuilder::vec`]; [`RegisterError::ReadOnly`] for local write to a file that is open for reading.
    pub fn buffer(self, buffer: impl Into<Arc<Buffer>>) -> Result<MemoryRegion, RegisterError> {
        self.register(Backing::buffer(buffer.into()))
    }

    /// Registers a part of a buffer, and nothing else of it (`ibv_reg_mr`).
    ///
    /// # Errors
    /// As [`RegionBuilder::buffer`], and [`RegisterError::OutOfRange`].
    pub fn part(
        self,
        buffer: impl Into<Arc<Buffer>>,
        range: Range<usize>,
    ) -> Result<MemoryRegion, RegisterError> {
        let buffer = buffer.into();
        let outside = OutOfRange {
            offset: range.start,
            len: range.len(),
            size: buffer.len(),
        };
        let part = Backing::part(buffer, range.start as u64, range.len() as u64);
        self.register(part.ok_or(outside)?)
    }

    /// Registers bytes of a file, mapped and shared (`ibv_reg_mr` after `mmap`): see [`Buffer::map_file`], also for
    /// what must not happen to the file meanwhile.
    ///
    /// # Errors
    /// As [`RegionBuilder::buffer`], and [`RegisterError::Map`].
    pub fn file(self, file: &File, range: Range<u64>) -> Result<MemoryRegion, RegisterError> {
        let len = range.end.saturating_sub(range.start);
        let offset = range.start;
        let len = usize::try_from(len).map_err(|_| MapError::System {
            op: "map more than the address space holds",
            errno: rustix::io::Errno::NOMEM.raw_os_error(),
        })?;
        self.buffer(Buffer::map_file(file, offset, len)?)
    }

    /// Registers `len` bytes of zero that other processes can map (`ibv_reg_mr` after `mmap`): see [`Buffer::shared`].
    ///
    /// # Errors
    /// As [`RegionBuilder::buffer`], and [`RegisterError::Map`].
    pub fn shared(self, name: &str, len: usize) -> Result<MemoryRegion, RegisterError> {
        self.buffer(Buffer::shared(name, len)?)
    }

    /// Registers memory of the program where it lies, as `ibv_reg_mr` and `ibv_reg_mr_iova` do.
    ///
    /// # Errors
    /// As [`RegionBuilder::vec`].
    ///
    /// # Safety
    /// As [`Pd::register_in_place`].
    #[expect(
        unsafe_code,
        reason = "the caller's promise is handed on to the memory module"
    )]
    pub unsafe fn in_place(
        self,
        base: NonNull<u8>,
        len: usize,
    ) -> Result<MemoryRegion, RegisterError> {
        let writable = self.access.contains(Access::LOCAL_WRITE);
        // SAFETY: the same contract.
        let memory = unsafe { Backing::in_place(base, len, writable) };
        self.register(memory)
    }

    /// 5040-8.1.2-04: safe code names memory that it owns or may map; for `in_place` the caller vouches.
    fn register(self, memory: Backing) -> Result<MemoryRegion, RegisterError> {
        if let Some(ForQp { pd, num }) = &self.qp
            && *pd != self.pd.id()
        {
            return Err(RegisterError::QpOfOtherPd { qp: num.get() });
        }
        let device = self.pd.device();
        let region = device.table.insert(RegionSpec {
            memory,
            to_base: self.to_base,
            pd: self.pd.id(),
            qp: self.qp.as_ref().map(|qp| qp.num.get()),
            access: self.access,
        })?;
        let holds = Holds {
            pd: Arc::clone(self.pd.account()),
            qp: self.qp.map(|qp| qp.num),
        };
        Ok(MemoryRegion::new(region, Arc::clone(device), holds))
    }
}
