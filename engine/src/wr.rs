//! Work requests for the queues of a QP.

use crate::mem::RemoteBuffer;
use crate::mem::Sge;
use uwarp_rdmap::AtomicOp;

use crate::completion::WcOpcode;

mod extensions;
mod local;

pub(crate) use extensions::send_immediate;
pub use local::BindWr;
pub(crate) use local::LocalOp;

/// A work request for the send queue (`ibv_send_wr`): a Send, an RDMA Write or Read, an Atomic
/// Operation, Immediate Data, or an operation on local memory.
///
/// Create it with one of the constructors, and refine it with the builder methods:
///
/// ```
/// use uwarp_engine::mem::Sge;
/// use uwarp_engine::wr::SendWr;
/// let sges = [Sge { addr: 0x1000, len: 64, lkey: 0x1234_5601 }];
/// let wr = SendWr::send(7, &sges).solicited().fence();
/// assert_eq!(wr.wr_id(), 7);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) source: Source<'a>,
    /// Maximum number of bytes of the peer's memory that the request may access; `u64::MAX` if it
    /// names no memory or memory of unknown length.
    pub(crate) remote_len: u64,
    pub(crate) imm: Option<[u8; 8]>,
    pub(crate) solicited: bool,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) invalidate_sink: bool,
}

/// Source of a request's payload (for a Read: its sink).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

/// Operation of a [`SendWr`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendOp {
    Send {
        solicited: bool,
        invalidate: Option<u32>,
    },
    Write {
        rkey: u32,
        remote_addr: u64,
    },
    Read {
        rkey: u32,
        remote_addr: u64,
    },
    Atomic {
        rkey: u32,
        remote_addr: u64,
        op: AtomicOp,
    },
    /// Immediate Data without a Write.
    Immediate,
    /// Operation on local memory.
    Local(LocalOp),
}

impl SendOp {
    /// Returns true if the request completes only after the peer has answered. Such a request
    /// counts against ORD.
    pub(crate) fn awaits_response(&self) -> bool {
        match self {
            SendOp::Read { .. } | SendOp::Atomic { .. } => true,
            SendOp::Send { .. } | SendOp::Write { .. } | SendOp::Immediate | SendOp::Local(_) => {
                false
            }
        }
    }

    /// Opcode of its completion.
    pub(crate) fn wc_opcode(&self) -> WcOpcode {
        match self {
            SendOp::Send { .. } | SendOp::Immediate => WcOpcode::Send,
            SendOp::Write { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::Atomic { op, .. } => match op {
                AtomicOp::FetchAdd { .. } => WcOpcode::FetchAdd,
                AtomicOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            },
            SendOp::Local(LocalOp::Bind { .. }) => WcOpcode::BindWindow,
            SendOp::Local(LocalOp::Register(_)) => WcOpcode::Register,
            SendOp::Local(LocalOp::Invalidate { .. }) => WcOpcode::LocalInvalidate,
        }
    }
}

impl<'a> SendWr<'a> {
    fn new(wr_id: u64, op: SendOp, source: Source<'a>) -> Self {
        SendWr {
            wr_id,
            op,
            source,
            remote_len: u64::MAX,
            imm: None,
            solicited: false,
            signaled: true,
            fence: false,
            invalidate_sink: false,
        }
    }

    /// Creates a request that accesses `remote`.
    fn with_remote(
        wr_id: u64,
        op: impl FnOnce(u32, u64) -> SendOp,
        source: Source<'a>,
        remote: RemoteBuffer,
    ) -> Self {
        SendWr {
            remote_len: remote.len,
            ..Self::new(wr_id, op(remote.rkey, remote.addr), source)
        }
    }

    /// Creates a Send of the concatenated bytes of `sges` (`IBV_WR_SEND`, RFC 5040 section 5.3).
    #[must_use]
    pub fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        let op = SendOp::Send {
            solicited: false,
            invalidate: None,
        };
        Self::new(wr_id, op, Source::Sges(sges))
    }

    /// Creates a Send of `data` (`IBV_WR_SEND` with `IBV_SEND_INLINE`). The bytes are copied when
    /// the request is posted.
    #[must_use]
    pub fn send_inline(wr_id: u64, data: &'a [u8]) -> Self {
        let op = SendOp::Send {
            solicited: false,
            invalidate: None,
        };
        Self::new(wr_id, op, Source::Inline(data))
    }

