//! Batching of posted requests: decides whether a request is sent at once or together with later
//! ones.
//!
//! The system call dominates the cost of a small message. A program that posts several requests
//! before it polls does not wait for the completion of the first. The later ones may therefore wait
//! for that poll. The first one may wait as well if the program posted several requests before its
//! last poll, or posts a long list now. If a program posts one request at a time and polls until it
//! completes, each request is sent at once.
//!
//! A *turn* of the connection receives and sends, see [`super::drive`]. A poll usually runs one.

use crate::policy::progress::{DOORBELL_BYTES, DOORBELL_REQUESTS, LONG_LIST};
use uwarp_engine::connection::SendQueue;

/// Batching state of one QP. A *staged* request is posted, but deliberately not sent yet.
///
/// Times are in nanoseconds of the device's clock (`DeviceInner::clock`). A post and the poll after
/// it make five comparisons of times. The difference of two `Instant`s would cost 40 instructions.
#[derive(Default, Debug)]
pub(crate) struct Doorbell {
    /// Number of posts since the last turn, or since the last poll that took completions.
    posts: u32,
    /// Value of `posts` at the end of the last interval in which it was not zero.
    burst: u32,
    /// Poll count of the CQs at the last check.
    polls: u32,
    /// Time at which the program was last known to poll, moved forward by the time that its posts
    /// spent sending.
    polled_at: Option<u64>,
    /// Time of the last post, or of the last turn that a poll ran.
    seen_at: Option<u64>,
    /// Number of staged requests, and below it the number of their bytes.
    requests: u64,
    bytes: u64,
    /// Time at which the oldest staged request was posted.
    since: Option<u64>,
}

impl Doorbell {
    /// Adds the requests of a post to the staged ones. `before`: value of [`SendQueue::posted`]
    /// before the post.
    ///
    /// Returns true if the staged requests have to be sent now: they make a full batch, or the
    /// oldest has waited longer than `takeover`. The latter happens if every poll finds
    /// completions.
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
        self.requests >= DOORBELL_REQUESTS
            || self.bytes >= DOORBELL_BYTES
            || now.saturating_sub(since) > takeover
    }

    /// Records at a post whether the program has taken completions since the last post. `polls`:
    /// poll count of the CQs.
    ///
    /// The times of those polls are unknown. They count as a poll at `now` if the last post or turn
    /// was less than `takeover` ago.
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

    /// Records the end of a turn that a poll ran.
    pub(crate) fn polled(&mut self, now: u64) {
        (self.polled_at, self.seen_at) = (Some(now), Some(now));
    }

    /// Records that the program is about to sleep, so it no longer counts as polling.
    pub(crate) fn sleeps(&mut self) {
        (self.polled_at, self.seen_at) = (None, None);
    }

    /// Records the time that a post spent sending, during which the program could not poll.
    pub(crate) fn pushed(&mut self, began: u64, ended: u64) {
        let took = ended.saturating_sub(began);
        self.polled_at = self.polled_at.map(|at| at.saturating_add(took));
        self.seen_at = Some(ended);
    }

    /// Returns true if the program polled less than `takeover` ago.
    pub(crate) fn is_polling(&self, now: u64, takeover: u64) -> bool {
        is_within(self.polled_at, now, takeover)
    }

    /// Returns true if there was one post since the last poll and no more are expected, because the
    /// previous interval had at most one as well.
    pub(crate) fn is_single(&self) -> bool {
        self.posts == 1 && self.burst <= 1
    }

    /// Returns true if requests are staged.
    pub(crate) fn is_staged(&self) -> bool {
        self.requests > 0
    }

    /// Records that all staged requests are being sent.
    pub(crate) fn sent(&mut self) {
        self.requests = 0;
        self.bytes = 0;
        self.since = None;
    }

    /// Records the start of a turn, which ends the current interval of posts.
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
