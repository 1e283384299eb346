//! Errors that end a stream, with the side at fault and the code for the Terminate Message.

use core::fmt;

use thiserror::Error;
use uwarp_ddp::{DdpError, Qn, STag, TaggedFault, TaggedOffset, UntaggedFault};

use crate::code::TerminateCode;
use crate::opcode::Opcode;
use crate::read_request::ReadRequestHeader;
use crate::requirement::{self as demand, Requirement};

/// Reason why a stream cannot continue, with the facts that the headers of the segment contain.
///
/// The error is a plain value, so a caller that explains it does not read the segment again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum StreamError {
    /// The segment breaks a rule of DDP.
    #[error("{0}")]
    Ddp(#[from] DdpError),
    /// The RDMAP version (RV) is not 1.
    #[error("RDMAP version {0}; this stream uses version 1")]
    RdmapVersion(u8),
    /// No message has this opcode.
    #[error("opcode {0:#x} is no message that this side knows")]
    UnexpectedOpcode(u8),
    /// A tagged message arrived in an untagged segment, or an untagged message in a tagged segment.
    #[error(
        "{opcode} in {}",
        if .opcode.queue().is_none() {
            "an untagged segment; it belongs in a tagged one"
        } else {
            "a tagged segment; it belongs in an untagged one"
        }
    )]
    WrongBufferModel {
        /// The message.
        opcode: Opcode,
    },
    /// The message arrived on the queue of another kind of message.
    #[error(
        "{opcode} on Queue Number {got}; it belongs on {}",
        .opcode.queue().unwrap_or_default()
    )]
    WrongQueue {
        /// The message.
        opcode: Opcode,
        /// Queue on which it arrived.
        got: Qn,
    },
    /// The segments of one message have different opcodes.
    #[error("a message began as {first} and continued as {got}")]
    OpcodeChanged {
        /// Opcode of the earlier segments.
        first: Opcode,
        /// Opcode of this segment.
        got: Opcode,
    },
    /// The peer may not access the memory that its message names.
    #[error("{0}")]
    Access(#[from] AccessError),
    /// The memory that an Atomic Request names has an address that is not a multiple of 8.
    #[error(
        "an Atomic Request on STag {stag}, TO {to} cannot be carried out: the memory that STag and \
         TO stand for has an address that is not a multiple of 8"
    )]
    Misaligned {
        /// STag of the request.
        stag: STag,
        /// TO of the request.
        to: TaggedOffset,
    },
    /// No RFC defines an Atomic Operation with this code (AOpCode).
    #[error(
        "an Atomic Request has the operation code {0:#x}; there are 0, FetchAdd, and 2, CmpSwap"
    )]
    UnexpectedAtomicOp(u8),
    /// Immediate Data has the wrong length.
    #[error("{opcode} of {got} bytes; it has exactly 8")]
    ImmediateLength {
        /// The message.
        opcode: Opcode,
        /// Received length in bytes.
        got: u32,
    },
    /// The peer has more Reads and Atomic Operations outstanding than the negotiated IRD.
    #[error("one more Read or Atomic Request than the {ird} that may be outstanding (IRD)")]
    IrdExceeded {
        /// The negotiated IRD.
        ird: u16,
    },
    /// A Read Response arrived, but the oldest outstanding request is no Read, or there is none.
    #[error("a Read Response arrived, but no RDMA Read is next to be answered")]
    ReadResponseUnexpected,
    /// A Read Response does not match the oldest outstanding Read.
    #[error("a Read Response does not match the oldest outstanding RDMA Read: {0}")]
    ReadResponseMismatch(ReadResponseFault),
    /// An Atomic Response arrived, but the oldest outstanding request is no Atomic Operation, or
    /// there is none.
    #[error("an Atomic Response arrived, but no Atomic Operation is next to be answered")]
    AtomicResponseUnexpected,
    /// An Atomic Response does not match the oldest outstanding Atomic Operation.
    #[error("an Atomic Response has Request Identifier {got:#010x}, expected {expected:#010x}")]
    AtomicResponseMismatch {
        /// Request Identifier of the request.
        expected: u32,
        /// Received Request Identifier.
        got: u32,
    },
    /// A segment ends inside the RDMAP header of its message.
    #[error("{opcode} in a ULPDU of {len} bytes is too short; its headers take {needed}")]
    TooShort {
        /// The message.
        opcode: Opcode,
        /// Length of the ULPDU in bytes.
        len: usize,
        /// Length of its headers in bytes.
        needed: usize,
    },
    /// A message of a kind that has only one segment lacks the Last flag.
    #[error("{opcode} without the Last flag; it has exactly one segment")]
    NotLast {
        /// The message.
        opcode: Opcode,
    },
    /// The LLP found an error, with this error code of RFC 5044 section 8.
    #[error("the LLP reports: {}", TerminateCode::new(2, 0, *.0).name())]
    Mpa(u8),
    /// This side cannot continue.
    #[error("this side cannot continue (local catastrophic error)")]
    LocalCatastrophic,
    /// The stream had already ended, so the segment is dropped. The peer did nothing wrong.
    #[error("the stream has ended; what arrives on it is dropped")]
    Ended,
}

