//! The send queue and the receive queue: work requests from post to completion.

use std::collections::VecDeque;

use crate::completion::{Completion, Status, WcOpcode};
use crate::mem::{InlineData, SgList};
use crate::qp::wr::SendOp;

/// How far a work request of the send queue has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Nothing of it was framed yet.
    Queued,
    /// Its message is being framed.
    Sending,
    /// Framed whole; complete when the LLP has taken the octet before `ends_at` (a stream offset).
    Sent { ends_at: u64 },
    /// A Read whose Response has not arrived whole.
    AwaitingResponse,
    /// A Read whose Response was placed whole.
    Answered,
    /// Posted after the close had begun: it completes as flushed when its turn comes.
    Refused,
}

/// The payload of a request: memory, or octets copied when it was posted.
#[derive(Default)]
pub(crate) struct SendData {
    pub(crate) list: SgList,
    pub(crate) inline: InlineData,
}

impl SendData {
    fn clear(&mut self) {
        self.list.clear();
        self.inline.clear();
    }
}

/// One element of the send queue.
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) data: SendData,
    /// The sink of a Read: STag and TO that go on the wire.
    pub(crate) sink: (u32, u64),
    pub(crate) len: u32,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) progress: Progress,
}

impl SendWqe {
    /// Whether any octet of it may have reached the peer.
    pub(crate) fn was_begun(&self) -> bool {
        !matches!(self.progress, Progress::Queued | Progress::Refused)
    }

    fn completion(&self, qp_num: u32, status: Status) -> Completion {
        let (opcode, byte_len) = match self.op {
            SendOp::Send { .. } => (WcOpcode::Send, 0),
            SendOp::Write { .. } => (WcOpcode::RdmaWrite, 0),
            SendOp::Read { .. } => (WcOpcode::RdmaRead, self.len),
        };
        Completion {
            wr_id: self.wr_id,
            status,
            opcode,
            byte_len: if status == Status::Success {
                byte_len
            } else {
                0
            },
            qp_num,
            invalidated: None,
            solicited: false,
        }
    }
}

/// The send queue: work requests in posting order, from the oldest not completed to the newest.
///
/// ```text
///   front                      next                back
///   │ sent, or awaits Response │ sending │ queued … │
/// ```
///
/// Requests are numbered by `sequence`, so that a reference survives the completion of older ones.
pub(crate) struct SendQueue {
    depth: usize,
    wqes: VecDeque<SendWqe>,
    /// Sequence number of the front.
    front: u64,
    /// Sequence number of the first request that was not framed whole.
    next: u64,
    /// Reads whose Response has not been placed whole, oldest first.
    reads: VecDeque<u64>,
    /// Lists given back by completed requests: their memory is used again.
    spare: Vec<SendData>,
}

