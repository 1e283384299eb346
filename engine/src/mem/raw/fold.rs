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
use core::arch::x86_64::{_mm_cvtsi32_si128, _mm512_set4_epi64, _mm512_zextsi128_si512};

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

/// Folds all blocks into `left`; `copy` are the instructions that copy a block. Makes the function
/// return false after a fault.
///
/// An accumulator is advanced by a block with two multiplications, and the bytes at its new
/// position are added (0x96 is the exclusive or of three operands). The accumulators start at zero,
/// which stays zero when it is advanced, so the first block needs no code of its own.
macro_rules! fold {
    ($from:ident, $to:ident, $blocks:ident, $left:ident, $factors:ident, $state:ident, $($copy:literal,)*) => {
        asm!(
            "vpxorq {b}, {b}, {b}",
            "vpxorq {c}, {c}, {c}",
            "vpxorq {d}, {d}, {d}",
            "vpxorq {a}, {a}, {a}",
            "2:",
            "vmovdqu64 {e}, [{from}]",
            "vmovdqu64 {f}, [{from} + 64]",
            "vmovdqu64 {g}, [{from} + 128]",
            "vmovdqu64 {h}, [{from} + 192]",
            "3:",
            $($copy,)*
            "vpclmulqdq {i}, {a}, {factors}, 0x00",
            "vpclmulqdq {a}, {a}, {factors}, 0x11",
            "vpclmulqdq {j}, {b}, {factors}, 0x00",
            "vpclmulqdq {b}, {b}, {factors}, 0x11",
            "vpclmulqdq {k}, {c}, {factors}, 0x00",
            "vpclmulqdq {c}, {c}, {factors}, 0x11",
            "vpclmulqdq {l}, {d}, {factors}, 0x00",
            "vpclmulqdq {d}, {d}, {factors}, 0x11",
            "vpternlogq {a}, {i}, {e}, 0x96",
            "vpternlogq {b}, {j}, {f}, 0x96",
            "vpternlogq {c}, {k}, {g}, 0x96",
            "vpternlogq {d}, {l}, {h}, 0x96",
            // The state belongs to the first bytes of the first block only.
            "vpxorq {a}, {a}, {state}",
            "vpxorq {state}, {state}, {state}",
            "add {from}, 256",
            "dec {blocks}",
            "jnz 2b",
            "vmovdqu64 [{left}], {a}",
            "vmovdqu64 [{left} + 64], {b}",
            "vmovdqu64 [{left} + 128], {c}",
            "vmovdqu64 [{left} + 192], {d}",
            guarded!("2", "3"),
            from = inout(reg) $from => _,
            to = inout(reg) $to => _,
            blocks = inout(reg) $blocks => _,
            left = in(reg) $left.as_mut_ptr(),
            factors = in(zmm_reg) $factors,
            state = inout(zmm_reg) $state => _,
            a = out(zmm_reg) _, b = out(zmm_reg) _, c = out(zmm_reg) _, d = out(zmm_reg) _,
            e = out(zmm_reg) _, f = out(zmm_reg) _, g = out(zmm_reg) _, h = out(zmm_reg) _,
            i = out(zmm_reg) _, j = out(zmm_reg) _, k = out(zmm_reg) _, l = out(zmm_reg) _,
            fault = label { return false },
            options(nostack),
        )
    };
}

/// Adds `blocks` blocks from `from` on to the CRC. With `COPY` also copies them to `to`, which is
/// unused otherwise. Returns false, without a change of the CRC, if the memory is gone.
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
) -> bool {
    if blocks == 0 {
        return true;
    }
    let factors = _mm512_set4_epi64(FACTORS[1], FACTORS[0], FACTORS[1], FACTORS[0]);
    let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128((!crc.finish()).cast_signed()));
    let mut left = [0_u8; BLOCK];
    // SAFETY: the loops read `blocks * BLOCK` bytes, or less after a fault. The caller guarantees
    // that these bytes are readable, and writable where they are copied to. `left` has room for
    // the four accumulators.
    unsafe {
        if COPY {
            fold!(
                from,
                to,
                blocks,
                left,
                factors,
                state,
                "vmovdqu64 [{to}], {e}",
                "vmovdqu64 [{to} + 64], {f}",
                "vmovdqu64 [{to} + 128], {g}",
                "vmovdqu64 [{to} + 192], {h}",
                "add {to}, 256",
            );
        } else {
            fold!(from, to, blocks, left, factors, state, "/* {to} */",);
        }
    }
    // A new CRC starts with a state of all ones, which inverts the first four bytes. Invert them
    // here to cancel that, because `left` already includes the state of `crc`.
    for byte in &mut left[..4] {
        *byte = !*byte;
    }
    *crc = Crc32c::new();
    crc.update(&left);
    true
}
