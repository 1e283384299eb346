//! Memory regions, over real connections: addresses, files, memory that processes share, rights, registration anew.

mod anew;
mod backed;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/program.rs"]
mod program;
mod rights;
mod words;

use uwarp_verbs::{Access, SendWr};

use common::{Wire, bell, content, pair, pattern};

/// Rights for peers of all kinds.
fn all() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}
