//! What was framed and not yet taken by the LLP.

use std::ops::Range;

use uwarp_llp::{Piece, SendHints};

use super::buffer_pool::BufferPool;
use super::page_offset_buffer;
use super::receive_buffer::SMALL_STAGING;
use crate::mem::{LentRun, PinnedRun};

/// Bytes of staging, and of what is lent, after which a batch is handed to the LLP; more where the peer has asked for much more
/// ([`TxBatch::allow`]).
const STAGED_LIMIT: usize = 256 * 1024;
/// Bytes in all (staged and in place) after which a batch is handed to the LLP.
pub(super) const BATCH_LIMIT: usize = 1024 * 1024;
/// The same for the first batch after a pause, so that the peer begins to receive a large message while the rest of it is still checksummed. Behind it a
/// batch may be as long as any at once: within a host, what a later call copies goes into memory that the other processor has just read, which is slower, so
/// the fewer calls the better.
const FIRST_BATCH: usize = 128 * 1024;
/// So many turns that find nothing to send are a pause. A program that posts one message after the other makes a few polls in between, and
/// one that polls for an answer hundreds. One that goes to sleep pauses at once ([`TxBatch::sleeps`]).
pub(crate) const PAUSE: u32 = 64;
/// Parts handed to the LLP in one call.
pub(crate) const PARTS_PER_CALL: usize = 64;
/// Parts of one batch; several calls, one refill.
const PARTS_LIMIT: usize = 4 * PARTS_PER_CALL;
/// Staging that is worth keeping. A full batch and one more FPDU fit, so that nothing is allocated per
/// message.
const KEEP: usize = BATCH_LIMIT + FPDU;
/// One more FPDU, with Markers, than the limit says, and to spare.
const FPDU: usize = 128 * 1024;

/// A run of bytes of the stream.
enum Part {
    /// `staged[range]`.
    Staged(Range<usize>),
    /// Registered memory that stays pinned until the LLP has taken it.
    InPlace(PinnedRun),
    /// Registered memory that is lent until one call of the LLP is over.
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
/// It is filled only when it is empty, so that staging never has to be moved, and drained by any
/// number of [`TxBatch::taken`] calls. Offsets are counted from the first byte of the connection.
#[derive(Default)]
pub(crate) struct TxBatch {
    /// Staging. Behind `filled` are bytes of earlier batches, so that nothing has to be cleared again.
    staged: Vec<u8>,
    filled: usize,
    /// Where in it this batch begins.
    lead: usize,
    parts: Vec<Part>,
    /// Bytes that are lent.
    lent: usize,
    /// Bytes of staging, and of what is lent, after which this batch is handed to the LLP. (If the LLP takes nothing, what is lent is copied.)
    limit: usize,
    /// The part that the LLP takes next, and how much of it was taken.
    part: usize,
    within: usize,
    /// Stream offsets: the next byte for the LLP, and the end of what is framed.
    taken: u64,
    framed: u64,
    /// Ends of the FPDUs of this batch, as stream offsets.
    ends: Vec<u64>,
    /// Stream offset of the first byte of this batch, and whether that lies within an FPDU.
    start: u64,
    mid_fpdu: bool,
    /// Stream offset behind the startup frame.
    floor: u64,
    /// Stream offset behind the last Read or atomic of ours.
    asked: u64,
    /// A first batch has gone since the last pause: those behind it may be as long as any.
    begun: bool,
    /// Turns since the last batch that found nothing to send.
    quiet: u32,
    /// This batch is as long as a batch may be.
    full: bool,
}

impl TxBatch {
    /// Whether the LLP has taken everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.framed
    }

    /// Stream offset up to which the LLP has taken bytes.
    pub(crate) fn taken_to(&self) -> u64 {
        self.taken
    }

    /// Stream offset up to which bytes are framed.
    #[inline]
    pub(crate) fn framed_to(&self) -> u64 {
        self.framed
    }

