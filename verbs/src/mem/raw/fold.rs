//! CRC32C of memory that others may write, by folding: each byte is read once, by a load of our own, and its CRC
//! is that of the value which that load saw, also where the bytes are copied in the same pass.
//!
//! Four accumulators of 64 bytes go over the run together. One step multiplies what they hold by x^2048 modulo the
//! polynomial, without carries, and adds the next 256 bytes, so that in the end 256 bytes are left which have the
//! remainder of the whole run; their CRC is computed as that of any other bytes.
//!
//! It takes a processor with AVX-512 and its carry-less multiplication; [`super::checksum`] does without on all others.

use core::arch::asm;
use core::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm512_clmulepi64_epi128, _mm512_set4_epi64, _mm512_storeu_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use uwarp_mpa::Crc32c;

/// Bytes of a step.
pub(super) const BLOCK: usize = 256;

/// The polynomial of CRC32C without its highest term, the highest of the others first.
const POLYNOMIAL: u32 = 0x1EDC_6F41;

/// x^`power` modulo the polynomial, as the multiplication takes it: the bytes of the run have their lowest bit
/// first, so the factor has, too, and the product is one bit short.
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

/// What moves the lower and the upper half of 128 bits on by one block. The lower half has the earlier bytes, and so counts
/// x^64 more; a factor whose lowest bit comes first stands for x^31 times itself, and the product for x times more: 32 from both.
const FACTORS: [i64; 2] = {
    let bits = 8 * BLOCK as u32;
    [factor(bits + 32), factor(bits - 32)]
};

/// Whether this processor has what [`run`] takes.
#[inline]
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// Takes `blocks` blocks from `from` on into the CRC, and with `COPY` copies them to `to`, which is not used without.
///
/// # Safety
/// [`is_there`] said yes. `from` is good for [`super::load`] of `blocks * BLOCK` bytes. With `COPY` so many bytes can be
/// written at `to`, and nobody else reaches them meanwhile.
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
    // SAFETY: offsets are below `blocks * BLOCK`, of which the caller says that they may be read, and written where they are
    // copied. The parts of `left` have the 64 bytes that are stored in each.
    unsafe {
        let next = |at: usize| {
            let octets = load(from.add(at));
            if COPY {
                _mm512_storeu_si512(to.add(at).cast(), octets);
            }
            octets
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
        for (part, octets) in left.chunks_exact_mut(64).zip([a, b, c, d]) {
            _mm512_storeu_si512(part.as_mut_ptr().cast(), octets);
        }
    }
    // The register that a new CRC begins with is all ones, and is added to the first four bytes: taken away here, as
    // the run's own is in them.
    for octet in &mut left[..4] {
        *octet = !*octet;
    }
    *crc = Crc32c::new();
    crc.update(&left);
}

/// One accumulator, moved on by a block, and the bytes that are there.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn step(held: __m512i, factors: __m512i, octets: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(held, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(held, factors);
    _mm512_ternarylogic_epi64::<0x96>(low, high, octets)
}

/// # Safety
/// As [`super::load`] of 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const u8) -> __m512i {
    let octets;
    // SAFETY: as the caller says; the instruction reads 64 bytes, writes none and changes no flag.
    unsafe {
        asm!("vmovdqu64 {octets}, [{from}]", from = in(reg) from, octets = out(zmm_reg) octets,
             options(nostack, preserves_flags, readonly));
    }
    octets
}
