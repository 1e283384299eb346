//! CRC32C of registered memory, with and without copying it.
//!
//! If the processor supports it, one pass over the memory computes the CRC and copies the bytes
//! ([`fold`](super::fold)). On all other processors the bytes are copied in steps, and the CRC of
//! each step is computed after its copy. The tests compare the two ways.

use uwarp_mpa::Crc32c;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::fold;
use super::load;
use crate::policy::{CRC_STEP, SHORT_CRC};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::policy::{FOLDED_BYTES, Heuristic, is_on};

/// Copies as [`load`] does and adds the bytes of `out` to the CRC. The source is not read a second
/// time: others may write it meanwhile, and the CRC must match the bytes on the wire. Returns false
/// if the memory is gone; the CRC may then have a part of it.
///
/// # Safety
/// The same as for [`load`].
#[inline]
#[must_use]
pub(in crate::mem) unsafe fn load_with_crc(
    from: *const u8,
    out: &mut [u8],
    crc: &mut Crc32c,
) -> bool {
    // SAFETY: guaranteed by the caller. The head, the blocks and the tail together are the bytes of
    // `out`, which has room for them. `foldable` returns `Some` only if the processor can fold.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some((head, blocks)) = foldable(from, out.len()) {
            let (head, rest) = out.split_at_mut(head);
            let at = from.add(head.len());
            let folded = blocks * fold::BLOCK;
            return load_by_steps(from, head, crc)
                && fold::run::<true>(at, rest.as_mut_ptr(), blocks, crc)
                && load_by_steps(
                    at.add(folded),
                    rest.get_mut(folded..).unwrap_or_default(),
                    crc,
                );
        }
        load_by_steps(from, out, crc)
    }
}

/// Adds `len` bytes from `from` on to the CRC. Returns false if the memory is gone; the CRC may
/// then have a part of it.
///
/// # Safety
/// The same as for [`load`], for `len` bytes.
#[inline]
#[must_use]
pub(in crate::mem) unsafe fn checksum(from: *const u8, len: usize, crc: &mut Crc32c) -> bool {
    // SAFETY: guaranteed by the caller. The head, the blocks and the tail together have `len`
    // bytes. `foldable` returns `Some` only if the processor can fold. Without a copy the
    // destination is unused.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some((head, blocks)) = foldable(from, len) {
            let done = head + blocks * fold::BLOCK;
            return checksum_by_copy::<{ fold::BLOCK }>(from, head, crc)
                && fold::run::<false>(from.add(head), core::ptr::null_mut(), blocks, crc)
                && checksum_by_copy::<{ fold::BLOCK }>(from.add(done), len - done, crc);
        }
        // A short element gets a smaller buffer: clearing the larger one takes longer than the CRC
        // of the element.
        if len <= SHORT_CRC {
            return checksum_by_copy::<SHORT_CRC>(from, len, crc);
        }
        checksum_by_copy::<{ 2 * CRC_STEP }>(from, len, crc)
    }
}

/// Returns the number of bytes before the first cache line boundary, and the number of blocks after
/// it. `None` if the range is too short or this processor cannot fold.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn foldable(from: *const u8, len: usize) -> Option<(usize, usize)> {
    if !is_on(Heuristic::FoldedCrc) || len < FOLDED_BYTES || !fold::is_supported() {
        return None;
    }
    // Loads that straddle cache lines take twice as long.
    const { assert!(FOLDED_BYTES >= 63 + fold::BLOCK, "a head and a block") };
    let head = from.addr().wrapping_neg() & 63;
    Some((head, (len - head) / fold::BLOCK))
}

/// [`load_with_crc`] for every processor.
///
/// # Safety
/// The same as for [`load`].
#[inline]
unsafe fn load_by_steps(from: *const u8, out: &mut [u8], crc: &mut Crc32c) -> bool {
    let mut at = from;
    for part in out.chunks_mut(CRC_STEP) {
        // SAFETY: guaranteed by the caller, here for a part of `out` and the same part of the
        // source.
        unsafe {
            if !load(at, part) {
                return false;
            }
            at = at.add(part.len());
        }
        crc.update(part);
    }
    true
}

