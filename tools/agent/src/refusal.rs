//! Reasons why a command was not executed. Errors of the library include an error number of
//! `errno.h`.

use std::fmt::Display;

use rustix::io::Errno;
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{
    CmError, DeregisterError, DestroySrqError, DeviceError, PostErrorKind, RegisterError,
};

use crate::json::Line;

/// Reason why a command was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The agent refused the command, because it is invalid.
    #[error("{0}")]
    Agent(String),
    /// The library returned an error.
    #[error("{what}: {text}")]
    Library {
        /// Name of the call in libibverbs or librdmacm. All agents use these names.
        what: &'static str,
        errno: Errno,
        /// Error message of the library.
        text: String,
    },
    /// The library refused a request within a batch, after `posted` requests of the batch were
    /// posted.
    #[error("{why}, after {posted} work requests")]
    Posted { posted: u64, why: Box<Refusal> },
}

impl Refusal {
    pub(crate) fn agent(why: impl Into<String>) -> Refusal {
        Refusal::Agent(why.into())
    }

    /// Creates a refusal with `EINVAL`, for an error without a more specific number.
    pub(crate) fn invalid(what: &'static str, error: &dyn Display) -> Refusal {
        Refusal::library(what, Errno::INVAL, error)
    }

    pub(crate) fn library(what: &'static str, errno: Errno, error: &dyn Display) -> Refusal {
        let text = error.to_string();
        Refusal::Library { what, errno, text }
    }

    /// Adds the members that describe the refusal to an answer.
    pub(crate) fn write(&self, line: &mut Line) {
        match self {
            Refusal::Agent(why) => line.text("error", why),
            Refusal::Library { what, errno, text } => {
                line.text("error", what);
                line.number("errno", errno.raw_os_error().unsigned_abs());
                line.text("text", text);
            }
            Refusal::Posted { posted, why } => {
                why.write(line);
                line.number("posted", *posted);
            }
        }
    }
}

/// Returns a function that converts an error of the library, for `map_err`. `what` is the name of
/// the call.
pub(crate) fn by<E: Numbered>(what: &'static str) -> impl Fn(E) -> Refusal {
    move |error| Refusal::library(what, error.errno(), &error)
}

/// An error that corresponds to a number of `errno.h`.
pub(crate) trait Numbered: Display {
    fn errno(&self) -> Errno;
}

impl Numbered for PostErrorKind {
    fn errno(&self) -> Errno {
        match self {
            PostErrorKind::SendQueueFull { .. }
            | PostErrorKind::RecvQueueFull { .. }
            | PostErrorKind::SrqFull { .. } => Errno::NOMEM,
            PostErrorKind::ImmediateUnfit { .. } | PostErrorKind::NoSendWithImmediate => {
                Errno::OPNOTSUPP
            }
            _ => Errno::INVAL,
        }
    }
}

impl Numbered for RegisterError {
    fn errno(&self) -> Errno {
        match self {
            RegisterError::TooMany { .. } | RegisterError::TooManyInPd { .. } => Errno::NOMEM,
            RegisterError::NoRandomness { .. } => Errno::IO,
            _ => Errno::INVAL,
        }
    }
}

impl Numbered for DeregisterError {
    fn errno(&self) -> Errno {
        match self {
            DeregisterError::Busy { .. } | DeregisterError::WindowsBound { .. } => Errno::BUSY,
            _ => Errno::INVAL,
        }
    }
}

impl Numbered for DestroySrqError {
    fn errno(&self) -> Errno {
        Errno::BUSY
    }
}

impl Numbered for DeviceError {
    fn errno(&self) -> Errno {
        match self {
            DeviceError::Limit { .. } | DeviceError::PdLimit { .. } => Errno::NOMEM,
            DeviceError::Network(error) => error.errno(),
            _ => Errno::INVAL,
        }
    }
}

impl Numbered for CmError {
    fn errno(&self) -> Errno {
        match self {
            CmError::Network(error) => error.errno(),
            CmError::Device(error) => error.errno(),
            _ => Errno::INVAL,
        }
    }
}

impl Numbered for LlpError {
    fn errno(&self) -> Errno {
        match self {
            LlpError::AddressInUse { .. } => Errno::ADDRINUSE,
            LlpError::AddressUnavailable { .. } => Errno::ADDRNOTAVAIL,
            LlpError::PermissionDenied { .. } => Errno::ACCESS,
            LlpError::Unreachable { .. } => Errno::NETUNREACH,
            LlpError::LinkDown { .. } => Errno::NETDOWN,
            LlpError::Exhausted { .. } => Errno::NOBUFS,
            _ => Errno::INVAL,
        }
    }
}
