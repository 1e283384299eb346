//! Causes for work requests of this side that cannot be carried out. The connection ends with a
//! Terminate.

use std::fmt;

use crate::mem::{LocalFault, SlotFault};
use uwarp_rdmap::{StreamError, TerminateCode};

use super::parts::{Account, Layer, Who};
use crate::status::Status;

/// Operation of a work request on an STag of this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalVerb {
    /// Binds a memory window.
    Bind,
    /// Registers a fast region.
    Register,
    /// Invalidates an STag.
    Invalidate,
    /// Invalidates the sink of an RDMA Read after its last byte.
    InvalidateSink,
}

impl fmt::Display for LocalVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bind => "bind a memory window",
            Self::Register => "register memory",
            Self::Invalidate => "invalidate an STag",
            Self::InvalidateSink => "read and then invalidate the STag of the sink",
        })
    }
}

/// Access to memory that the program has unmapped, but not deregistered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmapped {
    /// A Write of the peer.
    Write,
    /// A Read of the peer.
    Read,
    /// An Atomic Operation of the peer.
    Atomic,
    /// The memory of a receive.
    Receive,
    /// The memory for the result of a Read or atomic.
    Sink,
    /// The payload of a Send or Write.
    Payload,
}

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "an RDMA Write of the peer",
            Self::Read => "an RDMA Read of the peer",
            Self::Atomic => "an atomic operation of the peer",
            Self::Receive => "a Send of the peer, whose receive named it",
            Self::Sink => "the result of an RDMA Read or atomic operation of this program",
            Self::Payload => "a posted work request that had to send it",
        })
    }
}

/// Reason why the work request cannot be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalProblem {
    /// The memory of the receive at the head of the queue was deregistered.
    ReceiveGone,
    /// The memory for the result of a Read was deregistered.
    ReadSinkGone,
    /// The memory of a Send or Write was deregistered.
    PayloadGone,
    /// Registered memory is not mapped.
    Unmapped {
        /// STag of the region; 0 if it is not known.
        stag: u32,
        /// Attempted access.
        by: Unmapped,
    },
    /// A preceding work request should have registered the memory, which is not usable now.
    Element(LocalFault),
    /// A Read was posted, but no Reads were negotiated.
    NoReads,
    /// A Send with Immediate Data was posted before it was known that the peer takes none.
    NoSendImmediate,
    /// A request other than a Send was posted to a QP for datagrams.
    NotADatagram,
    /// A datagram was posted that is too long.
    DatagramTooLong {
        /// Maximum number of bytes.
        max: u32,
    },
    /// There is no place for the Read that serves as the RTR indication.
    RtrRead,
    /// A memory window, a fast registration or a local invalidation failed.
    Memory {
        /// The operation.
        verb: LocalVerb,
        /// Its error.
        fault: SlotFault,
    },
    /// The consumer moved the QP to TERMINATE.
    MovedToTerminate,
    /// The consumer reset the QP.
    QpReset,
    /// The consumer dropped the QP.
    QpDropped,
}

impl fmt::Display for LocalProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory { verb, fault } => {
                return write!(f, "a work request to {verb} failed: {fault}");
            }
            Self::Element(fault) => {
                return write!(f, "a work request could not use its memory when its turn came: {fault}");
            }
            Self::Unmapped { stag, by } => {
                f.write_str("the memory ")?;
                if *stag != 0 {
                    write!(f, "under STag {stag:#010x} ")?;
                }
                return write!(
                    f,
                    "was accessed by {by}, but is not mapped any more, although it is registered"
                );
            }
            Self::ReceiveGone => {
                "the memory region of a posted receive was deregistered before a Send arrived for it"
            }
            Self::ReadSinkGone => {
                "the memory region for the result of an RDMA Read or atomic operation was deregistered before the result was complete"
            }
            Self::PayloadGone => {
                "the memory region of a posted work request was deregistered before it was sent"
            }
            Self::NoReads => {
                "an RDMA Read or atomic operation was posted, but none were negotiated for this connection (ORD is 0)"
            }
            Self::NoSendImmediate => {
                "a Send with Immediate Data was posted, but the peer takes none"
            }
            Self::NotADatagram => {
                "a request that is no Send was posted to a queue pair for datagrams"
            }
            Self::DatagramTooLong { max } => {
                return write!(
                    f,
                    "a datagram was posted that has more than the {max} bytes which its queue pair sends in one"
                );
            }
            Self::RtrRead => "there is no place for the Read that serves as the RTR indication",
            Self::MovedToTerminate => "this program moved the queue pair to TERMINATE",
            Self::QpReset => "the queue pair was reset",
            Self::QpDropped => "the queue pair was dropped",
        })
    }
}

