//! How many descriptors this process may have: a connection needs one.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, as servers do. The soft one is low for programs that call `select(2)`, which this one
/// does not. A library must not decide that for its program, so the crates below do not do it.
pub(crate) fn raise_the_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // Where it cannot be had, there is what there is.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
