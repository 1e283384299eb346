//! The send queue: work requests from post to completion.

mod outstanding;
mod wqe;

use std::sync::Arc;

use crate::mem::{
    FastRegister, LocalFaultKind, PinnedRegions, RegionTable, SgList, Sge, Sources, Spot,
};

use crate::cause::Cause;
use crate::completion::{Completion, FreedPlaces, Status};
use crate::policy::transfer::FIRST_PLACES;
use crate::wr::{LocalOp, SendOp};
use outstanding::{Outstanding, is_unconfirmed};

pub(crate) use wqe::{Blamed, ImmediateData, Progress, SendData, SendWqe};

/// The send queue: work requests in posting order, from the oldest not completed to the newest.
///
/// ```text
///   front                      next                back
///   │ sent, or awaits Response │ sending │ queued … │
/// ```
///
/// Sequence numbers identify requests, and stay valid when older requests complete. Requests do not
/// move, and their allocations are reused by later requests in the same place.
///
/// A completed request occupies its place until the program has polled its completion. A successful
/// unsignaled request occupies it until a later completion is polled.
pub struct SendQueue {
    depth: usize,
    /// Count of places that polls have freed, and its value when it was last read.
    freed: Arc<FreedPlaces>,
    freed_seen: u64,
    /// Number of requests that completed without a CQ entry since the last CQ entry.
    silent: u32,
    /// Ring of places. It grows up to `depth` when all are taken.
    places: Vec<SendWqe>,
    /// Index of the oldest request in `places`, and the number of requests from there on.
    head: usize,
    len: usize,
    /// Sequence number of the oldest request.
    front: u64,
    /// Sequence number of the first request that is not completely framed.
    next: u64,
    /// Bytes of all requests posted so far, as the doorbell counts them.
    bytes: u64,
    /// Regions of [`SendData::spot`].
    pub(crate) pinned: PinnedRegions,
    /// Read and Atomic Requests whose Response is not complete.
    requests: Outstanding,
    /// Sequence number of the newest fast registration that was posted.
    registered: Option<u64>,
}

impl SendQueue {
    /// Creates an empty queue. `freed` counts the places that polls have freed.
    pub(crate) fn new(depth: usize, freed: Arc<FreedPlaces>) -> Self {
        Self::beginning_at(depth, freed, 0)
    }

    /// Returns an empty queue for the next connection of the same QP.
    ///
    /// Requests whose completions are still in the CQ keep their places.
    pub(crate) fn renewed(&self) -> Self {
        self.freed.add(self.silent);
        Self::beginning_at(self.depth, Arc::clone(&self.freed), self.posted_to())
    }

