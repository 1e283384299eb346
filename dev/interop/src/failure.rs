//! The error type of test steps, which is a text.

/// Reason why a step of a test failed. The text states what happened, what was expected and what
/// was observed.
#[derive(Clone, Debug)]
pub struct Failure(String);

/// Result of a test step.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Creates a failure with this text.
    pub fn new(what: impl Into<String>) -> Self {
        Failure(what.into())
    }

    /// Prepends the action that failed to the text.
    #[must_use]
    pub fn during(self, what: impl std::fmt::Display) -> Self {
        Failure(format!("{what}: {}", self.0))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Converts any error, so that tests can use `?`.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}
