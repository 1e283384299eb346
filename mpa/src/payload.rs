//! Where the payload of a ULPDU comes from.

use crate::crc::Crc32c;

/// Octets copied and then checksummed at a time: they are still in the first-level cache.
const BLOCK: usize = 8 * 1024;

/// The payload octets of an outgoing message, implemented by whoever owns the memory they lie in.
///
/// The framer never sees that memory as a slice, so it may be memory that others write: registered
/// memory is. Plain slices and arrays implement it too.
///
/// The framer asks only for ranges within the offset and length it was given, and never for none at
/// all; whether those lie within the payload is the business of the framer's caller.
pub trait Payload {
    /// Copies `out.len()` octets, from `offset` on, to `out`. With `crc`, also updates it with the
    /// octets as they now are in `out`, not with a second look at the source.
    fn copy(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc32c>);

    /// Updates `crc` with the `len` octets from `offset` on, which stay where they are.
    fn checksum(&self, offset: usize, len: usize, crc: &mut Crc32c);
}

/// # Panics
/// If the range asked for reaches beyond the slice, as indexing does.
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
/// If the range asked for reaches beyond the array, as indexing does.
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
