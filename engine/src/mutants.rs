//! Deliberate faults that tests of the conformance suite, the simulator and the fuzz targets switch
//! on.
//!
//! They exist only in a build with `--cfg uwarp_mutants` in `RUSTFLAGS`. Without it, every
//! `mutate!` evaluates to the correct expression.

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

/// Returns its argument. The call keeps lints from simplifying the expression around a `mutate!`.
#[cfg(not(uwarp_mutants))]
#[inline(always)]
pub(crate) const fn right<T>(right: T) -> T {
    right
}

pub(crate) use mutate;

#[cfg(uwarp_mutants)]
pub use uwarp_rdmap::mutants::{id, is_on};
