//! Macro for sites of deliberate faults. Tests switch a fault on to check that the conformance
//! suite, the simulator or a fuzz target finds it.
//!
//! The faults exist only in a build with `--cfg uwarp_mutants` in `RUSTFLAGS`. In other builds,
//! each site evaluates to its correct expression.

/// `mutate!(right, Name => wrong)` evaluates to `right`, unless the fault `Name` is switched on.
#[cfg(uwarp_mutants)]
macro_rules! mutate {
    ($right:expr, $name:ident => $wrong:expr) => {
        if $crate::mutants::is_on(const { $crate::mutants::id(stringify!($name)) }) {
            $wrong
        } else {
            $right
        }
    };
}

/// `mutate!(right, Name => wrong)` evaluates to `right`.
#[cfg(not(uwarp_mutants))]
macro_rules! mutate {
    ($right:expr, $name:ident => $wrong:expr) => {
        $crate::mutants::right($right)
    };
}

/// Returns its argument. The call keeps lints from simplifying the expression around a site.
#[cfg(not(uwarp_mutants))]
#[inline(always)]
pub(crate) const fn right<T>(right: T) -> T {
    right
}

pub(crate) use mutate;

#[cfg(uwarp_mutants)]
pub use switch::{id, is_on, switch};

#[cfg(uwarp_mutants)]
mod switch {
    use core::sync::atomic::{AtomicU64, Ordering};

    /// Id of the fault that is on; 0 for none.
    static ACTIVE: AtomicU64 = AtomicU64::new(0);

    /// Switches on one fault, in place of the previous one; 0 switches all faults off.
    pub fn switch(id: u64) {
        ACTIVE.store(id, Ordering::Relaxed);
    }

    /// Returns true if this fault is on.
    #[inline]
    #[must_use]
    pub fn is_on(id: u64) -> bool {
        ACTIVE.load(Ordering::Relaxed) == id
    }

    /// Returns the id of a fault: FNV-1a of its name.
    #[must_use]
    pub const fn id(name: &str) -> u64 {
        let (bytes, mut id, mut at) = (name.as_bytes(), 0xCBF2_9CE4_8422_2325_u64, 0);
        while at < bytes.len() {
            id = (id ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01B3);
            at += 1;
        }
        id
    }
}
