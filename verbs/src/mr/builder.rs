//! Builder for registrations with all options.

use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use uwarp_engine::mem::{Access, Backing, Buffer, MapError, OutOfRange, RegionSpec, RegisterError};

use super::{Holds, MemoryRegion};
use crate::pd::Pd;
use uwarp_engine::limits::Number;

/// Builder of a registration (the arguments of `ibv_reg_mr`), created by [`Pd::region`]. The last
/// call names the memory and registers it.
///
/// ```
/// use uwarp_verbs::{Access, Buffer, Device};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::tcp()?.alloc_pd()?;
/// // Addresses start at 0 for peers, which may only read.
/// let table = pd.region().access(Access::REMOTE_READ).zero_based().vec(vec![1, 2, 3])?;
/// assert_eq!((table.addr(), table.len()), (0, 3));
/// // Another process can map this memory, too. For peers, addresses start at 0x10_0000.
/// let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
/// let inbox = pd.region().access(rights).iova(0x10_0000).shared("inbox", 4096)?;
/// assert_eq!(inbox.remote().addr, 0x10_0000);
/// assert!(inbox.buffer().and_then(Buffer::as_fd).is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is registered until the memory is named"]
pub struct RegionBuilder {
    pd: Pd,
    access: Access,
    to_base: Option<u64>,
    qp: Option<ForQp>,
}

/// The QP for which a region is registered.
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

impl Pd {
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

    /// Sets the access rights (`ibv_access_flags`). Default: local read only.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the address of the first byte for peers (its tagged offset) and in SGEs
    /// (`ibv_reg_mr_iova`). Default: its address in memory.
    pub fn iova(mut self, iova: u64) -> Self {
        self.to_base = Some(iova);
        self
    }

    /// Starts addresses for peers and SGEs at 0 (`IBV_ACCESS_ZERO_BASED`), so that they do not
    /// reveal the location of the memory.
    pub fn zero_based(self) -> Self {
        self.iova(0)
    }

    /// Restricts the region to the QP with this number, in the domain `pd`.
    pub(crate) fn only_for(mut self, pd: u32, num: Arc<Number>) -> Self {
        self.qp = Some(ForQp { pd, num });
        self
    }

    /// Registers a vector, which the region then owns (`ibv_reg_mr`).
    ///
    /// # Errors
    /// [`RegisterError`]: an empty region, contradictory rights, or too many regions.
    pub fn vec(self, bytes: Vec<u8>) -> Result<MemoryRegion, RegisterError> {
        self.buffer(Buffer::from(bytes))
    }

    /// Registers a buffer, which the program or other regions may share (`ibv_reg_mr`).
    ///
    /// # Errors
    /// Errors of [`RegionBuilder::vec`], and [`RegisterError::ReadOnly`] for local write to a file
    /// that is open only for reading.
    pub fn buffer(self, buffer: impl Into<Arc<Buffer>>) -> Result<MemoryRegion, RegisterError> {
        self.register(Backing::buffer(buffer.into()))
    }

    /// Registers a part of a buffer (`ibv_reg_mr`).
    ///
    /// # Errors
    /// Errors of [`RegionBuilder::buffer`], and [`RegisterError::OutOfRange`].
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

    /// Registers bytes of a file, mapped as shared memory (`ibv_reg_mr` after `mmap`).
    /// [`Buffer::map_file`] lists the restrictions on the file while it is mapped.
    ///
    /// # Errors
    /// Errors of [`RegionBuilder::buffer`], and [`RegisterError::Map`].
    pub fn file(self, file: &File, range: Range<u64>) -> Result<MemoryRegion, RegisterError> {
        let len = range.end.saturating_sub(range.start);
        let offset = range.start;
        let len = usize::try_from(len).map_err(|_| MapError::System {
            op: "map more than the address space holds",
            errno: rustix::io::Errno::NOMEM.raw_os_error(),
        })?;
        self.buffer(Buffer::map_file(file, offset, len)?)
    }

    /// Registers `len` zero bytes that other processes can map (`ibv_reg_mr` after `mmap`); see
    /// [`Buffer::shared`].
    ///
    /// # Errors
    /// Errors of [`RegionBuilder::buffer`], and [`RegisterError::Map`].
    pub fn shared(self, name: &str, len: usize) -> Result<MemoryRegion, RegisterError> {
        self.buffer(Buffer::shared(name, len)?)
    }

    /// Registers memory of the program in place, as `ibv_reg_mr` and `ibv_reg_mr_iova` do. A range
    /// of 0 bytes is a region, too, which allows only accesses of 0 bytes.
    ///
    /// # Errors
    /// See [`RegionBuilder::vec`].
    ///
    /// # Safety
    /// See [`Pd::register_in_place`].
    #[expect(
        unsafe_code,
        reason = "the caller's contract is passed on to the memory module"
    )]
    pub unsafe fn in_place(
        self,
        base: NonNull<u8>,
        len: usize,
    ) -> Result<MemoryRegion, RegisterError> {
        let writable = self.access.contains(Access::LOCAL_WRITE);
        // SAFETY: the caller upholds the contract of `Pd::register_in_place`.
        let memory = unsafe { Backing::in_place(base, len, writable) };
        self.register(memory)
    }

    /// Registers `memory`. 5040-8.1.2-04: safe code can only name memory that it owns or may map.
    /// The caller of `in_place` guarantees the same.
    fn register(self, memory: Backing) -> Result<MemoryRegion, RegisterError> {
        if let Some(ForQp { pd, num }) = &self.qp
            && *pd != self.pd.id()
        {
            return Err(RegisterError::QpOfOtherPd { qp: num.get() });
        }
        let device = self.pd.device()?;
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