    /// Creates an empty queue whose first request has this sequence number.
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
            bytes: 0,
            pinned: PinnedRegions::default(),
            requests: Outstanding::default(),
            registered: None,
        }
    }

    /// Number of places left before the queue is full.
    pub fn room(&self) -> usize {
        self.depth - self.taken(self.freed.count())
    }

    /// Returns true if the queue has room for a request that follows `before` others.
    ///
    /// Reads the count of freed places only if the queue would be full without it, because another
    /// thread may be writing that count.
    #[inline]
    pub(crate) fn find_room_after(&mut self, before: usize) -> bool {
        if self.taken(self.freed_seen) + before < self.depth {
            return true;
        }
        self.freed_seen = self.freed.count();
        self.taken(self.freed_seen) + before < self.depth
    }

    /// Number of places in use after `freed` of them were freed.
    #[inline]
    fn taken(&self, freed: u64) -> usize {
        // At most `depth`, which is a `usize`.
        usize::try_from(self.posted_to() - freed).unwrap_or(usize::MAX)
    }

    /// Capacity of the queue in work requests.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Returns true if there is no request.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ring index of the request at position `index` (`index == len` is the next free place).
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

    /// Returns the requests, oldest first.
    fn iter(&self) -> impl DoubleEndedIterator<Item = &SendWqe> {
        (0..self.len).filter_map(|index| self.nth(index))
    }

    /// Sequence number of the oldest request that has not completed.
    pub fn completed_to(&self) -> u64 {
        self.front
    }

    /// Sequence number of the first request that is not completely framed.
    pub(crate) fn framed_to(&self) -> u64 {
        self.next
    }

    /// Returns true if the request with this sequence number, or one after it, was begun.
    pub(crate) fn has_begun(&self, sequence: u64) -> bool {
        self.next > sequence || self.get(sequence).is_some_and(SendWqe::was_begun)
    }

    /// Sequence number of the next request to be posted.
    pub fn posted_to(&self) -> u64 {
        self.front + self.len as u64
    }

    /// State of the queue for the doorbell: sequence number of the next request, and bytes so far.
    pub fn posted(&self) -> (u64, u64) {
        (self.posted_to(), self.bytes)
    }

    /// Counts the bytes of a posted request.
    #[inline]
    pub(crate) fn count(&mut self, bytes: u64) {
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    /// Returns the payload of the request that is posted next. It is empty; the caller fills it.
    ///
    /// If the request is not [appended](Self::append), its payload must be
    /// [dropped](Self::drop_data).
    pub(crate) fn next_data(&mut self) -> &mut SendData {
        self.next_data_and_before().0
    }

    /// Returns the ring index of the request that is posted next. Allocates places if all are
    /// taken.
    #[inline]
    fn next_place(&mut self) -> usize {
        if self.len == self.places.len() {
            self.grow();
        }
        self.place(self.len)
    }

    /// Adds places. The caller has checked that the queue has room, so that it may grow.
    #[cold]
    fn grow(&mut self) {
        let more = (2 * self.len).clamp(FIRST_PLACES, self.depth.max(FIRST_PLACES));
        self.places.rotate_left(self.head);
        self.head = 0;
        self.places.resize_with(more, SendWqe::blank);
    }

    /// Returns [`Self::next_data`], and the list of the previous request if that request is still
    /// in the queue.
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

    /// Resolves the source of the next request, which has a single element. `who`: PD and QP
    /// number.
    #[inline]
    pub(crate) fn resolve_spot(
        &mut self,
        table: &RegionTable,
        who: (u32, u32),
        sge: &Sge,
    ) -> Result<(), LocalFaultKind> {
        let before = self.len.checked_sub(1).and_then(|last| self.nth(last));
        let before = before.map_or(Spot::default(), |wqe| wqe.data.spot);
        let spot = self.pinned.resolve(before, table, who, sge)?;
        let next = self.next_place();
        self.places[next].data.spot = spot;
        Ok(())
    }

    /// Drops the payload of [`Self::next_data`]: the request is not posted after all.
    pub(crate) fn drop_data(&mut self) {
        let next = self.next_place();
        self.places[next].data.clear(&mut self.pinned);
        self.pinned.sweep();
    }

    /// Appends the request whose payload is [`Self::next_data`].
    ///
    /// The caller has checked that there is room, and sets everything but the payload.
    #[inline]
    pub(crate) fn append(&mut self, op: &SendOp) -> &mut SendWqe {
        if matches!(op, SendOp::Local(LocalOp::Register(_))) {
            self.registered = Some(self.posted_to());
        }
        let place = self.next_place();
        self.len += 1;
        &mut self.places[place]
    }

    /// Returns the first request that is not completely framed, with its sequence number. Returns
    /// `None` if that request is [refused](Progress::Refused).
    pub(crate) fn next_to_send(&self) -> Option<(u64, &SendWqe)> {
        let index = usize::try_from(self.next - self.front).ok()?;
        let wqe = self.nth(index)?;
        (wqe.progress != Progress::Refused).then_some((self.next, wqe))
    }

    /// Sums the payload bytes of the next requests to send. Stops before a Read, an atomic or a
    /// request below `least` bytes, and once the sum reaches `most`.
    ///
    /// A message that is being framed counts with all of its bytes.
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

    /// Returns the newest queued fast registration of this STag. It will run before a request that
    /// is posted now.
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

    /// Returns the oldest request, with its sequence number.
    pub(crate) fn front(&self) -> Option<(u64, &SendWqe)> {
        self.nth(0).map(|wqe| (self.front, wqe))
    }

    /// Returns the request with this sequence number, while it is in the queue.
    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut SendWqe> {
        let index = usize::try_from(sequence.checked_sub(self.front)?).ok()?;
        self.nth_mut(index)
    }

    /// Returns the request with this sequence number, while it is in the queue.
    pub(crate) fn get(&self, sequence: u64) -> Option<&SendWqe> {
        let index = usize::try_from(sequence.checked_sub(self.front)?).ok()?;
        self.nth(index)
    }

    /// Records that a message of the request at `next` is framed. It is the only message, unless
    /// the request is a Read into several elements.
    pub(crate) fn framed(&mut self, progress: Progress) {
        let sequence = self.next;
        let Some(wqe) = self.get_mut(sequence) else {
            return;
        };
        if !matches!(wqe.progress, Progress::Requesting { .. }) {
            wqe.progress = progress;
            let is_write = matches!(wqe.op, SendOp::Write { .. });
            self.next += 1;
            if let (true, Progress::Sent { ends_at }) = (is_write, progress) {
                self.requests.write_framed(ends_at);
            }
        }
        if progress == Progress::AwaitingResponse {
            self.requests.push(sequence);
        }
    }

    /// Records that nothing is awaited for the requests that are framed: they are done.
    pub(crate) fn give_up_sent(&mut self) {
        for index in 0..self.len {
            if let Some(wqe) = self.nth_mut(index)
                && matches!(wqe.progress, Progress::Sent { .. })
            {
                wqe.progress = Progress::Answered;
            }
        }
    }

    /// Passes the [plain](SendWqe::plain) requests at `next` to `frame`, one after the other.
    ///
    /// Stops at a request that is not plain or exceeds `most` bytes, and when `frame` returns
    /// `None`. Otherwise `frame` returns the stream offset at which the message ends. Returns true
    /// if a request was framed.
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
        let mut sources = self.pinned.sources();
        while index < self.len
            && let Some(wqe) = self.places.get_mut(place)
            && wqe.plain
            && wqe.len <= most
            && wqe.progress == Progress::Queued
            && let Some(ends_at) = frame(wqe, &mut sources)
        {
            wqe.progress = Progress::Sent { ends_at };
            if let SendOp::Write { .. } = &wqe.op {
                self.requests.write_framed(ends_at);
            }
            index += 1;
            place += 1;
            if place == self.places.len() {
                place = 0;
            }
            self.next += 1;
        }
        self.next != begun
    }

    /// Makes the general path frame all requests that are in the queue.
    #[cfg(test)]
    pub(crate) fn force_general_path(&mut self) {
        for index in 0..self.len {
            if let Some(wqe) = self.nth_mut(index) {
                wqe.plain = false;
            }
        }
    }

    /// Refuses the requests that need a Response, because no Response can arrive any more.
    ///
    /// This affects the first unanswered Read or atomic, and all later requests that are queued or
    /// await a Response. Requests posted before it are still sent.
    pub(crate) fn refuse_requests(&mut self) {
        let mut behind_a_request = false;
        for index in 0..self.len {
            let Some(wqe) = self.nth(index) else {
                break;
            };
            let unconfirmed = is_unconfirmed(self.requests.confirms(), wqe);
            let Some(wqe) = self.nth_mut(index) else {
                break;
            };
            let is_request = wqe.op.awaits_response() || unconfirmed;
            behind_a_request |= is_request && wqe.progress != Progress::Answered;
            if unconfirmed
                || behind_a_request
                    && matches!(
                        wqe.progress,
                        Progress::Queued | Progress::Requesting { .. } | Progress::AwaitingResponse
                    )
            {
                wqe.progress = Progress::Refused;
            }
        }
        self.requests.clear();
    }

    /// Returns the sequence number of the first Send or Write of which the LLP has not taken all
    /// bytes. `taken`: stream offset up to which it has.
    pub(crate) fn unsent_payload(&self, taken: u64) -> Option<u64> {
        let unsent = |wqe: &SendWqe| match wqe.progress {
            Progress::Sent { ends_at } => ends_at > taken,
            Progress::Sending => true,
            _ => false,
        };
        let found = (self.front..).zip(self.iter());
        found
            .into_iter()
            .find(|(_, wqe)| unsent(wqe))
            .map(|(sequence, _)| sequence)
    }

    /// Returns true if a Read or atomic awaits its Response. A fenced request waits until none
    /// does.
    pub fn requests_pending(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Returns true if exactly one Read or Atomic Request awaits its Response.
    pub(crate) fn one_request_pending(&self) -> bool {
        self.requests.len() == 1
    }

    /// Returns the sequence number of the Read or atomic with the oldest outstanding Request.
    pub(crate) fn oldest_request(&self) -> Option<u64> {
        self.requests.oldest()
    }

    /// Returns the sequence number of the Read or atomic whose outstanding Request has `older`
    /// older ones before it.
    pub(crate) fn request_after(&self, older: usize) -> Option<u64> {
        self.requests.after(older)
    }

    /// Sets whether Writes complete only when the peer has placed them, on a new stream.
    pub(crate) fn confirm_writes(&mut self, confirms: bool) {
        self.requests.confirm_writes(confirms);
    }

    /// Returns the number of bytes of the stream with Writes that are framed and not confirmed, if
    /// a confirmation is to be sent: there are such bytes, and no confirmation is outstanding.
    #[inline]
    pub(crate) fn unconfirmed(&self) -> Option<u64> {
        self.requests.unconfirmed()
    }

    /// Records that a confirmation is framed.
    pub(crate) fn confirmation_framed(&mut self) {
        self.requests.confirmation_framed();
    }

    /// Returns true if the next Response belongs to a confirmation.
    #[inline]
    pub(crate) fn is_confirmation_next(&self) -> bool {
        self.requests.is_confirmation_next()
    }

    /// Records that the confirmation was answered.
    pub(crate) fn confirmed(&mut self) {
        self.requests.confirmed();
    }

    /// Records that the peer has placed all Writes before a request, which it refuses.
    pub(crate) fn placed_before(&mut self, sequence: u64) {
        let before = usize::try_from(sequence.saturating_sub(self.front)).unwrap_or(0);
        let ends = (self.iter().take(before)).filter_map(|wqe| match wqe.progress {
            Progress::Sent { ends_at } => Some(ends_at),
            _ => None,
        });
        if let Some(placed_to) = ends.max() {
            self.requests.placed(placed_to);
        }
    }

    /// Returns the oldest Write that is not confirmed and has this byte of the peer's memory; if
    /// there is none, the oldest with this STag.
    pub(crate) fn unconfirmed_write(&self, stag: u32, to: u64) -> Option<u64> {
        let confirms = self.requests.confirms()?;
        let of_region = |wqe: &SendWqe| {
            let begun = wqe.was_begun() && is_unconfirmed(Some(confirms), wqe);
            begun && matches!(wqe.op, SendOp::Write { rkey, .. } if rkey == stag)
        };
        let has_byte = |wqe: &SendWqe| match wqe.op {
            SendOp::Write { remote_addr, .. } => {
                to.wrapping_sub(remote_addr) < u64::from(wqe.len.max(1))
            }
            _ => false,
        };
        let writes = || {
            (self.front..)
                .zip(self.iter())
                .filter(|(_, wqe)| of_region(wqe))
        };
        let found = writes()
            .find(|(_, wqe)| has_byte(wqe))
            .or_else(|| writes().next());
        found.map(|(sequence, _)| sequence)
    }

    /// Returns the sequence number of the oldest request that may have reached the peer with a
    /// message of RFC 7306.
    pub(crate) fn oldest_extension(&self) -> Option<u64> {
        let found = (self.front..)
            .zip(self.iter())
            .find(|(_, wqe)| wqe.was_begun() && wqe.is_extension());
        found.map(|(sequence, _)| sequence)
    }

    /// Returns the offset in the oldest unanswered Read at which its next Response is placed.
    pub(crate) fn answered(&self) -> u32 {
        self.requests.answered
    }

    /// Returns true if the Response to the oldest outstanding Request is the last Response to its
    /// work request.
    pub(crate) fn awaits_last_response(&self) -> bool {
        let oldest = self.oldest_request();
        self.request_after(1) != oldest
            && oldest
                .and_then(|sequence| self.get(sequence))
                .is_some_and(|wqe| wqe.progress == Progress::AwaitingResponse)
    }

    /// Records that the Response to the oldest outstanding Request was placed completely. `bytes`:
    /// length of that Response.
    pub(crate) fn request_answered(&mut self, bytes: u32) {
        let last = self.awaits_last_response();
        let Some(sequence) = self.requests.pop() else {
            return;
        };
        let answered = &mut self.requests.answered;
        *answered = if last { 0 } else { *answered + bytes };
        if last && let Some(wqe) = self.get_mut(sequence) {
            wqe.progress = Progress::Answered;
        }
    }

    /// Completes, in order, the oldest requests that are done. `taken`: stream offset up to which
    /// the LLP has taken bytes.
    ///
    /// Completion order is submission order (5040-5.5-07). `flushed` returns the cause for refused
    /// requests. `complete` gets a completion and the number of places that polling it frees.
    pub(crate) fn retire(
        &mut self,
        taken: u64,
        qp_num: u32,
        flushed: impl Fn() -> Cause,
        mut complete: impl FnMut(Completion, u32),
    ) {
        let confirms = self.requests.confirms();
        while self.len > 0
            && let Some(wqe) = self.places.get(self.head)
        {
            match wqe.progress {
                Progress::Sent { ends_at }
                    if ends_at <= taken && !is_unconfirmed(confirms, wqe) => {}
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
        self.pinned.sweep();
    }

    /// Completes everything in the queue with an error, in order.
    ///
    /// `blamed` is the request that the error belongs to. All others are flushed with the cause
    /// `flushed`. `complete` as in [`retire`](Self::retire).
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
        self.pinned.sweep();
        self.next = self.front;
        self.requests.clear();
    }

    /// Removes the oldest request, which has completed, from the ring.
    #[inline]
    fn pop(&mut self) {
        if let Some(wqe) = self.places.get_mut(self.head) {
            wqe.data.clear(&mut self.pinned);
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

    use crate::mem::{Access, Backing, Buffer, RegionSpec, RegionTable};

    use super::*;

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

    /// Sends one request and polls its completion.
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
        // Each round posts two requests and completes one, so the ring wraps in every size before
        // it grows.
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
        assert_eq!(queue.places.len(), 21, "as many places as the depth");
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
        // A request that is refused when it is posted keeps no memory either.
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
