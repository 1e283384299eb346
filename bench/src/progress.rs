//! What is being measured now: one line of a terminal, which the next one takes. What has failed stays.

use std::fmt::Arguments;
use std::io::{IsTerminal, stderr};

/// To the first column, and away with what stands there.
const AFRESH: &str = "\r\x1b[K";

/// Tells what is being measured now, where somebody looks: a file or a pipe gets nothing of it.
pub(crate) fn now(what: Arguments<'_>) {
    if stderr().is_terminal() {
        eprint!("{AFRESH}{what}");
    }
}

/// The measurements are over.
pub(crate) fn over() {
    now(format_args!(""));
}

/// Tells what stays, such as why there is no figure.
pub(crate) fn tell(what: Arguments<'_>) {
    over();
    eprintln!("{what}");
}
