//! The matrix of results, for each test and device.

use std::fmt::Write;

/// Result of a test that passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// siw behaved as the RFCs require.
    Passed,
    /// siw behaved differently, as this sentence describes. The other checks of the test passed.
    Deviation(String),
}

/// Results of all tests, in the order in which they were added. Tests may end in another order.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    device: &'static str,
    suite: String,
    case: String,
    /// `None` if the test was not run, `Err` if it failed.
    result: Option<Result<Outcome, ()>>,
}

impl Report {
    /// Adds a test without a result, and returns its number.
    pub fn add(&mut self, device: &'static str, suite: &str, case: &str) -> usize {
        self.rows.push(Row {
            device,
            suite: suite.to_owned(),
            case: case.to_owned(),
            result: None,
        });
        self.rows.len() - 1
    }

    /// Records the result of a test; `None` if it failed.
    pub fn note(&mut self, number: usize, outcome: Option<Outcome>) {
        self.rows[number].result = Some(outcome.ok_or(()));
    }

    /// Returns the number of tests that were not run.
    #[must_use]
    pub fn not_run(&self) -> usize {
        self.rows.iter().filter(|row| row.result.is_none()).count()
    }

    /// Formats the report. Runs with equal results and versions have equal reports.
    #[must_use]
    pub fn markdown(&self, versions: &[String]) -> String {
        let mut out = String::from(
            "# Interoperability with Linux siw\n\n\
             Written by `./ci.sh interop`.\n\n\
             The peer is the siw driver of the Linux kernel, in a virtual machine. Columns are devices of uwarp; every \
             cell is a test.\n\n\
             * **passed**: siw did what the RFCs say, or what the column \"deviation\" says.\n\
             * **-**: the device has no such test. Tests with a raw peer need a plain TCP socket, so kernel TCP.\n\
             * 1/1/00 is a Terminate Message by layer, type and code; 11 00 c0 are the first bytes of one.\n\n",
        );
        for version in versions {
            let _ = writeln!(out, "* {version}");
        }
        for suite in distinct(self.rows.iter().map(|row| row.suite.as_str())) {
            self.table(&mut out, suite);
        }
        out
    }

    /// Formats the table of one suite, or returns `None` if one of its tests was not run.
    #[must_use]
    pub fn suite(&self, suite: &str) -> Option<String> {
        let rows = self.of(suite);
        if rows.iter().any(|row| row.result.is_none()) {
            return None;
        }
        let mut out = String::new();
        lines(&mut out, &rows);
        Some(out)
    }

    fn of(&self, suite: &str) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.suite == suite).collect()
    }

    fn table(&self, out: &mut String, suite: &str) {
        let rows = self.of(suite);
        let passed = rows.iter().filter(|row| row.passed()).count();
        let _ = write!(
            out,
            "\n## {suite}\n\n{passed} of {} passed.\n\n",
            rows.len(),
        );
        lines(out, &rows);
    }
}

/// Writes a line for each case, with a column for each device.
fn lines(out: &mut String, rows: &[&Row]) {
    let devices = distinct(rows.iter().map(|row| row.device));
    let _ = write!(
        out,
        "| what | {} | deviation |\n|---|{}---|\n",
        devices.join(" | "),
        "---|".repeat(devices.len()),
    );
    for case in distinct(rows.iter().map(|row| row.case.as_str())) {
        let of_case: Vec<&Row> = rows
            .iter()
            .filter(|row| row.case == case)
            .copied()
            .collect();
        let _ = write!(out, "| {} |", cell(case));
        for device in &devices {
            let of_device = of_case.iter().filter(|row| row.device == *device);
            // Cases with the same title share a cell, which shows the worst result.
            let worst = of_device.map(|row| row.result()).max();
            let _ = write!(out, " {} |", worst.map_or("-", Shown::text));
        }
        let deviations = distinct(of_case.iter().filter_map(|row| row.deviation()));
        let _ = writeln!(out, " {} |", cell(&deviations.join("; ")));
    }
}

/// Content of a cell, ordered from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shown {
    Passed,
    NotRun,
    Failed,
}

impl Shown {
    fn text(self) -> &'static str {
        match self {
            Shown::Passed => "passed",
            Shown::NotRun => "not run",
            Shown::Failed => "**failed**",
        }
    }
}

impl Row {
    fn passed(&self) -> bool {
        matches!(self.result, Some(Ok(_)))
    }

    fn result(&self) -> Shown {
        match self.result {
            None => Shown::NotRun,
            Some(Err(())) => Shown::Failed,
            Some(Ok(_)) => Shown::Passed,
        }
    }

    fn deviation(&self) -> Option<&str> {
        match &self.result {
            Some(Ok(Outcome::Deviation(what))) => Some(what),
            _ => None,
        }
    }
}

/// Returns each text once, in the order of first occurrence.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

/// Escapes text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_a_row_and_a_device_is_a_column() {
        let mut report = Report::default();
        let tcp = report.add("kernel TCP", "rping", "size 23");
        let read = report.add("kernel TCP", "verbs", "read a|b");
        let raw = report.add("kernel TCP", "verbs", "raw");
        let tap = report.add("TAP", "rping", "size 23");
        let tap_read = report.add("TAP", "verbs", "read a|b");
        let rounds = || Some(Outcome::Deviation("rounds IRD up".to_owned()));
        report.note(tap_read, rounds());
        report.note(read, rounds());
        report.note(tcp, Some(Outcome::Passed));
        report.note(tap, None);
        assert_eq!(report.not_run(), 1);
        let text = report.markdown(&["kernel Linux 1.2".to_owned()]);
        let (_, tables) = text.split_once("* kernel Linux 1.2\n\n").unwrap();
        assert_eq!(
            tables,
            "## rping\n\n1 of 2 passed.\n\n\
             | what | kernel TCP | TAP | deviation |\n|---|---|---|---|\n\
             | size 23 | passed | **failed** |  |\n\
             \n## verbs\n\n2 of 3 passed.\n\n\
             | what | kernel TCP | TAP | deviation |\n|---|---|---|---|\n\
             | read a\\|b | passed | passed | rounds IRD up |\n\
             | raw | not run | - |  |\n"
        );
        assert_eq!(report.suite("verbs"), None);
        report.note(raw, Some(Outcome::Passed));
        assert_eq!(report.not_run(), 0);
        let (_, table) = tables.split_once("passed.\n\n").unwrap();
        let (table, _) = table.split_once("\n\n").unwrap();
        assert_eq!(report.suite("rping").unwrap().trim_end(), table);
        let same = report.add("kernel TCP", "verbs", "raw");
        report.note(same, None);
        assert!(report.markdown(&[]).contains("| raw | **failed** | - |  |"));
    }
}
