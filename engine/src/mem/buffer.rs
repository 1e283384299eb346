//! Buffers owned by this library that can be registered.

mod bytes;

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use std::alloc::Layout;
use std::os::fd::{AsFd, BorrowedFd};

use ::bytes::{Bytes, BytesMut};

use super::error::OutOfRange;
use super::mapped::Mapping;
use super::raw;

/// Alignment of allocated buffers: one page.
const PAGE: usize = 4096;

/// The system has too little memory. (Like [`Buffer`], this has no verbs equivalent.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory for a buffer of {len} bytes")]
pub struct BufferError {
    /// Requested size in bytes.
    pub len: usize,
}

/// An owned block of bytes that can be registered. (This has no verbs equivalent, because in verbs
/// the program owns the memory.)
///
/// It is only accessed through raw pointers, so peers may write it through an STag while the
/// program reads it. Every access is a copy, and a copy may contain bytes of different ages.
///
/// It can be made from a vector, from [`BytesMut`], and from [`Bytes`], which stay read-only.
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// Source of the memory, which determines how it is freed.
enum Origin {
    Pages(Layout),
    Vec {
        capacity: usize,
    },
    Mapped(Mapping),
    /// Bytes that nobody writes. The program may have other handles to them.
    Bytes(Bytes),
    BytesMut(BytesMut),
    Nothing,
}

