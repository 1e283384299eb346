//! When a post goes out: at once, or together with those that follow it.
//!
//! One system call for each small message is what they cost most. A program that posts one request after the other
//! before it polls again is not waiting for the first of them, so all but the first may wait for
//! the poll; and the first one, too, when it posted several the last time, or a long list now. A program that posts one request, polls, and
//! posts the next when that is complete, has each sent at once.

use crate::engine::SendQueue;

/// So many requests are a batch: with more, the system call costs each of them next to nothing less.
const REQUESTS: u64 = 256;
/// So many bytes are a batch.
const OCTETS: u64 = 1024 * 1024;
/// So many requests in one list are as good as several posts: a program that waits for the first of them has not posted
/// so many.
const LIST: u64 = 16;
/// What counts for a request whose bytes the peer sends.
pub(crate) const REQUEST_OCTETS: u64 = 64;

/// What was posted and not given to the LLP yet, on purpose. Times are nanoseconds by the clock of the device
/// (`DeviceInner::clock`): there are five looks at them in a post and the poll behind it, and the difference of two `Instant`s costs 40
/// instructions.
#[derive(Default, Debug)]
pub(crate) struct Doorbell {
    /// Posts since the last turn, and since completions were last taken.
    posts: u32,
    /// How many there were before that.
    burst: u32,
    /// What the CQs counted when that was looked at.
    polls: u32,
    /// When the program was last seen to poll. Time in our own calls counts for nothing.
    polled_at: Option<u64>,
    /// When its last post or its last poll without completions ended.
    seen_at: Option<u64>,
    /// Requests and bytes that wait.
    requests: u64,
    octets: u64,
    /// Since when.
    since: Option<u64>,
}

impl Doorbell {
    /// A post, before which `sq` had posted up to `before` (see [`SendQueue::posted`]). True when what waits is enough to go,
    /// or the first of it has waited for longer than `most`, because the polls find other things.
    pub(crate) fn posted(
        &mut self,
        sq: &SendQueue,
        before: (u64, u64),
        now: u64,
        most: u64,
    ) -> bool {
        let (to, octets) = sq.posted();
        if before.0 == to {
            // Refused.
            return false;
        }
        let requests = to.saturating_sub(before.0);
        let posts = if requests >= LIST { 2 } else { 1 };
        self.posts = self.posts.saturating_add(posts);
        let since = *self.since.get_or_insert(now);
        self.requests += requests;
        self.octets = self.octets.saturating_add(octets.wrapping_sub(before.1));
        self.requests >= REQUESTS || self.octets >= OCTETS || now.saturating_sub(since) > most
    }

    /// A post: looks whether completions were taken since the last one; `polls` is what the CQs count. When they were taken
    /// nobody has noted. So that counts as a poll of now only when the program was here less than `most` ago.
    pub(crate) fn look(&mut self, polls: u32, now: u64, most: u64) {
        if self.polls != polls {
            self.polls = polls;
            self.burst_ends();
            if is_within(self.seen_at, now, most) {
                self.polled_at = Some(now);
            }
        }
        self.seen_at = Some(now);
    }

    /// A poll has given the connection a turn, which ended now.
    pub(crate) fn polled(&mut self, now: u64) {
        (self.polled_at, self.seen_at) = (Some(now), Some(now));
    }

    /// The program is about to sleep.
    pub(crate) fn sleeps(&mut self) {
        (self.polled_at, self.seen_at) = (None, None);
    }

    /// A post has given bytes to the LLP, and could not poll meanwhile.
    pub(crate) fn pushed(&mut self, began: u64, ended: u64) {
        let took = ended.saturating_sub(began);
        self.polled_at = self.polled_at.map(|at| at.saturating_add(took));
        self.seen_at = Some(ended);
    }

    /// Whether the program has polled less than `most` ago.
    pub(crate) fn is_polling(&self, now: u64, most: u64) -> bool {
        is_within(self.polled_at, now, most)
    }

    /// Whether there was one post since then, and more are not to be expected: there was one the last time, too.
    pub(crate) fn is_single(&self) -> bool {
        self.posts == 1 && self.burst <= 1
    }

    /// Whether something waits.
    pub(crate) fn is_staged(&self) -> bool {
        self.requests > 0
    }

    /// Everything that was posted goes to the LLP now.
    pub(crate) fn sent(&mut self) {
        self.requests = 0;
        self.octets = 0;
        self.since = None;
    }

    /// A turn begins.
    pub(crate) fn turn(&mut self) {
        self.burst_ends();
    }

    fn burst_ends(&mut self) {
        if self.posts > 0 {
            self.burst = std::mem::take(&mut self.posts);
        }
    }
}

fn is_within(at: Option<u64>, now: u64, most: u64) -> bool {
    at.is_some_and(|at| now.saturating_sub(at) < most)
}