/// [`checksum`] for every processor. Copies through a private buffer of `N` bytes, because
/// registered memory must not be borrowed as a slice.
///
/// # Safety
/// The same as for [`load`], for `len` bytes.
unsafe fn checksum_by_copy<const N: usize>(from: *const u8, len: usize, crc: &mut Crc32c) -> bool {
    if len == 0 {
        return true;
    }
    let mut buffer = [0; N];
    let mut done = 0;
    while done < len {
        let part = N.min(len - done);
        if let Some(part) = buffer.get_mut(..part) {
            // SAFETY: guaranteed by the caller; the bytes are within `len`.
            if !unsafe { load(from.add(done), part) } {
                return false;
            }
            crc.update(part);
        }
        done += part;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random bytes, so that a wrong factor changes the CRC.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count as u64)
            .map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
            .collect()
    }

    /// The same bytes twice: in `bytes`, and at `begin`. No reference to the memory at `begin` is
    /// used, as with registered memory.
    struct Memory {
        bytes: Vec<u8>,
        begin: *mut u8,
        _held: Vec<u8>,
    }

    impl Memory {
        fn of(count: usize) -> Self {
            let mut held = bytes(count);
            Memory {
                bytes: bytes(count),
                begin: held.as_mut_ptr(),
                _held: held,
            }
        }
    }

    /// Lengths around each border between head, blocks and tail. Miri only supports the steps, so
    /// it gets few lengths.
    fn lengths() -> impl Iterator<Item = usize> {
        let (every, long): (_, &[usize]) = if cfg!(miri) {
            (397, &[])
        } else {
            (1, &[16_383, 16_384, 65_501])
        };
        (0..2100).step_by(every).chain(long.iter().copied())
    }

    #[test]
    fn both_crcs_are_those_of_the_bytes_wherever_they_begin() {
        let longest = lengths().max().unwrap_or_default();
        let source = Memory::of(longest + 128);
        // Index of the first byte of a cache line. A run from there has no head.
        let line = source.begin.align_offset(64);
        let mut out = vec![0; longest + 256];
        for len in lengths() {
            for from in [line, line + 1, line + 18, line + 63] {
                let part = &source.bytes[from..from + len];
                let begin = source.begin.wrapping_add(from);
                let mut expected = Crc32c::new();
                expected.update(b"what went before");
                let (mut copied, mut stayed) = (expected, expected);
                expected.update(part);
                out[..len + 256].fill(0);
                // SAFETY: `len` bytes are readable, without a reference to them; `out` is another
                // allocation.
                unsafe {
                    assert!(load_with_crc(begin, &mut out[..len], &mut copied));
                    assert!(checksum(begin, len, &mut stayed));
                }
                assert_eq!(copied, expected, "copied: {len} bytes from {from} on");
                assert_eq!(stayed, expected, "stayed: {len} bytes from {from} on");
                assert!(out[..len] == *part, "{len} bytes from {from} on");
                assert!(
                    out[len..len + 256].iter().all(|byte| *byte == 0),
                    "nothing is written after {len}"
                );
            }
        }
    }

    #[test]
    fn the_plain_ways_give_the_same() {
        // The longest runs have whole steps and a rest. Miri interprets every byte and gets short
        // runs.
        let lens: &[usize] = if cfg!(miri) {
            &[0, 1, 255, 8193]
        } else {
            &[0, 1, 255, 8191, 8192, 8193, 40_000]
        };
        let source = Memory::of(lens.iter().copied().max().unwrap_or_default());
        for &len in lens {
            let mut expected = Crc32c::new();
            expected.update(&source.bytes[..len]);
            let (mut copied, mut stayed) = (Crc32c::new(), Crc32c::new());
            let mut out = vec![0; len];
            // SAFETY: as above.
            unsafe {
                assert!(load_by_steps(source.begin, &mut out, &mut copied));
                assert!(checksum_by_copy::<256>(source.begin, len, &mut stayed));
            }
            assert_eq!([copied, stayed], [expected; 2], "{len} bytes");
            assert!(out == source.bytes[..len], "{len} bytes");
        }
    }

    /// Another thread writes the memory continuously, and the CRC still matches the copy.
    #[test]
    #[cfg(not(miri))]
    fn the_crc_is_that_of_the_copy_while_others_write() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

        let words: Vec<AtomicU64> = (0..1024).map(AtomicU64::new).collect();
        let over = AtomicBool::new(false);
        let (mut copy, mut last) = (vec![0; 8 * words.len()], Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    value = value.wrapping_add(0x0123_4567_89AB_CDEF);
                    words
                        .iter()
                        .for_each(|word| word.store(value, Ordering::Relaxed));
                }
            });
            let (mut changes, mut wrong) = (0, None);
            while changes < 100 && wrong.is_none() {
                let mut crc = Crc32c::new();
                // SAFETY: the memory lives and is only accessed by atomics and these loads; `copy`
                // is separate.
                assert!(unsafe { load_with_crc(words.as_ptr().cast(), &mut copy, &mut crc) });
                let mut expected = Crc32c::new();
                expected.update(&copy);
                wrong = (crc != expected).then_some((crc, expected));
                if copy != last {
                    changes += 1;
                    last.clone_from(&copy);
                }
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None);
        });
    }
}
