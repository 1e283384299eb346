//! The only instructions that access registered memory.
//!
//! A copy has a registered side and a private side. The private side is an ordinary slice. The
//! registered side may be read and written at the same time by the application, by a program that
//! shares the pages, or by another connection. This module guarantees:
//!
//! * [`store`] writes the last byte with the last store, which has release ordering. A program that
//!   polls on the last byte and then reads the rest (with acquire) sees all of it. On x86-64 the
//!   other bytes become visible in address order as well.
//! * An aligned word of 2, 4 or 8 bytes that lies wholly inside the range is read or written in one
//!   piece. A program that polls on a 64-bit counter never sees half of it.
//!
//! **Why this is not a data race.** On x86-64, and for long runs on aarch64, the accesses are
//! inline assembly. The compiler treats it as an unknown function, so it may assume nothing about
//! concurrent accesses of other threads. The assembly does only what a sequence of relaxed atomic
//! one-byte accesses in the same order may do: each byte is moved exactly once, by an instruction
//! that moves bytes whole. Racing atomic accesses are defined. The other accesses are atomics of
//! the word's own size.
//!
//! **Why the last store is enough on aarch64.** The compiler does not move the atomic store before
//! the assembly, which may access memory. That store is a store-release (`stlr`). No processor
//! makes it visible before the accesses that precede it in program order, whatever their size and
//! instruction.
//!
//! **How this is checked.** These arguments were made by reading. ThreadSanitizer does not see
//! assembly, Miri runs without its emulation of weak memory, and QEMU on x86-64 reorders nothing.
//! No aarch64 hardware has been tried.
//!
//! **Memory that is gone.** The program may have unmapped the memory, or truncated the file that it
//! maps. The instruction then faults. Each access of the assembly has an entry in the table of
//! [`fault`](super::fault), whose signal handler continues at the label of the entry. The access
//! then returns false (or `None`), after it has done a part of its work or nothing. This adds no
//! instruction to an access that does not fault. Miri and other processors have no such table.

