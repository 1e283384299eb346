//! Coverage of the requirements: those with a case, those with a reason for having no case, and
//! those with neither.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::cases;
use crate::catalogue::{Requirement, requirements};
use crate::codes::CodeException;

/// Reason why a requirement that a peer could check has no case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// Id of the requirement.
    pub id: String,
    /// Explanation of why no case can check it.
    pub reason: String,
}

/// Content of `exceptions.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exceptions {
    exception: Vec<Exception>,
    /// Reasons for Terminate codes that no case provokes.
    pub(crate) code: Vec<CodeException>,
}

/// Parses `exceptions.toml`, which is part of the program.
///
/// # Panics
/// Never in practice: a test calls this function.
pub(crate) fn exceptions() -> Exceptions {
    toml::from_str(include_str!("../exceptions.toml")).expect("exceptions.toml is valid")
}

/// Result of comparing the requirements that a peer can check with all cases and exceptions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Coverage {
    /// Ids of the cases that check a requirement, by requirement id.
    pub cases: BTreeMap<String, Vec<String>>,
    /// Reasons for requirements without a case, by requirement id.
    pub exceptions: BTreeMap<String, String>,
    /// Requirements without a case and without a reason.
    pub missing: Vec<Requirement>,
    /// Errors in the tables: ids in cases or exceptions that are not in the catalogue, and
    /// exceptions for requirements that a case checks.
    pub wrong: Vec<String>,
}

/// Compares all cases and exceptions with the catalogue.
///
/// # Panics
/// Never in practice: a test reads `exceptions.toml`.
#[must_use]
pub fn coverage() -> Coverage {
    let catalogue = requirements();
    let mut by_id: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in cases::all() {
        for id in &case.requirements {
            by_id
                .entry((*id).to_owned())
                .or_default()
                .push(case.id.clone());
        }
    }
    let exceptions: BTreeMap<String, String> = exceptions()
        .exception
        .into_iter()
        .map(|exception| (exception.id, exception.reason))
        .collect();
    let named: BTreeSet<&String> = by_id.keys().chain(exceptions.keys()).collect();
    let wrong = named
        .into_iter()
        .filter(|id| {
            !catalogue.contains_key(*id) || by_id.contains_key(*id) && exceptions.contains_key(*id)
        })
        .cloned()
        .collect();
    let missing = catalogue
        .values()
        .filter(|row| row.observable == "wire")
        .filter(|row| !by_id.contains_key(&row.id) && !exceptions.contains_key(&row.id))
        .cloned()
        .collect();
    Coverage {
        cases: by_id,
        exceptions,
        missing,
        wrong,
    }
}
