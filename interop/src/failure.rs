//! Errors of test steps, as text.

/// Reason why a step of a test failed: what happened, what was expected, and what was observed
/// instead.
#[derive(Clone, Debug)]
pub struct Failure(String);

/// Result of a step.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Creates a failure with this text.
    pub fn new(what: impl Into<String>) -> Self {
        Failure(what.into())
    }

    /// Prepends the action that failed.
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
