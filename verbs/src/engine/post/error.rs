//! Why a work request is not taken.

use crate::fork_guard::Inherited;
use crate::mem::{LocalFault, WindowKind};
use crate::qp::state::QpState;

/// Why a work request was not taken (of `ibv_post_send`, `ibv_post_recv` and the like).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// All places of the send queue are taken. The poll of a completion frees the place of its request, and those of
    /// the unsignaled requests before it.
    #[error(
        "the send queue is full: its {depth} places are taken until completions are polled; poll the send CQ (an unsignaled request keeps its place until a later completion of the queue is polled), or create the QP with a larger max_send_wr"
    )]
    SendQueueFull {
        /// Number of its places.
        depth: usize,
    },
    /// All places of the receive queue are taken. The poll of a completion frees the place of its receive.
    #[error(
        "the receive queue is full: its {depth} places are taken until completions are polled; poll the receive CQ, or create the QP with a larger max_recv_wr"
    )]
    RecvQueueFull {
        /// Number of its places.
        depth: usize,
    },
    /// All places of the shared receive queue are taken. The poll of a completion frees the place of its receive,
    /// whichever QP took it.
    #[error(
        "the shared receive queue is full: its {depth} places are taken until completions are polled; poll the receive CQs of its QPs, or give it a larger max_wr with Srq::modify"
    )]
    SrqFull {
        /// Number of its places.
        depth: usize,
    },
    /// The QP has no receive queue of its own.
    #[error(
        "this QP takes its receives from shared receive queue {srq_num}; post them there, with Srq::post_recv"
    )]
    HasSrq {
        /// The SRQ.
        srq_num: u32,
    },
    /// The QP has no connection yet.
    #[error("the QP is in state {state}: connect or accept first")]
    NotConnected {
        /// The state it is in.
        state: QpState,
    },
    /// More scatter/gather elements than the QP was made for.
    #[error("{got} scatter/gather elements, but this QP takes at most {max}")]
    TooManySges {
        /// Elements given.
        got: usize,
        /// Elements allowed.
        max: usize,
    },
    /// A Read with more than one element.
    #[error(
        "an RDMA Read on iWARP has one sink element, not {got}: one Read Request names one sink (RFC 5040 section 5.2)"
    )]
    ReadSges {
        /// Elements given.
        got: usize,
    },
    /// `Qp::bind_mw` of a window that is not of type 1.
    #[error(
        "a memory window of {kind} is bound with a work request (SendWr::bind_window); Qp::bind_mw is for type 1"
    )]
    WindowKind {
        /// Its kind.
        kind: WindowKind,
    },
    /// A Read on a connection that has none.
    #[error(
        "no RDMA Reads were negotiated for this connection (ORD is 0): connect or accept with an ord above 0, towards a peer whose IRD is above 0"
    )]
    NoReads,
    /// An atomic operation on a connection that has none.
    #[error(
        "no atomic operations were negotiated for this connection (ORD, which they share with Reads, is 0): connect or accept with an ord above 0, towards a peer whose IRD is above 0"
    )]
    NoAtomics,
    /// The result of an atomic operation has no place.
    #[error(
        "the sink of an atomic operation is one element of 8 bytes, for what the peer's memory held before; got {elements} element(s) of {octets} bytes"
    )]
    AtomicSink {
        /// Elements given.
        elements: usize,
        /// Bytes in all.
        octets: u64,
    },
    /// Immediate Data on a request that cannot have any.
    #[error(
        "{operation} carries no Immediate Data: on iWARP it is a message of its own (RFC 7306 section 6); post SendWr::immediate behind the request, or use write_with_immediate"
    )]
    ImmediateUnfit {
        /// What was posted.
        operation: &'static str,
    },
    /// The sink of something that has none was to be invalidated.
    #[error(
        "{operation} has no sink to invalidate: only an RDMA Read of at least one byte has one"
    )]
    NoSinkToInvalidate {
        /// What was posted.
        operation: &'static str,
    },
    /// More inline data than the QP was made for.
    #[error("{got} bytes of inline data, but this QP takes at most {max}")]
    InlineTooLong {
        /// Bytes given.
        got: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The request moves more than the peer's memory has.
    #[error(
        "the request moves {got} bytes, but the RemoteBuffer that it names has {room}; post less, or name a longer buffer"
    )]
    BeyondRemote {
        /// Bytes that the request moves.
        got: u32,
        /// Bytes of the remote buffer.
        room: u64,
    },
    /// The lengths add up to more than a message can carry.
    #[error(
        "the message has {got} bytes; a message carries at most 2^32 - 1 (RFC 5041 section 5.2)"
    )]
    MessageTooLong {
        /// Bytes in all.
        got: u64,
    },
    /// The QP was made before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// A scatter/gather element names memory that may not be used so.
    #[error("{0}")]
    Memory(#[from] LocalFault),
}