// SAFETY: the buffer owns its memory, or shares memory that nobody writes, and only hands out
// copies of the bytes.
unsafe impl Send for Buffer {}
// SAFETY: shared access goes only through the copy functions of the module `raw`, which allow
// concurrent access.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` zero bytes, aligned to a page.
    ///
    /// # Errors
    /// [`BufferError`] if the system has too little memory.
    pub fn zeroed(len: usize) -> Result<Self, BufferError> {
        if len == 0 {
            return Ok(Self {
                base: NonNull::dangling(),
                len,
                origin: Origin::Nothing,
            });
        }
        let layout = Layout::from_size_align(len, PAGE).map_err(|_| BufferError { len })?;
        // SAFETY: the layout's size is not 0.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(BufferError { len })?;
        Ok(Self {
            base,
            len,
            origin: Origin::Pages(layout),
        })
    }

    /// Takes over a memory mapping.
    pub(super) fn mapped(mapping: Mapping) -> Self {
        Self {
            base: mapping.base(),
            len: mapping.len(),
            origin: Origin::Mapped(mapping),
        }
    }

    /// Returns true if the bytes may be changed; false for a file that was opened read-only, and
    /// for [`Bytes`].
    #[must_use]
    pub fn is_writable(&self) -> bool {
        match &self.origin {
            Origin::Mapped(mapping) => mapping.is_writable(),
            Origin::Bytes(_) => false,
            Origin::Pages(_) | Origin::Vec { .. } | Origin::BytesMut(_) | Origin::Nothing => true,
        }
    }

    /// File descriptor of memory made by [`Buffer::shared`], for passing to another process.
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.origin {
            Origin::Mapped(mapping) => mapping.fd().map(AsFd::as_fd),
            Origin::Pages(_)
            | Origin::Vec { .. }
            | Origin::Bytes(_)
            | Origin::BytesMut(_)
            | Origin::Nothing => None,
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte (`addr` of `ibv_mr`). SGEs name the first byte by this address. By
    /// default this is also the TO of the first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Copies bytes out of the buffer.
    ///
    /// After a read that returns a byte placed by a peer, later reads see all bytes that the peer
    /// placed before it.
    ///
    /// # Errors
    /// [`OutOfRange`] if the range is not inside the buffer; nothing is copied.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(offset, out.len())?;
        // SAFETY: the range lies in memory that `self` keeps alive. `out` is an exclusive
        // reference. No reference points into the buffer, except shared ones of `Bytes`, so they do
        // not overlap.
        let read = unsafe { raw::load(self.base.as_ptr().add(offset), out) };
        fence(Ordering::Acquire);
        read.then_some(()).ok_or(OutOfRange {
            offset,
            len: out.len(),
            size: 0,
        })
    }

    /// Copies bytes into the buffer. The last byte becomes visible last; on x86-64 the others
    /// become visible in address order.
    ///
    /// # Errors
    /// [`OutOfRange`] if the range is not inside the buffer; nothing is copied. A buffer that is
    /// [not writable](Self::is_writable) reports a size of 0.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        let len = bytes.len();
        self.check(offset, len)?;
        if !self.is_writable() {
            let size = 0;
            return Err(OutOfRange { offset, len, size });
        }
        // SAFETY: as for `read_at`, and writable.
        let written = unsafe { raw::store(self.base.as_ptr().add(offset), bytes) };
        let size = 0;
        written
            .then_some(())
            .ok_or(OutOfRange { offset, len, size })
    }

    /// Converts the buffer into a vector. A buffer made from a vector returns the same allocation.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        match core::mem::replace(&mut self.origin, Origin::Nothing) {
            Origin::Vec { capacity } => {
                // SAFETY: `from` took these parts from a vector. The origin was taken out, so a
                // vector is made from them only once. All bytes are initialized.
                unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.len, capacity) }
            }
            Origin::Bytes(bytes) => bytes.into(),
            Origin::BytesMut(bytes) => bytes.into(),
            origin @ (Origin::Pages(_) | Origin::Mapped(_) | Origin::Nothing) => {
                // Freed when `self` is dropped, after the copy.
                self.origin = origin;
                let mut bytes = vec![0; self.len];
                // SAFETY: as for `read_at`.
                // Bytes after the end of a truncated file stay zero.
                let _ = unsafe { raw::load(self.base.as_ptr(), &mut bytes) };
                bytes
            }
        }
    }

    /// Returns true if the buffer is a mapped file, or shared memory.
    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.origin, Origin::Mapped(_))
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfRange> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            Ok(())
        } else {
            Err(OutOfRange {
                offset,
                len,
                size: self.len,
            })
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let (capacity, len) = (bytes.capacity(), bytes.len());
        // A vector's pointer is never null. A vector without an allocation has a dangling pointer,
        // which is kept as it is, so that `into_vec` and `drop` can give it back.
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self {
            base,
            len,
            origin: Origin::Vec { capacity },
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated with this layout in `zeroed`, freed only here.
            Origin::Pages(layout) => unsafe {
                std::alloc::dealloc(self.base.as_ptr(), layout);
            },
            Origin::Vec { capacity } => {
                // SAFETY: `from` took these parts from a vector. A vector is made from them either
                // here or in `into_vec`, which does not drop `self`.
                drop(unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.len, capacity) });
            }
            // These free their memory when they are dropped.
            Origin::Mapped(_) | Origin::Bytes(_) | Origin::BytesMut(_) | Origin::Nothing => {}
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x})", self.len, self.addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_starts_zeroed_and_on_a_page() {
        let buffer = Buffer::zeroed(5000).unwrap();
        assert_eq!(buffer.addr() % 4096, 0);
        assert_eq!(buffer.into_vec(), vec![0; 5000]);
    }

    #[test]
    fn a_vector_comes_back_as_the_same_memory() {
        let mut bytes = Vec::with_capacity(100);
        bytes.extend_from_slice(b"abcdef");
        let at = bytes.as_ptr() as u64;
        let buffer = Buffer::from(bytes);
        assert_eq!(buffer.addr(), at);
        buffer.write_at(1, b"XY").unwrap();
        let bytes = buffer.into_vec();
        assert_eq!((bytes.as_ptr() as u64, bytes.capacity()), (at, 100));
        assert_eq!(bytes, b"aXYdef");
        drop(Buffer::from(bytes));
        assert!(Buffer::from(Vec::new()).into_vec().is_empty());
        assert!(Buffer::zeroed(0).unwrap().into_vec().is_empty());
    }

    #[test]
    fn a_range_outside_is_refused_and_nothing_is_copied() {
        let buffer = Buffer::from(vec![7; 10]);
        for (offset, len) in [(10, 1), (0, 11), (11, 0), (usize::MAX, 2), (9, 2)] {
            let expected = Err(OutOfRange {
                offset,
                len,
                size: 10,
            });
            assert_eq!(buffer.write_at(offset, &vec![0; len]), expected);
            let mut out = vec![1; len];
            assert_eq!(buffer.read_at(offset, &mut out), expected);
            assert_eq!(out, vec![1; len]);
        }
        assert_eq!(buffer.write_at(10, &[]), Ok(()));
        assert_eq!(buffer.into_vec(), vec![7; 10]);
    }

    #[test]
    fn too_large_a_buffer_is_an_error() {
        assert_eq!(
            Buffer::zeroed(usize::MAX).unwrap_err(),
            BufferError { len: usize::MAX }
        );
    }
}
