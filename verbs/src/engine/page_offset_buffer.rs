//! Where large buffers begin: in the middle of a page.
//!
//! The kernel copies between these buffers and its own pages by `rep movsb`, and on a Zen 4 of AMD that takes time by where source and destination
//! lie in their pages. In the second-level cache a MiB takes 21 us where the difference of the two addresses is a multiple of 32, up to 37 where the
//! destination has an address up to 64 bytes higher (modulo 4096), and 300 where it is 1 to 15 bytes higher; 23 to 26 otherwise.
//!
//! The kernel begins a page of its own for who has sent nothing for a moment, so what is copied out of it lies at the beginning of a page, or a few small
//! messages behind that. An allocator begins large memory 16 bytes behind the beginning of a page, for its own sake: with most of what is
//! received that is slow, and with some very slow. From the middle of a page both are far away.

use std::ops::{Deref, DerefMut, Range};

/// Addresses are compared modulo this.
pub(super) const PAGE: usize = 4096;

/// How many bytes at the beginning of a buffer to leave unused.
#[inline]
pub(super) fn lead(buffer: &[u8]) -> usize {
    let within = buffer.as_ptr().addr() % PAGE;
    (PAGE + PAGE / 2 - within) % PAGE
}

/// A buffer that begins in the middle of a page.
pub(super) struct PageOffsetBuffer {
    octets: Box<[u8]>,
    used: Range<usize>,
}

impl PageOffsetBuffer {
    pub(super) fn new(len: usize) -> Self {
        let octets = vec![0; len + PAGE].into_boxed_slice();
        let lead = lead(&octets);
        Self {
            octets,
            used: lead..lead + len,
        }
    }

    /// One that is no larger than it has to be, wherever it begins.
    pub(super) fn exact(len: usize) -> Self {
        Self {
            octets: vec![0; len].into_boxed_slice(),
            used: 0..len,
        }
    }

    /// One that begins elsewhere.
    #[cfg(test)]
    pub(super) fn misplaced(len: usize) -> Self {
        let mut buffer = Self::new(len + 1);
        buffer.used.start += 1;
        buffer
    }

    /// Whether it begins in the middle of a page.
    pub(super) fn is_placed(&self) -> bool {
        lead(self) == 0
    }
}

impl Deref for PageOffsetBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.octets[self.used.clone()]
    }
}

impl DerefMut for PageOffsetBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.octets[self.used.clone()]
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
        assert_eq!(PageOffsetBuffer::exact(100).len(), 100);
    }
}
