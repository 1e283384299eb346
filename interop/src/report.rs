//! The matrix: what was tried, on which device, with which result.

use std::fmt::Write;

/// How a test ended that passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As the RFCs have it.
    Passed,
    /// As far as siw allows: what it does otherwise, in a sentence.
    Deviation(String),
}

/// Rows in the order of the tests, whatever the order in which they ended.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    device: &'static str,
    suite: String,
    case: String,
    /// `None`: it was not run. `Err`: it failed.
    result: Option<Result<Outcome, ()>>,
}

impl Report {
    /// Adds a test and returns its number.
    pub fn add(&mut self, device: &'static str, suite: &str, case: &str) -> usize {
        self.rows.push(Row {
            device,
            suite: suite.to_owned(),
            case: case.to_owned(),
            result: None,
        });
        self.rows.len() - 1
    }

    /// Notes how a test ended: `None` when it failed.
    pub fn note(&mut self, number: usize, outcome: Option<Outcome>) {
        self.rows[number].result = Some(outcome.ok_or(()));
    }

    /// How many tests were not run.
    #[must_use]
    pub fn not_run(&self) -> usize {
        self.rows.iter().filter(|row| row.result.is_none()).count()
    }

    /// The document. Nothing in it changes from run to run unless a result or a version does.
    #[must_use]
    pub fn markdown(&self, versions: &[String]) -> String {
        let mut out = String::from(
            "# Interoperability with Linux siw\n\n\
             Written by `UWARP_INTEROP_REPORT=docs/interop.md ./ci.sh interop`: do not edit.\n\
             The peer is the siw driver of the Linux kernel, in a virtual machine; every row is a test of its own.\n\n",
        );
        for version in versions {
            let _ = writeln!(out, "* {version}");
        }
        let mut suite = "";
        for row in &self.rows {
            if row.suite != suite {
                suite = &row.suite;
                let _ = write!(
                    out,
                    "\n## {suite}\n\n| what | device | result | deviation |\n|---|---|---|---|\n"
                );
            }
            let (result, deviation) = match &row.result {
                None => ("not run", ""),
                Some(Err(())) => ("**failed**", ""),
                Some(Ok(Outcome::Passed)) => ("passed", ""),
                Some(Ok(Outcome::Deviation(what))) => ("passed", what.as_str()),
            };
            let (case, device) = (&row.case, row.device);
            let _ = writeln!(out, "| {case} | {device} | {result} | {deviation} |");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_tests() {
        let mut report = Report::default();
        let first = report.add("kernel TCP", "rping", "size 23");
        let second = report.add("kernel TCP", "verbs", "read");
        let third = report.add("kernel TCP", "verbs", "write");
        report.note(second, Some(Outcome::Deviation("rounds IRD up".to_owned())));
        report.note(first, Some(Outcome::Passed));
        assert_eq!(report.not_run(), 1);
        report.note(third, None);
        let text = report.markdown(&["kernel Linux 1.2".to_owned()]);
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("TCP")).collect();
        assert_eq!(
            rows,
            [
                "| size 23 | kernel TCP | passed |  |",
                "| read | kernel TCP | passed | rounds IRD up |",
                "| write | kernel TCP | **failed** |  |",
            ]
        );
        assert!(text.contains("* kernel Linux 1.2\n"));
    }
}
