//! Block copies for long runs of registered memory.

use core::arch::asm;

/// Size of a block in bytes.
pub(super) const BLOCK: usize = 128;

/// Copies `blocks` blocks to registered memory. Each aligned word of 8 bytes is written in one
/// piece.
///
/// # Safety
/// The same as for [`super::store`] of `blocks * BLOCK` bytes, which must be readable at `from`.
pub(super) unsafe fn store(to: *mut u8, from: *const u8, blocks: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { copy(to, from, blocks) }
}

/// Copies `blocks` blocks from registered memory. Each aligned word of 8 bytes is read in one
/// piece.
///
/// # Safety
/// The same as for [`super::load`] of `blocks * BLOCK` bytes, which must be writable at `to`.
pub(super) unsafe fn load(from: *const u8, to: *mut u8, blocks: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { copy(to, from, blocks) }
}

/// Copies `blocks` blocks in address order.
///
/// # Safety
/// `blocks * BLOCK` bytes are mapped, readable at `from` and writable at `to`. The ranges do not
/// overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, blocks: usize) {
    if blocks == 0 {
        return;
    }
    // SAFETY: SSE2 is part of x86-64. The loop reads and writes exactly `blocks` blocks. The
    // registers and flags that it changes are declared.
    unsafe {
        asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "movups {a}, [{from} + 64]",
            "movups {b}, [{from} + 80]",
            "movups {c}, [{from} + 96]",
            "movups {d}, [{from} + 112]",
            "movups [{to} + 64], {a}",
            "movups [{to} + 80], {b}",
            "movups [{to} + 96], {c}",
            "movups [{to} + 112], {d}",
            "add {from}, 128",
            "add {to}, 128",
            "dec {blocks}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            blocks = inout(reg) blocks => _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies `blocks` blocks in address order, by pairs of general registers. The architecture
/// guarantees that each half of such a pair is moved in one piece if the address is aligned to 8
/// bytes. For vector registers that depends on the processor.
///
/// # Safety
/// The same as on x86-64.
#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, blocks: usize) {
    if blocks == 0 {
        return;
    }
    // SAFETY: the loop reads and writes exactly `blocks` blocks. The registers and flags that it
    // changes are declared.
    unsafe {
        asm!(
            "2:",
            "ldp {a}, {b}, [{from}]",
            "ldp {c}, {d}, [{from}, #16]",
            "ldp {e}, {f}, [{from}, #32]",
            "ldp {g}, {h}, [{from}, #48]",
            "stp {a}, {b}, [{to}]",
            "stp {c}, {d}, [{to}, #16]",
            "stp {e}, {f}, [{to}, #32]",
            "stp {g}, {h}, [{to}, #48]",
            "ldp {a}, {b}, [{from}, #64]",
            "ldp {c}, {d}, [{from}, #80]",
            "ldp {e}, {f}, [{from}, #96]",
            "ldp {g}, {h}, [{from}, #112]",
            "stp {a}, {b}, [{to}, #64]",
            "stp {c}, {d}, [{to}, #80]",
            "stp {e}, {f}, [{to}, #96]",
            "stp {g}, {h}, [{to}, #112]",
            "add {from}, {from}, #128",
            "add {to}, {to}, #128",
            "subs {blocks}, {blocks}, #1",
            "b.ne 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            blocks = inout(reg) blocks => _,
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
            e = out(reg) _, f = out(reg) _, g = out(reg) _, h = out(reg) _,
            options(nostack),
        );
    }
}
