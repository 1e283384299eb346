//! Sites of deliberate faults. Tests of the conformance suite, the simulator and the fuzz targets
//! switch the faults on.
//!
//! The faults exist only in a build with `--cfg uwarp_mutants` in `RUSTFLAGS`. Without it, each
//! site evaluates to its correct expression.

/// `mutate!(right, Name => wrong)` evaluates to `right`, or to `wrong` while fault `Name` is on.
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

/// Returns a header of `N` bytes that begins with `head`, with zeros for the missing bytes.
#[cfg(uwarp_mutants)]
pub(crate) fn filled<const N: usize>(head: &[u8]) -> [u8; N] {
    let mut whole = [0; N];
    for (to, from) in whole.iter_mut().zip(head) {
        *to = *from;
    }
    whole
}

pub(crate) use mutate;

#[cfg(uwarp_mutants)]
pub use uwarp_ddp::mutants::{id, is_on, switch};
