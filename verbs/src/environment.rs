//! Environment variables that uwarp reads (`UWARP_...`), to report misspelled ones.
//!
//! This module has the names. The variables of [`OPTIONS`] are read by the command, through its
//! options, and by the library for unmodified programs. The others are read where they are used.

use std::ffi::OsString;
use std::fmt;

use crate::options::OPTIONS;

/// Prefix of every name.
const PREFIX: &str = "UWARP_";

/// Variable with the filter of the log.
pub const LOG: &str = "UWARP_LOG";

/// Variable with the token of an agent.
pub const TOKEN: &str = "UWARP_TOKEN";

/// Variable that turns on the trace of connections that end in error.
pub const TRACE: &str = "UWARP_TRACE";

/// Returns every variable that a user can set.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let options = OPTIONS.iter().map(|option| option.variable);
    options.chain([LOG, TOKEN, TRACE])
}

/// Returns the value of the variable with this name, or `None` if it is not set.
///
/// Like `secure_getenv(3)`, returns `None` for every variable in a process that has the rights of
/// another user than the one who started it: a setuid or setgid program, or one with file
/// capabilities. That user must not choose the files and devices that the program opens.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    if has_other_rights() {
        return None;
    }
    std::env::var_os(name)
}

/// Returns true if the process has the rights of another user than the one who started it
/// (`AT_SECURE` of `getauxval(3)`).
#[expect(
    unsafe_code,
    reason = "rustix offers this without a promise of stability"
)]
fn has_other_rights() -> bool {
    // SAFETY: the function reads a value that the kernel gave to the process at its start. It has
    // no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Names that the project's own builds, tests and benches read. An entry that ends in `_` is a
/// prefix.
const OF_TESTS: &[&str] = &[
    "UWARP_BENCH_",
    "UWARP_BIN",
    "UWARP_CAPTURE_TEST_",
    "UWARP_CASES",
    "UWARP_CONFORMANCE_",
    "UWARP_DROPIN_",
    "UWARP_FUZZ_",
    "UWARP_INTEROP",
    "UWARP_INTEROP_",
    "UWARP_MIGRATIONS",
    "UWARP_MUTANTS_",
    "UWARP_POLICY_OFF",
    "UWARP_REQUIRE_",
    "UWARP_ROBUSTNESS",
    "UWARP_ROBUSTNESS_",
    "UWARP_SEED",
    "UWARP_TEST_",
];

/// A variable whose name begins with `UWARP_` and that uwarp does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    name: String,
    nearest: &'static str,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownVariable { name, nearest } = self;
        write!(
            f,
            "the environment variable {name} is unknown and has no effect; the nearest known one is {nearest}"
        )
    }
}

/// Returns the unknown variables of this process that begin with `UWARP_`, in alphabetical order.
/// Returns none where [`variable`] reads none.
#[must_use]
pub fn unknown_variables() -> Vec<UnknownVariable> {
    if has_other_rights() {
        return Vec::new();
    }
    unknown_among(std::env::vars_os().map(|(name, _)| name))
}

fn unknown_among(names: impl Iterator<Item = OsString>) -> Vec<UnknownVariable> {
    let mut unknown: Vec<_> = names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with(PREFIX) && !is_known(name))
        .map(|name| UnknownVariable {
            nearest: nearest_to(&name),
            name,
        })
        .collect();
    unknown.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    unknown
}

fn is_known(name: &str) -> bool {
    let is_of_tests =
        |known: &&str| name == *known || known.ends_with('_') && name.starts_with(known);
    variables().any(|known| known == name) || OF_TESTS.iter().any(is_of_tests)
}

/// Returns the known name with the smallest edit distance, the first in the alphabet if several
/// have it.
fn nearest_to(name: &str) -> &'static str {
    let distance = |known| strsim::damerau_levenshtein(known, name);
    let nearest = variables().min_by_key(|known| (distance(known), *known));
    nearest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(names: &[&str]) -> Vec<String> {
        let found = unknown_among(names.iter().map(OsString::from));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unknown_variables_are_named_with_the_nearest_known_one() {
        assert_eq!(
            unknown(&["UWARP_PACP", "PATH", "UWARP_CRC", "UWARP_HOLD_MS"]),
            [
                "the environment variable UWARP_HOLD_MS is unknown and has no effect; the nearest known one is UWARP_HOLD",
                "the environment variable UWARP_PACP is unknown and has no effect; the nearest known one is UWARP_PCAP",
            ]
        );
    }

    #[test]
    fn known_variables_and_those_of_the_tests_are_not_reported() {
        let none: [&str; 0] = [];
        assert_eq!(unknown(&variables().collect::<Vec<_>>()), none);
        assert_eq!(
            unknown(&["UWARP_REQUIRE_TSHARK", "UWARPED", "uwarp_crc"]),
            none
        );
        assert_eq!(
            unknown(&["UWARP_SEED", "UWARP_BIN", "UWARP_INTEROP_REPORT"]),
            none
        );
    }

    #[test]
    fn a_name_that_only_begins_like_one_of_the_tests_is_unknown() {
        for name in [
            "UWARP_SEEDS",
            "UWARP_BINARY",
            "UWARP_CASES_",
            "UWARP_INTEROPS",
        ] {
            assert_eq!(unknown(&[name]).len(), 1, "{name}");
        }
    }

    #[test]
    fn names_of_the_tests_are_in_alphabetical_order() {
        assert!(OF_TESTS.is_sorted());
    }

    #[test]
    fn a_name_that_is_not_utf8_is_shown_as_far_as_it_is_text() {
        use std::os::unix::ffi::OsStringExt as _;
        let name = OsString::from_vec(b"UWARP_CR\xff".to_vec());
        let found = unknown_among(std::iter::once(name));
        assert_eq!(found[0].name, "UWARP_CR\u{fffd}");
        assert_eq!(found[0].nearest, "UWARP_CRC");
    }
}
