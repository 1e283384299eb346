//! Causes of failures: values for programs, and a sentence with a hint for people.
//!
//! Every completion in error, every end of a connection, every event of a device or of connection
//! management and every Terminate Message maps to one [`Cause`]. Each source has one total
//! function, so that every error has a text. `tests.rs` prints all texts.
//!
//! | source | file |
//! |---|---|
//! | refused access of the peer by STag | `access.rs` |
//! | any other rule that the peer violated | `stream.rs` |
//! | Terminate Message of the peer | `terminate_report.rs` |
//! | work request of this side that cannot be carried out | `local.rs` |
//! | TCP and MPA startup | `transport.rs` |
//! | end of a connection | `end.rs`, `../event.rs` |
//! | refused call of the program | `call.rs` |
//! | events of the device | `event.rs`, `../event.rs` |
//! | completion status without further information | `status.rs` |

mod access;
mod call;
mod end;
mod event;
mod local;
mod parts;
mod status;
mod stream;
mod terminate_report;
#[cfg(test)]
mod tests;
mod transport;

use std::fmt;

use crate::llp::LlpError;
use crate::state::QpState;
use uwarp_mpa::{ConfigError, DeframeError, StartupError};
use uwarp_rdmap::{Requirement, Terminate};

use crate::limits::LimitReached;
use crate::peer::PrivateDataLimit;
use crate::status::Status;
pub(crate) use access::Refusal;
pub use call::RefusedCall;
pub(crate) use end::EndFacts;
pub(crate) use event::Happening;
pub use local::{LocalProblem, LocalVerb, Unmapped};
use parts::Account;
pub use parts::{CauseCode, Layer, Who};
pub(crate) use stream::{Broken, Held};
pub use terminate_report::{Asked, TerminateReport, Work};

/// Cause of a failure: originator, layer, code, and the violated requirement of the RFCs.
///
/// Its `Display` form is one sentence with a hint about what to try. It is a plain value of at most
/// 56 bytes, so that a completion can carry one. The verbs have only a status or an `errno`.
///
/// ```
/// use uwarp_engine::cause::{Cause, Layer, Who};
/// use uwarp_engine::event::EndReason;
/// let cause: Cause = EndReason::PeerDisconnect.cause();
/// assert_eq!((cause.who(), cause.layer()), (Who::PeerProgram, Layer::Tcp));
/// assert_eq!(
///     cause.to_string(),
///     "the connection was closed by the peer; \
///      if that was too early, check the peer's program: it ended or closed the connection"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cause {
    reason: Reason,
    /// True if the work request did not cause the failure, but was flushed because of it.
    flushed: bool,
}

/// Facts about the failure, by source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    /// The peer accessed memory without permission.
    Access(Refusal),
    /// The peer violated another rule of DDP or RDMAP.
    Broken(Broken),
    /// The peer's stream cannot be split into FPDUs.
    Framing(DeframeError),
    /// The peer's Terminate Message.
    TerminateReport(TerminateReport),
    /// A work request of this side cannot be carried out.
    Local(LocalProblem),
    /// MPA startup failed.
    Startup(StartupError),
    /// Error of TCP or its link.
    Llp(LlpError),
    /// The connection ended for another reason.
    End(EndFacts),
    /// A call of connection management is refused.
    Call(RefusedCall),
    /// An option that has no representation on the wire.
    Config(ConfigError),
    /// Private data that the peer cannot take.
    PrivateData(PrivateDataLimit),
    /// A limit of this device, or of one peer.
    Limit(LimitReached),
    /// The QP is not in the state that the call requires.
    QpInUse(QpState),
    /// An event that ends no connection.
    Event(Happening),
    /// Only the status is known.
    Status(Status),
}

impl Cause {
    const fn new(reason: Reason) -> Self {
        Cause {
            reason,
            flushed: false,
        }
    }

    pub(crate) const fn access(refusal: Refusal) -> Self {
        Self::new(Reason::Access(refusal))
    }

    pub(crate) const fn broken(broken: Broken) -> Self {
        Self::new(Reason::Broken(broken))
    }

    pub(crate) const fn framing(error: DeframeError) -> Self {
        Self::new(Reason::Framing(error))
    }

    pub(crate) const fn from_terminate(report: TerminateReport) -> Self {
        Self::new(Reason::TerminateReport(report))
    }

    /// Creates the cause of a work request of this side that cannot be carried out.
    #[doc(hidden)]
    pub const fn local(problem: LocalProblem) -> Self {
        Self::new(Reason::Local(problem))
    }

    /// Creates the cause of the end of a connection, or of an attempt to make one.
    pub(crate) const fn end(facts: EndFacts) -> Self {
        Self::new(Reason::End(facts))
    }

    /// Creates the cause of a connection that the peer's program rejected.
    #[doc(hidden)]
    pub fn rejected(private_data: &[u8], ord_needed: Option<u16>) -> Self {
        Self::end(EndFacts::rejected(private_data, ord_needed))
    }

    pub(crate) const fn event(happening: Happening) -> Self {
        Self::new(Reason::Event(happening))
    }