    /// Creates an RDMA Write of the bytes of `sges` to the start of `remote` (`IBV_WR_RDMA_WRITE`,
    /// RFC 5040 section 5.1).
    ///
    /// Posting fails with `PostErrorKind::BeyondRemote` if
    /// the payload is longer than `remote`.
    #[must_use]
    pub fn write(wr_id: u64, sges: &'a [Sge], remote: RemoteBuffer) -> Self {
        let op = |rkey, remote_addr| SendOp::Write { rkey, remote_addr };
        Self::with_remote(wr_id, op, Source::Sges(sges), remote)
    }

    /// Creates an RDMA Write of `data` (`IBV_WR_RDMA_WRITE` with `IBV_SEND_INLINE`). The bytes are
    /// copied when the request is posted.
    #[must_use]
    pub fn write_inline(wr_id: u64, data: &'a [u8], remote: RemoteBuffer) -> Self {
        let op = |rkey, remote_addr| SendOp::Write { rkey, remote_addr };
        Self::with_remote(wr_id, op, Source::Inline(data), remote)
    }

    /// Creates an RDMA Read from the start of `remote` into `sges`, which are filled in order
    /// (`IBV_WR_RDMA_READ`, RFC 5040 section 5.2).
    ///
    /// The sum of the lengths is the number of bytes to read. Posting fails with
    /// `PostErrorKind::BeyondRemote` if `remote` is shorter.
    ///
    /// A Read Request on iWARP names one sink. The Read therefore sends one Request for each
    /// element that is not empty, and completes once, after the last Response. Each Request takes
    /// one of the places that ORD allows. With fewer places, later Requests wait for earlier
    /// Responses.
    #[must_use]
    pub fn read(wr_id: u64, sges: &'a [Sge], remote: RemoteBuffer) -> Self {
        let op = |rkey, remote_addr| SendOp::Read { rkey, remote_addr };
        Self::with_remote(wr_id, op, Source::Sges(sges), remote)
    }

    /// Raises a solicited event at the receiver (`IBV_SEND_SOLICITED`, RFC 5040 section 5.3).
    /// Applies to Sends and Immediate Data, including Immediate Data after a Write; ignored
    /// otherwise.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        if let SendOp::Send { solicited, .. } = &mut self.op {
            *solicited = true;
        }
        self
    }

    /// Invalidates the peer's STag `rkey` when this Send is delivered (`IBV_WR_SEND_WITH_INV`, RFC
    /// 5040 section 5.3). Ignored by other requests.
    #[must_use]
    pub fn invalidate(mut self, rkey: u32) -> Self {
        if let SendOp::Send { invalidate, .. } = &mut self.op {
            *invalidate = Some(rkey);
        }
        self
    }

    /// Invalidates the STag of the sink after all bytes of this RDMA Read are placed. All elements
    /// that are not empty must name this STag.
    ///
    /// This is the RDMA Read with Local Invalidate of the iWARP verbs (the kernel's
    /// `IB_WR_RDMA_READ_WITH_INV`). From the completion on neither the peer nor this side can
    /// access memory through the STag. `Completion::invalidated`
    /// returns it. The sink may be anything that [`SendWr::local_invalidate`] invalidates. The STag
    /// stays valid if the Read fails or is flushed.
    ///
    /// If the sink cannot be invalidated in the end (memory windows are bound to it, or it is no
    /// longer valid), the Read fails with
    /// `Status::LocalQpOperation` although its bytes were
    /// placed. That ends the connection. Posting fails with
    /// `PostErrorKind::NoSinkToInvalidate` unless the
    /// request is a Read of at least one byte into one STag.
    #[must_use]
    pub fn invalidate_sink(mut self) -> Self {
        self.invalidate_sink = true;
        self
    }

    /// Makes no completion if this request succeeds (no `IBV_SEND_SIGNALED`). A failed request
    /// still completes with an error.
    ///
    /// The request occupies its slot of the send queue until the completion of a later request has
    /// been polled. One request in `QpCaps::max_send_wr` must
    /// therefore be signaled.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Starts this request only after all earlier RDMA Reads and Atomic Operations of the QP have
    /// completed (`IBV_SEND_FENCE`).
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Returns true if the receive of the peer raises an event.
    #[doc(hidden)]
    pub const fn is_solicited(&self) -> bool {
        self.solicited
    }

    /// Number that the consumer gave this request (`ibv_send_wr.wr_id`). Its completion carries it.
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }
}

/// A work request for the receive queue (`ibv_recv_wr`; RFC 5040 section 5.3): a buffer for the
/// next Send from the peer. Immediate Data takes one as well.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    pub(crate) wr_id: u64,
    pub(crate) sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// Creates a receive into `sges`, which are filled in order (`ibv_recv_wr`). A receive without
    /// elements takes a zero-length Send, or Immediate Data, which is not placed into memory.
    #[must_use]
    pub fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        RecvWr { wr_id, sges }
    }
}