/// Access of the peer that is refused, and the check that failed.
///
/// Four messages name memory of this side: an RDMA Write, a Read Request, an Atomic Request, and a
/// Send that invalidates an STag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{}: {fault}", AccessWords(self))]
pub struct AccessError {
    /// The message.
    pub opcode: Opcode,
    /// The first check that failed.
    pub fault: TaggedFault,
    /// STag of the memory.
    pub stag: STag,
    /// TO of the first byte; 0 for a Send, which names only an STag.
    pub to: TaggedOffset,
    /// Length in bytes; 0 for a Send.
    pub len: u32,
}

impl AccessError {
    /// Creates the error of a Read Request, about its source.
    #[must_use]
    pub const fn of_read(request: &ReadRequestHeader, fault: TaggedFault) -> Self {
        AccessError {
            opcode: Opcode::ReadRequest,
            fault,
            stag: request.source_stag,
            to: request.source_to,
            len: request.len,
        }
    }
}

/// Displays the message that is refused and the memory that it names.
struct AccessWords<'a>(&'a AccessError);

impl fmt::Display for AccessWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccessError {
            opcode,
            stag,
            to,
            len,
            ..
        } = self.0;
        match opcode {
            Opcode::ReadRequest => write!(
                f,
                "a Read Request for {len} bytes of STag {stag}, TO {to} cannot be answered"
            ),
            Opcode::AtomicRequest => write!(
                f,
                "an Atomic Request on STag {stag}, TO {to} cannot be carried out"
            ),
            opcode if opcode.invalidates() => {
                write!(f, "a Send names STag {stag}, which cannot be invalidated")
            }
            opcode => write!(f, "{opcode} of {len} bytes to STag {stag}, TO {to}"),
        }
    }
}

/// Mismatch between a Read Response and its Read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReadResponseFault {
    /// The STag is not that of the sink.
    #[error("STag {got}, expected {expected}")]
    WrongSTag {
        /// STag of the sink.
        expected: STag,
        /// Received STag.
        got: STag,
    },
    /// The payload does not start where the payload of the previous segment ended.
    #[error("Tagged Offset {got}, expected {expected}")]
    WrongOffset {
        /// TO of the next byte.
        expected: TaggedOffset,
        /// Received TO.
        got: TaggedOffset,
    },
    /// The Response is longer than the Read.
    #[error("at least {got} bytes, asked for {expected}")]
    TooLong {
        /// Requested length in bytes.
        expected: u32,
        /// Length in bytes of the Response up to the end of this segment.
        got: u64,
    },
    /// The Response ended before all bytes arrived.
    #[error("it ended after {got} bytes of {expected}")]
    TooShort {
        /// Requested length in bytes.
        expected: u32,
        /// Received length in bytes.
        got: u32,
    },
}

/// Reason why an Atomic Operation is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AtomicFault {
    /// The STag, the access right or the bounds are wrong.
    #[error("{0}")]
    Tagged(#[from] TaggedFault),
    /// The address at this STag and TO is not a multiple of 8.
    #[error("the memory that STag and TO stand for has an address that is not a multiple of 8")]
    Misaligned,
}

/// The number of outstanding Reads and Atomic Operations has reached the negotiated ORD. Wait until
/// one of them is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("as many RDMA Reads and Atomic Operations are outstanding as were negotiated, {ord} (ORD)")]
pub struct OrdExhausted {
    /// The negotiated ORD.
    pub ord: u16,
}

/// Side at fault for an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Blame {
    /// This side.
    Local,
    /// The peer broke a rule.
    Peer,
    /// The LLP: bytes were lost or damaged on the way, or the peer broke a rule of the LLP.
    Lower,
}

