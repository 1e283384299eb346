//! Outcome of a case: verdict, ending and log.

use std::fmt;

use serde::Deserialize;

use crate::script::Level;

/// Verdict of a case about the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The target follows the rule.
    Pass,
    /// The target breaks the rule.
    Fail(Failure),
    /// The case could not be tried. The text is the reason.
    Skipped(String),
    /// The target breaks the rule, and the file of deviations expects it. The text is the reason in
    /// that file.
    Deviation(String, Failure),
    /// The target follows the rule, although the file of deviations expects a failure. The entry in
    /// that file should be removed.
    Unexpected(String),
    /// The suite, its agent or the network failed. The text describes the failure.
    Infrastructure(String),
}

impl Verdict {
    /// Returns the verdict as one or two words for reports.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail(_) => "fail",
            Verdict::Skipped(_) => "skipped",
            Verdict::Deviation(..) => "deviation",
            Verdict::Unexpected(_) => "unexpected pass",
            Verdict::Infrastructure(_) => "error",
        }
    }
}

/// Details of a failed case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Number of the failed step, counted from 1.
    pub step: usize,
    /// Description of the last message that the suite sent before the failure.
    pub sent: String,
    /// Description of the expected message or event.
    pub expected: String,
    /// Description of the received message or event.
    pub received: String,
    /// How the connection ended, if the case waited for its end.
    pub ending: Option<Ending>,
}

/// How a connection ended. It is independent of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum Ending {
    /// Terminate that the rule allows.
    #[serde(rename = "right Terminate")]
    RightTerminate,
    /// Any other Terminate.
    #[serde(rename = "wrong Terminate")]
    WrongTerminate,
    /// Terminate that the rule allows, but laid out as a little-endian bit field: Layer and EType
    /// are swapped.
    #[serde(rename = "right Terminate, bits in the wrong places")]
    SwappedTerminate,
    /// FIN without a Terminate.
    #[serde(rename = "plain close")]
    Close,
    /// Reset without a Terminate.
    #[serde(rename = "reset")]
    Reset,
    /// The connection stayed open until the timeout.
    #[serde(rename = "silence until the timeout")]
    Silence,
    /// The target died: a new connection to it no longer works.
    #[serde(rename = "the target died")]
    Died,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::RightTerminate => "right Terminate",
            Ending::WrongTerminate => "wrong Terminate",
            Ending::SwappedTerminate => "right Terminate, bits in the wrong places",
            Ending::Close => "plain close",
            Ending::Reset => "reset",
            Ending::Silence => "silence until the timeout",
            Ending::Died => "the target died",
        })
    }
}

/// Originator of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The suite sent the data.
    Suite,
    /// The target sent the data.
    Target,
    /// The entry is a note about the case.
    Note,
}

/// An entry in the log of a case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogEntry {
    /// Originator of the entry.
    pub who: Who,
    /// Index of the connection within the case.
    pub connection: usize,
    /// Time in microseconds since the case began.
    pub at: u64,
    /// Description of the message or event.
    pub text: String,
    /// Bytes on the wire, if any.
    pub bytes: Vec<u8>,
    /// Offset of the bytes since the start of Full Operation, if this direction uses Markers.
    pub markers: Option<u64>,
}

/// Result of one case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Id of the case.
    pub id: String,
    /// Whether the rule is a MUST, SHOULD or MAY.
    pub level: Level,
    /// The rule in one sentence.
    pub rule: String,
    /// Ids of the requirements that the case checks.
    pub requirements: Vec<String>,
    /// Verdict about the target.
    pub verdict: Verdict,
    /// How the last connection ended, if the case waited for its end.
    pub ending: Option<Ending>,
    /// Duration in milliseconds.
    pub millis: u64,
    /// All sent and received data.
    pub log: Vec<LogEntry>,
    /// Local address and peer address of each connection.
    pub addresses: Vec<(std::net::SocketAddr, std::net::SocketAddr)>,
}

impl Outcome {
    /// Turns any verdict into a failure if the target died in this case.
    pub(super) fn or_death(mut self) -> Self {
        if self.ending != Some(Ending::Died) {
            return self;
        }
        match &mut self.verdict {
            Verdict::Fail(failure) => failure.ending = Some(Ending::Died),
            verdict => {
                let received = match verdict {
                    Verdict::Infrastructure(why) => why.clone(),
                    _ => "nothing more; neither the target nor its agent answers".into(),
                };
                *verdict = Verdict::Fail(Failure {
                    step: 0,
                    sent: last_sent(&self.log),
                    expected: "a target that survives".into(),
                    received,
                    ending: self.ending,
                });
            }
        }
        self
    }
}

fn last_sent(log: &[LogEntry]) -> String {
    let sent = log.iter().rev().find(|entry| entry.who == Who::Suite);
    sent.map(|entry| entry.text.clone()).unwrap_or_default()
}
