//! Sites of faults on purpose, for the test of the conformance suite. Without the feature `mutants` there are none.

/// `mutate!(right, Name => wrong)` is `right`, unless the mutant `Name` is switched on.
#[cfg(feature = "mutants")]
macro_rules! mutate {
    ($right:expr, $name:ident => $wrong:expr) => {
        if uwarp_mutant::on(uwarp_mutant::Mutant::$name) {
            $wrong
        } else {
            $right
        }
    };
}

/// `mutate!(right, Name => wrong)` is `right`.
#[cfg(not(feature = "mutants"))]
macro_rules! mutate {
    ($right:expr, $name:ident => $wrong:expr) => {
        $crate::mutants::right($right)
    };
}

/// Its argument. A call, so that lints do not take a site for something that could be left out.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn right<T>(right: T) -> T {
    right
}

pub(crate) use mutate;
