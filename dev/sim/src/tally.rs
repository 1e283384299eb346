//! Counts of named incidents over many runs.

use std::collections::BTreeMap;
use std::fmt;

/// Number of occurrences by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<String, u64>);

/// Prefix of each printed line.
const MARK: &str = "  ";

impl Tally {
    /// Counts one occurrence.
    pub(crate) fn add(&mut self, what: &str) {
        *self.0.entry(what.to_owned()).or_default() += 1;
    }

    /// Returns the number of occurrences of `what`.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// Adds all counts of another tally.
    pub fn merge(&mut self, other: &Tally) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    /// Parses a line that [`Tally`] printed and adds its count. Returns false if the line has
    /// another form.
    pub fn take_line(&mut self, line: &str) -> bool {
        let counted = line.strip_prefix(MARK).and_then(|line| {
            let (count, what) = line.trim_start().split_once("  ")?;
            Some((what, count.parse::<u64>().ok()?))
        });
        if let Some((what, count)) = counted {
            *self.0.entry(what.to_owned()).or_default() += count;
        }
        counted.is_some()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{MARK}{count:>9}  {what}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        let mut tally = Tally::default();
        for what in ["runs", "ends by Terminate 2/0/02", "runs"] {
            tally.add(what);
        }
        let mut read = Tally::default();
        let lines = tally.to_string();
        assert!(lines.lines().all(|line| read.take_line(line)));
        assert_eq!(read, tally);
        let other = [
            "seed 7: passed",
            "  replay with a log: ./ci.sh sim --seed 7",
            "",
        ];
        assert!(!other.iter().any(|line| read.take_line(line)));
        read.merge(&tally);
        assert_eq!(read.of("runs"), 4);
    }
}
