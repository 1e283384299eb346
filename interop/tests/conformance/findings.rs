//! What was found, by what explains it.

use std::collections::{BTreeMap, BTreeSet};

use uwarp_conformance::{Failure, Outcome, Verdict, list, section_of};

use super::{Played, Run};

/// A thing about siw, and the cases that show it.
pub(crate) struct Finding<'a> {
    pub(crate) reason: &'a str,
    pub(crate) shown: Vec<Shown<'a>>,
}

/// A case that shows it.
pub(crate) struct Shown<'a> {
    pub(crate) outcome: &'a Outcome,
    pub(crate) failure: &'a Failure,
    /// The roles of siw in which it went alike.
    pub(crate) roles: Vec<&'static str>,
    /// What the kernel said, where that was its end.
    pub(crate) trouble: Option<&'a str>,
}

/// Of these runs, in the order of the cases.
pub(crate) fn findings<'a>(runs: &[&'a Played]) -> Vec<Finding<'a>> {
    let roles: BTreeMap<String, Option<&'static str>> = list()
        .into_iter()
        .map(|case| (case.id, case.role))
        .collect();
    let mut findings: Vec<Finding<'a>> = Vec::new();
    for played in runs {
        for outcome in &played.outcomes {
            let Verdict::Deviation(reason, failure) = &outcome.verdict else {
                continue;
            };
            let in_run = match played.run {
                Run::SiwInitiates | Run::UwarpInitiates => "Initiator",
                Run::SiwResponds | Run::UwarpResponds | Run::Dangerous => "Responder",
            };
            let role = roles.get(&outcome.id).copied().flatten().unwrap_or(in_run);
            let at = findings.iter().position(|known| known.reason == reason);
            let at = at.unwrap_or_else(|| {
                findings.push(Finding {
                    reason,
                    shown: Vec::new(),
                });
                findings.len() - 1
            });
            let shown = &mut findings[at].shown;
            let alike = |one: &&mut Shown<'_>| {
                (&one.outcome.id, one.outcome.ending) == (&outcome.id, outcome.ending)
                    && same(one.failure) == same(failure)
            };
            match shown.iter_mut().find(alike) {
                Some(one) => one.roles.push(role),
                None => shown.push(Shown {
                    outcome,
                    failure,
                    roles: vec![role],
                    trouble: played.troubles.get(&outcome.id).map(String::as_str),
                }),
            }
        }
    }
    findings
}

impl Finding<'_> {
    /// `RFC 5040 section 4.8`, each once.
    pub(crate) fn sections(&self) -> String {
        let sections: BTreeSet<&str> = self
            .requirements()
            .iter()
            .map(|id| section_of(id))
            .collect();
        let named: Vec<String> = sections.iter().map(|section| rfc_of(section)).collect();
        named.join(", ")
    }

    /// The requirements of all its cases.
    pub(crate) fn requirements(&self) -> BTreeSet<&str> {
        let cases = self.shown.iter().map(|one| one.outcome);
        let all = cases.flat_map(|outcome| &outcome.requirements);
        all.map(String::as_str).collect()
    }

    /// How many cases show it.
    pub(crate) fn cases(&self) -> usize {
        let ids: BTreeSet<&str> = self
            .shown
            .iter()
            .map(|one| one.outcome.id.as_str())
            .collect();
        ids.len()
    }

    /// The roles in which it shows.
    pub(crate) fn roles(&self) -> String {
        let roles: BTreeSet<&str> = self
            .shown
            .iter()
            .flat_map(|one| &one.roles)
            .copied()
            .collect();
        Vec::from_iter(roles).join(", ")
    }
}

/// `5044-7.1.2` is RFC 5044 section 7.1.2.
fn rfc_of(section: &str) -> String {
    match section.split_once('-') {
        Some((rfc, section)) => format!("RFC {rfc} section {section}"),
        None => section.to_owned(),
    }
}

/// What came, without what is another number in each run and role.
fn same(failure: &Failure) -> String {
    let mut text = String::new();
    for part in failure.received.split_inclusive("\"conn\":") {
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    text
}
