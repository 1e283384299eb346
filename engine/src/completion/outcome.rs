//! Conversion of a completion to a `Result`.

use super::Completion;
use crate::status::Status;

/// A work request that failed, with its completion (`ibv_wc` in error).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {} of QP {} failed: {}", .0.wr_id, .0.qp_num, why(.0))]
pub struct WorkError(pub Completion);

/// Returns the cause, which has more details than the status.
fn why(completion: &Completion) -> String {
    match completion.cause {
        Some(cause) => cause.to_string(),
        None => completion.status.to_string(),
    }
}

impl WorkError {
    /// Returns true if the request was not executed because the connection ended before
    /// (`IBV_WC_WR_FLUSH_ERR`). `Qp::end_reason` has the reason.
    #[must_use]
    pub fn is_flush(&self) -> bool {
        self.0.status == Status::WrFlush
    }
}

impl Completion {
    /// Returns the completion if its `status` (that of `ibv_wc`) is success, and otherwise an error
    /// for use with `?`.
    ///
    /// # Errors
    /// [`WorkError`] for every status except [`Status::Success`].
    ///
    /// ```
    /// use uwarp_engine::completion::{Completion, Status};
    /// let mut failed = Completion::default();
    /// failed.wr_id = 7;
    /// failed.status = Status::WrFlush;
    /// assert!(failed.ok().unwrap_err().is_flush());
    /// assert_eq!(Completion::default().ok(), Ok(Completion::default()));
    /// ```
    pub fn ok(self) -> Result<Completion, WorkError> {
        if self.status.is_success() {
            Ok(self)
        } else {
            Err(WorkError(self))
        }
    }
}
