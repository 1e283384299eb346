//! Source of the payload of a ULPDU.

use crate::crc::Crc32c;

/// Number of bytes that are copied and then checksummed at a time, while they are still in the
/// first-level cache.
const BLOCK: usize = 8 * 1024;

/// Payload bytes of an outgoing message, implemented by the owner of their memory.
///
/// The framer never sees that memory as a slice, so other threads may write to it, as they may to
/// registered memory. Plain slices and arrays implement the trait too.
///
/// The framer asks only for non-empty ranges within the offset and length that it was given. Its
/// caller ensures that these lie within the payload.
pub trait Payload {
    /// Copies `out.len()` bytes from `offset` on to `out`. With `crc`, also updates it with the
    /// bytes that are now in `out`, without a second read of the source.
    fn copy(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc32c>);

    /// Updates `crc` with the `len` bytes from `offset` on, without copying them.
    fn checksum(&self, offset: usize, len: usize, crc: &mut Crc32c);
}

/// # Panics
/// If the range reaches past the end of the slice, as indexing does.
impl Payload for [u8] {
    fn copy(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc32c>) {
        let source = &self[offset..][..out.len()];
        let Some(crc) = crc else {
            out.copy_from_slice(source);
            return;
        };
        for (to, from) in out.chunks_mut(BLOCK).zip(source.chunks(BLOCK)) {
            to.copy_from_slice(from);
            crc.update(to);
        }
    }

    fn checksum(&self, offset: usize, len: usize, crc: &mut Crc32c) {
        crc.update(&self[offset..][..len]);
    }
}

/// # Panics
/// If the range reaches past the end of the array, as indexing does.
impl<const N: usize> Payload for [u8; N] {
    fn copy(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc32c>) {
        self.as_slice().copy(offset, out, crc);
    }

    fn checksum(&self, offset: usize, len: usize, crc: &mut Crc32c) {
        self.as_slice().checksum(offset, len, crc);
    }
}

impl<P: Payload + ?Sized> Payload for &P {
    fn copy(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc32c>) {
        (**self).copy(offset, out, crc);
    }

    fn checksum(&self, offset: usize, len: usize, crc: &mut Crc32c) {
        (**self).checksum(offset, len, crc);
    }
}
