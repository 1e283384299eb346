//! Errors in received DDP Segments, with the codes that RFC 5041 section 7.2 assigns to them.

use thiserror::Error;

use crate::types::{Msn, Qn};

/// Reason why a segment was not placed, as DDP finds it. The owner of tagged memory reports a
/// [`TaggedFault`].
///
/// All but [`LocalCatastrophic`](Self::LocalCatastrophic) are the peer's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DdpError {
    /// The ULPDU ends inside the DDP header.
    #[error("a ULPDU of {len} bytes is too short for its DDP header, which takes {needed}")]
    TooShort {
        /// Length of the ULPDU in bytes.
        len: usize,
        /// Length of the header in bytes: 14 if tagged, 18 if not (1 for an empty ULPDU).
        needed: usize,
    },
    /// The DDP version (DV) is not 1.
    #[error(
        "{} segment with DDP version {got}; this stream uses version 1",
        if *.tagged { "a tagged" } else { "an untagged" }
    )]
    Version {
        /// True for a tagged segment. Tagged and untagged segments have different codes.
        tagged: bool,
        /// The received version.
        got: u8,
    },
    /// An untagged segment may not be placed in a buffer of its queue.
    #[error("{0}")]
    Untagged(#[from] UntaggedFault),
    /// An error of this side prevents DDP from continuing.
    #[error("DDP on this side cannot continue (local catastrophic error)")]
    LocalCatastrophic,
}

/// Reason why the owner of memory refuses an access that names an STag.
///
/// Such accesses include an RDMA Write, the source of an RDMA Read and the invalidation of an STag.
/// The checks are made in the order of the variants, and the first one that fails decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TaggedFault {
    /// The STag does not exist, was invalidated, or has another key.
    #[error("invalid STag: it was never issued, or is not valid any more")]
    InvalidSTag,
    /// The STag exists, but belongs to another protection domain or another QP than this stream.
    #[error("the STag is not associated with this stream")]
    NotAssociated,
    /// The STag does not grant the right that this access needs.
    #[error("access rights violation: the STag does not allow this kind of access")]
    AccessRights,
    /// TO + length exceeds 2^64.
    #[error("TO wrap: the Tagged Offset plus the length exceeds 64 bits")]
    ToWrap,
    /// Part of the range lies outside the registered range.
    #[error("base or bounds violation: some of the bytes lie outside of the registered memory")]
    BaseOrBounds,
}

/// Reason why an untagged segment may not be placed in a buffer of its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UntaggedFault {
    /// The queue does not exist.
    #[error("there is no queue with Queue Number {0} on this stream")]
    InvalidQn(Qn),
    /// No buffer is posted for the message.
    #[error("no buffer is posted for message {msn} on Queue Number {qn}")]
    NoBuffer {
        /// Queue of the message.
        qn: Qn,
        /// Number of the message that needs a buffer.
        msn: Msn,
    },
    /// The message is not the next one in order.
    #[error("Message Sequence Number {got}, expected {expected}")]
    MsnRange {
        /// Number of the next message in order.
        expected: Msn,
        /// The received number.
        got: Msn,
    },
    /// The segment does not start where the previous one ended.
    #[error("Message Offset {got}, but {expected} bytes of the message have arrived so far")]
    InvalidMo {
        /// Bytes of this message received so far.
        expected: u32,
        /// The received offset.
        got: u32,
    },
    /// The message is longer than the buffer.
    #[error("a message of at least {end} bytes is too long for the buffer of {buffer}")]
    MessageTooLong {
        /// Queue of the message.
        qn: Qn,
        /// End of the segment, in bytes from the start of the message.
        end: u64,
        /// Length of the buffer in bytes.
        buffer: u32,
    },
}

impl DdpError {
    /// Error Type of RFC 5041 section 7.2: 0 local catastrophic, 1 tagged, 2 untagged.
    ///
    /// `None` for [`TooShort`](Self::TooShort), because the codes of RFC 5041 assume a complete
    /// header. The LLP has delivered a ULPDU of a wrong length, so the ULP should report the LLP's
    /// code for that.
    #[must_use]
    pub const fn etype(&self) -> Option<u8> {
        match self {
            DdpError::TooShort { .. } => None,
            DdpError::LocalCatastrophic => Some(0),
            DdpError::Version { tagged: true, .. } => Some(TaggedFault::ETYPE),
            DdpError::Untagged(_) | DdpError::Version { tagged: false, .. } => Some(2),
        }
    }

