//! Reasons why a post does not accept a work request.

use crate::fork_guard::Inherited;
use crate::mem::{LocalFault, WindowKind};

use crate::state::QpState;

/// Refusal of a work request and of those after it in the same list (`bad_wr` of `ibv_post_send`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {index} of the list was not posted: {kind}")]
pub struct PostError {
    /// Index of the refused request in the list; those before it were posted.
    pub index: usize,
    /// Reason.
    pub kind: PostErrorKind,
}

/// Reason why a work request was not accepted (by `ibv_post_send`, `ibv_post_recv` and the like).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// All places of the send queue are in use.
    ///
    /// Polling a completion frees the place of its request and of the unsignaled requests before
    /// it.
    #[error(
        "the send queue is full: its {depth} places are taken until completions are polled; poll the send CQ (an unsignaled request keeps its place until a later completion of the queue is polled), or create the QP with a larger max_send_wr"
    )]
    SendQueueFull {
        /// Number of places of the queue.
        depth: usize,
    },
    /// All places of the receive queue are in use.
    ///
    /// Polling a completion frees the place of its receive.
    #[error(
        "the receive queue is full: its {depth} places are taken until completions are polled; poll the receive CQ, or create the QP with a larger max_recv_wr"
    )]
    RecvQueueFull {
        /// Number of places of the queue.
        depth: usize,
    },
    /// All places of the shared receive queue are in use.
    ///
    /// Polling a completion frees the place of its receive, whichever QP took it.
    #[error(
        "the shared receive queue is full: its {depth} places are taken until completions are polled; poll the receive CQs of its QPs, or give it a larger max_wr with Srq::modify"
    )]
    SrqFull {
        /// Number of places of the queue.
        depth: usize,
    },
    /// The QP has no receive queue of its own.
    #[error(
        "this QP takes its receives from shared receive queue {srq_num}; post them there, with Srq::post_recv"
    )]
    HasSrq {
        /// Number of the SRQ.
        srq_num: u32,
    },
    /// The QP has no connection yet.
    #[error("the QP is in state {state}: connect or accept first")]
    NotConnected {
        /// State of the QP.
        state: QpState,
    },
    /// More scatter/gather elements than the QP was created for.
    #[error("{got} scatter/gather elements, but this QP takes at most {max}")]
    TooManySges {
        /// Number of elements given.
        got: usize,
        /// Largest number of elements.
        max: usize,
    },
    /// A window that is not of type 1 was passed to `Qp::bind_mw`.
    #[error(
        "a memory window of {kind} is bound with a work request (SendWr::bind_window); Qp::bind_mw is for type 1"
    )]
    WindowKind {
        /// Kind of the window.
        kind: WindowKind,
    },
    /// A Read on a connection whose ORD is 0.
    #[error(
        "no RDMA Reads were negotiated for this connection (ORD is 0): connect or accept with an ord above 0, towards a peer whose IRD is above 0"
    )]
    NoReads,
    /// An atomic operation on a connection whose ORD is 0.
    #[error(
        "no atomic operations were negotiated for this connection (ORD, which they share with Reads, is 0): connect or accept with an ord above 0, towards a peer whose IRD is above 0"
    )]
    NoAtomics,
    /// A Read or an atomic operation on an unreliable QP.
    #[error(
        "the QP is unreliable (IBV_QPT_UC): it has Sends and RDMA Writes, but neither RDMA Reads nor atomic operations"
    )]
    Unreliable,
    /// A request without a destination on a QP for datagrams.
    #[error("the QP is for datagrams, each of which names its destination; use post_datagram")]
    NoDestination,
    /// A datagram on a QP that is not for datagrams.
    #[error("the QP is not for datagrams; create it with QpBuilder::datagrams")]
    NotForDatagrams,
    /// A request other than a plain Send as a datagram.
    #[error("a datagram is a Send, without invalidation")]
    NotADatagram,
    /// A datagram that is longer than the QP allows.
    #[error("the datagram has {got} bytes, but this QP sends at most {max} in one (its MTU)")]
    DatagramTooLong {
        /// Number of bytes given.
        got: u64,
        /// Largest number of bytes.
        max: u32,
    },
    /// The sink of an atomic operation is not one element of 8 bytes.
    #[error(
        "the sink of an atomic operation is one element of 8 bytes, for what the peer's memory held before; got {elements} element(s) of {bytes} bytes"
    )]
    AtomicSink {
        /// Number of elements given.
        elements: usize,
        /// Sum of their lengths in bytes.
        bytes: u64,
    },
    /// Immediate Data on a request that cannot have any.
    #[error(
        "{operation} carries no Immediate Data: on iWARP it is a message of its own (RFC 7306 section 6); post SendWr::immediate after the request, or use write_with_immediate"
    )]
    ImmediateUnfit {
        /// The operation that was posted.
        operation: &'static str,
    },
    /// A Send with Immediate Data, to a peer that does not take one.
    #[error(
        "the peer takes no Send with Immediate Data: on iWARP that is a message of its own (RFC 7306 section 6), and only two uwarps whose queue pairs are connected by their numbers (Qp::pair; for programs of libibverbs, the persona roce on both sides) take both in one request; use a Write with Immediate Data"
    )]
    NoSendWithImmediate,
    /// A Send with more than 4 bytes of Immediate Data.
    #[error(
        "a Send carries 4 bytes of Immediate Data, followed by 4 zeros in the array; use an RDMA Write or SendWr::immediate for 8"
    )]
    LongImmediate,
    /// Immediate Data whose last bytes are reserved on a QP that is connected by its number.
    #[error(
        "the last 4 bytes of the Immediate Data are \"SImm\", which is how queue pairs that are connected by their numbers mark the Immediate Data of a Send; choose other bytes"
    )]
    ReservedImmediate,
    /// Invalidation of the sink was requested for a request that does not have exactly one.
    #[error(
        "{operation} has no sink to invalidate: only an RDMA Read of at least one byte has one, if all its elements have the same lkey"
    )]
    NoSinkToInvalidate {
        /// The operation that was posted.
        operation: &'static str,
    },
    /// More inline data than the QP was created for.
    #[error("{got} bytes of inline data, but this QP takes at most {max}")]
    InlineTooLong {
        /// Number of bytes given.
        got: usize,
        /// Largest number of bytes.
        max: usize,
    },
    /// The request is longer than the remote buffer.
    #[error(
        "the request moves {got} bytes, but the RemoteBuffer that it names has {room}; post less, or name a longer buffer"
    )]
    BeyondRemote {
        /// Number of bytes that the request moves.
        got: u32,
        /// Number of bytes of the remote buffer.
        room: u64,
    },
    /// The elements have more bytes than a message can carry.
    #[error(
        "the message has {got} bytes; a message carries at most 2^32 - 1 (RFC 5041 section 5.2)"
    )]
    MessageTooLong {
        /// Sum of their lengths in bytes.
        got: u64,
    },
    /// The QP was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// A scatter/gather element names memory that it may not use this way.
    #[error("{0}")]
    Memory(#[from] LocalFault),
}
