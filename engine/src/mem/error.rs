//! Errors of registered memory. The local program causes and fixes all of them.

use uwarp_ddp::TaggedFault;

use super::Access;
use crate::fork_guard::Inherited;

/// Reason why an access to a region failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AccessFailure {
    /// The range is outside the region, or the region lacks the right.
    NotAllowed,
    /// The program has unmapped the memory or truncated its file, without deregistering it.
    Unmapped,
}

/// Reason why a segment of a Write could not be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceFault {
    /// The access is not permitted (any more).
    Tagged(TaggedFault),
    /// The program has unmapped the memory, without deregistering it.
    Unmapped,
}

impl From<TaggedFault> for PlaceFault {
    fn from(fault: TaggedFault) -> Self {
        Self::Tagged(fault)
    }
}

/// A range that is not inside the memory (no verbs equivalent: the verbs copy nothing).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bytes {offset} to {offset}+{len} are not inside a memory of {size} bytes")]
pub struct OutOfRange {
    /// Offset of the first requested byte.
    pub offset: usize,
    /// Number of requested bytes.
    pub len: usize,
    /// Size of the memory in bytes.
    pub size: usize,
}

/// Reason why memory could not be registered (`ibv_reg_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The region has 0 bytes of a buffer. Memory of the program that is registered in place may
    /// have 0 bytes.
    #[error("a memory region of 0 bytes cannot be registered")]
    Empty,
    /// The address or the TO of the last byte would exceed 64 bits.
    #[error("a region of {len} bytes from {base:#x} on would pass the end of the address space")]
    Wraps {
        /// Address or TO of the first byte.
        base: u64,
        /// Requested length in bytes.
        len: usize,
    },
    /// Remote write or remote atomic was requested without local write.
    #[error("remote write and remote atomic need local write as well; requested: {access}")]
    NeedsLocalWrite {
        /// Requested rights.
        access: Access,
    },
    /// Local write was requested for read-only memory.
    #[error(
        "the memory is read-only, but the requested rights are: {access}; open the file for reading and writing, take `BytesMut` and not `Bytes`, or register the program's memory in place again"
    )]
    ReadOnly {
        /// Requested rights.
        access: Access,
    },
    /// The range is not inside the buffer.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The file could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The QP that the region is reserved for belongs to another protection domain.
    #[error("queue pair {qp} belongs to another protection domain than the region reserved for it")]
    QpOfOtherPd {
        /// Number of the QP.
        qp: u32,
    },
    /// The device has as many regions and windows as its settings allow.
    #[error(
        "the device already holds {limit} memory regions and windows, its limit; deregister some or raise the limit"
    )]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The protection domain has as many regions as the settings allow.
    #[error(
        "the protection domain already holds {limit} memory regions, its limit; deregister some, use another domain, or raise the limit (limits.per_pd.max_mr)"
    )]
    TooManyInPd {
        /// The limit.
        limit: usize,
    },
    /// The protection domain was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The system returned no random bytes for the STag.
    #[error("the system gave no random bytes for the STag (errno {errno})")]
    NoRandomness {
        /// Error number of the system.
        errno: i32,
    },
}

/// Reason why a file could not be mapped or shared memory created (no verbs equivalent, as
/// [`Buffer`](crate::mem::Buffer)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The requested length is 0.
    #[error("a mapping of 0 bytes cannot be made")]
    Empty,
    /// The offset is not a multiple of the page size.
    #[error("offset {offset} of the file is not a multiple of the page size, {page}")]
    OffsetNotOnPage {
        /// Requested offset in bytes.
        offset: u64,
        /// Page size in bytes.
        page: usize,
    },
    /// The file is too short.
    #[error(
        "bytes {offset} to {offset}+{len} reach beyond the end of the file, which has {size} bytes; make it longer first"
    )]
    BeyondEnd {
        /// Offset of the first requested byte.
        offset: u64,
        /// Number of requested bytes.
        len: usize,
        /// Size of the file in bytes.
        size: u64,
    },
    /// The file was opened for writing only.
    #[error("the file is open for writing only; memory is mapped from a file open for reading")]
    NotReadable,
    /// A system call failed.
    #[error("the system refused to {op} (errno {errno})")]
    System {
        /// Attempted operation.
        op: &'static str,
        /// Error number of the system.
        errno: i32,
    },
}