impl StreamError {
    /// Creates the error of an Atomic Request for the 8 bytes at `to` of `stag`.
    #[must_use]
    pub const fn of_atomic(stag: STag, to: TaggedOffset, fault: AtomicFault) -> Self {
        match fault {
            AtomicFault::Tagged(fault) => StreamError::Access(AccessError {
                opcode: Opcode::AtomicRequest,
                fault,
                stag,
                to,
                len: 8,
            }),
            AtomicFault::Misaligned => StreamError::Misaligned { stag, to },
        }
    }

    /// Returns the side at fault.
    #[must_use]
    pub const fn blame(&self) -> Blame {
        match self {
            StreamError::LocalCatastrophic
            | StreamError::Ended
            | StreamError::Ddp(DdpError::LocalCatastrophic) => Blame::Local,
            StreamError::Mpa(_) => Blame::Lower,
            _ => Blame::Peer,
        }
    }

    /// Returns the code for the Terminate Message (RFC 5040 Figure 9). `None` only for
    /// [`Ended`](Self::Ended), which is not reported to the peer.
    ///
    /// No RFC assigns a code to some of the errors. Their codes were chosen as follows
    /// (layer/type/code):
    ///
    /// * A ULPDU shorter than its headers: 2/0/03. Its ULPDU Length is wrong, and it has no
    ///   complete header to report. Linux siw sends the same code.
    /// * A Read Request, Atomic Request, Atomic Response, Immediate Data or Terminate without the
    ///   Last flag: 0/2/ff. None of the named codes describes it.
    /// * A message on the queue of another kind of message: 1/2/01. The Queue Number is wrong.
    /// * More Reads and Atomics than the IRD: 1/2/02. Queue 1 has as many buffers as the IRD (RFC
    ///   5040 section 5.2.2).
    /// * A Read Response without a Read: 0/2/06. This opcode was not expected. A code for the STag
    ///   does not fit, because the STag of an empty Response is not checked.
    /// * A Read Response that does not match its Read: 1/1/00, 1/1/01. The STag of the sink or its
    ///   bounds are wrong, as for any tagged segment.
    /// * An Atomic Request without the right to its memory: 0/1/00 to 0/1/04. Atomics address
    ///   memory as Reads do (RFC 7306 section 5), so the codes of Reads apply. RFC 7306 itself
    ///   names only the code for alignment, 0/2/07 (section 8.2).
    /// * An Atomic Request with an undefined AOpCode: 0/2/06. RFC 7306 section 1.1 uses this code
    ///   for unsupported operations.
    /// * An Atomic Response without an Atomic Operation: 0/2/06. This opcode was not expected.
    /// * An Atomic Response with another Request Identifier than expected: 0/2/ff. None of the
    ///   named codes describes it.
    /// * Immediate Data that is not 8 bytes long: 0/2/ff. None of the named codes describes it:
    ///   1/2/05 concerns the length of the receive, which does not matter here.
    #[must_use]
    pub const fn terminate_code(&self) -> Option<TerminateCode> {
        let (layer, etype, code) = match self {
            StreamError::Ddp(error) => match (error.etype(), error.code()) {
                (Some(etype), Some(code)) => (1, etype, code),
                _ => SHORT,
            },
            StreamError::RdmapVersion(_) => (0, 2, 0x05), // 5040-7.2-03
            StreamError::UnexpectedOpcode(_) // 5040-7.2-02
            | StreamError::WrongBufferModel { .. }
            | StreamError::OpcodeChanged { .. }
            | StreamError::UnexpectedAtomicOp(_) // 7306-5.2.1-06
            | StreamError::AtomicResponseUnexpected
            | StreamError::ReadResponseUnexpected => (0, 2, 0x06),
            StreamError::WrongQueue { got, .. } => (1, 2, UntaggedFault::InvalidQn(*got).code()),
            StreamError::Access(error) => error.code(),
            StreamError::Misaligned { .. } => (0, 2, 0x07), // 7306-8.2-05
            StreamError::IrdExceeded { .. } => (1, 2, 0x02),
            StreamError::ReadResponseMismatch(ReadResponseFault::WrongSTag { .. }) => (1, 1, 0x00),
            StreamError::ReadResponseMismatch(_) => (1, 1, 0x01),
            StreamError::TooShort { .. } => SHORT,
            StreamError::NotLast { .. }
            | StreamError::ImmediateLength { .. }
            | StreamError::AtomicResponseMismatch { .. } => (0, 2, 0xFF),
            StreamError::Mpa(code) => (2, 0, *code),
            StreamError::LocalCatastrophic => (0, 0, 0x00),
            StreamError::Ended => return None,
        };
        Some(TerminateCode::new(layer, etype, code))
    }

