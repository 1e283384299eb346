//! Work requests: what a consumer asks a QP to do.

use uwarp_rdmap::AtomicOp;

use crate::completion::WcOpcode;
use crate::engine::LocalOp;
use crate::mem::Sge;
use crate::mr::RemoteBuffer;

mod extensions;
mod local;

pub use local::BindWr;

/// A work request for the send queue (`ibv_send_wr`): a Send, an RDMA Write or Read, an Atomic Operation, Immediate
/// Data, or something with memory of this side.
///
/// Built from one of the constructors, refined by the builder methods:
///
/// ```
/// use uwarp_verbs::{SendWr, Sge};
/// let sges = [Sge { addr: 0x1000, len: 64, lkey: 0x1234_5601 }];
/// let wr = SendWr::send(7, &sges).solicited().fence();
/// assert_eq!(wr.wr_id(), 7);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) source: Source<'a>,
    /// Bytes of the peer's memory that it may move; `u64::MAX` where it names none, or none of known length.
    pub(crate) remote_len: u64,
    pub(crate) imm: Option<[u8; 8]>,
    pub(crate) solicited: bool,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) invalidate_sink: bool,
}

/// Where the payload of a work request comes from (for a Read: where it goes).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

/// The operation of a [`SendWr`].
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
    /// Immediate Data alone.
    Immediate,
    /// Concerns only this side.
    Local(LocalOp),
}

impl SendOp {
    /// Whether it is complete only when the peer has answered: then it takes a place in ORD.
    pub(crate) fn awaits_response(&self) -> bool {
        match self {
            SendOp::Read { .. } | SendOp::Atomic { .. } => true,
            SendOp::Send { .. } | SendOp::Write { .. } | SendOp::Immediate | SendOp::Local(_) => {
                false
            }
        }
    }

    /// What its completion calls it.
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

    /// A request that moves data to or from `remote`.
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

    /// A Send of the bytes that `sges` name, one after the other (`IBV_WR_SEND`, RFC 5040 section 5.3).
    #[must_use]
    pub fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        let op = SendOp::Send {
            solicited: false,
            invalidate: None,
        };
        Self::new(wr_id, op, Source::Sges(sges))
    }

    /// A Send of `data`, copied when it is posted: the slice is free at once (`IBV_WR_SEND` with
    /// `IBV_SEND_INLINE`).
    #[must_use]
    pub fn send_inline(wr_id: u64, data: &'a [u8]) -> Self {
        let op = SendOp::Send {
            solicited: false,
            invalidate: None,
        };
        Self::new(wr_id, op, Source::Inline(data))
    }

    /// An RDMA Write of the bytes that `sges` name to the start of `remote` (`IBV_WR_RDMA_WRITE`, RFC 5040 section 5.1).
    /// One that is longer than `remote` is refused when it is posted, with
    /// [`PostErrorKind::BeyondRemote`](crate::PostErrorKind::BeyondRemote).
    #[must_use]
    pub fn write(wr_id: u64, sges: &'a [Sge], remote: RemoteBuffer) -> Self {
        let op = |rkey, remote_addr| SendOp::Write { rkey, remote_addr };
        Self::with_remote(wr_id, op, Source::Sges(sges), remote)
    }

    /// An RDMA Write of `data`, copied when it is posted (`IBV_WR_RDMA_WRITE` with `IBV_SEND_INLINE`).
    #[must_use]
    pub fn write_inline(wr_id: u64, data: &'a [u8], remote: RemoteBuffer) -> Self {
        let op = |rkey, remote_addr| SendOp::Write { rkey, remote_addr };
        Self::with_remote(wr_id, op, Source::Inline(data), remote)
    }

    /// An RDMA Read from the start of `remote` into `sges`: at most one element on iWARP, because a Read Request names
    /// one sink (`IBV_WR_RDMA_READ`, RFC 5040 section 5.2). It reads as many bytes as the element has. One that is longer
    /// than `remote` is refused when it is posted, with
    /// [`PostErrorKind::BeyondRemote`](crate::PostErrorKind::BeyondRemote).
    #[must_use]
    pub fn read(wr_id: u64, sges: &'a [Sge], remote: RemoteBuffer) -> Self {
        let op = |rkey, remote_addr| SendOp::Read { rkey, remote_addr };
        Self::with_remote(wr_id, op, Source::Sges(sges), remote)
    }

    /// Raise a solicited event at the receiver (Sends and Immediate Data, also that behind a Write;
    /// ignored otherwise); `IBV_SEND_SOLICITED`, RFC 5040 section 5.3.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        if let SendOp::Send { solicited, .. } = &mut self.op {
            *solicited = true;
        }
        self
    }

    /// Invalidate the peer's region `rkey` when this Send is delivered (Sends only): `IBV_WR_SEND_WITH_INV`, RFC
    /// 5040 section 5.3.
    #[must_use]
    pub fn invalidate(mut self, rkey: u32) -> Self {
        if let SendOp::Send { invalidate, .. } = &mut self.op {
            *invalidate = Some(rkey);
        }
        self
    }

    /// Invalidate the STag of the sink when the whole Response of this RDMA Read is placed (the RDMA Read with Local
    /// Invalidate of the iWARP verbs, the kernel's `IB_WR_RDMA_READ_WITH_INV`): from its completion on neither the
    /// peer nor this side reaches anything by it. [`Completion::invalidated`](crate::Completion::invalidated) has the
    /// STag. What [`SendWr::local_invalidate`] invalidates may be the sink. A Read that fails or is flushed leaves
    /// the STag as it is.
    ///
    /// A sink that may not be invalidated in the end (memory windows are bound to it, it is not valid any more) is an
    /// error of the Read, [`Status::LocalQpOperation`](crate::Status::LocalQpOperation), though its bytes were
    /// placed; it ends the connection. Any request but a Read of at least one byte is refused when it is posted, with
    /// [`PostErrorKind::NoSinkToInvalidate`](crate::PostErrorKind::NoSinkToInvalidate).
    #[must_use]
    pub fn invalidate_sink(mut self) -> Self {
        self.invalidate_sink = true;
        self
    }

    /// Make no completion when this request succeeds (it still completes with an error): the absence
    /// of `IBV_SEND_SIGNALED`. Its place in the send queue is free when the completion of a later request has been
    /// polled, so one request in [`QpCaps::max_send_wr`](crate::QpCaps::max_send_wr) has to be signaled.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Start only after all earlier RDMA Reads and Atomic Operations of this QP have completed
    /// (`IBV_SEND_FENCE`).
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }

    /// The consumer's own number for this request (`ibv_send_wr.wr_id`); its completion carries it.
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }
}

/// A work request for the receive queue (`ibv_recv_wr`; RFC 5040 section 5.3): where the next Send of the peer goes, or
/// what its Immediate Data takes.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    pub(crate) wr_id: u64,
    pub(crate) sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// A receive into `sges`, filled one after the other (`ibv_recv_wr`). No element at all takes a zero-length Send,
    /// or Immediate Data, which is not placed into memory.
    #[must_use]
    pub fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        RecvWr { wr_id, sges }
    }
}
