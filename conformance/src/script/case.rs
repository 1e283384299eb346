//! A case: one rule, and the steps that check it.

use super::action::Action;

/// How binding a rule is (RFC 2119).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// MUST, MUST NOT, and requirements that an RFC states without a keyword.
    Must,
    /// SHOULD; played only with `--strict`.
    Should,
    /// MAY; played only with `--strict`.
    May,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
            Level::May => "MAY",
        })
    }
}

/// The MPA role of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The suite connects.
    Responder,
    /// The target connects.
    Initiator,
    /// The rule holds in both roles. The run chooses one of them.
    Either,
}

/// One case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) level: Level,
    pub(crate) requirements: Vec<&'static str>,
    /// The rule in one sentence.
    pub(crate) rule: String,
    pub(crate) role: Role,
    pub(crate) steps: Vec<Action>,
    /// Crashes or blocks some targets. Played only with `--dangerous`, and last.
    pub(crate) dangerous: bool,
    /// Waits for a timeout of the target.
    pub(crate) slow: bool,
}

fn case(level: Level, id: &str, requirements: &[&'static str], rule: &str) -> Case {
    Case {
        id: id.to_owned(),
        level,
        requirements: requirements.to_vec(),
        rule: rule.to_owned(),
        role: Role::Either,
        steps: Vec::new(),
        dangerous: false,
        slow: false,
    }
}

/// A case for a MUST, or for a requirement that an RFC states without a keyword.
pub(crate) fn must(id: &str, requirements: &[&'static str], rule: &str) -> Case {
    case(Level::Must, id, requirements, rule)
}

/// A case for a SHOULD.
pub(crate) fn should(id: &str, requirements: &[&'static str], rule: &str) -> Case {
    case(Level::Should, id, requirements, rule)
}

/// A case for a MAY: the target must cope if its peer does it.
pub(crate) fn may(id: &str, requirements: &[&'static str], rule: &str) -> Case {
    case(Level::May, id, requirements, rule)
}

impl Case {
    /// Restricts the case to runs in which the suite connects.
    pub(crate) fn target_responds(mut self) -> Self {
        self.role = Role::Responder;
        self
    }

    /// Restricts the case to runs in which the target connects.
    pub(crate) fn target_initiates(mut self) -> Self {
        self.role = Role::Initiator;
        self
    }

    pub(crate) fn dangerous(mut self) -> Self {
        self.dangerous = true;
        self
    }

    /// Marks a case that takes as long as a time limit of the target.
    pub(crate) fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    pub(crate) fn steps(mut self, steps: impl IntoIterator<Item = Action>) -> Self {
        self.steps.extend(steps);
        self
    }

    /// Returns true if the case needs an action of the application on the target.
    pub(crate) fn needs_agent(&self) -> bool {
        self.steps.iter().any(Action::needs_agent)
    }

    pub(crate) fn info(&self) -> CaseInfo {
        CaseInfo {
            id: self.id.clone(),
            level: self.level,
            requirements: self
                .requirements
                .iter()
                .map(|id| (*id).to_owned())
                .collect(),
            rule: self.rule.clone(),
            needs_agent: self.needs_agent(),
            dangerous: self.dangerous,
            role: match self.role {
                Role::Responder => Some("Responder"),
                Role::Initiator => Some("Initiator"),
                Role::Either => None,
            },
        }
    }
}

/// Description of a case in the list of cases.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CaseInfo {
    /// Layer, RFC and section, number: `mpa/5044-7.1.2/3`.
    pub id: String,
    /// How binding its rule is.
    pub level: Level,
    /// Ids of the requirements that it checks.
    pub requirements: Vec<String>,
    /// The rule in one sentence.
    pub rule: String,
    /// True if it needs an agent for the target.
    pub needs_agent: bool,
    /// True if it is played only with `--dangerous`.
    pub dangerous: bool,
    /// MPA role of the target: `Initiator` or `Responder`. `None` if the rule holds in both roles;
    /// a run then plays it in one of them.
    pub role: Option<&'static str>,
}
