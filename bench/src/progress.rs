//! Shows the current measurement in one line of the terminal, which the next measurement
//! overwrites. Messages about failures remain.

use std::fmt::Arguments;
use std::io::{IsTerminal, stderr};

/// Terminal sequence that moves to the first column and erases the line.
const AFRESH: &str = "\r\x1b[K";

/// Shows the current measurement on a terminal. Prints nothing to a file or a pipe.
pub(crate) fn now(what: Arguments<'_>) {
    if stderr().is_terminal() {
        eprint!("{AFRESH}{what}");
    }
}

/// Erases the line.
pub(crate) fn over() {
    now(format_args!(""));
}

/// Prints a line that remains, such as the reason for a missing figure.
pub(crate) fn tell(what: Arguments<'_>) {
    over();
    eprintln!("{what}");
}
