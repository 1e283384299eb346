//! Which requirement has a case, which has a reason to have none, and which has neither.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::cases;
use crate::catalogue::{Requirement, requirements};
use crate::codes::CodeException;

/// Why a requirement that a peer could judge has no case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The requirement.
    pub id: String,
    /// Why no case can show it.
    pub reason: String,
}

/// `exceptions.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exceptions {
    exception: Vec<Exception>,
    /// Terminate codes that no case provokes.
    pub(crate) code: Vec<CodeException>,
}

/// What the file says.
///
/// # Panics
/// Never: a test reads it.
pub(crate) fn exceptions() -> Exceptions {
    toml::from_str(include_str!("../exceptions.toml")).expect("exceptions.toml is right")
}

/// The coverage of the rows that a peer can judge.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Coverage {
    /// By requirement: the ids of its cases.
    pub cases: BTreeMap<String, Vec<String>>,
    /// Those that have none, with the reason.
    pub exceptions: BTreeMap<String, String>,
    /// Rows that have neither.
    pub missing: Vec<Requirement>,
    /// Ids in cases or exceptions that the catalogue does not have, and exceptions whose row has a case.
    pub wrong: Vec<String>,
}

/// Looks through all cases and exceptions.
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
