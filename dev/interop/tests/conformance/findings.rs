//! Findings of a run: deviations, grouped by their explanation.

use std::collections::{BTreeMap, BTreeSet};

use uwarp_conformance::{Failure, Outcome, Verdict, list, section_of};

use super::{Played, Run};

/// An explanation, and the cases that show it.
pub(crate) struct Finding<'a> {
    pub(crate) reason: &'a str,
    pub(crate) shown: Vec<Shown<'a>>,
}

/// A case that shows a finding.
pub(crate) struct Shown<'a> {
    pub(crate) outcome: &'a Outcome,
    pub(crate) failure: &'a Failure,
    /// Roles of siw in which the case had this result.
    pub(crate) roles: Vec<&'static str>,
    /// Log of the guest's kernel, if the case crashed it.
    pub(crate) trouble: Option<&'a str>,
}

/// Groups the deviations of these runs into findings, in the order of the cases.
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
    /// Formats the sections of the RFCs, such as `RFC 5040 sections 4.8, 7.1`.
    pub(crate) fn sections(&self) -> String {
        let mut rfcs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for section in BTreeSet::from_iter(self.requirements().into_iter().map(section_of)) {
            if let Some((rfc, section)) = section.split_once('-') {
                rfcs.entry(rfc).or_default().push(section);
            }
        }
        let named = rfcs.into_iter().map(|(rfc, sections)| {
            let many = if sections.len() > 1 { "s" } else { "" };
            format!("RFC {rfc} section{many} {}", sections.join(", "))
        });
        Vec::from_iter(named).join("; ")
    }

    /// Returns the requirements of all cases.
    pub(crate) fn requirements(&self) -> BTreeSet<&str> {
        let cases = self.shown.iter().map(|one| one.outcome);
        let all = cases.flat_map(|outcome| &outcome.requirements);
        all.map(String::as_str).collect()
    }

    /// Returns the number of distinct cases.
    pub(crate) fn cases(&self) -> usize {
        let ids: BTreeSet<&str> = self
            .shown
            .iter()
            .map(|one| one.outcome.id.as_str())
            .collect();
        ids.len()
    }

    /// Formats the roles of siw that show the finding.
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

/// Returns `Failure::received` without connection numbers, which differ between runs and roles.
fn same(failure: &Failure) -> String {
    let mut text = String::new();
    for part in failure.received.split_inclusive("\"conn\":") {
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    text
}
