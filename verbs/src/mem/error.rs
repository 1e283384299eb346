//! The errors of registered memory, each by who has to act on it. All of them are the local program's.

use super::Access;
use crate::fork_guard::Inherited;

/// A range that is not inside the memory it was asked of (of this API alone: the verbs copy nothing).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bytes {offset} to {offset}+{len} are not inside a memory of {size} bytes")]
pub struct OutOfRange {
    /// First byte asked for.
    pub offset: usize,
    /// Bytes asked for.
    pub len: usize,
    /// Bytes there are.
    pub size: usize,
}

/// Why memory could not be registered (`ibv_reg_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The region has no bytes.
    #[error("a memory region of 0 bytes cannot be registered")]
    Empty,
    /// The address or the TO of the last byte does not exist.
    #[error("a region of {len} bytes from {base:#x} on would pass the end of the address space")]
    Wraps {
        /// Address or TO of the first byte.
        base: u64,
        /// Bytes asked for.
        len: usize,
    },
    /// Remote write or remote atomic was asked for without local write.
    #[error("remote write and remote atomic need local write as well; asked for: {access}")]
    NeedsLocalWrite {
        /// What was asked for.
        access: Access,
    },
    /// Local write was asked for, of memory that may only be read.
    #[error(
        "the memory may only be read, and the rights asked for are: {access}; open the file for reading and writing, or, for memory of the program, register it in place anew"
    )]
    ReadOnly {
        /// What was asked for.
        access: Access,
    },
    /// The part of the buffer is not inside it.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The file could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The one QP that is to use the region is of another domain.
    #[error(
        "queue pair {qp} belongs to another protection domain than the region that it alone is to use"
    )]
    QpOfOtherPd {
        /// Its number.
        qp: u32,
    },
    /// The device holds as many regions and windows as its settings allow.
    #[error(
        "the device already holds {limit} memory regions and windows, its limit; deregister some or raise the limit"
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
    /// The system gave no random bytes for the STag.
    #[error("the system gave no random bytes for the STag (errno {errno})")]
    NoRandomness {
        /// The system's error number.
        errno: i32,
    },
}

/// Why a file could not be mapped, or memory for several processes not be made (of this API alone, as
/// [`Buffer`](crate::Buffer)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// No bytes at all.
    #[error("a mapping of 0 bytes cannot be made")]
    Empty,
    /// The first byte is not the first of a page.
    #[error("offset {offset} of the file is not a multiple of the page size, {page}")]
    OffsetNotOnPage {
        /// The offset asked for.
        offset: u64,
        /// The size of a page.
        page: usize,
    },
    /// The file is shorter.
    #[error(
        "bytes {offset} to {offset}+{len} reach beyond the end of the file, which has {size} bytes; make it longer first"
    )]
    BeyondEnd {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: usize,
        /// Bytes of the file.
        size: u64,
    },
    /// The file was opened for writing only.
    #[error("the file is open for writing only; memory is mapped from a file open for reading")]
    NotReadable,
    /// The system refused.
    #[error("the system refused to {op} (errno {errno})")]
    System {
        /// What was tried.
        op: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

/// Why memory could not be deregistered (`ibv_dereg_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// The LLP still has to take bytes out of the region, so the region stays valid.
    #[error("{pins} transfer(s) still need this memory; try again when they are complete")]
    Busy {
        /// How many.
        pins: u32,
    },
    /// Memory windows still show parts of the region.
    #[error(
        "{count} memory window(s) are bound to this region; invalidate, unbind or drop them first"
    )]
    WindowsBound {
        /// How many.
        count: u32,
    },
    /// No region with this STag.
    #[error("no memory is registered under STag {stag:#010x}")]
    Unknown {
        /// The STag asked for.
        stag: u32,
    },
}

/// Why a region could not be registered anew (`ibv_rereg_mr`); the old registration stays as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReregisterError {
    /// The new registration would not be a good one.
    #[error(transparent)]
    New(#[from] RegisterError),
    /// The old one cannot end now.
    #[error(transparent)]
    Old(#[from] DeregisterError),
    /// The protection domain is one of another device.
    #[error("the protection domain belongs to another device than the region")]
    OtherDevice,
}

/// A scatter/gather element that may not be used as the work request asks (RFC 5040 section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("element {index} of the scatter/gather list: {kind}")]
pub struct LocalFault {
    /// Which element, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub kind: LocalFaultKind,
}

/// What is wrong with a scatter/gather element (RFC 5040 section 7.1).
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
    /// The key is that of a memory window.
    #[error(
        "lkey {lkey:#010x} is that of a memory window, which only peers use; name the region it is bound to"
    )]
    Window {
        /// The lkey as given.
        lkey: u32,
    },
    /// The region belongs to another PD, or only to another QP.
    #[error("the memory of lkey {lkey:#010x} belongs to another protection domain or queue pair")]
    NotAssociated {
        /// The lkey as given.
        lkey: u32,
    },
    /// Bytes would be placed in memory registered without local write.
    #[error("the memory of lkey {lkey:#010x} is not registered for local write")]
    NotWritable {
        /// The lkey as given.
        lkey: u32,
    },
    /// Address and length are not inside the region.
    #[error("{len} bytes at {addr:#x} are not inside the memory of lkey {lkey:#010x}")]
    OutOfBounds {
        /// The lkey as given.
        lkey: u32,
        /// Address as given.
        addr: u64,
        /// Length as given.
        len: u32,
    },
    /// The elements together hold more than a message can (2^32 - 1 bytes).
    #[error("the elements up to this one hold more than 4294967295 bytes")]
    TooLong,
    /// The message is longer than the list.
    #[error("bytes {offset} to {offset}+{len} of the message are not in the list of {total} bytes")]
    OutsideList {
        /// First byte, counted in the message.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Bytes the list holds.
        total: u32,
    },
}
