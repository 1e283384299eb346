//! What is known of a target: cases that it does not pass, each with a reason.

use std::path::Path;

use serde::Deserialize;

use crate::run::{Outcome, Verdict};
use crate::run_matches as matches;

/// The file of a target's known deviations.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deviations {
    /// The target that they are of, for readers.
    #[serde(default)]
    pub(crate) target: String,
    #[serde(default)]
    pub(crate) deviation: Vec<Deviation>,
}

/// One of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deviation {
    /// The cases: an id, or a pattern.
    pub(crate) case: String,
    /// Why the target departs from the rule.
    pub(crate) reason: String,
}

impl Deviations {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("the deviations in {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("the deviations in {}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let deviations: Deviations = toml::from_str(text).map_err(|error| error.to_string())?;
        match deviations
            .deviation
            .iter()
            .find(|deviation| deviation.reason.trim().is_empty())
        {
            Some(bare) => Err(format!("{} has no reason", bare.case)),
            None => Ok(deviations),
        }
    }

    /// What is known is no failure; what is known and does not show is told.
    pub(crate) fn apply(&self, outcome: &mut Outcome) {
        let known = self
            .deviation
            .iter()
            .find(|deviation| matches(&deviation.case, &outcome.id));
        let Some(known) = known else {
            return;
        };
        match &outcome.verdict {
            Verdict::Fail(failure) => {
                let reason = match self.target.as_str() {
                    "" => known.reason.clone(),
                    target => format!("{target}: {}", known.reason),
                };
                outcome.verdict = Verdict::Deviation(reason, failure.clone());
            }
            Verdict::Pass => outcome.verdict = Verdict::Unexpected(known.reason.clone()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_needs_a_reason() {
        let error =
            Deviations::parse("[[deviation]]\ncase = \"mpa\"\nreason = \" \"\n").unwrap_err();
        assert!(error.contains("no reason"), "{error}");
        let right = Deviations::parse(
            "target = \"siw\"\n[[deviation]]\ncase = \"mpa/*\"\nreason = \"no Markers\"\n",
        );
        assert_eq!(right.unwrap().deviation.len(), 1);
    }

    #[test]
    fn what_is_no_key_of_the_file_is_told() {
        assert!(Deviations::parse("[[deviations]]\ncase = \"mpa\"\nreason = \"x\"\n").is_err());
    }
}