/// Assembly that adds an entry to the fault table: a fault of an instruction from the label `$from`
/// up to the label `$to` continues at the operand `fault`, which is a `label`.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
macro_rules! guarded {
    ($from:literal, $to:literal) => {
        concat!(
            ".pushsection uwarp_faults, \"aR\"\n",
            ".balign 4\n",
            ".long ",
            $from,
            "b - .\n",
            ".long ",
            $to,
            "b - .\n",
            ".long {fault} - .\n",
            ".popsection"
        )
    };
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod bulk;
mod checksum;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod fold;

pub(super) use checksum::{checksum, load_with_crc};

/// Copies `source` to `to`, the last byte last and with release ordering. Returns false if the
/// memory is gone; a part may then be written.
///
/// # Safety
/// `to..to + source.len()` is mapped, writable memory that no live Rust reference points to, so the
/// compiler cannot assume it to be exclusive or constant. `source` does not overlap it.
#[inline]
#[must_use]
pub(super) unsafe fn store(to: *mut u8, source: &[u8]) -> bool {
    let mut at = to;
    let mut from = source;
    // SAFETY: every step writes the first remaining bytes of `source` to their place and advances
    // `at` by their number. So `at` stays inside the range that the caller guarantees. The address
    // is a multiple of the word's size at each step: the head steps align it. If one of them was
    // skipped, too few bytes are left for a larger word.
    unsafe {
        macro_rules! step {
            ($word:ty, $store:ident) => {
                if let Some((head, rest)) = from.split_first_chunk::<{ size_of::<$word>() }>() {
                    let value = <$word>::from_ne_bytes(*head);
                    if !word::$store(at.cast(), value, rest.is_empty()) {
                        return false;
                    }
                    at = at.add(head.len());
                    from = rest;
                }
            };
        }
        if from.len() != 8 || at.addr() & 7 != 0 {
            if at.addr() & 1 != 0 {
                step!(u8, store_u8);
            }
            if at.addr() & 2 != 0 {
                step!(u16, store_u16);
            }
            if at.addr() & 4 != 0 {
                step!(u32, store_u32);
            }
            #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
            if from.len() > 2 * bulk::BLOCK {
                // Stores that straddle cache lines take twice as long, so the blocks start on a
                // line.
                while at.addr() & 63 != 0 {
                    step!(u64, store_u64);
                }
                // At least one byte is left for the tail.
                let blocks = (from.len() - 1) / bulk::BLOCK;
                if !bulk::store(at, from.as_ptr(), blocks) {
                    return false;
                }
                at = at.add(blocks * bulk::BLOCK);
                from = from.get(blocks * bulk::BLOCK..).unwrap_or_default();
            }
            while from.len() > 8 {
                step!(u64, store_u64);
            }
        }
        if from.len() == 8 {
            step!(u64, store_u64);
        }
        step!(u32, store_u32);
        step!(u16, store_u16);
        step!(u8, store_u8);
        let _ = (at, from);
    }
    true
}

/// Copies `from..from + out.len()` to `out`. Returns false if the memory is gone; `out` may then
/// have a part of it.
///
/// # Safety
/// `from..from + out.len()` is mapped, readable memory without a live exclusive Rust reference to
/// it. `out` does not overlap it.
#[inline]
#[must_use]
pub(super) unsafe fn load(from: *const u8, out: &mut [u8]) -> bool {
    let mut at = from;
    let mut to = out;
    // SAFETY: as in `store`: each step reads bytes that the caller guarantees, and the address is a
    // multiple of the word's size.
    unsafe {
        macro_rules! step {
            ($word:ty, $load:ident) => {
                if to.len() >= size_of::<$word>() {
                    let (head, rest) = core::mem::take(&mut to).split_at_mut(size_of::<$word>());
                    if !word::$load(at.cast(), head.as_mut_ptr().cast()) {
                        return false;
                    }
                    at = at.add(head.len());
                    to = rest;
                }
            };
        }
        if at.addr() & 1 != 0 {
            step!(u8, load_u8);
        }
        if at.addr() & 2 != 0 {
            step!(u16, load_u16);
        }
        if at.addr() & 4 != 0 {
            step!(u32, load_u32);
        }
        #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
        if to.len() >= 2 * bulk::BLOCK {
            let blocks = to.len() / bulk::BLOCK;
            if !bulk::load(at, to.as_mut_ptr(), blocks) {
                return false;
            }
            at = at.add(blocks * bulk::BLOCK);
            to = core::mem::take(&mut to)
                .get_mut(blocks * bulk::BLOCK..)
                .unwrap_or_default();
        }
        while to.len() >= 8 {
            step!(u64, load_u64);
        }
        step!(u32, load_u32);
        step!(u16, load_u16);
        step!(u8, load_u8);
        let _ = (at, to);
    }
    true
}

/// Adds to a word atomically and returns its previous value. `None` if the memory is gone.
///
/// # Safety
/// `word` is a multiple of 8 and points to memory that was registered as writable. No live Rust
/// reference points to it, so the compiler cannot assume it to be exclusive or constant.
#[inline]
pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Option<u64> {
    // SAFETY: guaranteed by the caller.
    unsafe { word::fetch_add(word, add) }
}

/// Replaces a word atomically by the result of `update` and returns its previous value. Calls
/// `update` again if the word changed meanwhile. `None` if the memory is gone.
///
/// # Safety
/// The same as for [`fetch_add`].
#[inline]
pub(super) unsafe fn fetch_update(word: *mut u64, update: impl Fn(u64) -> u64) -> Option<u64> {
    let mut seen = 0;
    // SAFETY: guaranteed by the caller; `seen` is a local variable.
    if !unsafe { word::load_u64(word, &raw mut seen) } {
        return None;
    }
    loop {
        // Stores even an unchanged value, to order this operation with all others on the word.
        // SAFETY: guaranteed by the caller.
        let before = unsafe { word::compare_exchange(word, seen, update(seen)) }?;
        if before == seen {
            return Some(before);
        }
        seen = before;
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod word {
    use core::arch::asm;

    // Without `nomem` the compiler moves no memory access across the assembly. x86-64 keeps loads
    // in order and stores in order, so every store here is a release and every load an acquire.
    // The result of a load goes through memory, because assembly with a label has no outputs.
    macro_rules! access {
        ($word:ty, $class:ident, $modifier:literal, $load:ident, $store:ident) => {
            /// # Safety
            /// `to` was registered as writable, and no live Rust reference points to it.
            #[inline(always)]
            pub(super) unsafe fn $store(to: *mut $word, value: $word, _is_last: bool) -> bool {
                // SAFETY: guaranteed by the caller; the instruction writes the word and changes no
                // flag. A fault changes nothing.
                unsafe {
                    asm!("2:", concat!("mov [{to}], {value", $modifier, "}"), "3:",
                         guarded!("2", "3"), to = in(reg) to, value = in($class) value,
                         fault = label { return false }, options(nostack, preserves_flags));
                }
                true
            }
            /// # Safety
            /// `from` was registered, and no live exclusive Rust reference points to it. `to` is
            /// writable, and of any alignment.
            #[inline(always)]
            pub(super) unsafe fn $load(from: *const $word, to: *mut $word) -> bool {
                // SAFETY: guaranteed by the caller; the instructions read the word, write it to
                // `to` and change no flag. A fault changes nothing.
                unsafe {
                    asm!("2:", concat!("mov {value", $modifier, "}, [{from}]"), "3:",
                         concat!("mov [{to}], {value", $modifier, "}"), guarded!("2", "3"),
                         from = in(reg) from, to = in(reg) to, value = out($class) _,
                         fault = label { return false }, options(nostack, preserves_flags));
                }
                true
            }
        };
    }
    access!(u8, reg_byte, "", load_u8, store_u8);
    access!(u16, reg, ":x", load_u16, store_u16);
    access!(u32, reg, ":e", load_u32, store_u32);
    access!(u64, reg, ":r", load_u64, store_u64);

    /// # Safety
    /// The same as for [`super::fetch_add`].
    #[inline(always)]
    pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Option<u64> {
        let mut before = 0_u64;
        // SAFETY: guaranteed by the caller; the locked instruction orders every access before and
        // after it.
        unsafe {
            asm!("2:", "lock xadd [{word}], {value}", "3:", "mov [{before}], {value}",
                 guarded!("2", "3"), word = in(reg) word, before = in(reg) &raw mut before,
                 value = inout(reg) add => _, fault = label { return None }, options(nostack));
        }
        Some(before)
    }

    /// Stores `new` if the word equals `expected`. Returns the previous value in both cases.
    ///
    /// # Safety
    /// The same as for [`super::fetch_add`].
    #[inline(always)]
    pub(super) unsafe fn compare_exchange(word: *mut u64, expected: u64, new: u64) -> Option<u64> {
        let mut before = 0_u64;
        // SAFETY: as for `fetch_add`.
        unsafe {
            asm!("2:", "lock cmpxchg [{word}], {new}", "3:", "mov [{before}], rax",
                 guarded!("2", "3"), word = in(reg) word, new = in(reg) new,
                 before = in(reg) &raw mut before, inout("rax") expected => _,
                 fault = label { return None }, options(nostack));
        }
        Some(before)
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod word {
    use core::arch::asm;

    // As on x86-64. The last store of a run is a store-release.
    macro_rules! access {
        ($word:ty, $suffix:literal, $modifier:literal, $load:ident, $store:ident) => {
            /// If `is_last`, the store is a release: it makes all earlier stores of the run
            /// visible.
            ///
            /// # Safety
            /// `to` is aligned and was registered as writable, and no live Rust reference points to
            /// it.
            #[inline(always)]
            pub(super) unsafe fn $store(to: *mut $word, value: $word, is_last: bool) -> bool {
                // SAFETY: guaranteed by the caller; the instruction writes the word and changes no
                // flag. A fault changes nothing.
                unsafe {
                    if is_last {
                        asm!("2:", concat!("stlr", $suffix, " {value", $modifier, "}, [{to}]"),
                             "3:", guarded!("2", "3"), to = in(reg) to, value = in(reg) value,
                             fault = label { return false }, options(nostack, preserves_flags));
                    } else {
                        asm!("2:", concat!("str", $suffix, " {value", $modifier, "}, [{to}]"),
                             "3:", guarded!("2", "3"), to = in(reg) to, value = in(reg) value,
                             fault = label { return false }, options(nostack, preserves_flags));
                    }
                }
                true
            }
            /// # Safety
            /// `from` is aligned and was registered, and no live exclusive Rust reference points to
            /// it. `to` is writable, and of any alignment.
            #[inline(always)]
            pub(super) unsafe fn $load(from: *const $word, to: *mut $word) -> bool {
                // SAFETY: guaranteed by the caller; the instructions read the word, write it to
                // `to` and change no flag. A fault changes nothing.
                unsafe {
                    asm!("2:", concat!("ldr", $suffix, " {value", $modifier, "}, [{from}]"), "3:",
                         concat!("str", $suffix, " {value", $modifier, "}, [{to}]"),
                         guarded!("2", "3"), from = in(reg) from, to = in(reg) to,
                         value = out(reg) _, fault = label { return false },
                         options(nostack, preserves_flags));
                }
                true
            }
        };
    }
    access!(u8, "b", ":w", load_u8, store_u8);
    access!(u16, "h", ":w", load_u16, store_u16);
    access!(u32, "", ":w", load_u32, store_u32);
    access!(u64, "", ":x", load_u64, store_u64);

    /// # Safety
    /// The same as for [`super::fetch_add`].
    #[inline(always)]
    pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Option<u64> {
        let mut before = 0_u64;
        // SAFETY: guaranteed by the caller; load-acquire and store-release order the operation with
        // all others on the word. A fault changes nothing.
        unsafe {
            asm!("2:", "ldaxr {old}, [{word}]", "add {new}, {old}, {add}",
                 "stlxr {status:w}, {new}, [{word}]", "cbnz {status:w}, 2b", "3:",
                 "str {old}, [{before}]", guarded!("2", "3"), word = in(reg) word,
                 add = in(reg) add, before = in(reg) &raw mut before, old = out(reg) _,
                 new = out(reg) _, status = out(reg) _, fault = label { return None },
                 options(nostack, preserves_flags));
        }
        Some(before)
    }

    /// Stores `new` if the word equals `expected`. Returns the previous value in both cases.
    ///
    /// # Safety
    /// The same as for [`super::fetch_add`].
    #[inline(always)]
    pub(super) unsafe fn compare_exchange(word: *mut u64, expected: u64, new: u64) -> Option<u64> {
        let mut before = 0_u64;
        // SAFETY: as for `fetch_add`.
        unsafe {
            asm!("2:", "ldaxr {old}, [{word}]", "cmp {old}, {expected}", "b.ne 4f",
                 "stlxr {status:w}, {new}, [{word}]", "cbnz {status:w}, 2b", "3:", "b 5f",
                 "4:", "clrex", "5:", "str {old}, [{before}]", guarded!("2", "3"),
                 word = in(reg) word, expected = in(reg) expected, new = in(reg) new,
                 before = in(reg) &raw mut before, old = out(reg) _, status = out(reg) _,
                 fault = label { return None }, options(nostack));
        }
        Some(before)
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod word {
    use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    macro_rules! access {
        ($word:ty, $atomic:ty, $load:ident, $store:ident) => {
            /// If `is_last`, the store is a release: it makes all earlier stores of the run
            /// visible.
            ///
            /// # Safety
            /// `to` is aligned, mapped and writable, and no live Rust reference points to it.
            #[inline(always)]
            pub(super) unsafe fn $store(to: *mut $word, value: $word, is_last: bool) -> bool {
                let ordering = if is_last {
                    Ordering::Release
                } else {
                    Ordering::Relaxed
                };
                // SAFETY: guaranteed by the caller.
                unsafe { <$atomic>::from_ptr(to) }.store(value, ordering);
                true
            }
            /// # Safety
            /// `from` is aligned, mapped and readable, and no live exclusive Rust reference points
            /// to it. `to` is writable, and of any alignment.
            #[inline(always)]
            pub(super) unsafe fn $load(from: *const $word, to: *mut $word) -> bool {
                // SAFETY: guaranteed by the caller; a load never writes, so the cast from `const`
                // has no effect.
                unsafe {
                    let value = <$atomic>::from_ptr(from.cast_mut()).load(Ordering::Relaxed);
                    to.write_unaligned(value);
                }
                true
            }
        };
    }
    access!(u8, AtomicU8, load_u8, store_u8);
    access!(u16, AtomicU16, load_u16, store_u16);
    access!(u32, AtomicU32, load_u32, store_u32);
    access!(u64, AtomicU64, load_u64, store_u64);

    /// # Safety
    /// The same as for [`super::fetch_add`].
    #[inline(always)]
    pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Option<u64> {
        // SAFETY: guaranteed by the caller.
        Some(unsafe { AtomicU64::from_ptr(word) }.fetch_add(add, Ordering::SeqCst))
    }

    /// Stores `new` if the word equals `expected`; returns the previous value.
    ///
    /// # Safety
    /// The same as for [`super::fetch_add`].
    #[inline(always)]
    pub(super) unsafe fn compare_exchange(word: *mut u64, expected: u64, new: u64) -> Option<u64> {
        // SAFETY: guaranteed by the caller.
        let exchanged = unsafe { AtomicU64::from_ptr(word) }.compare_exchange(
            expected,
            new,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        match exchanged {
            Ok(before) | Err(before) => Some(before),
        }
    }
}
