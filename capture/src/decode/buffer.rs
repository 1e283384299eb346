//! Bytes that wait for the rest of their frame.

use std::ops::Deref;

/// A queue of bytes that is read as a slice. What goes in is copied a few times at most, however small the pieces in which
/// it is taken; and what was taken holds no more memory than what is left.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    octets: Vec<u8>,
    /// So many of `octets` were taken.
    taken: usize,
    /// Bytes copied to make place.
    #[cfg(test)]
    moved: usize,
}

impl Buffer {
    /// What it takes of memory.
    pub(super) fn held(&self) -> usize {
        self.octets.len()
    }

    /// Bytes come.
    pub(super) fn extend(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
    }

    /// `count` zeros come.
    pub(super) fn extend_zeros(&mut self, count: usize) {
        self.octets.resize(self.octets.len() + count, 0);
    }

    /// Takes `len` bytes from the front, or all if there are fewer.
    pub(super) fn take(&mut self, len: usize) -> Vec<u8> {
        let octets = self.get(..len).unwrap_or(self).to_vec();
        self.taken += octets.len();
        // As many were taken since the last time as are copied now.
        if self.taken >= self.len() {
            let rest = self.to_vec();
            #[cfg(test)]
            {
                self.moved += rest.len();
            }
            self.octets = rest;
            self.taken = 0;
        }
        octets
    }

    /// Takes everything.
    pub(super) fn take_all(&mut self) -> Vec<u8> {
        self.take(usize::MAX)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.octets.get(self.taken..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::filler;

    #[test]
    fn octets_come_out_as_they_went_in() {
        let octets = filler(5000);
        for (in_pieces, out_pieces) in [(5000, 1), (1, 7), (64, 63), (17, 4000)] {
            let mut buffer = Buffer::default();
            let mut out = Vec::new();
            for piece in octets.chunks(in_pieces) {
                buffer.extend(piece);
                while buffer.len() >= out_pieces {
                    out.extend(buffer.take(out_pieces));
                }
                assert_eq!(*buffer, octets[out.len()..][..buffer.len()]);
                assert!(buffer.held() <= 2 * buffer.len(), "what was taken is held");
            }
            out.extend(buffer.take_all());
            assert_eq!(out, octets);
            assert_eq!((buffer.len(), buffer.held()), (0, 0));
        }
    }

    #[test]
    fn zeros_come_behind_what_is_there() {
        let mut buffer = Buffer::default();
        buffer.extend(&[1, 2, 3]);
        assert_eq!(buffer.take(2), [1, 2]);
        buffer.extend_zeros(2);
        assert_eq!(buffer.take(9), [3, 0, 0]);
    }

    #[test]
    fn what_is_copied_is_in_proportion_to_what_comes_however_small_the_pieces() {
        const MANY: usize = 1 << 18;
        for piece in [1, 8, 1000] {
            let mut buffer = Buffer::default();
            buffer.extend(&vec![7; MANY]);
            while !buffer.is_empty() {
                buffer.take(piece);
            }
            assert!(
                buffer.moved <= MANY,
                "{} bytes copied for {MANY}",
                buffer.moved
            );
        }
    }
}
