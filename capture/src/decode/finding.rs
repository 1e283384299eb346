//! What breaks the RFCs.

use std::fmt;

/// One rule of an RFC that a frame does not keep: all of them are MUST or MUST NOT.
///
/// It displays as the text with the place in the RFC and the id of the requirement behind it.
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

    /// The id of the requirement, as in the conformance suite: RFC, section, running number.
    pub fn id(&self) -> &'static str {
        self.id
    }

    /// What is wrong and what was expected.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The RFC's number and the section: `("5044", "7.1.2")`.
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

/// Collects the findings about one frame.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// A finding, unless `kept`. The text is made only when it is needed.
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
