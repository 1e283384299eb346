//! Buffers that go into an operation and come back.

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Poll;

use super::error::PoolError;
use crate::mem::{Buffer, InFlight, Piece, Pieces, RegisterError, Sge};
use crate::mr::MemoryRegion;

/// Registered memory in buffers of one size, from one region. Clones are handles to the same pool. It is one `ibv_mr`
/// in parts; the verbs have no pools and no owned buffers.
///
/// The peers have no right to it: they never see its STag but as the sink of a Read that this side asks for.
#[derive(Clone)]
pub struct BufferPool {
    pieces: Arc<Pieces>,
    region: Arc<MemoryRegion>,
}

/// An owned buffer of registered memory. For the verbs it is an `ibv_sge` and the memory behind it.
///
/// It has a capacity, which is the pool's, and a length: the bytes that a Send or Write takes, and that a receive or a
/// Read has brought. It dereferences to those bytes. An operation takes it by value and gives it back when
/// no transfer can touch it any more, so no code can look at memory in flight. Dropping it gives it back to its pool.
/// Its first content is what the user before left in it (zeros in a new pool).
pub struct RegisteredBuf {
    piece: Piece,
    len: usize,
    region: Arc<MemoryRegion>,
}

/// A buffer that a work request names. It is lost for its pool unless it lands.
pub(super) struct FlyingBuf {
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
        Ok(BufferPool {
            pieces: Pieces::new(buffer, size),
            region: Arc::new(region),
        })
    }

    /// Bytes of each buffer.
    #[must_use]
    pub fn buffer_size(&self) -> usize {
        self.pieces.size()
    }

    /// Buffers that are neither held by anybody nor in flight; none in the child of a fork.
    #[must_use]
    pub fn available(&self) -> usize {
        self.pieces.free()
    }

    /// A buffer, if one is free, with its length at its capacity.
    #[must_use]
    pub fn try_get(&self) -> Option<RegisteredBuf> {
        self.pieces.take().map(|piece| self.buf(piece))
    }

    /// A buffer, as soon as one is free; never in the child of a fork. Tasks that wait get theirs in no order.
    pub async fn get(&self) -> RegisteredBuf {
        let piece = poll_fn(|cx| match self.pieces.take_or_wait(cx.waker()) {
            Some(piece) => Poll::Ready(piece),
            None => Poll::Pending,
        });
        self.buf(piece.await)
    }

    fn buf(&self, piece: Piece) -> RegisteredBuf {
        RegisteredBuf {
            piece,
            len: self.pieces.size(),
            region: Arc::clone(&self.region),
        }
    }
}

impl RegisteredBuf {
    /// Bytes that it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.piece.as_slice().len()
    }

    /// Sets the length, up to the capacity. Bytes that come to light are what was there before.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// Makes these bytes the content, as far as the capacity goes; returns how many were taken.
    pub fn fill_from(&mut self, octets: &[u8]) -> usize {
        self.set_len(octets.len());
        let len = self.len;
        self.copy_from_slice(&octets[..len]);
        len
    }

    /// True if the pool has no other buffer: it gives none out before one comes back.
    pub(super) fn is_last(&self) -> bool {
        self.piece.is_last()
    }

    pub(super) fn launch(self) -> FlyingBuf {
        FlyingBuf {
            memory: self.piece.launch(),
            len: self.len,
            region: self.region,
        }
    }
}

impl FlyingBuf {
    /// Its content, for a source.
    pub(super) fn content(&self) -> Sge {
        self.memory.sge(self.region.lkey(), 0, self.len)
    }

    /// Its first `len` bytes, as far as the capacity goes, for a sink.
    pub(super) fn room(&self, len: usize) -> Sge {
        self.memory.sge(self.region.lkey(), 0, len)
    }

    /// The buffer again, with the bytes that were brought, or with its length as it was.
    ///
    /// # Safety
    /// No transfer uses it any more: the work request that named it has completed, or was not taken.
    #[expect(
        unsafe_code,
        reason = "the caller's promise is handed on to the memory module"
    )]
    pub(super) unsafe fn landed(self, brought: Option<u32>) -> RegisteredBuf {
        let mut buf = RegisteredBuf {
            // SAFETY: the same contract.
            piece: unsafe { self.memory.landed() },
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
