//! What went wrong, in words.

/// Why a step of a test failed: what happened, what was awaited, what was seen instead.
#[derive(Clone, Debug)]
pub struct Failure(String);

/// The result of a step.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure in these words.
    pub fn new(what: impl Into<String>) -> Self {
        Failure(what.into())
    }

    /// The same, with a line in front that says what was under way.
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

/// Any error is a failure, so that tests can use `?`.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}
