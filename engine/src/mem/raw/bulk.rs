//! Block copies for long runs of registered memory.

use core::arch::asm;

/// Size of a block in bytes.
pub(super) const BLOCK: usize = 128;

/// Defines a copy of `blocks` blocks in address order that returns false if a guarded access
/// faults.
///
/// The labels enclose the accesses to the side that is registered memory, which are guarded.
#[cfg(target_arch = "x86_64")]
macro_rules! copy {
    ($(#[$doc:meta])* $name:ident, $first:literal..$first_end:literal, $second:literal..$second_end:literal) => {
        $(#[$doc])*
        #[inline]
        unsafe fn $name(to: *mut u8, from: *const u8, blocks: usize) -> bool {
            if blocks == 0 {
                return true;
            }
            // SAFETY: SSE2 is part of x86-64. The loop reads and writes exactly `blocks` blocks,
            // or less after a fault. The registers and flags that it changes are declared.
            unsafe {
                asm!(
                    "2:",
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + 32]",
                    "movups {d}, [{from} + 48]",
                    "3:",
                    "movups [{to}], {a}",
                    "movups [{to} + 16], {b}",
                    "movups [{to} + 32], {c}",
                    "movups [{to} + 48], {d}",
                    "4:",
                    "movups {a}, [{from} + 64]",
                    "movups {b}, [{from} + 80]",
                    "movups {c}, [{from} + 96]",
                    "movups {d}, [{from} + 112]",
                    "5:",
                    "movups [{to} + 64], {a}",
                    "movups [{to} + 80], {b}",
                    "movups [{to} + 96], {c}",
                    "movups [{to} + 112], {d}",
                    "6:",
                    "add {from}, 128",
                    "add {to}, 128",
                    "dec {blocks}",
                    "jnz 2b",
                    guarded!($first, $first_end),
                    guarded!($second, $second_end),
                    from = inout(reg) from => _,
                    to = inout(reg) to => _,
                    blocks = inout(reg) blocks => _,
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    fault = label { return false },
                    options(nostack),
                );
            }
            true
        }
    };
}

/// As on x86-64, by pairs of general registers. The architecture guarantees that each half of such
/// a pair is moved in one piece if the address is aligned to 8 bytes. For vector registers that
/// depends on the processor.
#[cfg(target_arch = "aarch64")]
macro_rules! copy {
    ($(#[$doc:meta])* $name:ident, $first:literal..$first_end:literal, $second:literal..$second_end:literal) => {
        $(#[$doc])*
        #[inline]
        unsafe fn $name(to: *mut u8, from: *const u8, blocks: usize) -> bool {
            if blocks == 0 {
                return true;
            }
            // SAFETY: the loop reads and writes exactly `blocks` blocks, or less after a fault. The
            // registers and flags that it changes are declared.
            unsafe {
                asm!(
                    "2:",
                    "ldp {a}, {b}, [{from}]",
                    "ldp {c}, {d}, [{from}, #16]",
                    "ldp {e}, {f}, [{from}, #32]",
                    "ldp {g}, {h}, [{from}, #48]",
                    "3:",
                    "stp {a}, {b}, [{to}]",
                    "stp {c}, {d}, [{to}, #16]",
                    "stp {e}, {f}, [{to}, #32]",
                    "stp {g}, {h}, [{to}, #48]",
                    "4:",
                    "ldp {a}, {b}, [{from}, #64]",
                    "ldp {c}, {d}, [{from}, #80]",
                    "ldp {e}, {f}, [{from}, #96]",
                    "ldp {g}, {h}, [{from}, #112]",
                    "5:",
                    "stp {a}, {b}, [{to}, #64]",
                    "stp {c}, {d}, [{to}, #80]",
                    "stp {e}, {f}, [{to}, #96]",
                    "stp {g}, {h}, [{to}, #112]",
                    "6:",
                    "add {from}, {from}, #128",
                    "add {to}, {to}, #128",
                    "subs {blocks}, {blocks}, #1",
                    "b.ne 2b",
                    guarded!($first, $first_end),
                    guarded!($second, $second_end),
                    from = inout(reg) from => _,
                    to = inout(reg) to => _,
                    blocks = inout(reg) blocks => _,
                    a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
                    e = out(reg) _, f = out(reg) _, g = out(reg) _, h = out(reg) _,
                    fault = label { return false },
                    options(nostack),
                );
            }
            true
        }
    };
}

copy! {
    /// Copies from registered memory: the loads are guarded.
    ///
    /// # Safety
    /// The same as for [`load`].
    copy_out, "2".."3", "4".."5"
}
copy! {
    /// Copies to registered memory: the stores are guarded.
    ///
    /// # Safety
    /// The same as for [`store`].
    copy_in, "3".."4", "5".."6"
}

/// Copies `blocks` blocks to registered memory. Each aligned word of 8 bytes is written in one
/// piece. Returns false if the memory is gone.
///
/// # Safety
/// The same as for [`super::store`] of `blocks * BLOCK` bytes, which must be readable at `from`.
pub(super) unsafe fn store(to: *mut u8, from: *const u8, blocks: usize) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { copy_in(to, from, blocks) }
}

/// Copies `blocks` blocks from registered memory. Each aligned word of 8 bytes is read in one
/// piece. Returns false if the memory is gone.
///
/// # Safety
/// The same as for [`super::load`] of `blocks * BLOCK` bytes, which must be writable at `to`.
pub(super) unsafe fn load(from: *const u8, to: *mut u8, blocks: usize) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { copy_out(to, from, blocks) }
}
