//! Progress: one terminal line with the current measurement, which the next one overwrites.
//! Failures stay.

use std::fmt::Arguments;
use std::io::{IsTerminal, stderr};

/// Moves to the first column and erases the line.
const AFRESH: &str = "\r\x1b[K";

/// Shows the current measurement on a terminal. A file or a pipe gets nothing.
pub(crate) fn now(what: Arguments<'_>) {
    if stderr().is_terminal() {
        eprint!("{AFRESH}{what}");
    }
}

/// Erases the line after all measurements.
pub(crate) fn over() {
    now(format_args!(""));
}

/// Prints a line that stays, such as the reason for a missing figure.
pub(crate) fn tell(what: Arguments<'_>) {
    over();
    eprintln!("{what}");
}
