//! Limit of file descriptors of this process. Each connection needs one.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, as servers do. The soft one is low for programs that call
/// `select(2)`; this command does not. The crates below leave the limit alone, because a library
/// must not decide that for its program.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // On failure the command continues with the limit it has.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
