//! Large buffers that begin in the middle of a page.
//!
//! The kernel copies between these buffers and its own pages with `rep movsb`. On an AMD Zen 4 the
//! duration depends on the positions of source and destination in their pages. Within the
//! second-level cache, a copy of 1 MiB takes:
//!
//! * 21 us if the difference of the two addresses is a multiple of 32;
//! * up to 37 us if the destination is up to 64 bytes higher (modulo 4096);
//! * 300 us if the destination is 1 to 15 bytes higher;
//! * 23 to 26 us otherwise.
//!
//! The kernel starts a new page for a sender that has been idle for a moment. Received data thus
//! begins at the start of a page, or follows a few small messages there. An allocator places large
//! memory 16 bytes after the start of a page, after its own bookkeeping. Copies between these two
//! positions are slow, some of them very slow. The middle of a page is far from both.

use std::ops::{Deref, DerefMut, Range};

use crate::headroom;
use crate::policy::transfer::PAGE_OFFSET;
use crate::policy::{Heuristic, is_on};

/// Length of a page in bytes.
pub(super) const PAGE: usize = 4096;

/// Number of bytes to leave unused at the beginning of `buffer`, so that the rest begins in the
/// middle of a page.
#[inline]
pub(super) fn lead(buffer: &[u8]) -> usize {
    let within = buffer.as_ptr().addr() % PAGE;
    (PAGE + PAGE_OFFSET - within) % PAGE
}

/// A buffer that begins in the middle of a page, unless [`exact`](Self::exact) created it.
pub(super) struct PageOffsetBuffer {
    bytes: Box<[u8]>,
    used: Range<usize>,
}

impl PageOffsetBuffer {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + PAGE].into_boxed_slice();
        let lead = match is_on(Heuristic::PageOffset) {
            true => lead(&bytes),
            false => 0,
        };
        Self {
            bytes,
            used: lead..lead + len,
        }
    }

    /// Creates a buffer. Returns `None` if there is too little memory.
    pub(super) fn try_new(len: usize) -> Option<Self> {
        headroom::allocate(len + PAGE, || Self::new(len))
    }

    /// Creates a buffer without spare bytes, at any address. Returns `None` if there is too little
    /// memory.
    pub(super) fn try_exact(len: usize) -> Option<Self> {
        let bytes = headroom::allocate(len, || vec![0; len].into_boxed_slice())?;
        let used = 0..len;
        Some(Self { bytes, used })
    }

    /// Creates a buffer that does not begin in the middle of a page.
    #[cfg(test)]
    pub(super) fn misplaced(len: usize) -> Self {
        let mut buffer = Self::new(len + 1);
        buffer.used.start += 1;
        buffer
    }

    /// Returns true if the buffer begins in the middle of a page, as buffers of a pool do.
    pub(super) fn is_placed(&self) -> bool {
        lead(self) == 0 || !is_on(Heuristic::PageOffset)
    }
}

impl Deref for PageOffsetBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.used.clone()]
    }
}

impl DerefMut for PageOffsetBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_in_the_middle_of_a_page_wherever_its_memory_is() {
        for len in [1, 4096, 100_000, 256 * 1024, 1024 * 1024] {
            let buffer = PageOffsetBuffer::new(len);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % PAGE), (len, 2048));
        }
        let memory = vec![0; 3 * PAGE];
        for begin in 0..2 * PAGE {
            let buffer = &memory[begin..];
            let lead = lead(buffer);
            assert!(lead < PAGE);
            assert_eq!(buffer[lead..].as_ptr().addr() % PAGE, 2048);
        }
        assert!(PageOffsetBuffer::new(100).is_placed());
        assert!(!PageOffsetBuffer::misplaced(100).is_placed());
        assert_eq!(PageOffsetBuffer::try_exact(100).unwrap().len(), 100);
    }
}
