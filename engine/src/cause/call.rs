//! Causes of calls that are refused: wrong options, the state of the QP, limits.

use std::fmt;

use uwarp_mpa::ConfigError;

use super::parts::{Account, Layer, Who};
use crate::limits::LimitReached;
use crate::state::QpState;
use crate::status::Status;

/// Call of connection management that is refused, whatever its options are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedCall {
    /// The object belongs to the parent process.
    Inherited,
    /// The program drives the device itself, so no thread drives it while the call waits.
    WouldWait,
    /// The program decided on a connection request too late.
    DecisionTooLate,
}

impl RefusedCall {
    pub(super) fn account(self) -> Account {
        match self {
            Self::Inherited => Account::new("wrong process", Who::Program, Layer::Verbs)
                .hint("open a separate device in the child process"),
            Self::WouldWait => Account::new("would wait", Who::Program, Layer::Verbs).hint(
                "connect with a CmId or the async API, and call Device::progress until the result is reported",
            ),
            Self::DecisionTooLate => Account::new("too late", Who::Program, Layer::Verbs)
                .hint("accept or reject sooner; the limit is a setting (timeouts.decision)"),
        }
    }
}

impl fmt::Display for RefusedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inherited => "the device was opened before a fork, by the parent process",
            Self::WouldWait => {
                "the program drives the device itself (Progress::Manual), so no thread would drive it while this call waits"
            }
            Self::DecisionTooLate => {
                "the decision on a connection request came too late for the peer"
            }
        })
    }
}

pub(super) fn limit(limit: &LimitReached) -> Account {
    Account::new("limit reached", Who::PeerProgram, Layer::Verbs).hint(limit.advice())
}

pub(super) fn config(error: &ConfigError) -> Account {
    let hint = match error {
        ConfigError::PrivateDataTooLong { .. } => "send less, or move it into a first Send",
        ConfigError::DepthTooLarge { .. } => "choose a value up to that limit",
        ConfigError::LimitBelowIrd { .. } => {
            "ask for a smaller ird, or raise max_ird in the settings"
        }
        ConfigError::PeerToPeerNeedsRevisionTwo | ConfigError::EnhancedNeedsRevisionTwo { .. } => {
            "choose MPA revision 2 (Settings::revision), or do without this option"
        }
        ConfigError::NoRtrKind => "choose one that the peer knows, too (Settings::rtr)",
        ConfigError::NothingToAnswer => {
            "accept or reject a request only once, and only after it has arrived"
        }
    };
    Account::new("wrong option", Who::Program, Layer::Mpa).hint(hint)
}

pub(super) fn private_data() -> Account {
    Account::new("wrong option", Who::Program, Layer::Mpa)
        .hint("send less, or move it into a first Send")
}

pub(super) fn qp_in_use(state: QpState) -> Account {
    let hint = match state {
        QpState::Idle => "connect or accept first",
        QpState::Error => "reset the queue pair, or create another",
        QpState::Connecting | QpState::Rts | QpState::Closing | QpState::Terminate => {
            "wait for the end of its connection and reset it, or create another queue pair"
        }
    };
    Account::new("wrong state", Who::Program, Layer::Verbs)
        .status(Status::LocalQpOperation)
        .hint(hint)
}
