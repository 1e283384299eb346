//! The errors of registered memory, each by who has to act on it. All of them are the local program's.

use super::Access;
use crate::home::Inherited;

/// A range that is not inside the memory it was asked of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("octets {offset} to {offset}+{len} are not inside a memory of {size} octets")]
pub struct OutOfRange {
    /// First octet asked for.
    pub offset: usize,
    /// Octets asked for.
    pub len: usize,
    /// Octets there are.
    pub size: usize,
}

/// Why memory could not be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The region has no octets.
    #[error("a memory region of 0 octets cannot be registered")]
    Empty,
    /// The address or the TO of the last octet does not exist.
    #[error("a region of {len} octets from {base:#x} on would pass the end of the address space")]
    Wraps {
        /// Address or TO of the first octet.
        base: u64,
        /// Octets asked for.
        len: usize,
    },
    /// Remote write or remote atomic was asked for without local write.
    #[error("remote write and remote atomic need local write as well; asked for: {access}")]
    NeedsLocalWrite {
        /// What was asked for.
        access: Access,
    },
    /// The device holds as many regions as its settings allow.
    #[error(
        "the device already holds {limit} memory regions, its limit; deregister some or raise the limit"
    )]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The protection domain holds as many regions as the settings allow.
    #[error(
        "the protection domain already holds {limit} memory regions, its limit; deregister some, use another domain, or raise the limit (limits.per_pd.max_mr)"
    )]
    TooManyInPd {
        /// The limit.
        limit: usize,
    },
    /// The domain was made before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The system gave no random octets for the STag.
    #[error("the system gave no random octets for the STag (errno {errno})")]
    NoRandomness {
        /// The system's error number.
        errno: i32,
    },
}

/// Why memory could not be deregistered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// The LLP still has to take octets out of the region, so the region stays valid.
    #[error("{pins} transfer(s) still need this memory; try again when they are complete")]
    Busy {
        /// How many.
        pins: u32,
    },
    /// No region with this STag.
    #[error("no memory is registered under STag {stag:#010x}")]
    Unknown {
        /// The STag asked for.
        stag: u32,
    },
}

/// A scatter/gather element that may not be used as the work request asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("element {index} of the scatter/gather list: {kind}")]
pub struct LocalFault {
    /// Which element, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub kind: LocalFaultKind,
}

/// What is wrong with a scatter/gather element.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalFaultKind {
    /// No valid region has this lkey, or no longer.
    #[error(
        "lkey {lkey:#010x} names no valid memory region (never registered, deregistered or invalidated)"
    )]
    InvalidKey {
        /// The lkey as given.
        lkey: u32,
    },
    /// The region belongs to another PD, or only to another QP.
    #[error("the memory of lkey {lkey:#010x} belongs to another protection domain or queue pair")]
    NotAssociated {
        /// The lkey as given.
        lkey: u32,
    },
    /// Octets would be placed in memory registered without local write.
    #[error("the memory of lkey {lkey:#010x} is not registered for local write")]
    NotWritable {
        /// The lkey as given.
        lkey: u32,
    },
    /// Address and length are not inside the region.
    #[error("{len} octets at {addr:#x} are not inside the memory of lkey {lkey:#010x}")]
    OutOfBounds {
        /// The lkey as given.
        lkey: u32,
        /// Address as given.
        addr: u64,
        /// Length as given.
        len: u32,
    },
    /// The elements together hold more than a message can (2^32 - 1 octets).
    #[error("the elements up to this one hold more than 4294967295 octets")]
    TooLong,
    /// The message is longer than the list.
    #[error(
        "octets {offset} to {offset}+{len} of the message are not in the list of {total} octets"
    )]
    OutsideList {
        /// First octet, counted in the message.
        offset: usize,
        /// Octets asked for.
        len: usize,
        /// Octets the list holds.
        total: u32,
    },
}
