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
        let devices = distinct(self.rows.iter().map(|row| row.device));
        for suite in distinct(self.rows.iter().map(|row| row.suite.as_str())) {
            let _ = write!(out, "\n## {suite}\n\n| what |");
            for device in &devices {
                let _ = write!(out, " {device} |");
            }
            let _ = writeln!(out, " deviation |\n|{}", "---|".repeat(devices.len() + 2));
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.suite == suite).collect();
            for case in distinct(rows.iter().map(|row| row.case.as_str())) {
                let of_case: Vec<&Row> = rows
                    .iter()
                    .copied()
                    .filter(|row| row.case == case)
                    .collect();
                let _ = writeln!(out, "| {case} |{}", cells(&devices, &of_case));
            }
        }
        out
    }
}

/// The results of one case on each device, and what siw does otherwise.
fn cells(devices: &[&str], rows: &[&Row]) -> String {
    let mut out = String::new();
    for device in devices {
        let row = rows.iter().find(|row| row.device == *device);
        let _ = write!(out, " {} |", row.map_or("", |row| row.result()));
    }
    let deviations = distinct(rows.iter().filter_map(|row| row.deviation()));
    let _ = write!(out, " {} |", deviations.join("; "));
    out
}

impl Row {
    fn result(&self) -> &'static str {
        match &self.result {
            None => "not run",
            Some(Err(())) => "**failed**",
            Some(Ok(_)) => "passed",
        }
    }

    fn deviation(&self) -> Option<&str> {
        match &self.result {
            Some(Ok(Outcome::Deviation(what))) => Some(what),
            _ => None,
        }
    }
}

/// Each once, in the order of its first place.
fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut out = Vec::new();
    for one in all {
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_tests_and_devices_side_by_side() {
        let mut report = Report::default();
        let first = report.add("kernel TCP", "rping", "size 23");
        let second = report.add("kernel TCP", "verbs", "read");
        let third = report.add("TAP", "rping", "size 23");
        report.add("TAP", "verbs", "read");
        report.note(second, Some(Outcome::Deviation("rounds IRD up".to_owned())));
        report.note(first, Some(Outcome::Passed));
        report.note(third, None);
        assert_eq!(report.not_run(), 1);
        let text = report.markdown(&["kernel Linux 1.2".to_owned()]);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
        assert_eq!(
            rows,
            [
                "| what | kernel TCP | TAP | deviation |",
                "| size 23 | passed | **failed** |  |",
                "| what | kernel TCP | TAP | deviation |",
                "| read | passed | not run | rounds IRD up |",
            ]
        );
        assert!(text.contains("* kernel Linux 1.2\n"));
    }
}
