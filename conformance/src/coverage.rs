//! Coverage of the requirements: those with a case, those with a reason to have none, and those
//! with neither.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::cases;
use crate::catalogue::{Requirement, requirements};
use crate::codes::CodeException;

/// Reason why a requirement that a peer could judge has no case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// Id of the requirement.
    pub id: String,
    /// Why no case can check it.
    pub reason: String,
}

/// Content of `exceptions.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exceptions {
    exception: Vec<Exception>,
    /// Terminate codes that no case provokes.
    pub(crate) code: Vec<CodeException>,
}

/// Reads `exceptions.toml`.
///
/// # Panics
/// Never: a test reads it.
pub(crate) fn exceptions() -> Exceptions {
    toml::from_str(include_str!("../exceptions.toml")).expect("exceptions.toml is valid")
}

/// Coverage of the requirements that a peer can judge.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Coverage {
    /// Ids of the cases, by requirement.
    pub cases: BTreeMap<String, Vec<String>>,
    /// Reasons for requirements without a case, by requirement.
    pub exceptions: BTreeMap<String, String>,
    /// Requirements that have neither.
    pub missing: Vec<Requirement>,
    /// Ids in cases or exceptions that the catalogue lacks, and exceptions whose requirement has a
    /// case.
    pub wrong: Vec<String>,
}

/// Compares all cases and exceptions with the catalogue.
///
/// # Panics
/// Never: a test reads `exceptions.toml`.
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