impl SendQueue {
    pub(crate) fn new(depth: usize) -> Self {
        SendQueue {
            depth,
            wqes: VecDeque::new(),
            front: 0,
            next: 0,
            reads: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Places left before the queue is full.
    pub(crate) fn room(&self) -> usize {
        self.depth - self.wqes.len()
    }

    /// Capacity of the queue in work requests.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }

    /// An empty payload to fill for the next request.
    pub(crate) fn take_data(&mut self) -> SendData {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives back a payload that is not used any more.
    pub(crate) fn give_data(&mut self, mut data: SendData) {
        data.clear();
        self.spare.push(data);
    }

    /// Appends a request; the caller has checked `room`.
    pub(crate) fn push(&mut self, wqe: SendWqe) {
        self.wqes.push_back(wqe);
    }

    /// The first request that is not framed whole, with its sequence number.
    pub(crate) fn next_to_send(&self) -> Option<(u64, &SendWqe)> {
        let index = usize::try_from(self.next - self.front).ok()?;
        let wqe = self.wqes.get(index)?;
        (wqe.progress != Progress::Refused).then_some((self.next, wqe))
    }

    /// The oldest request, with its sequence number.
    pub(crate) fn front(&self) -> Option<(u64, &SendWqe)> {
        self.wqes.front().map(|wqe| (self.front, wqe))
    }

    /// The request with this sequence number, while it is in the queue.
    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut SendWqe> {
        let index = usize::try_from(sequence.checked_sub(self.front)?).ok()?;
        self.wqes.get_mut(index)
    }

    /// The request with this sequence number, while it is in the queue.
    pub(crate) fn get(&self, sequence: u64) -> Option<&SendWqe> {
        let index = usize::try_from(sequence.checked_sub(self.front)?).ok()?;
        self.wqes.get(index)
    }

    /// The request at `next` was framed whole.
    pub(crate) fn framed(&mut self, progress: Progress) {
        let sequence = self.next;
        if let Some(wqe) = self.get_mut(sequence) {
            wqe.progress = progress;
            self.next += 1;
            if progress == Progress::AwaitingResponse {
                self.reads.push_back(sequence);
            }
        }
    }

    /// No Response will come any more: Reads that have none, and what was not begun behind them, are
    /// refused. What was posted before the first of them is still sent.
    pub(crate) fn refuse_reads(&mut self) {
        let mut behind_a_read = false;
        for wqe in &mut self.wqes {
            let is_read = matches!(wqe.op, SendOp::Read { .. });
            behind_a_read |= is_read && wqe.progress != Progress::Answered;
            if behind_a_read
                && matches!(wqe.progress, Progress::Queued | Progress::AwaitingResponse)
            {
                wqe.progress = Progress::Refused;
            }
        }
        self.reads.clear();
    }

    /// Reads that have not completed, for the fence.
    pub(crate) fn reads_pending(&self) -> bool {
        !self.reads.is_empty()
    }

    /// The oldest Read that awaits (more of) its Response.
    pub(crate) fn oldest_read(&self) -> Option<u64> {
        self.reads.front().copied()
    }

    /// The oldest Read's Response was placed whole.
    pub(crate) fn read_answered(&mut self) {
        if let Some(sequence) = self.reads.pop_front()
            && let Some(wqe) = self.get_mut(sequence)
        {
            wqe.progress = Progress::Answered;
        }
    }

    /// Completes, in order, what is complete now that the LLP has taken the stream up to `taken`
    /// (5040-5.5-07: completion order is submission order).
    pub(crate) fn retire(&mut self, taken: u64, qp_num: u32, mut complete: impl FnMut(Completion)) {
        while let Some(wqe) = self.wqes.front() {
            let status = match wqe.progress {
                Progress::Sent { ends_at } if ends_at <= taken => Status::Success,
                Progress::Answered => Status::Success,
                Progress::Refused => Status::WrFlush,
                _ => break,
            };
            self.pop(qp_num, status, &mut complete);
        }
    }

    /// Completes everything in the queue with an error, in order. `blamed` is the request that the
    /// error belongs to, with its status; all others are flushed.
    pub(crate) fn flush(
        &mut self,
        blamed: Option<(u64, Status)>,
        qp_num: u32,
        mut complete: impl FnMut(Completion),
    ) {
        while !self.wqes.is_empty() {
            let status = match blamed {
                Some((sequence, status)) if sequence == self.front => status,
                _ => Status::WrFlush,
            };
            self.pop(qp_num, status, &mut complete);
        }
        self.next = self.front;
        self.reads.clear();
    }

    fn pop(&mut self, qp_num: u32, status: Status, complete: &mut impl FnMut(Completion)) {
        let Some(wqe) = self.wqes.pop_front() else {
            return;
        };
        self.front += 1;
        self.next = self.next.max(self.front);
        if wqe.signaled || status != Status::Success {
            complete(wqe.completion(qp_num, status));
        }
        self.give_data(wqe.data);
    }
}

/// One element of the receive queue.
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) data: SgList,
    pub(crate) len: u32,
}

/// The receive queue: buffers for the peer's Sends, consumed in posting order.
pub(crate) struct RecvQueue {
    depth: usize,
    wqes: VecDeque<RecvWqe>,
    spare: Vec<SgList>,
}

impl RecvQueue {
    pub(crate) fn new(depth: usize) -> Self {
        RecvQueue {
            depth,
            wqes: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    pub(crate) fn room(&self) -> usize {
        self.depth - self.wqes.len()
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn take_list(&mut self) -> SgList {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn give_list(&mut self, mut list: SgList) {
        list.clear();
        self.spare.push(list);
    }

    pub(crate) fn push(&mut self, wqe: RecvWqe) {
        self.wqes.push_back(wqe);
    }

    /// The receive that the current Send goes to.
    pub(crate) fn head(&self) -> Option<&RecvWqe> {
        self.wqes.front()
    }

    /// Completes the head.
    pub(crate) fn complete_head(
        &mut self,
        make: impl FnOnce(&RecvWqe) -> Completion,
    ) -> Option<Completion> {
        let wqe = self.wqes.pop_front()?;
        let completion = make(&wqe);
        self.give_list(wqe.data);
        Some(completion)
    }

    /// Completes everything with an error: the head with `head`, the rest as flushed.
    pub(crate) fn flush(
        &mut self,
        head: Option<Status>,
        qp_num: u32,
        mut complete: impl FnMut(Completion),
    ) {
        let mut head = head;
        while let Some(wqe) = self.wqes.pop_front() {
            complete(Completion {
                wr_id: wqe.wr_id,
                status: head.take().unwrap_or(Status::WrFlush),
                opcode: WcOpcode::Recv,
                byte_len: 0,
                qp_num,
                invalidated: None,
                solicited: false,
            });
            self.give_list(wqe.data);
        }
    }
}
