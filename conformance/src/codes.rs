//! Coverage of the registered Terminate codes: which codes a case provokes, and which codes no peer
//! can provoke.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::cases;
use crate::script::Action;
use crate::wire::terminate::{describe, is_registered};

/// Reason why no case provokes a code.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeException {
    /// Layer, EType and Error Code in hexadecimal, such as `0/1/ff`. `0/0` is the local
    /// catastrophic error of RDMAP, which has no codes.
    pub code: String,
    /// Explanation for readers.
    pub reason: String,
}

/// Result of comparing the registered Terminate codes with all cases and exceptions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Codes {
    /// Ids of the cases that provoke a code, by code.
    pub cases: BTreeMap<String, Vec<String>>,
    /// Reasons for codes that no case provokes, by code.
    pub exceptions: BTreeMap<String, String>,
    /// Names of the registered codes without a case and without a reason.
    pub missing: Vec<String>,
    /// Errors in the tables: unregistered codes in cases or exceptions, and exceptions for codes
    /// that a case provokes.
    pub wrong: Vec<String>,
}

/// Compares the registered codes with all cases and exceptions.
///
/// # Panics
/// Never in practice: a test reads `exceptions.toml`.
#[must_use]
pub fn codes() -> Codes {
    let mut by_code: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in cases::all() {
        for action in &case.steps {
            let (Action::End(ends)
            | Action::EndNow(ends)
            | Action::EndWithin(ends, _)
            | Action::EndOr(ends, _)
            | Action::EndOrHeld(ends, ..)) = action
            else {
                continue;
            };
            for term in &ends.terminates {
                // A term without a code accepts any code. It counts as coverage only for the error
                // type that has no codes.
                let code = name(term.layer, term.etype, term.code.unwrap_or(0));
                if term.code.is_some() || !code.ends_with("/00") {
                    by_code.entry(code).or_default().push(case.id.clone());
                }
            }
        }
    }
    let exceptions: BTreeMap<String, String> = crate::coverage::exceptions()
        .code
        .into_iter()
        .map(|exception| (exception.code, exception.reason))
        .collect();
    let registered = registered();
    let missing = registered
        .iter()
        .filter(|(code, _)| !by_code.contains_key(*code) && !exceptions.contains_key(*code))
        .map(|(_, described)| described.clone())
        .collect();
    let named: BTreeSet<&String> = by_code.keys().chain(exceptions.keys()).collect();
    let wrong = named
        .into_iter()
        .filter(|code| {
            let twice = by_code.contains_key(*code) && exceptions.contains_key(*code);
            twice || !registered.contains_key(*code)
        })
        .cloned()
        .collect();
    Codes {
        cases: by_code,
        exceptions,
        missing,
        wrong,
    }
}

/// Formats a code as in `exceptions.toml`. The local catastrophic error of RDMAP has no Error Code.
fn name(layer: u8, etype: u8, code: u8) -> String {
    match (layer, etype) {
        (0, 0) => "0/0".to_owned(),
        _ => format!("{layer}/{etype}/{code:02x}"),
    }
}

/// Returns the names of all registered codes, by code.
fn registered() -> BTreeMap<String, String> {
    let layers = 0..16;
    let types = layers.flat_map(|layer| (0..16).map(move |etype| (layer, etype)));
    types
        .flat_map(|(layer, etype)| (0..=u8::MAX).map(move |code| (layer, etype, code)))
        .filter(|(layer, etype, code)| is_registered(*layer, *etype, *code))
        .map(|(layer, etype, code)| (name(layer, etype, code), describe(layer, etype, code)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_code_is_provoked_or_has_a_reason() {
        let codes = codes();
        assert_eq!(codes.missing, Vec::<String>::new());
        assert_eq!(codes.wrong, Vec::<String>::new());
        assert!(
            codes
                .exceptions
                .values()
                .all(|reason| !reason.trim().is_empty())
        );
    }

    #[test]
    fn the_registry_has_33_codes() {
        // RFC 5040 Figure 9 has 14 codes (1 + 7 + 6), RFC 5041 section 7.2 has 12 (1 + 5 + 6), and
        // RFC 5044 and RFC 6581 together have 7.
        assert_eq!(registered().len(), 14 + 12 + 7);
    }
}