impl LocalProblem {
    pub(super) fn account(self) -> Account {
        let requirement = StreamError::LocalCatastrophic.requirement();
        match self {
            Self::ReceiveGone | Self::ReadSinkGone | Self::PayloadGone => {
                Account::new("local protection error", Who::Program, Layer::Verbs)
                    .status(Status::LocalProtection)
                    .against(requirement)
                    .hint(
                        "deregister or invalidate memory only after the completion of the work requests that use it",
                    )
            }
            Self::Unmapped { by, .. } => {
                let account = match by {
                    Unmapped::Receive | Unmapped::Sink | Unmapped::Payload => {
                        Account::new("local protection error", Who::Program, Layer::Verbs)
                            .status(Status::LocalProtection)
                    }
                    Unmapped::Write | Unmapped::Read | Unmapped::Atomic => {
                        Account::new("", Who::Program, Layer::Verbs)
                    }
                };
                account.against(requirement).hint(
                    "deregister memory before it is unmapped, freed or protected, and do not truncate a file that is registered",
                )
            }
            Self::Element(_) => Account::new("local protection error", Who::Program, Layer::Verbs)
                .status(Status::LocalProtection)
                .against(requirement)
                .hint(
                    "use the lkey of a region of this protection domain and a range inside it; memory that one request registers for another must stay valid until the other is sent",
                ),
            Self::Memory { verb, fault } => {
                let (title, status) = match verb {
                    LocalVerb::Bind => ("memory window bind error", Status::WindowBind),
                    LocalVerb::Register | LocalVerb::Invalidate | LocalVerb::InvalidateSink => {
                        ("local QP error", Status::LocalQpOperation)
                    }
                };
                Account::new(title, Who::Program, Layer::Verbs)
                    .status(status)
                    .against(requirement)
                    .hint(memory_hint(fault))
            }
            Self::NoReads => Account::new("local QP error", Who::Program, Layer::Verbs)
                .status(Status::LocalQpOperation)
                .against(requirement)
                .hint(
                    "connect and accept with an ord above 0, to a peer whose IRD is above 0",
                ),
            Self::NoSendImmediate => {
                Account::new("local QP error", Who::Program, Layer::Verbs)
                    .status(Status::LocalQpOperation)
                    .against(requirement)
                    .hint("use the same release of uwarp at both ends, or an RDMA Write with Immediate Data")
            }
            Self::NotADatagram => Account::new("local QP error", Who::Program, Layer::Verbs)
                .status(Status::LocalQpOperation)
                .hint("send only Sends as datagrams, without invalidation"),
            Self::DatagramTooLong { .. } => {
                Account::new("local length error", Who::Program, Layer::Verbs)
                    .status(Status::LocalLength)
                    .hint("send at most the MTU of the port in one datagram")
            }
            Self::RtrRead => {
                let code = TerminateCode {
                    layer: 2,
                    etype: 0,
                    code: 5,
                };
                Account::new("startup failed", Who::Library, Layer::Mpa)
                    .terminate(Some(code))
                    .against(code.requirement())
                    .hint("use Sends or Writes as the RTR indication (Settings::rtr)")
            }
            Self::MovedToTerminate => Account::new("", Who::Program, Layer::Verbs)
                .against(requirement)
                .hint("move it to CLOSING (disconnect) for a graceful end"),
            Self::QpReset | Self::QpDropped => Account::new("", Who::Program, Layer::Verbs)
                .status(Status::WrFlush)
                .hint("if the results matter, wait for the completions before that"),
        }
    }
}

/// Returns the hint for a window, a fast region or an invalidation that is not possible.
fn memory_hint(fault: SlotFault) -> &'static str {
    match fault {
        SlotFault::NoWindow { .. } => {
            "take the rkey from `MemoryWindow`, and keep the window until the work request is complete"
        }
        SlotFault::NoFastRegion { .. } => {
            "take the STag from `FastRegion`, and keep the region until the work request is complete"
        }
        SlotFault::WrongKind { .. } => {
            "bind the window in the way of its type, or allocate one of the other type"
        }
        SlotFault::NotAssociated { .. } => {
            "use a window or region of this queue pair's protection domain that no other queue pair has bound"
        }
        SlotFault::StillValid { .. } => "invalidate it first",
        SlotFault::SameKey { .. } => "use the next key (`inc_rkey`)",
        SlotFault::NoRegion { .. } => {
            "bind to a region of this protection domain by its lkey, and keep the region registered"
        }
        SlotFault::NoBindRight { .. } => "register the region with WINDOW_BIND",
        SlotFault::Rights { .. } => {
            "request only remote rights, and register the region with LOCAL_WRITE if the window allows remote write or atomics"
        }
        SlotFault::OutOfBounds { .. } => "compare address and length with those of the memory",
        SlotFault::NoBytes => {
            "invalidate the window instead, which unbinds windows of types 2A and 2B"
        }
        SlotFault::Register(_) => "check the rights and the range of the registration",
        SlotFault::NotValid { .. } => {
            "invalidate an STag only once, after the request that made it valid is complete"
        }
        SlotFault::Type1 { .. } => "bind it to 0 bytes (`Qp::bind_mw`)",
        SlotFault::WindowsBound { .. } => "invalidate the windows first",
    }
}