/// Reason why memory could not be deregistered (`ibv_dereg_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// The LLP has yet to take bytes from the region. The region stays valid.
    #[error("{pins} transfer(s) still need this memory; try again when they are complete")]
    Busy {
        /// Number of such transfers.
        pins: u32,
    },
    /// Memory windows are bound to the region.
    #[error(
        "{count} memory window(s) are bound to this region; invalidate, unbind or drop them first"
    )]
    WindowsBound {
        /// Number of windows.
        count: u32,
    },
    /// No region has this STag.
    #[error("no memory is registered under STag {stag:#010x}")]
    Unknown {
        /// Requested STag.
        stag: u32,
    },
}

/// Reason why a region could not be registered again (`ibv_rereg_mr`).
///
/// The old registration is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReregisterError {
    /// The new registration is invalid.
    #[error(transparent)]
    New(#[from] RegisterError),
    /// The old registration cannot end now.
    #[error(transparent)]
    Old(#[from] DeregisterError),
    /// The protection domain belongs to another device.
    #[error("the protection domain belongs to another device than the region")]
    OtherDevice,
}

/// A scatter/gather element that the work request may not use (RFC 5040 section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("element {index} of the scatter/gather list: {kind}")]
pub struct LocalFault {
    /// Index of the element, from 0.
    pub index: usize,
    /// Kind of the fault.
    pub kind: LocalFaultKind,
}

/// Fault of a scatter/gather element (RFC 5040 section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalFaultKind {
    /// The lkey names no valid region.
    #[error(
        "lkey {lkey:#010x} names no valid memory region (never registered, deregistered or invalidated)"
    )]
    InvalidKey {
        /// Lkey of the element.
        lkey: u32,
    },
    /// The lkey names a memory window.
    #[error(
        "lkey {lkey:#010x} is that of a memory window, which only peers use; name the region it is bound to"
    )]
    Window {
        /// Lkey of the element.
        lkey: u32,
    },
    /// The region belongs to another PD, or to another QP only.
    #[error("the memory of lkey {lkey:#010x} belongs to another protection domain or queue pair")]
    NotAssociated {
        /// Lkey of the element.
        lkey: u32,
    },
    /// The request places data, but the memory is not registered for local write.
    #[error("the memory of lkey {lkey:#010x} is not registered for local write")]
    NotWritable {
        /// Lkey of the element.
        lkey: u32,
    },
    /// The address range is not inside the region.
    #[error("{len} bytes at {addr:#x} are not inside the memory of lkey {lkey:#010x}")]
    OutOfBounds {
        /// Lkey of the element.
        lkey: u32,
        /// Address of the element.
        addr: u64,
        /// Length of the element in bytes.
        len: u32,
    },
    /// The memory is registered, but the program has unmapped or protected it, or has truncated the
    /// file that it maps.
    #[error("the memory of lkey {lkey:#010x} is not mapped any more, although it is registered")]
    Unmapped {
        /// Lkey of the element.
        lkey: u32,
    },
    /// The elements together exceed the longest message (2^32 - 1 bytes).
    #[error("the elements up to this one hold more than 4294967295 bytes")]
    TooLong,
    /// The message is longer than the list.
    #[error("bytes {offset} to {offset}+{len} of the message are not in the list of {total} bytes")]
    OutsideList {
        /// Offset of the first byte in the message.
        offset: usize,
        /// Length of the range in bytes.
        len: usize,
        /// Total length of the list in bytes.
        total: u32,
    },
}
