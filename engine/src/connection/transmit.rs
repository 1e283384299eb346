//! Framed bytes that the LLP has not taken yet.

use std::ops::Range;
use std::sync::Arc;

use crate::llp::{Piece, SendHints};
use crate::mem::{LentRun, PinnedRun};

use super::buffer_pool::BufferPool;
use super::staging_account::StagingAccount;
use crate::headroom;
use crate::limits::PeerAccount;
use crate::policy::transfer::{
    BATCH_LIMIT, FPDU_ROOM, PARTS_LIMIT, PARTS_PER_CALL, SMALL_STAGING, STAGED_LIMIT, STAGING_KEPT,
};
use crate::policy::{Heuristic, is_on};

/// Contiguous bytes of the stream.
enum Part {
    /// `staged[range]`.
    Staged(Range<usize>),
    /// Registered memory that stays pinned until the LLP has taken it.
    InPlace(PinnedRun),
    /// Registered memory that is lent until one call of the LLP returns.
    Lent(LentRun),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Staged(range) => range.len(),
            Part::InPlace(run) => run.len(),
            Part::Lent(run) => run.len(),
        }
    }
}

/// A batch of framed bytes on its way to the LLP.
///
/// It is filled only when it is empty, so that staged bytes never have to be moved. It is drained
/// by calls of [`TxBatch::taken`]. Stream offsets count from the first byte of the connection.
#[derive(Default)]
pub struct TxBatch {
    /// Staging buffer. Bytes after `filled` are left over from earlier batches, so that they need
    /// not be zeroed again.
    staged: Vec<u8>,
    filled: usize,
    parts: Vec<Part>,
    /// Number of lent bytes.
    lent: usize,
    /// Bytes of staged and lent payload after which this batch is handed to the LLP. Lent payload
    /// counts because it is copied if the LLP takes nothing.
    limit: usize,
    /// Index of the part that the LLP takes next, and the number of its bytes that were taken.
    part: usize,
    within: usize,
    /// Stream offset of the next byte that the LLP takes, and of the end of the framed bytes.
    taken: u64,
    framed: u64,
    /// Ends of the FPDUs of this batch, as stream offsets.
    ends: Vec<u64>,
    /// Stream offset of the first byte of this batch, and whether that byte lies within an FPDU.
    start: u64,
    mid_fpdu: bool,
    /// Stream offset after the startup frame.
    floor: u64,
    /// Stream offset after the last Read or Atomic Request of this side.
    request_end: u64,
    /// Memory that is charged to the peer.
    account: StagingAccount,
    /// Payload could not be copied, because its memory is not mapped. The batch must not be sent.
    torn: bool,
    /// There was no memory for a part of the batch, which must not be sent.
    lacks_memory: bool,
}

impl TxBatch {
    /// Returns true if the LLP has taken everything.
    pub fn is_empty(&self) -> bool {
        self.taken == self.framed
    }

    /// Returns true if a part of the batch is lost with its memory.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// Returns true if there was no memory for a part of the batch.
    pub fn lacks_memory(&self) -> bool {
        self.lacks_memory
    }

    /// Returns the stream offset up to which the LLP has taken bytes.
    pub fn taken_to(&self) -> u64 {
        self.taken
    }

    /// Returns the stream offset up to which bytes are framed.
    #[inline]
    pub fn framed_to(&self) -> u64 {
        self.framed
    }

