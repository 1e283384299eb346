//! CRC32C of memory that others may write concurrently, computed by folding.
//!
//! Each byte is read once, by a load of this module. The CRC and the copy, if any, use the loaded
//! value. So they match even if the memory changes meanwhile.
//!
//! Four accumulators of 64 bytes process the run together. One step multiplies them by x^2048
//! modulo the polynomial, without carries, and adds the next 256 bytes. The final 256 bytes have
//! the same remainder as the whole run. Their CRC is computed as for any other bytes.
//!
//! This needs a processor with AVX-512 and its carry-less multiplication. On all others
//! [`mod@super::checksum`] computes the CRC step by step.

use core::arch::asm;
use core::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm512_clmulepi64_epi128, _mm512_set4_epi64, _mm512_storeu_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use uwarp_mpa::Crc32c;

/// Number of bytes that one step processes.
pub(super) const BLOCK: usize = 256;

/// The polynomial of CRC32C without its highest term, most significant bit first.
const POLYNOMIAL: u32 = 0x1EDC_6F41;

/// Returns x^`power` modulo the polynomial. It is bit-reflected like the bytes of the run (lowest
/// bit first) and shifted so that x^0 is bit 32.
const fn factor(power: u32) -> i64 {
    let mut rest: u32 = 1;
    let mut done = 0;
    while done < power {
        let over = rest >> 31;
        rest = (rest << 1) ^ (POLYNOMIAL * over);
        done += 1;
    }
    (rest.reverse_bits() as i64) << 1
}

/// Factors that advance the lower and the upper half of 128 bits by one block.
///
/// The lower half has the earlier bytes, so its exponent is larger by 64. Reflection multiplies
/// each factor by x^31 and each product by another x. Both exponents are smaller by 32 to
/// compensate.
const FACTORS: [i64; 2] = {
    let bits = 8 * BLOCK as u32;
    [factor(bits + 32), factor(bits - 32)]
};

/// Returns true if this processor supports [`run`].
#[inline]
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// Adds `blocks` blocks from `from` on to the CRC. With `COPY` also copies them to `to`, which is
/// unused otherwise.
///
/// # Safety
/// [`is_supported`] returned true. `from` meets the conditions of [`super::load`] for
/// `blocks * BLOCK` bytes. With `COPY`, that many bytes are writable at `to`, and no other code
/// accesses them during the call.
#[target_feature(enable = "avx512f,vpclmulqdq")]
pub(super) unsafe fn run<const COPY: bool>(
    from: *const u8,
    to: *mut u8,
    blocks: usize,
    crc: &mut Crc32c,
) {
    if blocks == 0 {
        return;
    }
    let factors = _mm512_set4_epi64(FACTORS[1], FACTORS[0], FACTORS[1], FACTORS[0]);
    let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128((!crc.finish()).cast_signed()));
    let mut left = [0_u8; BLOCK];
    // SAFETY: offsets are below `blocks * BLOCK`. The caller guarantees that these bytes are
    // readable, and writable where they are copied to. Each part of `left` has room for the 64
    // bytes stored in it.
    unsafe {
        let next = |at: usize| {
            let bytes = load(from.add(at));
            if COPY {
                _mm512_storeu_si512(to.add(at).cast(), bytes);
            }
            bytes
        };
        let mut a = _mm512_xor_si512(next(0), state);
        let mut b = next(64);
        let mut c = next(128);
        let mut d = next(192);
        for block in 1..blocks {
            let at = block * BLOCK;
            a = step(a, factors, next(at));
            b = step(b, factors, next(at + 64));
            c = step(c, factors, next(at + 128));
            d = step(d, factors, next(at + 192));
        }
        for (part, bytes) in left.chunks_exact_mut(64).zip([a, b, c, d]) {
            _mm512_storeu_si512(part.as_mut_ptr().cast(), bytes);
        }
    }
    // A new CRC starts with a state of all ones, which inverts the first four bytes. Invert them
    // here to cancel that, because `left` already includes the state of `crc`.
    for byte in &mut left[..4] {
        *byte = !*byte;
    }
    *crc = Crc32c::new();
    crc.update(&left);
}

/// Advances one accumulator by a block and adds the bytes at its new position.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn step(held: __m512i, factors: __m512i, bytes: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(held, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(held, factors);
    _mm512_ternarylogic_epi64::<0x96>(low, high, bytes)
}

/// # Safety
/// The same as for [`super::load`], for 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const u8) -> __m512i {
    let bytes;
    // SAFETY: guaranteed by the caller; the instruction reads 64 bytes, writes none and changes no
    // flag.
    unsafe {
        asm!("vmovdqu64 {bytes}, [{from}]", from = in(reg) from, bytes = out(zmm_reg) bytes,
             options(nostack, preserves_flags, readonly));
    }
    bytes
}
