//! What came of a case.

use std::fmt;

use serde::Deserialize;

use crate::script::Level;

/// What a case says about the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule is kept.
    Pass,
    /// It is not.
    Fail(Failure),
    /// It could not be tried, and why.
    Skipped(String),
    /// It is not kept, as the target's file of deviations says, and its reason.
    Deviation(String, Failure),
    /// A deviation was expected, and the rule is kept: its entry should go.
    Unexpected(String),
    /// The suite, its agent or the network could not do what was needed.
    Infrastructure(String),
}

impl Verdict {
    /// In one word, as reports have it.
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

/// How a rule was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The number of the step, from 1.
    pub step: usize,
    /// What was sent last before it.
    pub sent: String,
    /// What had to come.
    pub expected: String,
    /// What came.
    pub received: String,
    /// How the connection ended, where it did.
    pub ending: Option<Ending>,
}

/// How a connection ended: graded apart from whether the rule was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum Ending {
    /// With a Terminate that the rule allows.
    #[serde(rename = "right Terminate")]
    RightTerminate,
    /// With another one.
    #[serde(rename = "wrong Terminate")]
    WrongTerminate,
    /// With the right one in the layout of a little-endian bit field: Layer and EType change places.
    #[serde(rename = "right Terminate, bits in the wrong places")]
    SwappedTerminate,
    /// With a FIN alone.
    #[serde(rename = "plain close")]
    Close,
    /// With a reset.
    #[serde(rename = "reset")]
    Reset,
    /// Not at all, until time was over.
    #[serde(rename = "silence until the timeout")]
    Silence,
    /// The target is gone altogether.
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

/// Who sent an entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// This suite.
    Suite,
    /// The target.
    Target,
    /// Neither: something about the case.
    Note,
}

/// One entry of a case's log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogEntry {
    /// Who sent it.
    pub who: Who,
    /// The connection, from 0.
    pub connection: usize,
    /// Microseconds since the case began.
    pub at: u64,
    /// What it is.
    pub text: String,
    /// The bytes, if it has any.
    pub octets: Vec<u8>,
    /// Where in Full Operation they begin, in bytes, if that direction has Markers.
    pub markers: Option<u64>,
}

/// A case that was run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Its id.
    pub id: String,
    /// How binding its rule is.
    pub level: Level,
    /// The rule.
    pub rule: String,
    /// The requirements that it checks.
    pub requirements: Vec<String>,
    /// What it says about the target.
    pub verdict: Verdict,
    /// How the (last) connection ended, if the case waited for that.
    pub ending: Option<Ending>,
    /// Milliseconds that it took.
    pub millis: u64,
    /// Everything that was sent and came.
    pub log: Vec<LogEntry>,
    /// Local and peer address of each connection.
    pub addresses: Vec<(std::net::SocketAddr, std::net::SocketAddr)>,
}

impl Outcome {
    /// The outcome, with a failure in place of any other verdict if the target did not survive.
    pub(super) fn or_death(mut self) -> Self {
        if self.ending != Some(Ending::Died) {
            return self;
        }
        match &mut self.verdict {
            Verdict::Fail(failure) => failure.ending = Some(Ending::Died),
            verdict => {
                let received = match verdict {
                    Verdict::Infrastructure(why) => why.clone(),
                    _ => "nothing more: neither it nor its agent answers".into(),
                };
                *verdict = Verdict::Fail(Failure {
                    step: 0,
                    sent: last_sent(&self.log),
                    expected: "that the target survives".into(),
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