    /// Error Code of RFC 5041 section 7.2; `None` as for [`etype`](Self::etype).
    #[must_use]
    pub const fn code(&self) -> Option<u8> {
        match self {
            DdpError::TooShort { .. } => None,
            DdpError::LocalCatastrophic => Some(0x00),
            DdpError::Version { tagged: true, .. } => Some(0x04), // 5041-4.1-12
            DdpError::Untagged(fault) => Some(fault.code()),
            DdpError::Version { tagged: false, .. } => Some(0x06), // 5041-4.1-13
        }
    }
}

impl TaggedFault {
    /// Error Type of RFC 5041 section 7.2 for a tagged buffer error.
    pub const ETYPE: u8 = 1;

    /// Error Code of RFC 5041 section 7.2, under Error Type 1 ([`ETYPE`](Self::ETYPE)), as the peer
    /// gets it. An STag of another stream has the code of an STag that does not exist.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            TaggedFault::InvalidSTag => 0x00,
            TaggedFault::BaseOrBounds => 0x01,
            // 5041-7.1-10: one check, "valid for this stream", has the codes 0x00 and 0x02. 0x02
            // would tell a peer that guesses STags that this one exists. The local error remains
            // `NotAssociated` (5041-8.2-01, 5041-8.2-02).
            TaggedFault::NotAssociated => 0x00,
            TaggedFault::ToWrap => 0x03,
            // 5041-7.1-11: DDP has no code for a missing right. To the peer, the STag is invalid
            // for this kind of access.
            TaggedFault::AccessRights => 0x00,
        }
    }
}

impl UntaggedFault {
    /// Error Code of RFC 5041 section 7.2, under Error Type 2 (untagged buffer error).
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            UntaggedFault::InvalidQn(_) => 0x01,
            UntaggedFault::NoBuffer { .. } => 0x02,
            UntaggedFault::MsnRange { .. } => 0x03,
            UntaggedFault::InvalidMo { .. } => 0x04,
            UntaggedFault::MessageTooLong { .. } => 0x05,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::String};

    #[test]
    fn every_error_has_its_number_and_words() {
        let errors = [
            DdpError::LocalCatastrophic,
            DdpError::Version {
                tagged: true,
                got: 2,
            },
            DdpError::Untagged(UntaggedFault::InvalidQn(Qn(7))),
            DdpError::Untagged(UntaggedFault::NoBuffer {
                qn: Qn(0),
                msn: Msn(4),
            }),
            DdpError::Untagged(UntaggedFault::MsnRange {
                expected: Msn(4),
                got: Msn(5),
            }),
            DdpError::Untagged(UntaggedFault::InvalidMo {
                expected: 100,
                got: 90,
            }),
            DdpError::Untagged(UntaggedFault::MessageTooLong {
                qn: Qn(0),
                end: 4097,
                buffer: 4096,
            }),
            DdpError::Version {
                tagged: false,
                got: 0,
            },
            DdpError::TooShort {
                len: 13,
                needed: 14,
            },
        ];
        let faults = [
            TaggedFault::InvalidSTag,
            TaggedFault::NotAssociated,
            TaggedFault::AccessRights,
            TaggedFault::ToWrap,
            TaggedFault::BaseOrBounds,
        ];
        let mut table = String::new();
        for fault in faults {
            let (etype, code) = (TaggedFault::ETYPE, fault.code());
            table.push_str(&format!("{etype:x}/{code:02x}  {fault}\n"));
        }
        for error in errors {
            let number = match (error.etype(), error.code()) {
                (Some(etype), Some(code)) => format!("{etype:x}/{code:02x}"),
                _ => "-   ".into(),
            };
            table.push_str(&format!("{number}  {error}\n"));
        }
        insta::assert_snapshot!(table);
    }
}
