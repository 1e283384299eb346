//! Known deviations of a target: cases that the target does not pass, with the reasons.

use std::path::Path;

use serde::Deserialize;

use crate::run::{Ending, Outcome, Verdict};
use crate::run_matches as matches;

/// Content of a file of known deviations.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deviations {
    /// Name of the target. It is only for readers of the file.
    #[serde(default)]
    pub(crate) target: String,
    #[serde(default)]
    pub(crate) deviation: Vec<Deviation>,
}

/// Cases that the target fails for the same reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deviation {
    /// Case ids, or patterns as in [`Selection`](crate::Selection).
    pub(crate) cases: Vec<String>,
    /// Why the target deviates from the rules.
    pub(crate) reason: String,
    /// MPA role in which the target deviates; absent if it deviates in both. Matters only for cases
    /// that can be played in both roles.
    pub(crate) role: Option<TargetRole>,
    /// Ending of the connection that the deviation requires; absent for any ending.
    pub(crate) ending: Option<Ending>,
    /// True if the failure occurs only in some runs. A pass is then expected as well.
    #[serde(default)]
    pub(crate) sometimes: bool,
}

/// MPA role of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TargetRole {
    Initiator,
    Responder,
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
            Some(bare) => Err(format!("{} has no reason", bare.cases.join(", "))),
            None => Ok(deviations),
        }
    }

    /// Replaces the verdict of a case that the file lists. A failure becomes a deviation, and a
    /// pass becomes unexpected.
    pub(crate) fn apply(&self, outcome: &mut Outcome, target_initiates: bool) {
        let role = if target_initiates {
            TargetRole::Initiator
        } else {
            TargetRole::Responder
        };
        let mut known = self
            .deviation
            .iter()
            .filter(|deviation| deviation.role.is_none_or(|due| due == role))
            .filter(|deviation| {
                let mut cases = deviation.cases.iter();
                cases.any(|case| matches(case, &outcome.id))
            });
        match &outcome.verdict {
            Verdict::Fail(failure) => {
                let ending = outcome.ending;
                if let Some(known) =
                    known.find(|known| known.ending.is_none() || known.ending == ending)
                {
                    let reason = match self.target.as_str() {
                        "" => known.reason.clone(),
                        target => format!("{target}: {}", known.reason),
                    };
                    outcome.verdict = Verdict::Deviation(reason, failure.clone());
                }
            }
            Verdict::Pass => {
                if let Some(known) = known.find(|known| !known.sometimes) {
                    outcome.verdict = Verdict::Unexpected(known.reason.clone());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Failure;

    #[test]
    fn a_deviation_needs_a_reason() {
        let error =
            Deviations::parse("[[deviation]]\ncases = [\"mpa\"]\nreason = \" \"\n").unwrap_err();
        assert!(error.contains("no reason"), "{error}");
        let right = Deviations::parse(
            "target = \"siw\"\n[[deviation]]\ncases = [\"mpa/*\"]\nreason = \"no Markers\"\n",
        );
        assert_eq!(right.unwrap().deviation.len(), 1);
    }

    #[test]
    fn what_is_no_key_of_the_file_is_told() {
        assert!(Deviations::parse("[[deviations]]\ncases = [\"mpa\"]\nreason = \"x\"\n").is_err());
    }

    fn outcome(verdict: Verdict, ending: Option<Ending>) -> Outcome {
        Outcome {
            id: "mpa/5044-4.3/1".into(),
            level: crate::Level::Must,
            rule: String::new(),
            requirements: Vec::new(),
            verdict,
            ending,
            millis: 0,
            log: Vec::new(),
            addresses: Vec::new(),
        }
    }

    fn fail() -> Verdict {
        Verdict::Fail(Failure {
            step: 1,
            sent: String::new(),
            expected: String::new(),
            received: String::new(),
            ending: None,
        })
    }

    fn applied(file: &str, mut outcome: Outcome, target_initiates: bool) -> &'static str {
        let deviations = Deviations::parse(&format!(
            "[[deviation]]\ncases = [\"ddp\", \"mpa\"]\nreason = \"x\"\n{file}"
        ));
        deviations.unwrap().apply(&mut outcome, target_initiates);
        outcome.verdict.word()
    }

    #[test]
    fn it_may_be_of_one_role_alone() {
        let file = "role = \"initiator\"\n";
        assert_eq!(applied(file, outcome(fail(), None), true), "deviation");
        assert_eq!(applied(file, outcome(fail(), None), false), "fail");
        let passed = || outcome(Verdict::Pass, None);
        assert_eq!(applied(file, passed(), true), "unexpected pass");
        assert_eq!(applied(file, passed(), false), "pass");
    }

    #[test]
    fn it_may_be_of_one_ending_alone_and_of_some_runs() {
        let file = "ending = \"reset\"\nsometimes = true\n";
        let reset = Some(Ending::Reset);
        assert_eq!(applied(file, outcome(fail(), reset), true), "deviation");
        assert_eq!(applied(file, outcome(fail(), None), true), "fail");
        assert_eq!(applied(file, outcome(Verdict::Pass, None), true), "pass");
    }
}
