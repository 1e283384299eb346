//! Memory regions over real connections: addresses, files, shared memory, rights, and
//! reregistration.

mod anew;
mod backed;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/program.rs"]
mod program;
mod rights;
mod unmapped;
mod words;

use uwarp_verbs::{Access, SendWr};

use common::{Wire, bell, content, pair, pattern};

/// Local write, and all remote rights except atomics.
fn all() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}
