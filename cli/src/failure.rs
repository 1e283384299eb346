//! What ends a command without success, told to a person.

use std::fmt;
use std::process::ExitCode;

use crate::output;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked makes no sense, or could not be begun.
    Usage(Report),
    /// The operation failed.
    Operation(Report),
    /// The operation failed, and its output has said all.
    Told,
    /// The program that was to run does not, with the exit code that says so.
    NotRun(Report, u8),
}

/// What happened, what was expected, whose doing it is, what to try.
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

    /// What should have come instead.
    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Whose doing it is.
    pub(crate) fn fault(mut self, fault: impl Into<String>) -> Self {
        self.fault = Some(fault.into());
        self
    }

    /// What to try.
    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl Report {
    /// What happened and what to try, for a cell of a table.
    pub(crate) fn in_a_line(&self) -> String {
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
    /// The operation failed, and one sentence says it all.
    pub(crate) fn because(what: impl Into<String>) -> Self {
        Failure::Operation(Report::new(what))
    }

    /// What there is to say, if there is anything.
    pub(crate) fn report(&self) -> Option<&Report> {
        match self {
            Failure::Usage(report) | Failure::Operation(report) | Failure::NotRun(report, _) => {
                Some(report)
            }
            Failure::Told => None,
        }
    }

    /// The same of a command for which a failed operation means that it could not run.
    pub(crate) fn before_the_run(self) -> Self {
        match self {
            Failure::Operation(report) => Failure::Usage(report),
            other => other,
        }
    }

    /// Says it on stderr.
    pub(crate) fn tell(&self, command: &str) {
        if let Some(report) = self.report() {
            output::notice(format_args!("uwarp {command}: {report}"));
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Operation(_) | Failure::Told => ExitCode::from(1),
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
        assert_eq!(report.in_a_line(), "it broke; try: tape");
        assert_eq!(Report::new("it broke").in_a_line(), "it broke");
    }
}
