//! All cases, in one file for each section of an RFC.

mod rfc5040;
mod rfc5041;
mod rfc5042;
mod rfc5044;
mod rfc6581;
mod rfc7306;

use std::sync::LazyLock;

use crate::script::{Action, Case, CaseInfo};

/// Returns all cases, sorted by id. They are built once.
pub(crate) fn all() -> &'static [Case] {
    static ALL: LazyLock<Vec<Case>> = LazyLock::new(build);
    &ALL
}

fn build() -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(rfc5040::all());
    all.extend(rfc5041::all());
    all.extend(rfc5042::all());
    all.extend(rfc5044::all());
    all.extend(rfc6581::all());
    all.extend(rfc7306::all());
    all.sort_by(|one, other| crate::run_order(&one.id).cmp(&crate::run_order(&other.id)));
    all
}

/// Returns the descriptions of all cases, sorted by id.
#[must_use]
pub fn list() -> Vec<CaseInfo> {
    all().iter().map(Case::info).collect()
}

/// Returns the description of a case and its steps in words. Returns `None` if no case has this id.
#[must_use]
pub fn explain(id: &str) -> Option<(CaseInfo, Vec<String>)> {
    let case = all().iter().find(|case| case.id == id)?;
    let steps = case.steps.iter().map(Action::to_string).collect();
    Some((case.info(), steps))
}
