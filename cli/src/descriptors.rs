//! Raises the limit of file descriptors of this process, because each connection needs a
//! descriptor.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit, as servers do. The soft limit is low to protect
/// programs that call `select(2)`, and this command does not. The libraries that it uses leave the
/// limit unchanged, because the decision belongs to the program.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // On failure the command continues with the old limit.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
