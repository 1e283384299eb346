//! What can be wrong with a DDP Segment, and the numbers that RFC 5041 section 7.2 gives it.

use thiserror::Error;

use crate::types::{Msn, Qn};

/// Why a segment was not placed.
///
/// All but [`LocalCatastrophic`](Self::LocalCatastrophic) are the peer's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DdpError {
    /// The ULPDU ends inside the DDP header.
    #[error("a ULPDU of {len} octets is too short for its DDP header, which takes {needed}")]
    TooShort {
        /// Octets of the ULPDU.
        len: usize,
        /// Octets that the header takes: 14 if tagged, 18 if not (1 for an empty ULPDU).
        needed: usize,
    },
    /// The DDP version (DV) is not 1.
    #[error(
        "{} segment with DDP version {got}; this stream uses version 1",
        if *.tagged { "a tagged" } else { "an untagged" }
    )]
    Version {
        /// Whether the segment is tagged: the two have different codes.
        tagged: bool,
        /// The version received.
        got: u8,
    },
    /// A tagged segment may not be placed where it says.
    #[error("{0}")]
    Tagged(#[from] TaggedFault),
    /// An untagged segment fits no buffer of its queue.
    #[error("{0}")]
    Untagged(#[from] UntaggedFault),
    /// This side cannot go on.
    #[error("DDP on this side cannot go on (local catastrophic error)")]
    LocalCatastrophic,
}

/// Why the owner of memory refuses an access by STag.
///
/// It is the one answer for everything that names an STag: RDMA Write, the source of an RDMA Read,
/// the STag to be invalidated. The checks are made in the order in which the variants stand here:
/// is the STag known and its key right, does it belong to this stream, is there the right, does
/// TO + length wrap, does it stay in bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TaggedFault {
    /// There is no such STag, or it was invalidated, or its key is another.
    #[error("invalid STag: it was never given out, or is not valid any more")]
    InvalidSTag,
    /// The STag exists, but not for this stream (another protection domain, another QP).
    #[error("the STag is not associated with this stream")]
    NotAssociated,
    /// The STag does not give the right that this access needs.
    #[error("access rights violation: the STag does not allow this kind of access")]
    AccessRights,
    /// TO + length goes beyond 2^64.
    #[error("TO wrap: the Tagged Offset plus the length exceeds 64 bits")]
    ToWrap,
    /// Some of the octets lie outside of the registered range.
    #[error("base or bounds violation: some of the octets lie outside of the registered memory")]
    BaseOrBounds,
}

/// Why an untagged segment fits no buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UntaggedFault {
    /// No such queue.
    #[error("there is no queue with Queue Number {0} on this stream")]
    InvalidQn(Qn),
    /// No buffer is posted for the message.
    #[error("no buffer is posted for message {msn} on Queue Number {qn}")]
    NoBuffer {
        /// The queue.
        qn: Qn,
        /// The message that needs a buffer.
        msn: Msn,
    },
    /// The message is not the one whose turn it is.
    #[error("Message Sequence Number {got}, but it is the turn of {expected}")]
    MsnRange {
        /// The number whose turn it is.
        expected: Msn,
        /// The number received.
        got: Msn,
    },
    /// The segment does not start where the one before it ended.
    #[error("Message Offset {got}, but {expected} octets of the message have arrived so far")]
    InvalidMo {
        /// Octets received of this message.
        expected: u32,
        /// The offset received.
        got: u32,
    },
    /// The message is longer than the buffer.
    #[error("a message of at least {end} octets is too long for the buffer of {buffer}")]
    MessageTooLong {
        /// Where the segment would end, in octets from the start of the message.
        end: u64,
        /// Octets of the buffer.
        buffer: u32,
    },
}

impl DdpError {
    /// The Error Type of RFC 5041 section 7.2: 0 local catastrophic, 1 tagged, 2 untagged.
    ///
    /// `None` for [`TooShort`](Self::TooShort), for which the RFC has no number: a header that is
    /// not there belongs to no buffer model. It is the LLP's length that is wrong, so the ULP should
    /// report the LLP's code for a bad length.
    #[must_use]
    pub const fn etype(&self) -> Option<u8> {
        match self {
            DdpError::TooShort { .. } => None,
            DdpError::LocalCatastrophic => Some(0),
            DdpError::Tagged(_) | DdpError::Version { tagged: true, .. } => Some(1),
            DdpError::Untagged(_) | DdpError::Version { tagged: false, .. } => Some(2),
        }
    }

    /// The Error Code of RFC 5041 section 7.2; `None` as for [`etype`](Self::etype).
    #[must_use]
    pub const fn code(&self) -> Option<u8> {
        match self {
            DdpError::TooShort { .. } => None,
            DdpError::LocalCatastrophic => Some(0x00),
            DdpError::Tagged(fault) => Some(fault.code()),
            DdpError::Version { tagged: true, .. } => Some(0x04), // 5041-4.1-12
            DdpError::Untagged(fault) => Some(fault.code()),
            DdpError::Version { tagged: false, .. } => Some(0x06), // 5041-4.1-13
        }
    }
}

impl TaggedFault {
    /// The Error Code of RFC 5041 section 7.2, under Error Type 1 (tagged buffer error).
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            TaggedFault::InvalidSTag => 0x00,
            TaggedFault::BaseOrBounds => 0x01,
            TaggedFault::NotAssociated => 0x02,
            TaggedFault::ToWrap => 0x03,
            // 5041-7.1-11: DDP has no code for rights. To the peer such an STag is one that has no
            // buffer for this kind of access.
            TaggedFault::AccessRights => 0x00,
        }
    }
}

impl UntaggedFault {
    /// The Error Code of RFC 5041 section 7.2, under Error Type 2 (untagged buffer error).
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
            DdpError::Tagged(TaggedFault::InvalidSTag),
            DdpError::Tagged(TaggedFault::NotAssociated),
            DdpError::Tagged(TaggedFault::AccessRights),
            DdpError::Tagged(TaggedFault::ToWrap),
            DdpError::Tagged(TaggedFault::BaseOrBounds),
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
        let mut table = String::new();
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