    /// Returns the requirement of the RFCs that was violated; `None` if no requirement covers the
    /// error.
    #[must_use]
    pub fn requirement(&self) -> Option<Requirement> {
        Some(match self {
            StreamError::Access(error) => return error.requirement(),
            StreamError::Ddp(DdpError::TooShort { .. }) | StreamError::TooShort { .. } => {
                demand::HEADER_VALID
            }
            StreamError::WrongBufferModel { .. } | StreamError::WrongQueue { .. } => {
                demand::PLACE_OF_OPCODE
            }
            StreamError::IrdExceeded { .. } => demand::IRD,
            StreamError::ReadResponseUnexpected => demand::RESPONSE_EXPECTED,
            StreamError::ReadResponseMismatch(_) => demand::RESPONSE_MATCHES,
            StreamError::AtomicResponseUnexpected | StreamError::AtomicResponseMismatch { .. } => {
                demand::ATOMIC_RESPONSE
            }
            StreamError::UnexpectedAtomicOp(_) => demand::ATOMIC_OP,
            StreamError::ImmediateLength { .. } => demand::IMMEDIATE_LENGTH,
            StreamError::Ddp(_)
            | StreamError::RdmapVersion(_)
            | StreamError::UnexpectedOpcode(_)
            | StreamError::OpcodeChanged { .. }
            | StreamError::Misaligned { .. }
            | StreamError::NotLast { .. }
            | StreamError::Mpa(_)
            | StreamError::LocalCatastrophic
            | StreamError::Ended => return self.terminate_code()?.requirement(),
        })
    }
}

impl AccessError {
    /// Returns layer, type and code. RDMAP finds the errors of requests and of invalidations. DDP
    /// finds those of tagged segments.
    const fn code(&self) -> (u8, u8, u8) {
        match self.opcode {
            Opcode::ReadRequest | Opcode::AtomicRequest => (0, 1, protection(self.fault)),
            opcode if opcode.invalidates() => (0, 1, 0x09), // 5040-5.3-12
            _ => (1, TaggedFault::ETYPE, self.fault.code()),
        }
    }

    fn requirement(&self) -> Option<Requirement> {
        let request = matches!(self.opcode, Opcode::ReadRequest | Opcode::AtomicRequest);
        let (layer, etype, code) = self.code();
        match self.fault {
            // DDP has the same code for an unknown STag and for an STag without the access right,
            // but different requirements.
            TaggedFault::AccessRights if layer == 1 => Some(demand::STAG_WRITABLE),
            // The code of an STag of another stream is that of an unknown STag, too.
            TaggedFault::NotAssociated if layer == 1 => Some(demand::STAG_ASSOCIATED),
            TaggedFault::NotAssociated if request => Some(demand::SOURCE_ASSOCIATED),
            _ => TerminateCode::new(layer, etype, code).requirement(),
        }
    }
}

/// Code for a ULPDU that is shorter than its headers (MPA: Marker and ULPDU Length do not agree).
const SHORT: (u8, u8, u8) = (2, 0, 0x03);

/// Returns RDMAP's code for a fault in the source of a Read or the target of an Atomic. RDMAP's
/// codes differ from DDP's (5040-7.2-06 to 5040-7.2-10).
const fn protection(fault: TaggedFault) -> u8 {
    match fault {
        TaggedFault::InvalidSTag => 0x00,
        TaggedFault::BaseOrBounds => 0x01,
        TaggedFault::AccessRights => 0x02,
        // 5040-7.2-07 demands the check, but no section demands 0x03 for it. 0x03 would tell a peer
        // that guesses STags that this one exists.
        TaggedFault::NotAssociated => 0x00,
        TaggedFault::ToWrap => 0x04,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbound::Inbound;

    #[test]
    fn an_error_is_smaller_than_what_a_segment_yields_otherwise() {
        assert!(
            size_of::<StreamError>() <= 32,
            "{}",
            size_of::<StreamError>()
        );
        // The facts of an error make the result of a segment no larger.
        assert_eq!(
            size_of::<Result<Inbound<u64>, StreamError>>(),
            size_of::<Inbound<u64>>()
        );
    }
}
