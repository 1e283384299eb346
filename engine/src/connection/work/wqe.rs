//! A work request of the send queue.

use uwarp_ddp::STag;
use uwarp_rdmap::{Opcode, SendKind};

use crate::cause::{Asked, Cause};
use crate::completion::{Completion, Status};
use crate::mem::{InlineData, PinnedRegions, SgList, Sge, Spot};
use crate::wr::SendOp;

/// Progress of a work request of the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Framing has not begun.
    Queued,
    /// Its message is being framed.
    Sending,
    /// A Read into several elements. The Read Requests of the elements before `next` are framed.
    Requesting { next: usize },
    /// The message is framed. It completes when the LLP has taken all bytes before stream offset
    /// `ends_at`.
    Sent { ends_at: u64 },
    /// A Read or atomic whose Requests are all framed, and whose last Response is not complete.
    AwaitingResponse,
    /// A Read or atomic whose Responses were placed completely, or a local request that was
    /// executed.
    Answered,
    /// The request will not be sent: it was posted while the QP flushes, or its Response can no
    /// longer arrive. It completes as flushed when its turn comes.
    Refused,
}

/// Payload of a request: memory, or bytes copied when it was posted. At most one field is in use.
#[derive(Default)]
pub(crate) struct SendData {
    /// Source of a request with a single element, as most requests have.
    pub(crate) spot: Spot,
    pub(crate) list: SgList,
    pub(crate) inline: InlineData,
    /// Elements that are resolved when the request's turn comes, because earlier requests register
    /// their memory.
    pub(crate) later: Vec<Sge>,
}

impl SendData {
    #[inline]
    pub(super) fn clear(&mut self, pinned: &mut PinnedRegions) {
        if !self.spot.is_empty() {
            // A request with a spot has no other payload.
            pinned.release(std::mem::take(&mut self.spot));
            return;
        }
        self.list.clear();
        self.inline.clear();
        self.later.clear();
    }
}

/// Immediate Data of a request.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ImmediateData {
    pub(crate) data: [u8; 8],
    pub(crate) solicited: bool,
}

/// A work request in the send queue.
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) data: SendData,
    pub(crate) len: u32,
    /// Immediate Data: after a Write, before a Send, or alone.
    pub(crate) imm: Option<ImmediateData>,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    /// The STag of the sink is invalidated when this Read completes. All its elements have it.
    pub(crate) invalidate_sink: bool,
    /// A Write or Send with payload, without fence and Immediate Data.
    /// [`frame_plain`](super::SendQueue::frame_plain) may frame it.
    pub(crate) plain: bool,
    pub(crate) progress: Progress,
}

impl SendWqe {
    /// Returns the initial content of a place.
    pub(super) fn blank() -> Self {
        SendWqe {
            wr_id: 0,
            op: SendOp::Immediate,
            data: SendData::default(),
            len: 0,
            imm: None,
            signaled: false,
            fence: false,
            invalidate_sink: false,
            plain: false,
            progress: Progress::Queued,
        }
    }

    /// Returns true if the request sends a message of RFC 7306, which not every peer supports.
    pub(crate) fn is_extension(&self) -> bool {
        self.imm.is_some() || matches!(self.op, SendOp::Atomic { .. })
    }

    /// Returns true if bytes of the request may have reached the peer.
    pub(crate) fn was_begun(&self) -> bool {
        !matches!(self.progress, Progress::Queued | Progress::Refused)
    }

    /// Returns the local STag that is invalidated when the request succeeds.
    pub(crate) fn invalidates(&self) -> Option<u32> {
        let sink = self.invalidate_sink.then(|| self.data.list.element(0));
        sink.flatten().map(|element| element.stag.0)
    }

    /// Returns the operation that the request asks of the peer.
    pub(crate) fn asked(&self) -> Asked {
        let (opcode, stag, to) = match self.op {
            SendOp::Send {
                solicited,
                invalidate,
            } => {
                let invalidate = invalidate.map(STag);
                let kind = SendKind {
                    solicited,
                    invalidate,
                };
                (kind.opcode(), invalidate.map_or(0, |stag| stag.0), 0)
            }
            SendOp::Write { rkey, remote_addr } => (Opcode::Write, rkey, remote_addr),
            SendOp::Read { rkey, remote_addr } => (Opcode::ReadRequest, rkey, remote_addr),
            SendOp::Atomic {
                rkey, remote_addr, ..
            } => (Opcode::AtomicRequest, rkey, remote_addr),
            SendOp::Immediate => (Opcode::Immediate, 0, 0),
            // A local request asks nothing of the peer, so no Terminate Message is about it.
            SendOp::Local(_) => (Opcode::Terminate, 0, 0),
        };
        Asked {
            opcode,
            stag,
            to,
            len: self.len,
        }
    }

    /// Returns the completion of a successful request.
    ///
    /// Separate from [`Self::failed`], because writing a completion without a cause is cheaper.
    #[inline]
    pub(super) fn done(&self, qp_num: u32) -> Completion {
        Completion {
            wr_id: self.wr_id,
            status: Status::Success,
            opcode: self.op.wc_opcode(),
            byte_len: if self.op.awaits_response() {
                self.len
            } else {
                0
            },
            qp_num,
            invalidated: self.invalidates(),
            ..Completion::default()
        }
    }

    /// Returns the completion of a failed request.
    pub(super) fn failed(&self, qp_num: u32, status: Status, cause: Cause) -> Completion {
        Completion {
            wr_id: self.wr_id,
            status,
            opcode: self.op.wc_opcode(),
            qp_num,
            cause: Some(cause),
            ..Completion::default()
        }
    }
}

/// Work request that an error belongs to, with the status and cause of its completion.
#[derive(Clone, Copy, Debug)]
pub struct Blamed {
    pub(crate) sequence: u64,
    pub(crate) status: Status,
    pub(crate) cause: Cause,
}