    /// Returns the cause for a completion if only its status is known (`ibv_wc_status`). `None` for
    /// success.
    #[must_use]
    pub fn of_status(status: Status) -> Option<Cause> {
        (!status.is_success()).then_some(Self::new(Reason::Status(status)))
    }

    /// Returns the cause for a work request that was flushed because of this failure.
    pub(crate) const fn flushed(mut self) -> Self {
        self.flushed = true;
        self
    }

    /// Returns the originator, as far as this side can tell.
    #[must_use]
    pub fn who(&self) -> Who {
        self.account().who
    }

    /// Returns the layer that detected the failure.
    #[must_use]
    pub fn layer(&self) -> Layer {
        self.account().layer
    }

    /// Returns the number of the error, if it has one.
    #[must_use]
    pub fn code(&self) -> Option<CauseCode> {
        self.account().code
    }

    /// Returns the violated requirement of the RFCs, if there is one.
    #[must_use]
    pub fn requirement(&self) -> Option<Requirement> {
        self.account().requirement
    }

    /// Returns the hint about what to try. `None` if nothing is wrong, or if the sentence contains
    /// the hint.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        self.account().hint
    }

    /// Returns true if the work request was flushed (`IBV_WC_WR_FLUSH_ERR`) and did not cause the
    /// failure.
    #[must_use]
    pub const fn is_flush(&self) -> bool {
        self.flushed
    }

    /// Returns the sentence without the hint.
    #[must_use]
    pub fn sentence(&self) -> String {
        Sentence(self).to_string()
    }

    fn account(&self) -> Account {
        match &self.reason {
            Reason::Access(refusal) => refusal.account(),
            Reason::Broken(broken) => broken.account(),
            Reason::Framing(error) => stream::framing(error),
            Reason::TerminateReport(report) => report.account(),
            Reason::Local(problem) => problem.account(),
            Reason::Startup(error) => transport::startup(error),
            Reason::Llp(error) => transport::llp(error),
            Reason::End(facts) => facts.account(),
            Reason::Call(refused) => refused.account(),
            Reason::Config(error) => call::config(error),
            Reason::PrivateData(_) => call::private_data(),
            Reason::Limit(limit) => call::limit(limit),
            Reason::QpInUse(state) => call::qp_in_use(*state),
            Reason::Event(happening) => happening.account(),
            Reason::Status(status) => status::account(*status),
        }
    }
}

impl From<StartupError> for Cause {
    fn from(error: StartupError) -> Self {
        Cause::new(Reason::Startup(error))
    }
}

impl From<LlpError> for Cause {
    fn from(error: LlpError) -> Self {
        Cause::new(Reason::Llp(error))
    }
}

impl From<RefusedCall> for Cause {
    fn from(refused: RefusedCall) -> Self {
        Cause::new(Reason::Call(refused))
    }
}

impl From<ConfigError> for Cause {
    fn from(error: ConfigError) -> Self {
        Cause::new(Reason::Config(error))
    }
}

impl From<PrivateDataLimit> for Cause {
    fn from(error: PrivateDataLimit) -> Self {
        Cause::new(Reason::PrivateData(error))
    }
}

impl From<LimitReached> for Cause {
    fn from(limit: LimitReached) -> Self {
        Cause::new(Reason::Limit(limit))
    }
}

/// Interprets the message without facts about a work request.
impl From<Terminate> for Cause {
    fn from(terminate: Terminate) -> Self {
        Cause::from_terminate(TerminateReport::new(&terminate, Work::Unknown))
    }
}

/// Creates the cause of a call that this state of the QP does not allow.
impl From<QpState> for Cause {
    fn from(state: QpState) -> Self {
        Cause::new(Reason::QpInUse(state))
    }
}

/// Displays the sentence without the hint.
struct Sentence<'a>(&'a Cause);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause { reason, flushed } = self.0;
        let title = self.0.account().title;
        match (flushed, title) {
            (true, _) => write!(f, "flushed because ")?,
            (false, "") => {}
            (false, title) => write!(f, "{title}: ")?,
        }
        match reason {
            Reason::Access(refusal) => fmt::Display::fmt(refusal, f),
            Reason::Broken(broken) => fmt::Display::fmt(broken, f),
            Reason::Framing(error) => fmt::Display::fmt(error, f),
            Reason::TerminateReport(report) => fmt::Display::fmt(report, f),
            Reason::Local(problem) => fmt::Display::fmt(problem, f),
            Reason::Startup(error) => f.write_str(&transport::startup_fact(error)),
            Reason::Llp(error) => transport::llp_fact(error, f),
            Reason::End(facts) => fmt::Display::fmt(facts, f),
            Reason::Call(refused) => fmt::Display::fmt(refused, f),
            Reason::Config(error) => fmt::Display::fmt(error, f),
            Reason::PrivateData(error) => error.fact(f),
            Reason::Limit(limit) => limit.fact(f),
            Reason::QpInUse(state) => write!(f, "the QP is in state {state}"),
            Reason::Event(happening) => fmt::Display::fmt(happening, f),
            Reason::Status(status) => f.write_str(status::sentence(*status)),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Sentence(self), f)?;
        match self.hint() {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Cause {}
