//! Registered buffers that an operation takes by value and returns.

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Poll;

use uwarp_engine::mem::{Buffer, InFlight, Loan, Pieces, RegisterError, Sge};

use super::error::PoolError;
use crate::mr::MemoryRegion;

/// A pool of equally sized buffers in one registered region.
///
/// The pool is one `ibv_mr` divided into pieces; the verbs API has neither pools nor owned buffers.
/// Clones are handles to the same pool.
///
/// Peers have no access right to the memory. They see its STag only as the sink of a Read that this
/// side requests.
#[derive(Clone)]
pub struct BufferPool {
    pieces: Arc<Pieces>,
    region: Arc<MemoryRegion>,
}

/// An owned buffer of registered memory (an `ibv_sge` together with its memory).
///
/// The capacity is that of the pool. The length is the number of bytes to send or write, or the
/// number of bytes that a receive or Read placed. The buffer dereferences to those bytes. An
/// operation takes the buffer by value and returns it when no transfer can touch it any more, so no
/// code can access memory in flight. Dropping the buffer returns it to its pool.
///
/// A new pool contains zeros. Later, a buffer from the pool still holds the bytes of its previous
/// use.
pub struct RegisteredBuf {
    piece: Loan,
    len: usize,
    region: Arc<MemoryRegion>,
}

/// A buffer that a posted work request names. It returns to its pool only after
/// [`reclaim`](Self::reclaim).
pub(super) struct InFlightBuf {
    memory: InFlight,
    len: usize,
    region: Arc<MemoryRegion>,
}

impl BufferPool {
    pub(super) fn new(
        count: usize,
        size: usize,
        register: impl FnOnce(&Arc<Buffer>) -> Result<MemoryRegion, RegisterError>,
    ) -> Result<Self, PoolError> {
        let len = count.saturating_mul(size);
        let buffer = Arc::new(Buffer::zeroed(len)?);
        let region = register(&buffer)?;
        #[expect(unsafe_code, reason = "see the safety comment")]
        // SAFETY: the buffer is new, and anonymous memory. Its only other owner is its region,
        // which grants no remote right; `register` keeps no other handle.
        let pieces = unsafe { Pieces::new(buffer, size) };
        Ok(BufferPool {
            pieces,
            region: Arc::new(region),
        })
    }

    /// Size of each buffer, in bytes.
    #[must_use]
    pub fn buffer_size(&self) -> usize {
        self.pieces.size()
    }

    /// Number of buffers that are neither owned by the program nor in flight. 0 in the child of a
    /// fork.
    #[must_use]
    pub fn available(&self) -> usize {
        self.pieces.free()
    }

    /// Takes a buffer if one is free. Its length equals its capacity.
    #[must_use]
    pub fn try_get(&self) -> Option<RegisteredBuf> {
        self.pieces.take().map(|piece| self.buf(piece))
    }

    /// Waits for a free buffer and takes it; waits forever in the child of a fork.
    ///
    /// Waiting tasks get their buffers in no particular order.
    pub async fn get(&self) -> RegisteredBuf {
        let piece = poll_fn(|cx| match self.pieces.take_or_wait(cx.waker()) {
            Some(piece) => Poll::Ready(piece),
            None => Poll::Pending,
        });
        self.buf(piece.await)
    }

    fn buf(&self, piece: Loan) -> RegisteredBuf {
        RegisteredBuf {
            piece,
            len: self.pieces.size(),
            region: Arc::clone(&self.region),
        }
    }
}

impl RegisteredBuf {
    /// Capacity in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.piece.as_slice().len()
    }

    /// Sets the length in bytes, at most the capacity. A longer length exposes the bytes already
    /// there.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// Replaces the content with as many of these bytes as fit; returns their number.
    pub fn fill_from(&mut self, bytes: &[u8]) -> usize {
        self.set_len(bytes.len());
        let len = self.len;
        self.copy_from_slice(&bytes[..len]);
        len
    }

    /// Returns true if the pool has no free buffer besides this one.
    pub(super) fn is_last(&self) -> bool {
        self.piece.is_last()
    }

    pub(super) fn start_transfer(self) -> InFlightBuf {
        InFlightBuf {
            memory: self.piece.start_transfer(),
            len: self.len,
            region: self.region,
        }
    }
}

impl InFlightBuf {
    /// The buffer's content, as the source of a transfer.
    pub(super) fn content(&self) -> Sge {
        self.memory.sge(self.region.lkey(), 0, self.len)
    }

    /// The first `len` bytes of the buffer, at most the capacity, as the sink of a transfer.
    pub(super) fn room(&self, len: usize) -> Sge {
        self.memory.sge(self.region.lkey(), 0, len)
    }

    /// Converts this back into an owned buffer. `brought` is the number of bytes placed, if the
    /// transfer placed any; otherwise the length stays as it was.
    ///
    /// # Safety
    /// No transfer uses the memory any more: the work request that named it has completed or was
    /// refused.
    #[expect(
        unsafe_code,
        reason = "the caller's promise is handed on to the memory module"
    )]
    pub(super) unsafe fn reclaim(self, brought: Option<u32>) -> RegisteredBuf {
        let mut buf = RegisteredBuf {
            // SAFETY: the same contract.
            piece: unsafe { self.memory.reclaim() },
            len: self.len,
            region: self.region,
        };
        if let Some(len) = brought {
            buf.set_len(len as usize);
        }
        buf
    }
}

impl Deref for RegisteredBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.piece.as_slice()[..self.len]
    }
}

impl DerefMut for RegisteredBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.piece.as_mut_slice()[..self.len]
    }
}

impl fmt::Debug for RegisteredBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RegisteredBuf({} of {} bytes)",
            self.len,
            self.capacity()
        )
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("buffer_size", &self.buffer_size())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
