//! A case: one rule, and the steps that check it.

use super::action::Action;

/// Obligation level of a rule (RFC 2119).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// MUST or MUST NOT, or a requirement that an RFC states without a keyword.
    Must,
    /// SHOULD or SHOULD NOT. Played only with `--strict`.
    Should,
    /// MAY. Played only with `--strict`.
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

/// MPA role of the target in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The target is the Responder: the suite connects.
    Responder,
    /// The target is the Initiator: the target connects.
    Initiator,
    /// The rule applies in both roles. The run chooses one of them.
    Either,
}

/// A case: one rule, and the steps that check it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) level: Level,
    pub(crate) requirements: Vec<&'static str>,
    /// The rule in one sentence.
    pub(crate) rule: String,
    pub(crate) role: Role,
    pub(crate) steps: Vec<Action>,
    /// True if the case crashes or blocks some targets. It is played only with `--dangerous`, after
    /// all other cases.
    pub(crate) dangerous: bool,
    /// True if the case waits for a time limit of the target.
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

/// Creates a case for a MUST, or for a requirement that an RFC states without a keyword.
pub(crate) fn must(id: &str, requirements: &[&'static str], rule: &str) -> Case {
    case(Level::Must, id, requirements, rule)
}

/// Creates a case for a SHOULD.
pub(crate) fn should(id: &str, requirements: &[&'static str], rule: &str) -> Case {
    case(Level::Should, id, requirements, rule)
}

/// Creates a case for a MAY: the target must accept that its peer does this.
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

    /// Marks a case that waits for a time limit of the target.
    pub(crate) fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    pub(crate) fn steps(mut self, steps: impl IntoIterator<Item = Action>) -> Self {
        self.steps.extend(steps);
        self
    }

    /// Returns true if a step needs the application on the target to act.
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
    /// Layer, RFC and section, and number, such as `mpa/5044-7.1.2/3`.
    pub id: String,
    /// Whether the rule is a MUST, SHOULD or MAY.
    pub level: Level,
    /// Ids of the requirements that the case checks.
    pub requirements: Vec<String>,
    /// The rule in one sentence.
    pub rule: String,
    /// True if the case needs an agent on the target.
    pub needs_agent: bool,
    /// True if the case is played only with `--dangerous`.
    pub dangerous: bool,
    /// MPA role of the target: `Initiator` or `Responder`. `None` if the rule applies in both
    /// roles; a run then plays the case in one of them.
    pub role: Option<&'static str>,
}
