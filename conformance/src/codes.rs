//! Coverage of the registered Terminate codes: those that cases provoke, and those that no peer can
//! provoke.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::cases;
use crate::script::Action;
use crate::wire::terminate::{describe, is_registered};

/// Reason why no case provokes a code.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeException {
    /// Layer, EType and Error Code, as `0/1/ff`; `0/0` for the type without codes.
    pub code: String,
    /// The reason.
    pub reason: String,
}

/// Coverage of the registered Terminate codes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Codes {
    /// Cases that provoke the code, by code.
    pub cases: BTreeMap<String, Vec<String>>,
    /// Reasons for codes without a case, by code.
    pub exceptions: BTreeMap<String, String>,
    /// Names of registered codes that have neither.
    pub missing: Vec<String>,
    /// Unregistered codes in cases or exceptions, and exceptions whose code is provoked.
    pub wrong: Vec<String>,
}

/// Collects the codes of all cases and exceptions.
///
/// # Panics
/// Never: a test reads `exceptions.toml`.
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
                // A term without a code counts only for the type that has no codes.
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

/// A code in the form of `exceptions.toml`. The local catastrophic error of RDMAP has none.
fn name(layer: u8, etype: u8, code: u8) -> String {
    match (layer, etype) {
        (0, 0) => "0/0".to_owned(),
        _ => format!("{layer}/{etype}/{code:02x}"),
    }
}

/// All registered codes and their names.
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
        // RFC 5040 Figure 9 (1 + 7 + 6), RFC 5041 section 7.2 (1 + 5 + 6), RFC 5044 and RFC 6581
        // (7).
        assert_eq!(registered().len(), 14 + 12 + 7);
    }
}
