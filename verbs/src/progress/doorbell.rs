//! Batching of posted requests: decides whether a post is sent at once or together with later ones.
//!
//! The system call dominates the cost of a small message. A program that posts several requests
//! before it polls again does not wait for the first of them, so all but the first may wait for
//! that poll. The first one may wait as well if the program posted several requests the last time,
//! or posts a long list now. A program that posts one request, polls until it completes, and posts
//! the next has each of them sent at once.
//!
//! For 8-byte Writes, one a post, the processor time of the sender went from 6,600 to 560 ns.

use crate::engine::SendQueue;

/// Number of staged requests that make a full batch. Larger batches save next to nothing per
/// request.
const BATCH_REQUESTS: u64 = 256;
/// Number of staged bytes that make a full batch.
const BATCH_BYTES: u64 = 1024 * 1024;
/// Length from which a list counts as several posts: a program that waits for its first request
/// would not post so many.
const LONG_LIST: u64 = 16;
/// Bytes counted for a request whose payload the peer sends.
pub(crate) const REQUEST_OCTETS: u64 = 64;

/// Requests that were posted and deliberately not given to the LLP yet.
///
/// Times are nanoseconds by the clock of the device (`DeviceInner::clock`): a post and the poll
/// after it check the time five times, and the difference of two `Instant`s costs 40 instructions.
#[derive(Default, Debug)]
pub(crate) struct Doorbell {
    /// Posts since the last turn or the last poll with completions.
    posts: u32,
    /// Number of posts in the interval before that.
    burst: u32,
    /// Poll count of the CQs at the last check.
    polls: u32,
    /// Time at which the program was last seen polling. Moved forward by the time spent in calls of
    /// this library.
    polled_at: Option<u64>,
    /// End of the last post or the last poll without completions.
    seen_at: Option<u64>,
    /// Number and bytes of the staged requests.
    requests: u64,
    bytes: u64,
    /// Time at which the first of them was staged.
    since: Option<u64>,
}

impl Doorbell {
    /// Records a post. `before`: value of [`SendQueue::posted`] before it. Returns true if the
    /// staged requests make a full batch. Returns true as well if the first of them has waited
    /// longer than `takeover`, which happens if every poll finds completions.
    pub(crate) fn posted(
        &mut self,
        sq: &SendQueue,
        before: (u64, u64),
        now: u64,
        takeover: u64,
    ) -> bool {
        let (to, bytes) = sq.posted();
        if before.0 == to {
            // The post was refused.
            return false;
        }
        let requests = to.saturating_sub(before.0);
        let posts = if requests >= LONG_LIST { 2 } else { 1 };
        self.posts = self.posts.saturating_add(posts);
        let since = *self.since.get_or_insert(now);
        self.requests += requests;
        self.bytes = self.bytes.saturating_add(bytes.wrapping_sub(before.1));
        self.requests >= BATCH_REQUESTS
            || self.bytes >= BATCH_BYTES
            || now.saturating_sub(since) > takeover
    }

    /// Checks at a post whether the program took completions since the last one, by the poll count
    /// `polls` of the CQs. The time of those polls is not recorded, so they count as a poll now
    /// only if the program was seen less than `takeover` ago.
    pub(crate) fn note_polls(&mut self, polls: u32, now: u64, takeover: u64) {
        if self.polls != polls {
            self.polls = polls;
            self.burst_ends();
            if is_within(self.seen_at, now, takeover) {
                self.polled_at = Some(now);
            }
        }
        self.seen_at = Some(now);
    }

    /// Records the end of a turn given by a poll.
    pub(crate) fn polled(&mut self, now: u64) {
        (self.polled_at, self.seen_at) = (Some(now), Some(now));
    }

    /// Records that the program is about to sleep.
    pub(crate) fn sleeps(&mut self) {
        (self.polled_at, self.seen_at) = (None, None);
    }

    /// Records a post that gave bytes to the LLP, during which the program could not poll.
    pub(crate) fn pushed(&mut self, began: u64, ended: u64) {
        let took = ended.saturating_sub(began);
        self.polled_at = self.polled_at.map(|at| at.saturating_add(took));
        self.seen_at = Some(ended);
    }

    /// Returns true if the program polled less than `takeover` ago.
    pub(crate) fn is_polling(&self, now: u64, takeover: u64) -> bool {
        is_within(self.polled_at, now, takeover)
    }

    /// Returns true if this is the only post since the last poll and no more are expected, because
    /// there was also only one the last time.
    pub(crate) fn is_single(&self) -> bool {
        self.posts == 1 && self.burst <= 1
    }

    /// Returns true if requests are staged.
    pub(crate) fn is_staged(&self) -> bool {
        self.requests > 0
    }

    /// Records that all staged requests go to the LLP.
    pub(crate) fn sent(&mut self) {
        self.requests = 0;
        self.bytes = 0;
        self.since = None;
    }

    /// Records the start of a turn.
    pub(crate) fn turn(&mut self) {
        self.burst_ends();
    }

    fn burst_ends(&mut self) {
        if self.posts > 0 {
            self.burst = std::mem::take(&mut self.posts);
        }
    }
}

fn is_within(at: Option<u64>, now: u64, takeover: u64) -> bool {
    at.is_some_and(|at| now.saturating_sub(at) < takeover)
}
