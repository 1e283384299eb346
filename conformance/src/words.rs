//! Formats numbers with their nouns.

use std::fmt::Display;

/// Formats a number with its noun: "1 case", "2 cases".
pub fn many(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let s = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_has_no_plural() {
        assert_eq!(many(0_usize, "case"), "0 cases");
        assert_eq!(many(1_u64, "case"), "1 case");
        assert_eq!(many(2_u16, "case"), "2 cases");
    }
}
