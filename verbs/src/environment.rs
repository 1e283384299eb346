//! Environment variables that uwarp reads (`UWARP_...`), to report misspelled ones.
//!
//! This module reads only the names of the variables. The command reads most of its variables
//! through its options. The drop-in library reads all variables that concern a device. `UWARP_LOG`
//! and `UWARP_TRACE` are read where the log and the trace are written. [`flag`] reads the value of
//! a variable that turns something on or off. Only `UWARP_CRC` and `UWARP_MARKERS` accept no other
//! words than `on` and `off`.

mod device_names;

use std::ffi::OsString;
use std::fmt;

pub use device_names::{DeviceNames, DeviceNamesError};

/// Prefix of every name.
const PREFIX: &str = "UWARP_";

/// Every variable that a user can set, in alphabetical order.
pub const VARIABLES: &[&str] = &[
    "UWARP_CONNECT_RETRY",
    "UWARP_CRC",
    "UWARP_DEVICE",
    "UWARP_FPDU_SEGMENTS",
    "UWARP_HOLD",
    "UWARP_LOG",
    "UWARP_MARKERS",
    "UWARP_MPA",
    "UWARP_NAME",
    "UWARP_OOB_PORTS",
    "UWARP_OOB_SOURCE",
    "UWARP_OOB_TIMEOUT",
    "UWARP_PCAP",
    "UWARP_PEER",
    "UWARP_PERSONA",
    "UWARP_PLACED_WRITES",
    "UWARP_PORT_OFFSET",
    "UWARP_QUIET",
    "UWARP_SEND_IN_PLACE",
    "UWARP_STRICT",
    "UWARP_TOKEN",
    "UWARP_TRACE",
    "UWARP_WRITE_EVENTS",
];

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

/// Values that [`flag`] accepts, for error messages.
pub const FLAG_VALUES: &str = "1 or 0 (also on or off, yes or no, true or false)";

/// Returns true if `value` means on, and false if it means off. Returns `None` for any other value.
#[must_use]
pub fn flag(value: &str) -> Option<bool> {
    let is_one_of = |words: [&str; 4]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    if is_one_of(["1", "on", "yes", "true"]) {
        Some(true)
    } else if is_one_of(["0", "off", "no", "false"]) {
        Some(false)
    } else {
        None
    }
}

/// Names that the project's own tests and benches read. An entry that ends in `_` is a prefix.
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
    VARIABLES.contains(&name) || OF_TESTS.iter().any(is_of_tests)
}

/// Returns the known name with the smallest edit distance, the first in the alphabet if several
/// have it.
fn nearest_to(name: &str) -> &'static str {
    let nearest = VARIABLES
        .iter()
        .min_by_key(|known| strsim::damerau_levenshtein(known, name));
    nearest.copied().unwrap_or_default()
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
        assert_eq!(unknown(VARIABLES), none);
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
    fn a_flag_has_words_for_both_and_no_other_ones() {
        for (word, meaning) in [
            ("1", Some(true)),
            ("on", Some(true)),
            ("YES", Some(true)),
            ("True", Some(true)),
            ("0", Some(false)),
            ("off", Some(false)),
            ("No", Some(false)),
            ("false", Some(false)),
            ("", None),
            ("2", None),
            ("perhaps", None),
        ] {
            assert_eq!(flag(word), meaning, "{word}");
        }
    }

    #[test]
    fn names_are_in_alphabetical_order() {
        assert!(VARIABLES.is_sorted() && OF_TESTS.is_sorted());
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
