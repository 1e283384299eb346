//! Formats numbers with their nouns.

use std::fmt::Display;

/// Formats a number with its noun: "1 byte", "2 bytes".
pub(super) fn many(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let s = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{s}")
}
