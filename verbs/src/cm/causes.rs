//! Causes of failed calls of connection management.

use uwarp_llp::LlpError;

use super::{AcceptError, ConnectError, RequestError};
use uwarp_engine::cause::{Cause, RefusedCall};

fn no_address() -> LlpError {
    LlpError::Misuse {
        op: "resolve the address",
        why: "the name has no address",
    }
}

impl From<&ConnectError> for Cause {
    fn from(error: &ConnectError) -> Self {
        match error {
            ConnectError::Llp { error } => Cause::from(*error),
            // Returns the cause of the last attempt.
            ConnectError::NoneConnected { tried } => match tried.last() {
                Some(attempt) => Cause::from(&*attempt.error),
                None => Cause::from(no_address()),
            },
            ConnectError::Resolve(_) => Cause::from(no_address()),
            ConnectError::Startup { error, .. } => Cause::from(*error),
            ConnectError::Rejected {
                private_data,
                ord_needed,
                ..
            } => Cause::rejected(private_data, *ord_needed),
            ConnectError::Inherited(_) => Cause::from(RefusedCall::Inherited),
            ConnectError::WouldWait(_) => Cause::from(RefusedCall::WouldWait),
            ConnectError::QpInUse { state } => Cause::from(*state),
            ConnectError::Options(error) => Cause::from(*error),
            ConnectError::PrivateData(error) => Cause::from(*error),
            ConnectError::Ended { reason, .. } => Cause::from(&**reason),
        }
    }
}

impl From<&AcceptError> for Cause {
    fn from(error: &AcceptError) -> Self {
        match error {
            AcceptError::TooLate { .. } => Cause::from(RefusedCall::DecisionTooLate),
            AcceptError::Inherited(_) => Cause::from(RefusedCall::Inherited),
            AcceptError::QpInUse { state } => Cause::from(*state),
            AcceptError::Options(error) => Cause::from(*error),
            AcceptError::PrivateData(error) => Cause::from(*error),
            AcceptError::Llp(error) => Cause::from(*error),
            AcceptError::Limit(limit) => Cause::from(*limit),
        }
    }
}

impl From<&RequestError> for Cause {
    fn from(error: &RequestError) -> Self {
        match error {
            RequestError::Startup { error, .. } => Cause::from(*error),
            RequestError::Inherited(_) => Cause::from(RefusedCall::Inherited),
            RequestError::WouldWait(_) => Cause::from(RefusedCall::WouldWait),
            RequestError::Settings(error) => Cause::from(*error),
            RequestError::Llp(error) => Cause::from(*error),
            RequestError::Limit(limit) => Cause::from(*limit),
        }
    }
}

#[cfg(test)]
mod tests;