    /// Returns true if more FPDUs should be framed before the LLP is called.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.filled + self.lent < self.limit
            // Lent parts that do not fit into the next call would be copied. A batch with lent
            // parts therefore has no more parts than one call takes. The exception is a batch whose
            // parts before the first lent one already exceed that number.
            && (self.lent == 0 || self.parts.len() + 2 <= PARTS_PER_CALL)
            && self.left() < BATCH_LIMIT
            && self.parts.len() < PARTS_LIMIT
            && !(self.account.is_short() && self.left() > 0)
            && !self.lacks_memory
    }

    /// Returns true if the memory limits allow only a short FPDU.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.account.is_short()
    }

    /// Decides by the memory limits whether the next batch may have the full length. The LLP must
    /// have taken all of the last one.
    #[inline]
    pub fn check_memory(&mut self, peer: Option<&Arc<PeerAccount>>) {
        self.account.check(peer);
    }

    /// Charges what is held after a turn to the peer. `in_llp`: bytes that a TCP in user space
    /// holds until the peer acknowledges them.
    #[inline]
    pub fn settle_memory(&mut self, in_llp: usize, peer: Option<&Arc<PeerAccount>>) {
        let staged = self.staged.capacity();
        let staged = if staged > SMALL_STAGING { staged } else { 0 };
        self.account.settle(staged + in_llp, peer);
    }

    /// Raises the size limit of a new batch, because the peer has asked for much payload.
    ///
    /// `next`: bytes left in the current Read Response; `queued_after`: bytes of the responses
    /// queued after it. Longer calls of the LLP take less kernel time per byte. A single response
    /// is of no use to the peer before it is complete, so the batch may contain all of it. Several
    /// responses are sent in two batches. After the first of them, the peer may ask for more while
    /// the second one is sent.
    pub(crate) fn raise_limit(&mut self, next: u64, queued_after: u64) {
        if !is_on(Heuristic::LongBatches) {
            return;
        }
        let most = next.max((next + queued_after) / 2);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.limit = self.limit.max(most.min(BATCH_LIMIT));
    }

    /// Returns true if one call of the LLP cannot take the rest of this batch.
    pub(crate) fn needs_more_calls(&self) -> bool {
        self.parts.len() - self.part > PARTS_PER_CALL
    }

    /// Number of bytes of this batch that the LLP has not taken.
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.framed - self.taken).unwrap_or(usize::MAX)
    }

    /// Releases the buffers of the last batch, because nothing is left to send or to frame.
    #[inline]
    pub fn rests(&mut self, pool: &BufferPool) {
        // If one call has taken a whole batch with lent parts, no parts are left: see `reclaim`.
        if !self.parts.is_empty() || self.staged.capacity() > SMALL_STAGING {
            self.release();
            self.return_staging(pool);
        }
    }

    /// Starts a new batch. The LLP must have taken all of the old one.
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.is_empty());
        self.parts.clear();
        self.lent = 0;
        self.limit = STAGED_LIMIT;
        self.filled = 0;
        self.ends.clear();
        self.part = 0;
        self.within = 0;
        self.start = self.taken;
        self.mid_fpdu = false;
    }

    /// Releases memory that an idle connection does not need.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            self.reset();
            if self.staged.capacity() > STAGING_KEPT {
                self.staged.truncate(STAGING_KEPT);
                self.staged.shrink_to(STAGING_KEPT);
            }
        }
    }

    /// Takes a large staging buffer from the pool, unless the batch has a buffer already or memory
    /// is short.
    pub fn borrow_staging(&mut self, pool: &BufferPool) {
        if self.staged.capacity() == 0 && !self.is_short() {
            self.staged = pool.take_staging();
        }
    }

    /// Returns a large staging buffer to the pool if nothing is left to send.
    ///
    /// Otherwise a connection would keep it after one large transfer, which a peer can cause with
    /// Reads.
    pub fn return_staging(&mut self, pool: &BufferPool) {
        if self.is_empty() && self.staged.capacity() > SMALL_STAGING {
            self.reset();
            pool.give_staging(std::mem::take(&mut self.staged));
        }
    }

    /// Appends bytes by letting `fill` append to the staging buffer.
    pub(crate) fn stage<T>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.staged.truncate(self.filled);
        if self.filled > SMALL_STAGING {
            self.make_room(self.filled + FPDU_ROOM);
        }
        let value = fill(&mut self.staged);
        self.staged_to(self.staged.len());
        value
    }

    /// Reserves `most` bytes and lets `fill` write into them. Keeps as many of them as `fill`
    /// returns.
    ///
    /// Appends nothing on error. If memory is too short, `fill` is not called, and the batch is
    /// marked.
    #[inline]
    pub(crate) fn stage_over<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let start = self.filled;
        if self.staged.len() < start + most {
            self.make_room(start + most);
            if self.lacks_memory {
                // The batch must not look empty, because its end is noticed when it is sent.
                self.framed += most as u64;
                return Ok(());
            }
            self.staged.resize(start + most, 0);
        }
        let written = fill(&mut self.staged[start..start + most])?;
        self.staged_to(start + written.min(most));
        Ok(())
    }

    /// Makes room for `len` bytes of staging.
    ///
    /// A buffer that exceeds [`SMALL_STAGING`] gets room for the whole batch at once. A vector that
    /// grows by itself may exceed [`STAGING_KEPT`]; it would then be shrunk when the connection
    /// rests, and grow again.
    ///
    /// If memory is too short, the batch is marked, which ends the connection. What was staged is
    /// dropped. A vector with it might be doubled for a few more bytes, which ends the process.
    fn make_room(&mut self, len: usize) {
        if len > self.staged.capacity() && len > SMALL_STAGING && !self.is_short() {
            // A batch above the usual limit gets the largest buffer, because its length varies with
            // the requests.
            let batch = if self.limit > STAGED_LIMIT {
                STAGING_KEPT
            } else {
                STAGED_LIMIT + FPDU_ROOM
            };
            let most = len.max(batch);
            if !self.grow_to(most) && !self.grow_to(len) {
                self.lacks_memory = true;
                self.parts.clear();
                self.staged = Vec::new();
                self.filled = 0;
            }
        }
    }

    /// Gives the staging buffer room for `len` bytes, if there is memory for it.
    fn grow_to(&mut self, len: usize) -> bool {
        let more = len - self.staged.len();
        headroom::allocate(len, || self.staged.reserve_exact(more)).is_some()
    }

    /// Adds the staged bytes up to index `end` to the batch.
    #[inline]
    fn staged_to(&mut self, end: usize) {
        let start = self.filled;
        self.filled = end;
        self.framed += (end - start) as u64;
        match self.parts.last_mut() {
            Some(Part::Staged(range)) if range.end == start => range.end = end,
            _ if start == end => {}
            _ => self.parts.push(Part::Staged(start..end)),
        }
    }

    /// Appends registered memory, to be gathered in place.
    pub(crate) fn in_place(&mut self, run: PinnedRun) {
        self.framed += run.len() as u64;
        self.parts.push(Part::InPlace(run));
    }

    /// Appends registered memory for a Read Response, to be gathered in place until
    /// [`Self::reclaim`].
    pub(crate) fn lend(&mut self, run: LentRun) {
        self.framed += run.len() as u64;
        self.lent += run.len();
        self.parts.push(Part::Lent(run));
    }

    /// Ends all loans, after a call of the LLP or because the memory is needed.
    ///
    /// Bytes that the LLP has not taken are copied.
    #[inline]
    pub fn reclaim(&mut self) {
        if self.lent > 0 {
            self.copy_lent();
        }
    }

    fn copy_lent(&mut self) {
        if self.is_empty() {
            self.reset();
            return;
        }
        self.parts.drain(..self.part);
        self.part = 0;
        self.staged.truncate(self.filled);
        let lent = std::mem::take(&mut self.lent);
        self.make_room(self.filled + lent);
        if self.lacks_memory {
            self.parts.clear();
            return;
        }
        for (at, part) in self.parts.iter_mut().enumerate() {
            if let Part::Lent(run) = part {
                // The LLP may have taken some bytes of the first part.
                let skip = if at == 0 {
                    std::mem::take(&mut self.within)
                } else {
                    0
                };
                let start = self.filled;
                self.torn |= !run.copy_to(skip, run.len() - skip, &mut self.staged);
                self.filled = self.staged.len();
                *part = Part::Staged(start..self.filled);
            }
        }
    }

    /// Marks the end of an FPDU or a startup frame.
    #[inline]
    pub(crate) fn end_of_fpdu(&mut self) {
        self.ends.push(self.framed);
    }

    /// Marks the end of a Read or Atomic Request of this side.
    pub(crate) fn end_of_request(&mut self) {
        self.request_end = self.framed;
    }

    /// Returns true if the batch ends with a Read or Atomic Request of this side.
    #[inline]
    pub(crate) fn ends_with_request(&self) -> bool {
        self.request_end == self.framed
    }

    /// Writes the next pieces for the LLP to `out`, and returns their number.
    pub fn pieces<'a>(&'a self, out: &mut [Piece<'a>; PARTS_PER_CALL]) -> usize {
        let mut skip = self.within;
        let mut count = 0;
        for (slot, part) in out.iter_mut().zip(&self.parts[self.part..]) {
            *slot = self.piece(part, skip);
            skip = 0;
            count += 1;
        }
        count
    }

    /// Returns all bytes for the LLP if they are one piece.
    ///
    /// A staged batch usually is. Building an array of pieces costs as much as framing a small
    /// message.
    #[inline]
    pub fn single_piece(&self) -> Option<Piece<'_>> {
        match self.parts.get(self.part..) {
            Some([part]) => Some(self.piece(part, self.within)),
            _ => None,
        }
    }

    /// Returns a part without its first `skip` bytes.
    #[inline]
    fn piece<'a>(&'a self, part: &'a Part, skip: usize) -> Piece<'a> {
        match part {
            Part::Staged(range) => Piece::from(&self.staged[range.start + skip..range.end]),
            Part::InPlace(run) => run.piece(skip),
            Part::Lent(run) => run.piece(skip),
        }
    }

    /// Returns where FPDUs end in the bytes of [`Self::pieces`].
    pub(crate) fn fpdu_ends(&self) -> SendHints<'_> {
        SendHints::new(self.taken, &self.ends)
    }

    /// Records that the LLP has taken `bytes` more bytes.
    pub(crate) fn taken(&mut self, bytes: usize) {
        self.taken += bytes as u64;
        let mut left = bytes;
        while let Some(part) = self.parts.get(self.part) {
            let rest = part.len() - self.within;
            if left < rest {
                self.within += left;
                return;
            }
            left -= rest;
            self.part += 1;
            self.within = 0;
        }
    }

    /// Drops every FPDU that the LLP has not begun to take.
    ///
    /// The rest of a begun FPDU is copied, so that no registered memory is needed any more. Returns
    /// the number of bytes of the stream that were dropped.
    pub(crate) fn truncate(&mut self) -> u64 {
        self.cut(self.next_boundary())
    }

    /// Keeps everything, but copies payload from registered memory, so that no registered memory is
    /// needed any more.
    pub(crate) fn copy_registered(&mut self) {
        self.cut(self.framed);
    }

    /// Marks the end of a startup frame, which [`Self::truncate`] never drops.
    pub(crate) fn end_of_startup(&mut self) {
        self.end_of_fpdu();
        self.floor = self.framed;
    }

    fn cut(&mut self, keep_to: u64) -> u64 {
        let mut rest = Vec::new();
        let mut want = usize::try_from(keep_to - self.taken).unwrap_or(usize::MAX);
        let mut skip = self.within;
        for part in &self.parts[self.part.min(self.parts.len())..] {
            if want == 0 {
                break;
            }
            let len = (part.len() - skip).min(want);
            match part {
                Part::Staged(range) => {
                    rest.extend_from_slice(&self.staged[range.start + skip..][..len]);
                }
                Part::InPlace(run) => self.torn |= !run.copy_to(skip, len, &mut rest),
                Part::Lent(run) => self.torn |= !run.copy_to(skip, len, &mut rest),
            }
            want -= len;
            skip = 0;
        }
        let dropped = self.framed - keep_to;
        self.framed = self.taken;
        self.reset();
        self.mid_fpdu = !rest.is_empty();
        self.stage(|staged| staged.extend_from_slice(&rest));
        self.end_of_fpdu();
        dropped
    }

    /// Returns the first FPDU boundary at or after the bytes that the LLP has taken.
    fn next_boundary(&self) -> u64 {
        if self.taken < self.floor {
            return self.floor;
        }
        if self.taken == self.start && !self.mid_fpdu {
            return self.taken;
        }
        let next = self.ends.partition_point(|end| *end < self.taken);
        self.ends.get(next).copied().unwrap_or(self.framed)
    }
}

#[cfg(test)]
mod tests;