    /// Whether more should be framed before the LLP is called.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.filled - self.lead + self.lent < self.limit
            // What one call does not offer would be copied (where a batch does not begin with as many of other parts).
            && (self.lent == 0 || self.parts.len() + 2 <= PARTS_PER_CALL)
            && self.left() < if self.begun { BATCH_LIMIT } else { FIRST_BATCH }
            && self.parts.len() < PARTS_LIMIT
    }

    /// A batch begins, and the peer has asked for so many bytes: what is left of the response whose turn it is, and of those behind it. The longer a call of the LLP, the less it takes of
    /// the kernel's time, but responses that the peer waits for must not be all in one: when it has a half of them, it may ask for more while the others
    /// are sent. A single one it can do nothing with before it has it whole.
    pub(crate) fn allow(&mut self, next: u64, behind: u64) {
        let most = next.max((next + behind) / 2);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.limit = self.limit.max(most.min(BATCH_LIMIT));
    }

    /// A batch is on its way. Behind one that is full the next may be longer; a short message is not the beginning of a large one.
    pub(crate) fn goes_on(&mut self) {
        self.full = !self.has_room();
        self.quiet = 0;
        self.begun |= self.full;
    }

    /// There was nothing to send, in one turn more.
    pub(crate) fn pauses(&mut self) {
        self.quiet += 1;
        if self.quiet >= PAUSE {
            self.quiet = 0;
            self.begun = false;
        }
    }

    /// The program goes to sleep: whatever it sends next comes after a pause.
    pub(crate) fn sleeps(&mut self) {
        self.quiet = 0;
        self.begun = false;
    }

    /// Whether the rest of this batch needs another call of the LLP, or another batch follows it, `unsent` being what there is to frame.
    pub(crate) fn is_followed(&self, unsent: bool) -> bool {
        (self.full && unsent) || self.parts.len() - self.part > PARTS_PER_CALL
    }

    /// Bytes of this batch that the LLP has not taken.
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.framed - self.taken).unwrap_or(usize::MAX)
    }

    /// There is nothing to send, and nothing to frame: what a batch has held goes back, once.
    #[inline]
    pub(crate) fn rests(&mut self, pool: &BufferPool) {
        // Behind a batch that was lent and taken in one call there are no parts any more.
        if !self.parts.is_empty() || self.staged.capacity() > SMALL_STAGING {
            self.release();
            self.return_staging(pool);
        }
        if self.begun {
            self.pauses();
        }
    }

    /// Starts a new batch; the old one must have been taken.
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.is_empty());
        self.parts.clear();
        self.lent = 0;
        self.limit = STAGED_LIMIT;
        self.filled = 0;
        self.lead = 0;
        self.ends.clear();
        self.part = 0;
        self.within = 0;
        self.start = self.taken;
        self.mid_fpdu = false;
    }

    /// Gives back memory that an idle connection does not need.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            self.reset();
            if self.staged.capacity() > KEEP {
                self.staged.truncate(KEEP);
                self.staged.shrink_to(KEEP);
            }
        }
    }

    /// A batch will be filled: takes a large staging buffer from the pool, if this has none.
    pub(crate) fn borrow_staging(&mut self, pool: &BufferPool) {
        if self.staged.capacity() == 0 {
            self.staged = pool.take_staging();
        }
    }

    /// Nothing is left to send: a large staging buffer goes to the pool, so that a connection which was
    /// made to send much once (a peer can, by Reads) does not keep it.
    pub(crate) fn return_staging(&mut self, pool: &BufferPool) {
        if self.is_empty() && self.staged.capacity() > SMALL_STAGING {
            self.reset();
            pool.give_staging(std::mem::take(&mut self.staged));
        }
    }

    /// Appends bytes by letting `fill` append to the staging buffer.
    pub(crate) fn stage<T>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.staged.truncate(self.filled);
        let value = fill(&mut self.staged);
        self.staged_to(self.staged.len());
        value
    }

    /// Appends bytes by letting `fill` write over so many, and tell how many of them it wrote; none after an error.
    #[inline]
    pub(crate) fn stage_over<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        if self.filled == 0 && most > SMALL_STAGING {
            self.place(most);
        }
        let start = self.filled;
        if self.staged.len() < start + most {
            self.make_room(start + most);
            self.staged.resize(start + most, 0);
        }
        let written = fill(&mut self.staged[start..start + most])?;
        self.staged_to(start + written.min(most));
        Ok(())
    }

    /// Nothing is staged, and so many bytes will be: they begin where the kernel copies them from fast.
    fn place(&mut self, most: usize) {
        self.make_room(most + page_offset_buffer::PAGE);
        self.lead = page_offset_buffer::lead(&self.staged);
        self.filled = self.lead;
    }

    /// Sees to it that so many bytes of staging fit. What does not fit into a small buffer gets room for all of this batch at once: a vector that
    /// grows by itself may grow beyond what is worth keeping, is cut when the connection rests, and grows again.
    fn make_room(&mut self, len: usize) {
        if len > self.staged.capacity() && len > SMALL_STAGING {
            // Of a batch that may be longer than usual, too: how long those are depends on what was asked for and on pauses.
            let batch = if self.limit > STAGED_LIMIT {
                KEEP
            } else {
                STAGED_LIMIT + FPDU
            };
            self.staged
                .reserve_exact(len.max(batch) - self.staged.len());
        }
    }

    /// Staging is filled up to here now.
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

    /// Appends registered memory, to be gathered from where it lies.
    pub(crate) fn in_place(&mut self, run: PinnedRun) {
        self.framed += run.len() as u64;
        self.parts.push(Part::InPlace(run));
    }

    /// Appends memory that a peer reads, to be gathered from where it lies, until [`Self::reclaim`].
    pub(crate) fn lend(&mut self, run: LentRun) {
        self.framed += run.len() as u64;
        self.lent += run.len();
        self.parts.push(Part::Lent(run));
    }

    /// The call of the LLP is over, or the memory is needed: nothing is lent any more. What the LLP has not taken is copied.
    #[inline]
    pub(crate) fn reclaim(&mut self) {
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
        for (at, part) in self.parts.iter_mut().enumerate() {
            if let Part::Lent(run) = part {
                // Of the first one the LLP may have taken some.
                let skip = if at == 0 {
                    std::mem::take(&mut self.within)
                } else {
                    0
                };
                let start = self.filled;
                run.copy_to(skip, run.len() - skip, &mut self.staged);
                self.filled = self.staged.len();
                *part = Part::Staged(start..self.filled);
            }
        }
    }

    /// An FPDU (or a startup frame) ends here.
    #[inline]
    pub(crate) fn end_of_fpdu(&mut self) {
        self.ends.push(self.framed);
    }

    /// A Read or atomic of ours ends here.
    pub(crate) fn end_of_request(&mut self) {
        self.asked = self.framed;
    }

    /// Whether nothing was framed behind the last of these.
    #[inline]
    pub(crate) fn ends_with_request(&self) -> bool {
        self.asked == self.framed
    }

    /// The next bytes for the LLP, at most [`PARTS_PER_CALL`] pieces; returns how many were set.
    pub(crate) fn pieces<'a>(&'a self, out: &mut [Piece<'a>; PARTS_PER_CALL]) -> usize {
        let mut skip = self.within;
        let mut count = 0;
        for (slot, part) in out.iter_mut().zip(&self.parts[self.part..]) {
            *slot = self.piece(part, skip);
            skip = 0;
            count += 1;
        }
        count
    }

    /// All bytes for the LLP, where they are one piece: what was staged mostly is, and an array of pieces costs as much to
    /// make as a small message to frame.
    #[inline]
    pub(crate) fn single_piece(&self) -> Option<Piece<'_>> {
        match self.parts.get(self.part..) {
            Some([part]) => Some(self.piece(part, self.within)),
            _ => None,
        }
    }

    /// A part without its first bytes.
    #[inline]
    fn piece<'a>(&'a self, part: &'a Part, skip: usize) -> Piece<'a> {
        match part {
            Part::Staged(range) => Piece::from(&self.staged[range.start + skip..range.end]),
            Part::InPlace(run) => run.piece(skip),
            Part::Lent(run) => run.piece(skip),
        }
    }

    /// Where FPDUs end in what [`Self::pieces`] gives.
    pub(crate) fn fpdu_ends(&self) -> SendHints<'_> {
        SendHints::new(self.taken, &self.ends)
    }

    /// The LLP has taken `octets` more.
    pub(crate) fn taken(&mut self, octets: usize) {
        self.taken += octets as u64;
        let mut left = octets;
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

    /// Drops every FPDU of which the LLP has taken nothing. Of the one that is under way the rest
    /// is copied, so that no registered memory is needed any more. Returns how many bytes of the
    /// stream were un-framed.
    pub(crate) fn truncate(&mut self) -> u64 {
        self.cut(self.next_boundary())
    }

    /// Keeps everything, but copies what lies in registered memory, so that none is needed any more.
    pub(crate) fn settle(&mut self) {
        self.cut(self.framed);
    }

    /// A startup frame ends here: it is never dropped, whatever happens before the LLP has taken it.
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
                Part::InPlace(run) => run.copy_to(skip, len, &mut rest),
                Part::Lent(run) => run.copy_to(skip, len, &mut rest),
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

    /// The first FPDU boundary at or after what the LLP has taken.
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
mod tests {
    use super::*;

    fn batch_of(frames: &[&[u8]]) -> TxBatch {
        let mut batch = TxBatch::default();
        for frame in frames {
            batch.stage(|staged| staged.extend_from_slice(frame));
            batch.end_of_fpdu();
        }
        batch
    }

    fn rest(batch: &TxBatch) -> Vec<u8> {
        let mut out = Vec::new();
        let mut skip = batch.within;
        for part in &batch.parts[batch.part..] {
            match part {
                Part::Staged(range) => {
                    out.extend_from_slice(&batch.staged[range.start + skip..range.end]);
                }
                Part::InPlace(run) => run.copy_to(skip, run.len() - skip, &mut out),
                Part::Lent(run) => run.copy_to(skip, run.len() - skip, &mut out),
            }
            skip = 0;
        }
        out
    }

    #[test]
    fn truncate_keeps_the_fpdu_under_way_and_drops_the_rest() {
        for taken in 1..4 {
            let mut batch = batch_of(&[b"abcd", b"efgh", b"ijkl"]);
            batch.taken(taken);
            assert_eq!(batch.truncate(), 8);
            assert_eq!(rest(&batch), b"abcd"[taken..]);
        }
    }

    #[test]
    fn truncate_between_fpdus_drops_all_that_follows() {
        let mut batch = batch_of(&[b"abcd", b"efgh"]);
        batch.taken(4);
        assert_eq!(batch.truncate(), 4);
        assert!(batch.is_empty());
        assert_eq!(batch.framed_to(), 4);
    }

    #[test]
    fn truncate_before_the_first_octet_drops_everything() {
        let mut batch = batch_of(&[b"abcd", b"efgh"]);
        assert_eq!(batch.truncate(), 8);
        assert!(batch.is_empty());
        assert_eq!(batch.taken_to(), 0);
    }

    #[test]
    fn the_first_batch_after_a_pause_is_short() {
        let mut batch = TxBatch::default();
        // A short message before it is no beginning.
        batch.reset();
        batch.framed += 32;
        batch.goes_on();
        batch.taken = batch.framed;
        let mut lengths = Vec::new();
        for _ in 0..3 {
            batch.reset();
            let mut len = 0;
            while batch.has_room() {
                // In place in truth: what is staged has a limit of its own.
                batch.framed += 32 * 1024;
                len += 32;
            }
            batch.goes_on();
            batch.taken = batch.framed;
            lengths.push(len);
        }
        assert_eq!(lengths, [128, 1024, 1024]);
        // A program that posts again after a few polls goes on.
        (1..PAUSE).for_each(|_| batch.pauses());
        batch.reset();
        batch.framed += FIRST_BATCH as u64;
        assert!(batch.has_room());
        batch.goes_on();
        (1..PAUSE).for_each(|_| batch.pauses());
        assert!(batch.has_room());
        batch.pauses();
        assert!(!batch.has_room());
        batch.goes_on();
        assert!(batch.has_room());
        batch.sleeps();
        assert!(!batch.has_room());
    }

    #[test]
    fn staging_goes_back_when_there_is_nothing_to_send_also_without_a_part_that_used_it() {
        let pool = BufferPool::default();
        let mut batch = TxBatch::default();
        batch.reset();
        batch.stage(|staged| staged.resize(100_000, 0));
        batch.goes_on();
        batch.taken(100_000);
        // As `reclaim` does when what was lent has been taken.
        batch.reset();
        batch.rests(&pool);
        assert_eq!(batch.staged.capacity(), 0);
    }

    #[test]
    fn a_batch_is_followed_when_it_is_full_and_more_is_there_or_one_call_does_not_take_it() {
        let mut batch = TxBatch::default();
        batch.reset();
        batch.stage(|staged| staged.extend_from_slice(&[0; 1024]));
        batch.goes_on();
        assert!(
            !batch.is_followed(true),
            "what is unsent is held back: nobody knows for how long"
        );
        batch.stage(|staged| staged.extend_from_slice(&[0; FIRST_BATCH]));
        batch.goes_on();
        assert!(batch.is_followed(true));
        assert!(!batch.is_followed(false));
        for at in 0..PARTS_PER_CALL {
            batch.parts.push(Part::Staged(at..at));
        }
        assert!(batch.is_followed(false));
    }

    #[test]
    fn a_batch_has_a_whole_response_or_half_of_what_was_asked_for_but_what_it_may_have_anyway() {
        let mut batch = TxBatch {
            begun: true,
            ..TxBatch::default()
        };
        let mut staged = |(next, behind): (u64, u64)| {
            batch.reset();
            batch.allow(next, behind);
            let mut len = 0;
            while batch.has_room() {
                let filled = batch.stage_over(32 * 1024, |out| Ok::<_, ()>(out.len()));
                filled.unwrap();
                len += 32;
            }
            batch.taken(len * 1024);
            len
        };
        let small = 64 << 10;
        let many = [0, 448 << 10, 960 << 10, 64 << 20].map(|behind| (small, behind));
        assert_eq!(many.map(&mut staged), [256, 256, 512, 1024]);
        let large = 768 << 10;
        let few = [(large, 0), (large, small), (4 << 20, 0), (0, large)];
        assert_eq!(few.map(&mut staged), [768, 768, 1024, 384]);
    }

    #[test]
    fn staging_that_has_grown_keeps_its_memory_when_the_connection_rests() {
        let mut batch = TxBatch::default();
        let mut stage = |octets: usize| {
            batch.reset();
            let filled = batch.stage_over(octets, |out| Ok::<_, ()>(out.len()));
            filled.unwrap();
            batch.taken(octets);
            batch.release();
            (batch.staged.capacity(), batch.staged.as_ptr().addr())
        };
        let small = stage(1000);
        assert!(small.0 <= SMALL_STAGING);
        let grown = stage(SMALL_STAGING + 1);
        assert_eq!(grown.0, STAGED_LIMIT + FPDU);
        assert_eq!(stage(STAGED_LIMIT + 65_000), grown);
        let most = stage(BATCH_LIMIT + FPDU - page_offset_buffer::PAGE);
        assert_eq!(most.0, KEEP);
        assert_eq!(stage(BATCH_LIMIT + 65_000), most);
    }

    #[test]
    fn what_is_large_is_staged_from_the_middle_of_a_page() {
        let mut batch = TxBatch::default();
        for (octets, within) in [(1000, None), (65_000, Some(2048)), (200_000, Some(2048))] {
            batch.reset();
            let filled = batch.stage_over(octets, |out| Ok::<_, ()>(out.len()));
            filled.unwrap();
            assert_eq!((batch.left(), batch.parts.len()), (octets, 1));
            let Part::Staged(range) = &batch.parts[0] else {
                panic!("it is not staged");
            };
            let at = batch.staged[range.start..].as_ptr().addr();
            assert!(within.is_none_or(|within| at % 4096 == within), "{octets}");
            batch.taken(octets);
        }
        // What is left unused in front of it is not counted.
        batch.reset();
        for (octets, room) in [(65_000, true), (STAGED_LIMIT - 65_001, true), (1, false)] {
            batch.begun = true;
            let filled = batch.stage_over(octets, |out| Ok::<_, ()>(out.len()));
            filled.unwrap();
            assert_eq!(batch.has_room(), room, "{octets}");
        }
    }

    #[test]
    fn truncate_never_drops_a_startup_frame() {
        let mut batch = TxBatch::default();
        batch.stage(|staged| staged.extend_from_slice(b"reply"));
        batch.end_of_startup();
        batch.stage(|staged| staged.extend_from_slice(b"fpdu"));
        batch.end_of_fpdu();
        assert_eq!(batch.truncate(), 4);
        assert_eq!(rest(&batch), b"reply");
    }

    #[test]
    fn truncate_twice_is_the_same_as_once() {
        let mut batch = batch_of(&[b"abcd", b"efgh"]);
        batch.taken(2);
        assert_eq!(batch.truncate(), 4);
        assert_eq!(batch.truncate(), 0);
        assert_eq!(rest(&batch), b"cd");
    }

    #[test]
    fn a_part_taken_in_pieces_is_offered_from_where_it_stopped() {
        let mut batch = batch_of(&[b"abcd", b"efgh"]);
        batch.taken(3);
        batch.taken(2);
        assert_eq!(rest(&batch), b"fgh");
        batch.taken(3);
        assert!(batch.is_empty());
    }
}
