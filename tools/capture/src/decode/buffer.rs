//! Buffer for bytes that wait for the rest of their frame.

use std::ops::Deref;

/// Queue of bytes that dereferences to a slice. Each byte is copied only a few times, even if the
/// bytes are taken in small pieces. Taken bytes never occupy more memory than the remaining bytes.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that were already taken.
    taken: usize,
    /// Number of bytes that were copied so far to free the space of taken bytes.
    #[cfg(test)]
    moved: usize,
}

impl Buffer {
    /// Returns the memory in use, in bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// Appends bytes.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends `count` zeros.
    pub(super) fn extend_zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// Removes and returns the first `len` bytes, or all bytes if there are fewer.
    pub(super) fn take(&mut self, len: usize) -> Vec<u8> {
        let bytes = self.get(..len).unwrap_or(self).to_vec();
        self.taken += bytes.len();
        // Copies no more bytes than were taken since the last copy.
        if self.taken >= self.len() {
            let rest = self.to_vec();
            #[cfg(test)]
            {
                self.moved += rest.len();
            }
            self.bytes = rest;
            self.taken = 0;
        }
        bytes
    }

    /// Removes and returns all bytes.
    pub(super) fn take_all(&mut self) -> Vec<u8> {
        self.take(usize::MAX)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.taken..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uwarp_testkit::filler;

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let bytes = filler(0, 5000);
        for (in_pieces, out_pieces) in [(5000, 1), (1, 7), (64, 63), (17, 4000)] {
            let mut buffer = Buffer::default();
            let mut out = Vec::new();
            for piece in bytes.chunks(in_pieces) {
                buffer.extend(piece);
                while buffer.len() >= out_pieces {
                    out.extend(buffer.take(out_pieces));
                }
                assert_eq!(*buffer, bytes[out.len()..][..buffer.len()]);
                assert!(
                    buffer.held() <= 2 * buffer.len(),
                    "bytes already taken are still held"
                );
            }
            out.extend(buffer.take_all());
            assert_eq!(out, bytes);
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
