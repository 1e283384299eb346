//! Outcome of a case.

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
    /// The case could not be tried; the text is the reason.
    Skipped(String),
    /// The target breaks the rule, as its file of deviations says with this reason.
    Deviation(String, Failure),
    /// The target follows the rule, although the file of deviations says otherwise. The entry
    /// should be removed.
    Unexpected(String),
    /// The suite, its agent or the network failed.
    Infrastructure(String),
}

impl Verdict {
    /// One or two words, as in reports.
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

/// Failure of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Number of the step, counted from 1.
    pub step: usize,
    /// Last message sent before it.
    pub sent: String,
    /// The expected message or event.
    pub expected: String,
    /// The received message or event.
    pub received: String,
    /// How the connection ended, if it did.
    pub ending: Option<Ending>,
}

/// How a connection ended, graded independently of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum Ending {
    /// With a Terminate that the rule allows.
    #[serde(rename = "right Terminate")]
    RightTerminate,
    /// With another Terminate.
    #[serde(rename = "wrong Terminate")]
    WrongTerminate,
    /// With the right Terminate in the layout of a little-endian bit field: Layer and EType are
    /// swapped.
    #[serde(rename = "right Terminate, bits in the wrong places")]
    SwappedTerminate,
    /// With a FIN alone.
    #[serde(rename = "plain close")]
    Close,
    /// With a reset.
    #[serde(rename = "reset")]
    Reset,
    /// Not at all within the timeout.
    #[serde(rename = "silence until the timeout")]
    Silence,
    /// The target no longer exists.
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

/// Origin of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The suite.
    Suite,
    /// The target.
    Target,
    /// Neither: a note about the case.
    Note,
}

/// One entry of the log of a case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogEntry {
    /// Origin.
    pub who: Who,
    /// Index of the connection.
    pub connection: usize,
    /// Microseconds since the case began.
    pub at: u64,
    /// Description.
    pub text: String,
    /// Its bytes, if any.
    pub bytes: Vec<u8>,
    /// Offset of the bytes in Full Operation, if the direction has Markers.
    pub markers: Option<u64>,
}

/// Outcome of one case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Id of the case.
    pub id: String,
    /// How binding its rule is.
    pub level: Level,
    /// The rule in one sentence.
    pub rule: String,
    /// Ids of the requirements that it checks.
    pub requirements: Vec<String>,
    /// Verdict about the target.
    pub verdict: Verdict,
    /// How the (last) connection ended, if the case waited for it.
    pub ending: Option<Ending>,
    /// Duration in milliseconds.
    pub millis: u64,
    /// Everything sent and received.
    pub log: Vec<LogEntry>,
    /// Local and peer address of each connection.
    pub addresses: Vec<(std::net::SocketAddr, std::net::SocketAddr)>,
}

impl Outcome {
    /// Turns any verdict into a failure if the target did not survive.
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
