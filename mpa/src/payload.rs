//! Source of the payload of a ULPDU.

use crate::crc::Crc32c;

/// Number of bytes copied before their CRC is computed. They are still in the first-level cache
/// then.
const BLOCK: usize = 8 * 1024;

/// Payload bytes of an outgoing message, implemented by the owner of their memory.
///
/// The framer never gets a slice of that memory. So it may be registered memory, which other
/// threads write at the same time. Slices and arrays of bytes implement the trait too.
///
/// The framer requests only non-empty ranges inside the range that its caller passed. The caller
/// ensures that this range lies inside the payload.
pub trait Payload {
    /// Fills `out` with the bytes from `offset` on. Updates `crc`, if given, with the bytes in
    /// `out`, without a second read of the source.
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
