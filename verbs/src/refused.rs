//! Refusal of posts to objects that a child has inherited.

use uwarp_engine::connection::PostError;
use uwarp_engine::fork_guard::Inherited;

/// Returns the error of a post to an object of the parent process.
pub(crate) fn refused(inherited: Inherited) -> PostError {
    PostError {
        index: 0,
        kind: inherited.into(),
    }
}
