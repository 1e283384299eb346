//! Findings: violations of the RFCs.

use std::fmt;

/// Violation of an RFC requirement, which is always a MUST or MUST NOT.
///
/// `Display` writes the text, the section of the RFC and the id of the requirement.
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

    /// Returns the id of the requirement, as in the conformance suite: RFC, section and sequence
    /// number.
    pub fn id(&self) -> &'static str {
        self.id
    }

    /// Returns a text that states what is wrong and what was expected.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the number and the section of the RFC, such as `("5044", "7.1.2")`.
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

/// Findings of one frame while it is checked.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Adds a finding if the requirement was not `kept`. `text` is called only in that case.
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
