//! The send queue: work requests from post to completion.

use std::collections::VecDeque;
use std::sync::Arc;

use super::local::LocalOp;
use crate::cause::{Act, Asked, Cause};
use crate::completion::{Completion, FreedPlaces, Status};
use crate::mem::{
    FastRegister, InlineData, LocalFaultKind, PinnedRegions, RegionTable, SgList, Sge, Sources,
    Spot,
};
use crate::qp::wr::SendOp;

/// How far a work request of the send queue has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Nothing of it was framed yet.
    Queued,
    /// Its message is being framed.
    Sending,
    /// Framed whole; complete when the LLP has taken the byte before `ends_at` (a stream offset).
    Sent { ends_at: u64 },
    /// A Read or atomic whose Response has not arrived whole.
    AwaitingResponse,
    /// A Read or atomic whose Response was placed whole, or a request of this side alone that was carried out.
    Answered,
    /// Posted after the close had begun: it completes as flushed when its turn comes.
    Refused,
}

/// The payload of a request: memory, or bytes copied when it was posted. At most one of them has bytes.
#[derive(Default)]
pub(crate) struct SendData {
    /// The only element of a source: what most requests have.
    pub(crate) spot: Spot,
    pub(crate) list: SgList,
    pub(crate) inline: InlineData,
    /// Elements of the list that are looked at when its turn comes, because requests before it register their memory.
    pub(crate) later: Vec<Sge>,
}

impl SendData {
    #[inline]
    fn clear(&mut self, held: &mut PinnedRegions) {
        if !self.spot.is_empty() {
            // Then there is nothing else.
            held.release(std::mem::take(&mut self.spot));
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

/// One element of the send queue.
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) data: SendData,
    /// The sink of a Read (or atomic): STag and TO that go on the wire.
    pub(crate) sink: (u32, u64),
    pub(crate) len: u32,
    /// Immediate Data, behind a Write or alone.
    pub(crate) imm: Option<ImmediateData>,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    /// Whether the STag of the sink ends with this Read.
    pub(crate) invalidate_sink: bool,
    /// A Write or a Send with payload and nothing beside it: see [`SendQueue::frame_plain`].
    pub(crate) plain: bool,
    pub(crate) progress: Progress,
}

impl SendWqe {
    /// A place in which no request was yet.
    fn blank() -> Self {
        SendWqe {
            wr_id: 0,
            op: SendOp::Immediate,
            data: SendData::default(),
            sink: (0, 0),
            len: 0,
            imm: None,
            signaled: false,
            fence: false,
            invalidate_sink: false,
            plain: false,
            progress: Progress::Queued,
        }
    }

    /// Whether a message of RFC 7306 goes out for it, which not every peer knows.
    pub(crate) fn is_extension(&self) -> bool {
        self.imm.is_some() || matches!(self.op, SendOp::Atomic { .. })
    }

    /// Whether any byte of it may have reached the peer.
    pub(crate) fn was_begun(&self) -> bool {
        !matches!(self.progress, Progress::Queued | Progress::Refused)
    }

    /// The STag that its success invalidates on this side.
    pub(crate) fn invalidates(&self) -> Option<u32> {
        self.invalidate_sink.then_some(self.sink.0)
    }

    /// What it asks of the peer.
    pub(crate) fn asked(&self) -> Asked {
        let (act, stag, to) = match self.op {
            SendOp::Send {
                invalidate: None, ..
            } => (Act::Send, 0, 0),
            SendOp::Send {
                invalidate: Some(stag),
                ..
            } => (Act::Invalidate, stag, 0),
            SendOp::Write { rkey, remote_addr } => (Act::Write, rkey, remote_addr),
            SendOp::Read { rkey, remote_addr } => (Act::Read, rkey, remote_addr),
            SendOp::Atomic {
                rkey, remote_addr, ..
            } => (Act::Atomic, rkey, remote_addr),
            SendOp::Immediate => (Act::Immediate, 0, 0),
            // It asks nothing of the peer, so no Terminate Message is about it.
            SendOp::Local(_) => (Act::Terminate, 0, 0),
        };
        let len = self.len;
        Asked { act, stag, to, len }
    }

