//! Table of the demo's operations and their results.

use std::fmt;

use crate::output::grouped;

/// Result of one kind of operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// All data was right.
    Verified,
    /// The operation was refused, as expected.
    Refused,
    /// A wrong result, with a description.
    Wrong(String),
}

impl Verdict {
    pub(super) fn is_good(&self) -> bool {
        !matches!(self, Verdict::Wrong(_))
    }
}

impl From<Result<(), String>> for Verdict {
    fn from(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Verdict::Verified,
            Err(what) => Verdict::Wrong(what),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Verified => f.write_str("ok, every byte verified"),
            Verdict::Refused => f.write_str("ok, refused as it must be"),
            Verdict::Wrong(what) => write!(f, "WRONG: {what}"),
        }
    }
}

/// Row of the table, which describes one operation.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) operation: &'static str,
    pub(super) messages: usize,
    pub(super) bytes: u64,
    pub(super) verdict: Verdict,
}

/// Formats rows as a table with a line of headings.
pub(super) struct Table<'a>(pub(super) &'a [Row]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["operation", "messages", "bytes", "result"];
        let cells: Vec<[String; 4]> = self
            .0
            .iter()
            .map(|row| {
                let (messages, bytes) = (grouped(row.messages as u64), grouped(row.bytes));
                [
                    row.operation.to_owned(),
                    messages,
                    bytes,
                    row.verdict.to_string(),
                ]
            })
            .collect();
        let width = |column: usize| {
            let widths = cells.iter().map(|row| row[column].len());
            widths.chain([head[column].len()]).max().unwrap_or(0)
        };
        let (first, second, third) = (width(0), width(1), width(2));
        let [a, b, c, d] = head;
        write!(f, "  {a:first$}  {b:>second$}  {c:>third$}  {d}")?;
        for [a, b, c, d] in &cells {
            write!(f, "\n  {a:first$}  {b:>second$}  {c:>third$}  {d}")?;
        }
        Ok(())
    }
}
