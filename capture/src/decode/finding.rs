//! Violations of the RFCs.

use std::fmt;

/// Violation of one RFC requirement, always a MUST or MUST NOT.
///
/// Displayed as its text, the section of the RFC and the id of the requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    id: &'static str,
    text: String,
}

impl Finding {
    pub(super) fn new(id: &'static str, text: impl Into<String>) -> Self {
        Self {
            id,
            text: text.into(),
        }
    }

    /// Id of the requirement, as in the conformance suite: RFC, section, running number.
    pub fn id(&self) -> &'static str {
        self.id
    }

    /// Says what is wrong and what was expected.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number and section of the RFC: `("5044", "7.1.2")`.
    pub fn section(&self) -> (&'static str, &'static str) {
        let mut parts = self.id.split('-');
        (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        )
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rfc, section) = self.section();
        write!(
            f,
            "{} [RFC {rfc} section {section}, {}]",
            self.text, self.id
        )
    }
}

/// Collects the findings of one frame.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Adds a finding unless `kept`. `text` is called only in that case.
    pub(super) fn demand<T: Into<String>>(
        &mut self,
        kept: bool,
        id: &'static str,
        text: impl FnOnce() -> T,
    ) {
        if !kept {
            self.0.push(Finding::new(id, text()));
        }
    }
}
