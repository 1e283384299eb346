//! Failures that end a command, as reports for its user.

use std::fmt;
use std::net::IpAddr;
use std::process::ExitCode;

use crate::output;

/// Reason why a command did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is wrong, or the operation could not start (exit code 2).
    Usage(Report),
    /// The operation failed (exit code 1).
    Operation(Report),
    /// The operation failed, and the output has already reported the reason (exit code 1).
    Reported,
    /// `uwarp run` did not start its program. The number is the exit code.
    NotRun(Report, u8),
}

/// Report of a failure: what happened, what was expected, whose fault it is, what to try.
#[derive(Debug)]
pub(crate) struct Report {
    what: String,
    expected: Option<String>,
    fault: Option<String>,
    advice: Option<String>,
}

impl Report {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Report {
            what: what.into(),
            expected: None,
            fault: None,
            advice: None,
        }
    }

    /// Adds the expected behaviour.
    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Names the party that is at fault.
    pub(crate) fn fault(mut self, fault: impl Into<String>) -> Self {
        self.fault = Some(fault.into());
        self
    }

    /// Adds a suggestion.
    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl Report {
    /// Returns the event and the suggestion in one line, for a cell of a table.
    pub(crate) fn one_line(&self) -> String {
        match &self.advice {
            Some(advice) => format!("{}; try: {advice}", self.what),
            None => self.what.clone(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        for (name, text) in [
            ("expected", &self.expected),
            ("at fault", &self.fault),
            ("try", &self.advice),
        ] {
            if let Some(text) = text {
                write!(f, "\n  {name}: {text}")?;
            }
        }
        Ok(())
    }
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Failure::Operation(report)
    }
}

impl Failure {
    /// Creates a failed operation that one sentence describes.
    pub(crate) fn because(what: impl Into<String>) -> Self {
        Failure::Operation(Report::new(what))
    }

    /// Returns the report to print, if there is one.
    pub(crate) fn report(&self) -> Option<&Report> {
        match self {
            Failure::Usage(report) | Failure::Operation(report) | Failure::NotRun(report, _) => {
                Some(report)
            }
            Failure::Reported => None,
        }
    }

    /// Turns a failed operation into a usage failure. Commands that reserve exit code 1 for
    /// findings call it for errors that prevented their run.
    pub(crate) fn into_usage(self) -> Self {
        match self {
            Failure::Operation(report) => Failure::Usage(report),
            other => other,
        }
    }

    /// Prints the report on stderr.
    pub(crate) fn print(&self, command: &str) {
        if let Some(report) = self.report() {
            output::notice(format_args!("uwarp {command}: {report}"));
        }
    }

    /// Prints the report of a server that continues, about `peer` if it is known. See
    /// [`output::remark`].
    pub(crate) fn print_remark(&self, command: &str, peer: Option<IpAddr>) {
        if let Some(report) = self.report() {
            output::remark(peer, format_args!("uwarp {command}: {report}"));
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Operation(_) | Failure::Reported => ExitCode::from(1),
            Failure::NotRun(_, code) => ExitCode::from(*code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_one_line_for_each_thing_it_knows() {
        let report = Report::new("it broke")
            .expected("that it holds")
            .advice("tape");
        assert_eq!(
            report.to_string(),
            "it broke\n  expected: that it holds\n  try: tape"
        );
        assert_eq!(report.one_line(), "it broke; try: tape");
        assert_eq!(Report::new("it broke").one_line(), "it broke");
    }
}