    /// Its completion when it was done. Apart from the other: what has no cause is written without one.
    #[inline]
    fn done(&self, qp_num: u32) -> Completion {
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

    /// Its completion when it was not.
    fn failed(&self, qp_num: u32, status: Status, cause: Cause) -> Completion {
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

/// The one work request that an error belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blamed {
    pub(crate) sequence: u64,
    pub(crate) status: Status,
    pub(crate) cause: Cause,
}

/// The send queue: work requests in posting order, from the oldest not completed to the newest.
///
/// ```text
///   front                      next                back
///   │ sent, or awaits Response │ sending │ queued … │
/// ```
///
/// Requests are numbered by `sequence`, so that a reference survives the completion of older ones.
/// They stay in their places, and leave their allocations there for those that come after them.
///
/// A request that has completed keeps its place of the queue until the program has polled its completion, or that of
/// a later one if it was unsignaled and succeeded.
pub(crate) struct SendQueue {
    depth: usize,
    /// Places that polls have freed, and the number of them when it was last looked at.
    freed: Arc<FreedPlaces>,
    freed_seen: u64,
    /// Requests that have completed without an entry in the CQ since the last one with an entry.
    silent: u32,
    /// A ring of places. They become more, up to `depth`, when all are taken.
    places: Vec<SendWqe>,
    /// The place of the front, and how many are taken from there on.
    head: usize,
    len: usize,
    /// Sequence number of the front.
    front: u64,
    /// Sequence number of the first request that was not framed whole.
    next: u64,
    /// Bytes of all requests so far, as the doorbell counts them.
    octets: u64,
    /// The regions of [`SendData::spot`].
    pub(crate) held: PinnedRegions,
    /// Reads and atomics whose Response has not been placed whole, oldest first.
    requests: VecDeque<u64>,
    /// The newest fast registration that was posted.
    registered: Option<u64>,
}

/// Places that a queue gets for its first request.
const FIRST_PLACES: usize = 4;

impl SendQueue {
    /// An empty queue, whose places polls free in `freed`.
    pub(crate) fn new(depth: usize, freed: Arc<FreedPlaces>) -> Self {
        Self::beginning_at(depth, freed, 0)
    }

    /// An empty queue for the next connection of the same QP. Requests whose completions are still in the CQ keep
    /// their places.
    pub(crate) fn renewed(&self) -> Self {
        self.freed.add(self.silent);
        Self::beginning_at(self.depth, Arc::clone(&self.freed), self.posted_to())
    }

    /// An empty queue of which the first request has this sequence number.
    fn beginning_at(depth: usize, freed: Arc<FreedPlaces>, sequence: u64) -> Self {
        SendQueue {
            depth,
            freed_seen: freed.count(),
            freed,
            silent: 0,
            places: Vec::new(),
            head: 0,
            len: 0,
            front: sequence,
            next: sequence,
            octets: 0,
            held: PinnedRegions::default(),
            requests: VecDeque::new(),
            registered: None,
        }
    }

    /// Places left before the queue is full.
    pub(crate) fn room(&self) -> usize {
        self.depth - self.taken(self.freed.count())
    }

    /// Returns true if the queue has room for a request that follows `before` others. Looks at what was polled only
    /// when it would be full otherwise: another thread may be writing there.
    #[inline]
    pub(crate) fn has_room_after(&mut self, before: usize) -> bool {
        if self.taken(self.freed_seen) + before < self.depth {
            return true;
        }
        self.freed_seen = self.freed.count();
        self.taken(self.freed_seen) + before < self.depth
    }

    /// Number of places that are taken after `freed` of them were freed.
    #[inline]
    fn taken(&self, freed: u64) -> usize {
        // At most `depth`, which is a `usize`.
        usize::try_from(self.posted_to() - freed).unwrap_or(usize::MAX)
    }

    /// Capacity of the queue in work requests.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the request with so many before it, in the queue or (the next one) not yet.
    #[inline]
    fn place(&self, index: usize) -> usize {
        let place = self.head + index;
        if place < self.places.len() {
            place
        } else {
            place - self.places.len()
        }
    }

    #[inline]
    fn nth(&self, index: usize) -> Option<&SendWqe> {
        if index >= self.len {
            return None;
        }
        self.places.get(self.place(index))
    }

    #[inline]
    fn nth_mut(&mut self, index: usize) -> Option<&mut SendWqe> {
        if index >= self.len {
            return None;
        }
        let place = self.place(index);
        self.places.get_mut(place)
    }

    /// The requests, oldest first.
    fn iter(&self) -> impl DoubleEndedIterator<Item = &SendWqe> {
        (0..self.len).filter_map(|index| self.nth(index))
    }

    /// Sequence number of the oldest request that has not completed: all before it have.
    pub(crate) fn completed_to(&self) -> u64 {
        self.front
    }

    /// Sequence number of the next request to be posted.
    pub(crate) fn posted_to(&self) -> u64 {
        self.front + self.len as u64
    }

    /// What a doorbell has to know: the sequence number of the next request to be posted, and bytes so far.
    pub(crate) fn posted(&self) -> (u64, u64) {
        (self.posted_to(), self.octets)
    }

    /// A request was posted that counts so many bytes.
    #[inline]
    pub(crate) fn count(&mut self, octets: u64) {
        self.octets = self.octets.wrapping_add(octets);
    }

    /// The payload of the request that is posted next: empty, to be filled. What is left in it and not
    /// [appended](Self::append) has to be [dropped](Self::drop_data).
    pub(crate) fn next_data(&mut self) -> &mut SendData {
        self.next_data_and_before().0
    }

    /// The place of the request that is posted next.
    #[inline]
    fn next_place(&mut self) -> usize {
        if self.len == self.places.len() {
            self.grow();
        }
        self.place(self.len)
    }

    /// More places; the caller has checked that the queue has room, so that there may be more.
    #[cold]
    fn grow(&mut self) {
        let more = (2 * self.len).clamp(FIRST_PLACES, self.depth.max(FIRST_PLACES));
        self.places.rotate_left(self.head);
        self.head = 0;
        self.places.resize_with(more, SendWqe::blank);
    }

    /// The same, and the list of the request before it, if that is still in the queue.
    pub(crate) fn next_data_and_before(&mut self) -> (&mut SendData, Option<&SgList>) {
        let next = self.next_place();
        if self.len == 0 {
            return (&mut self.places[next].data, None);
        }
        let before = self.place(self.len - 1);
        let (next, before) = if before < next {
            let (front, back) = self.places.split_at_mut(next);
            (&mut back[0], &front[before])
        } else {
            let (front, back) = self.places.split_at_mut(before);
            (&mut front[next], &back[0])
        };
        (&mut next.data, Some(&before.data.list))
    }

    /// Resolves the only element of the request that is posted next, a source, for `qp` of `pd`.
    #[inline]
    pub(crate) fn resolve_spot(
        &mut self,
        table: &RegionTable,
        who: (u32, u32),
        sge: &Sge,
    ) -> Result<(), LocalFaultKind> {
        let before = self.len.checked_sub(1).and_then(|last| self.nth(last));
        let before = before.map_or(Spot::default(), |wqe| wqe.data.spot);
        let spot = self.held.resolve(before, table, who, sge)?;
        let next = self.next_place();
        self.places[next].data.spot = spot;
        Ok(())
    }

    /// The request of [`Self::next_data`] is not posted after all.
    pub(crate) fn drop_data(&mut self) {
        let next = self.next_place();
        self.places[next].data.clear(&mut self.held);
        self.held.sweep();
    }

    /// Appends the request that has [`Self::next_data`]; the caller has checked that there is room, and sets all but the payload.
    #[inline]
    pub(crate) fn append(&mut self, op: &SendOp) -> &mut SendWqe {
        if matches!(op, SendOp::Local(LocalOp::Register(_))) {
            self.registered = Some(self.posted_to());
        }
        let place = self.next_place();
        self.len += 1;
        &mut self.places[place]
    }

    /// The first request that is not framed whole, with its sequence number.
    pub(crate) fn next_to_send(&self) -> Option<(u64, &SendWqe)> {
        let index = usize::try_from(self.next - self.front).ok()?;
        let wqe = self.nth(index)?;
        (wqe.progress != Progress::Refused).then_some((self.next, wqe))
    }

    /// Sum of the payload of the next requests, as long as each has at least `least` bytes, and at most about `most`.
    /// Of a message under way all bytes count.
    pub(crate) fn large_payload(&self, least: u32, most: u64) -> u64 {
        let Ok(mut index) = usize::try_from(self.next - self.front) else {
            return 0;
        };
        let mut sum = 0;
        while sum < most
            && let Some(wqe) = self.nth(index)
            && wqe.len >= least
            && !wqe.op.awaits_response()
        {
            sum += u64::from(wqe.len);
            index += 1;
        }
        sum
    }

    /// The newest fast registration of this STag that is to be carried out before what is posted now.
    #[inline]
    pub(crate) fn registration(&self, stag: u32) -> Option<&FastRegister> {
        let newest = self.registered.filter(|newest| *newest >= self.next)?;
        self.registration_up_to(newest, stag)
    }

    fn registration_up_to(&self, newest: u64, stag: u32) -> Option<&FastRegister> {
        let index = |sequence: u64| usize::try_from(sequence - self.front).ok();
        let waiting = index(self.next)?..=index(newest)?;
        waiting
            .rev()
            .filter_map(|index| self.nth(index))
            .find_map(|wqe| match &wqe.op {
                SendOp::Local(LocalOp::Register(register)) => {
                    (register.stag == stag && wqe.progress == Progress::Queued).then_some(register)
                }
                _ => None,
            })
    }

    /// The oldest request, with its sequence number.
    pub(crate) fn front(&self) -> Option<(u64, &SendWqe)> {
        self.nth(0).map(|wqe| (self.front, wqe))
    }

    /// The request with this sequence number, while it is in the queue.
    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut SendWqe> {
        let index = usize::try_from(sequence.checked_sub(self.front)?).ok()?;
        self.nth_mut(index)
    }

    /// The request with this sequence number, while it is in the queue.
    pub(crate) fn get(&self, sequence: u64) -> Option<&SendWqe> {
        let index = usize::try_from(sequence.checked_sub(self.front)?).ok()?;
        self.nth(index)
    }

    /// The request at `next` was framed whole.
    pub(crate) fn framed(&mut self, progress: Progress) {
        let sequence = self.next;
        if let Some(wqe) = self.get_mut(sequence) {
            wqe.progress = progress;
            self.next += 1;
            if progress == Progress::AwaitingResponse {
                self.requests.push_back(sequence);
            }
        }
    }

    /// Gives the [plain](SendWqe::plain) requests of at most `most` bytes at `next` to `frame`, one after the other, until
    /// there is none or it has not framed one: it gives where in the stream the message ends. True when one was framed.
    #[inline]
    pub(crate) fn frame_plain(
        &mut self,
        most: u32,
        mut frame: impl FnMut(&SendWqe, &mut Sources<'_>) -> Option<u64>,
    ) -> bool {
        let begun = self.next;
        let Ok(mut index) = usize::try_from(self.next - self.front) else {
            return false;
        };
        let mut place = self.place(index);
        let mut sources = self.held.sources();
        while index < self.len
            && let Some(wqe) = self.places.get_mut(place)
            && wqe.plain
            && wqe.len <= most
            && wqe.progress == Progress::Queued
            && let Some(ends_at) = frame(wqe, &mut sources)
        {
            wqe.progress = Progress::Sent { ends_at };
            index += 1;
            place += 1;
            if place == self.places.len() {
                place = 0;
            }
            self.next += 1;
        }
        self.next != begun
    }

    /// Leaves all requests to the general path, which frames them too.
    #[cfg(test)]
    pub(crate) fn forget_plain(&mut self) {
        for index in 0..self.len {
            if let Some(wqe) = self.nth_mut(index) {
                wqe.plain = false;
            }
        }
    }

    /// No Response will come any more: Reads and atomics that have none, and what was not begun behind
    /// them, are refused. What was posted before the first of them is still sent.
    pub(crate) fn refuse_requests(&mut self) {
        let mut behind_a_request = false;
        for index in 0..self.len {
            let Some(wqe) = self.nth_mut(index) else {
                break;
            };
            let is_request = wqe.op.awaits_response();
            behind_a_request |= is_request && wqe.progress != Progress::Answered;
            if behind_a_request
                && matches!(wqe.progress, Progress::Queued | Progress::AwaitingResponse)
            {
                wqe.progress = Progress::Refused;
            }
        }
        self.requests.clear();
    }

    /// Whether Reads or atomics have not completed, for the fence.
    pub(crate) fn requests_pending(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Whether a single Read or atomic awaits its Response.
    pub(crate) fn one_request_pending(&self) -> bool {
        self.requests.len() == 1
    }

    /// The oldest Read or atomic that awaits (more of) its Response.
    pub(crate) fn oldest_request(&self) -> Option<u64> {
        self.requests.front().copied()
    }

    /// The Read or atomic with so many older ones before it.
    pub(crate) fn request_behind(&self, older: usize) -> Option<u64> {
        self.requests.get(older).copied()
    }

    /// The oldest request that was begun and has a message of RFC 7306.
    pub(crate) fn oldest_extension(&self) -> Option<u64> {
        let found = (self.front..)
            .zip(self.iter())
            .find(|(_, wqe)| wqe.was_begun() && wqe.is_extension());
        found.map(|(sequence, _)| sequence)
    }

    /// The Response to the oldest Read or atomic was placed whole.
    pub(crate) fn request_answered(&mut self) {
        if let Some(sequence) = self.requests.pop_front()
            && let Some(wqe) = self.get_mut(sequence)
        {
            wqe.progress = Progress::Answered;
        }
    }

    /// Completes, in order, what is complete now that the LLP has taken the stream up to `taken`
    /// (5040-5.5-07: completion order is submission order).
    /// `flushed` tells why what was refused was. `complete` gets a completion, and the number of places that its poll
    /// frees.
    pub(crate) fn retire(
        &mut self,
        taken: u64,
        qp_num: u32,
        flushed: impl Fn() -> Cause,
        mut complete: impl FnMut(Completion, u32),
    ) {
        while self.len > 0
            && let Some(wqe) = self.places.get(self.head)
        {
            match wqe.progress {
                Progress::Sent { ends_at } if ends_at <= taken => {}
                Progress::Answered => {}
                Progress::Refused => {
                    complete(
                        wqe.failed(qp_num, Status::WrFlush, flushed()),
                        self.silent + 1,
                    );
                    self.silent = 0;
                    self.pop();
                    continue;
                }
                _ => break,
            }
            if wqe.signaled {
                complete(wqe.done(qp_num), self.silent + 1);
                self.silent = 0;
            } else {
                self.silent += 1;
            }
            self.pop();
        }
        self.held.sweep();
    }

    /// Completes everything in the queue with an error, in order. `blamed` is the request that the
    /// error belongs to, with its status; all others are flushed, because of `flushed`. `complete` as in
    /// [`retire`](Self::retire).
    pub(crate) fn flush(
        &mut self,
        blamed: Option<Blamed>,
        flushed: Cause,
        qp_num: u32,
        mut complete: impl FnMut(Completion, u32),
    ) {
        while let Some(wqe) = self.nth(0) {
            let (status, cause) = match blamed {
                Some(blamed) if blamed.sequence == self.front => (blamed.status, blamed.cause),
                _ => (Status::WrFlush, flushed),
            };
            complete(wqe.failed(qp_num, status, cause), self.silent + 1);
            self.silent = 0;
            self.pop();
        }
        self.held.sweep();
        self.next = self.front;
        self.requests.clear();
    }

    /// The oldest request has completed: its place of the ring is free.
    #[inline]
    fn pop(&mut self) {
        if let Some(wqe) = self.places.get_mut(self.head) {
            wqe.data.clear(&mut self.held);
        }
        self.head = self.place(1);
        self.len -= 1;
        self.front += 1;
        self.next = self.next.max(self.front);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mem::{Access, Backing, Buffer, RegionSpec, RegionTable};

    const WRITE: SendOp = SendOp::Write {
        rkey: 0,
        remote_addr: 0,
    };

    fn table() -> RegionTable {
        RegionTable::new(8, 8, None).unwrap()
    }

    fn spec() -> RegionSpec {
        let buffer = Arc::new(Buffer::zeroed(8).unwrap());
        RegionSpec {
            memory: Backing::buffer(buffer),
            to_base: Some(0),
            pd: 1,
            qp: None,
            access: Access::LOCAL_WRITE,
        }
    }

    fn post(queue: &mut SendQueue, wr_id: u64, table: &RegionTable, lkey: u32) {
        let sge = Sge {
            addr: 0,
            len: 8,
            lkey,
        };
        let (data, before) = queue.next_data_and_before();
        data.list
            .resolve_behind(before, table, (1, 7), &[sge], false)
            .unwrap();
        let wqe = queue.append(&WRITE);
        (wqe.wr_id, wqe.op, wqe.signaled) = (wr_id, WRITE, true);
        wqe.progress = Progress::Queued;
    }

    /// Sends one request, and polls its completion.
    fn send_one(queue: &mut SendQueue, completed: &mut Vec<u64>) {
        queue.framed(Progress::Sent { ends_at: 0 });
        let flushed = || unreachable!("nothing is refused");
        let freed = Arc::clone(&queue.freed);
        queue.retire(0, 7, flushed, |completion, places| {
            completed.push(completion.wr_id);
            freed.add(places);
        });
    }

    #[test]
    fn requests_complete_in_order_while_the_ring_grows_and_wraps() {
        let table = table();
        let lkey = table.insert(spec()).unwrap().stag().0;
        let mut queue = SendQueue::new(21, Arc::default());
        let (mut posted, mut completed) = (0, Vec::new());
        // By two forward, by one back: it wraps in every size before it grows.
        while queue.room() > 1 {
            for _ in 0..2 {
                post(&mut queue, posted, &table, lkey);
                posted += 1;
            }
            send_one(&mut queue, &mut completed);
            let oldest = completed.len() as u64;
            let waiting: Vec<u64> = queue.iter().map(|wqe| wqe.wr_id).collect();
            assert_eq!(waiting, Vec::from_iter(oldest..posted));
            assert_eq!(queue.get(posted - 1).unwrap().wr_id, posted - 1);
            assert!(queue.get(posted).is_none());
        }
        assert_eq!(queue.places.len(), 21, "it has no more places than it may");
        while !queue.is_empty() {
            send_one(&mut queue, &mut completed);
        }
        assert_eq!(completed, Vec::from_iter(0..posted));
    }

    #[test]
    fn an_empty_queue_keeps_no_memory() {
        let table = table();
        let region = table.insert(spec()).unwrap();
        let before = Arc::strong_count(&region);
        let mut queue = SendQueue::new(4, Arc::default());
        for wr_id in 0..2 {
            post(&mut queue, wr_id, &table, region.stag().0);
        }
        assert_eq!(Arc::strong_count(&region), before + 2);
        for _ in 0..2 {
            send_one(&mut queue, &mut Vec::new());
        }
        assert_eq!(Arc::strong_count(&region), before);
        // Nor one whose only request was refused when it was posted.
        let sge = |lkey| Sge {
            addr: 0,
            len: 8,
            lkey,
        };
        let sges = [sge(region.stag().0), sge(0)];
        let list = &mut queue.next_data().list;
        list.resolve(&table, 1, 7, &sges, false).unwrap_err();
        queue.drop_data();
        assert_eq!(Arc::strong_count(&region), before);
    }
}
