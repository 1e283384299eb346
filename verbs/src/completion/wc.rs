//! What became of one work request.

use core::fmt;

use crate::cause::Cause;

/// How a work request ended; the numeric values are those of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum Status {
    /// Done as asked.
    #[default]
    Success = 0,
    /// A message did not fit the receive posted for it, or a local length is more than a message can have.
    LocalLength = 1,
    /// The QP could not do what the work request asks.
    LocalQpOperation = 2,
    /// An SGE names memory that this work request may not use.
    LocalProtection = 4,
    /// Not done, because the QP went into the error state (or was disconnected) before.
    WrFlush = 5,
    /// A memory window could not be bound.
    WindowBind = 6,
    /// The peer answered what was not asked.
    BadResponse = 7,
    /// An incoming message was refused by the rights of the local memory.
    LocalAccess = 8,
    /// The peer called the request invalid.
    RemoteInvalidRequest = 9,
    /// The peer refused access to its memory.
    RemoteAccess = 10,
    /// The peer could not do the operation.
    RemoteOperation = 11,
    /// The peer could not be reached any more.
    RetryExceeded = 12,
    /// The peer had no receive posted for too long.
    ReceiverNotReady = 13,
    /// The peer gave up the request.
    RemoteAbort = 16,
    /// The QP cannot go on at all.
    Fatal = 19,
    /// The peer did not answer in time.
    ResponseTimeout = 20,
    /// Another error; the event of the QP says more.
    General = 21,
}

impl Status {
    /// The value as `ibv_wc_status`.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// True for [`Status::Success`] (`IBV_WC_SUCCESS`).
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }

    /// The status in words (`ibv_wc_status_str`).
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
            Self::BadResponse => "bad response: the peer answered what was not asked",
            Self::LocalAccess => {
                "local access error: the peer asked for memory it has no right to here"
            }
            Self::RemoteInvalidRequest => {
                "remote invalid request: the peer calls the message invalid"
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

    /// What to try when nothing more is known than the status (the verbs have no hints); [`Completion::cause`] knows
    /// more. `None` for success.
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
                "look for the first completion in error, or at `Qp::end_reason`, for the cause"
            }
            Self::WindowBind => {
                "check that the region may have windows, and that window and range fit it"
            }
            Self::BadResponse => "report it to the vendor of the peer's iWARP stack, with a capture",
            Self::LocalAccess => {
                "register the memory with the right that the peer needs, and tell it the right address, length and rkey"
            }
            Self::RemoteInvalidRequest => {
                "check the length against what the peer takes, and that the STag may be invalidated"
            }
            Self::RemoteAccess => {
                "compare address, length and rkey with what the peer said, and ask it for the right that this needs"
            }
            Self::RemoteOperation => {
                "look at the error on the peer's side; it may not know this operation, or have no receive posted"
            }
            Self::RetryExceeded => "check the network and whether the peer's host is up",
            Self::ReceiverNotReady => "let the peer post receives before this side sends",
            Self::RemoteAbort => "look at the error on the peer's side",
            Self::Fatal => "make a new queue pair, or a new device",
            Self::ResponseTimeout => "check whether the peer's program or host hangs",
            Self::General => "look at `Qp::end_reason`, or at the device's events",
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What kind of work request ended; the numeric values are those of `ibv_wc_opcode`. Not meaningful for the program
/// when the status is an error, though it is filled in here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A Send of any kind.
    #[default]
    Send = 0,
    /// An RDMA Write.
    RdmaWrite = 1,
    /// An RDMA Read.
    RdmaRead = 2,
    /// An atomic compare and swap (RFC 7306).
    CompareSwap = 3,
    /// An atomic fetch and add (RFC 7306).
    FetchAdd = 4,
    /// Binding a memory window.
    BindWindow = 5,
    /// Invalidating a local STag.
    LocalInvalidate = 6,
    /// Fast registration; `ibv_wc_opcode` has no number for it, only the kernel has.
    Register = 0x100,
    /// A receive.
    Recv = 128,
    /// A receive that Immediate Data (RFC 7306) ended.
    RecvImmediate = 129,
}

impl WcOpcode {
    /// The value as `ibv_wc_opcode`.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// True for work requests of the receive queue (the bit `IBV_WC_RECV`).
    #[must_use]
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvImmediate)
    }
}

/// One entry of a completion queue (a CQE, `ibv_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Completion {
    /// The number that the program gave the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received into the receive's memory, or read; 8 for an atomic; 0 where nothing is, as with
    /// Immediate Data, also behind a Write ([`written`](Self::written)).
    pub byte_len: u32,
    /// The QP it was posted to.
    pub qp_num: u32,
    /// The STag that this invalidated on this side: the peer's Send (RFC 5040 section 5.3), or an RDMA Read, the one of
    /// its sink ([`SendWr::invalidate_sink`](crate::SendWr::invalidate_sink)).
    pub invalidated: Option<u32>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// The 8 bytes of Immediate Data, of a [`WcOpcode::RecvImmediate`] (RFC 7306 section 6), in the order of
    /// the wire.
    pub immediate: Option<[u8; 8]>,
    /// Bytes of the Write that this Immediate Data came behind (`ibv_wc.byte_len` has them there); 0 where nothing came behind a
    /// Write, or something else between the two that took a receive.
    pub written: u32,
    /// Why it failed, or was flushed; `None` for success.
    pub cause: Option<Cause>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_ibverbs() {
        assert_eq!(Status::WrFlush.code(), 5);
        assert_eq!(Status::RemoteAccess.code(), 10);
        assert_eq!(Status::General.code(), 21);
        assert_eq!(WcOpcode::Recv.code(), 128);
        assert_eq!(WcOpcode::RdmaRead.code(), 2);
    }

    #[test]
    fn a_status_speaks_in_words() {
        assert_eq!(Status::Success.to_string(), "success");
        assert!(Status::WrFlush.to_string().contains("disconnected"));
    }
}
