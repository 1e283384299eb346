//! When a post goes out: at once, or together with those that follow it.
//!
//! One system call for each small message is what they cost most. A program that posts one request after the other
//! before it polls again is not waiting for the first of them, so all but the first may wait for
//! the poll; and the first one, too, when it posted several the last time. What was posted alone never waits.

use std::time::{Duration, Instant};

use crate::engine::SendQueue;

/// So many requests are a batch: with more, the system call costs each of them next to nothing less.
const REQUESTS: usize = 256;
/// So many octets are a batch.
const OCTETS: u64 = 1024 * 1024;
/// Octets that a request asks the peer for cost this many here.
const REQUEST: u64 = 64;

/// What was posted and not given to the LLP yet, on purpose.
#[derive(Default, Debug)]
pub(crate) struct Doorbell {
    /// Posts since the last turn, and since completions were last taken.
    posts: u32,
    /// How many there were before that.
    burst: u32,
    /// What the CQs counted when that was looked at.
    polls: u32,
    /// Requests and octets that wait.
    requests: usize,
    octets: u64,
    /// Since when.
    since: Option<Instant>,
}

impl Doorbell {
    /// A post: all requests of the queue from this sequence number on were just posted. True when they are enough to go,
    /// or the first of them has waited for longer than `most`, because the polls find other things.
    pub(crate) fn posted(
        &mut self,
        sq: &SendQueue,
        from: u64,
        now: Instant,
        most: Duration,
    ) -> bool {
        self.posts = self.posts.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        for sequence in from..sq.posted_to() {
            let Some(wqe) = sq.get(sequence) else {
                continue;
            };
            self.requests += 1;
            self.octets += match wqe.op.awaits_response() {
                true => REQUEST,
                false => u64::from(wqe.len),
            };
        }
        self.requests >= REQUESTS
            || self.octets >= OCTETS
            || now.saturating_duration_since(since) > most
    }

    /// Whether completions were taken since this was last asked; `polls` is what the CQs count.
    pub(crate) fn was_polled(&mut self, polls: u32) -> bool {
        let polled = self.polls != polls;
        self.polls = polls;
        if polled {
            self.burst_ends();
        }
        polled
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
