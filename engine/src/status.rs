//! Status of a work request.

use core::fmt;

/// Status of a work request. The numeric values are those of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum Status {
    /// The request succeeded.
    #[default]
    Success = 0,
    /// A message did not fit the posted receive, or was too long to send.
    LocalLength = 1,
    /// The QP cannot execute this work request.
    LocalQpOperation = 2,
    /// An SGE names memory that this work request may not use.
    LocalProtection = 4,
    /// Not executed, because the QP entered the error state or was disconnected before.
    WrFlush = 5,
    /// A memory window could not be bound.
    WindowBind = 6,
    /// The peer sent a response that was not requested.
    BadResponse = 7,
    /// The rights of the local memory did not allow an incoming message.
    LocalAccess = 8,
    /// The peer reported the request as invalid.
    RemoteInvalidRequest = 9,
    /// The peer refused access to its memory.
    RemoteAccess = 10,
    /// The peer could not execute the operation.
    RemoteOperation = 11,
    /// The peer is no longer reachable.
    RetryExceeded = 12,
    /// For too long, the peer had not posted a receive.
    ReceiverNotReady = 13,
    /// The peer aborted the request.
    RemoteAbort = 16,
    /// The QP is unusable.
    Fatal = 19,
    /// The peer did not respond in time.
    ResponseTimeout = 20,
    /// Another error; the event of the QP has details.
    General = 21,
}

impl Status {
    /// The value as `ibv_wc_status`.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Returns true for [`Status::Success`] (`IBV_WC_SUCCESS`).
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }

    /// Description of the status (`ibv_wc_status_str`).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => {
                "local length error: the message does not fit the posted receive, or is too long to send"
            }
            Self::LocalQpOperation => "local QP error: the queue pair cannot do this work request",
            Self::LocalProtection => {
                "local protection error: an SGE names memory that is not registered for this use"
            }
            Self::WrFlush => {
                "flushed: the queue pair failed or was disconnected before this was done"
            }
            Self::WindowBind => "memory window bind error",
            Self::BadResponse => "bad response: the peer sent a response that was not requested",
            Self::LocalAccess => {
                "local access error: the peer tried to access memory here without the right to"
            }
            Self::RemoteInvalidRequest => {
                "remote invalid request: the peer reported the message as invalid"
            }
            Self::RemoteAccess => {
                "remote access error: the peer refused access to its memory (STag, rights or bounds)"
            }
            Self::RemoteOperation => "remote operation error: the peer could not do the operation",
            Self::RetryExceeded => "the peer cannot be reached any more",
            Self::ReceiverNotReady => "the peer had no receive posted for too long",
            Self::RemoteAbort => "the peer aborted the operation",
            Self::Fatal => "fatal error: the queue pair cannot be used any more",
            Self::ResponseTimeout => "the peer did not answer in time",
            Self::General => "general error: see the event of the queue pair",
        }
    }

    /// Hint about what to try, if only the status is known.
    /// [`Completion::cause`](crate::completion::Completion::cause) has more.
    /// `None` for success.
    #[must_use]
    pub const fn hint(self) -> Option<&'static str> {
        Some(match self {
            Self::Success => return None,
            Self::LocalLength => "post longer receives, or let the peer send shorter messages",
            Self::LocalQpOperation => {
                "check that the queue pair was made and connected for this operation (ORD above 0 for Reads)"
            }
            Self::LocalProtection => {
                "keep memory registered, with LOCAL_WRITE where bytes arrive, until the completion"
            }
            Self::WrFlush => {
                "find the cause in the first completion in error, or in `Qp::end_reason`"
            }
            Self::WindowBind => {
                "check that the region allows windows, and that the window and its range fit the region"
            }
            Self::BadResponse => {
                "report it to the vendor of the peer's iWARP stack, with a capture"
            }
            Self::LocalAccess => {
                "register the memory with the right that the peer needs, and give the peer the correct address, length and rkey"
            }
            Self::RemoteInvalidRequest => {
                "check that the peer accepts this length, and that the STag may be invalidated"
            }
            Self::RemoteAccess => {
                "compare address, length and rkey with those that the peer gave, and ask the peer for the required right"
            }
            Self::RemoteOperation => {
                "check the error on the peer's side; it may not know this operation, or have no receive posted"
            }
            Self::RetryExceeded => "check the network and whether the peer's host is up",
            Self::ReceiverNotReady => "let the peer post receives before this side sends",
            Self::RemoteAbort => "check the error on the peer's side",
            Self::Fatal => "create a new queue pair, or a new device",
            Self::ResponseTimeout => "check whether the peer's program or host hangs",
            Self::General => "check `Qp::end_reason` and the device's events",
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_ibverbs() {
        assert_eq!(Status::WrFlush.code(), 5);
        assert_eq!(Status::RemoteAccess.code(), 10);
        assert_eq!(Status::General.code(), 21);
    }

    #[test]
    fn a_status_speaks_in_words() {
        assert_eq!(Status::Success.to_string(), "success");
        assert!(Status::WrFlush.to_string().contains("disconnected"));
    }
}
