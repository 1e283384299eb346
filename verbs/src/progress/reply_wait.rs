//! Brief wait of a poll for the peer's reply, for programs that watch memory.
//!
//! Such a program polls until its own Write completes, and then reads memory until the peer's Write
//! has arrived. The peer's Write produces no completion on this side, and the program makes no call
//! while it reads memory. Only another thread could place the Write, but the program may occupy the
//! processor that the other thread needs. Therefore the poll that returns the completion waits
//! briefly for the bytes of the reply.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::policy::progress::{REPLY_MISSES, REPLY_SIGNS, REPLY_SIGNS_MAX};
use crate::policy::{Heuristic, is_on};

/// Decides whether polls of a CQ wait briefly for the peer's reply.
///
/// It counts *signs*. A sign occurs when the background receives bytes that complete nothing, and
/// the program has taken completions since the last sign. If several threads count at once, a count
/// may be lost, which does no harm.
///
/// ```text
///                            `signs_needed` signs
///   disabled ──────────────────────────────────────────────► enabled
///       ▲                                                       │
///       ├────── no reply in `REPLY_MISSES` waits in a row ──────┤
///       │       (then twice as many signs are needed)           │
///       └────── the program asked for an event ─────────────────┘
/// ```
#[derive(Debug)]
pub(crate) struct ReplyWait {
    /// Number of further waits without a reply that disable the wait; 0 if it is disabled.
    misses_left: AtomicU32,
    signs: AtomicU32,
    signs_needed: AtomicU32,
    /// Poll count of the CQ at the last sign.
    polls: AtomicU32,
    /// Number of times the background received bytes that completed nothing.
    unseen: AtomicU32,
}

impl Default for ReplyWait {
    fn default() -> Self {
        ReplyWait {
            misses_left: AtomicU32::new(0),
            signs: AtomicU32::new(0),
            signs_needed: AtomicU32::new(REPLY_SIGNS),
            polls: AtomicU32::new(0),
            unseen: AtomicU32::new(0),
        }
    }
}

impl ReplyWait {
    /// Returns true if the wait is enabled: a poll that returns a completion then waits briefly.
    #[inline]
    pub(crate) fn is_expected(&self) -> bool {
        is_on(Heuristic::ReplyWait) && self.misses_left.load(Ordering::Relaxed) > 0
    }

    /// Returns a count that changes whenever the background receives bytes that complete nothing.
    pub(crate) fn unseen(&self) -> u32 {
        self.unseen.load(Ordering::Relaxed)
    }

    /// Records that the background received bytes that completed nothing. `polls`: a count that
    /// changes when completions are taken.
    pub(crate) fn sign(&self, polls: u32) {
        self.unseen.fetch_add(1, Ordering::Relaxed);
        if self.is_expected() || self.polls.swap(polls, Ordering::Relaxed) == polls {
            return;
        }
        let signs = self.signs.load(Ordering::Relaxed) + 1;
        if signs < self.signs_needed.load(Ordering::Relaxed) {
            self.signs.store(signs, Ordering::Relaxed);
            return;
        }
        self.signs.store(0, Ordering::Relaxed);
        self.misses_left.store(REPLY_MISSES, Ordering::Relaxed);
    }

    /// Disables the wait, because the program has requested an event. It will sleep until the
    /// event, and does not watch memory.
    pub(crate) fn disable(&self) {
        self.misses_left.store(0, Ordering::Relaxed);
        self.signs.store(0, Ordering::Relaxed);
    }

    /// Records a wait that ended with a reply.
    pub(crate) fn answered(&self) {
        self.misses_left.store(REPLY_MISSES, Ordering::Relaxed);
        self.signs_needed.store(REPLY_SIGNS, Ordering::Relaxed);
    }

    /// Records a wait without a reply.
    pub(crate) fn missed(&self) {
        let misses_left = self.misses_left.load(Ordering::Relaxed).saturating_sub(1);
        self.misses_left.store(misses_left, Ordering::Relaxed);
        if misses_left == 0 {
            let signs_needed = self.signs_needed.load(Ordering::Relaxed);
            let signs_needed = signs_needed.saturating_mul(2).min(REPLY_SIGNS_MAX);
            self.signs_needed.store(signs_needed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::until;
    use crate::progress::orphan_polling::tests::World;
    use crate::{Notify, RecvWr, SendWr};

    fn signs(reply: &ReplyWait, polls: &mut u32, count: u32) {
        for _ in 0..count {
            *polls += 1;
            reply.sign(*polls);
        }
    }

    #[test]
    fn a_reply_is_expected_after_some_that_came_unseen() {
        let (reply, mut polls) = (ReplyWait::default(), 0);
        signs(&reply, &mut polls, REPLY_SIGNS - 1);
        assert!(!reply.is_expected());
        // The program took no completions since the last sign, so these arrivals do not count as
        // signs.
        for _ in 0..100 {
            reply.sign(polls);
        }
        assert!(!reply.is_expected());
        signs(&reply, &mut polls, 1);
        assert!(reply.is_expected());
    }

    #[test]
    fn it_is_no_longer_expected_after_some_misses_and_takes_more_signs_then() {
        let (reply, mut polls) = (ReplyWait::default(), 0);
        signs(&reply, &mut polls, REPLY_SIGNS);
        for _ in 0..REPLY_MISSES {
            assert!(reply.is_expected());
            reply.missed();
        }
        assert!(!reply.is_expected());
        signs(&reply, &mut polls, 2 * REPLY_SIGNS - 1);
        assert!(!reply.is_expected());
        signs(&reply, &mut polls, 1);
        assert!(reply.is_expected());
        // One reply resets the number of misses, and the number of signs that are needed.
        reply.missed();
        reply.answered();
        for _ in 0..REPLY_MISSES {
            assert!(reply.is_expected());
            reply.missed();
        }
        signs(&reply, &mut polls, 2 * REPLY_SIGNS);
        assert!(reply.is_expected());
    }

    /// Sends one message to the far side, and takes the completions of both sides. No reply
    /// follows.
    fn one_message(world: &World) {
        let World {
            near_cq,
            near_qp,
            far_cq,
            far_qp,
            ..
        } = world;
        far_qp.post_recv(&RecvWr::new(7, &[])).unwrap();
        near_qp.post_send(&SendWr::send(1, &[])).unwrap();
        until(|| near_cq.poll_one().is_some());
        until(|| far_cq.poll_one().is_some());
    }

    #[test]
    fn a_poll_that_takes_the_last_completion_waits_for_what_is_expected() {
        let world = World::new();
        let shared = Arc::clone(world.far_cq.shared().unwrap());
        for _ in 0..REPLY_SIGNS {
            assert!(!shared.expects_reply());
            one_message(&world);
            shared.received_unseen(shared.inner.polls());
        }
        assert!(shared.expects_reply());
        // Each of these polls waits for its full time, and no reply arrives.
        for _ in 0..REPLY_MISSES {
            assert!(shared.expects_reply());
            one_message(&world);
        }
        assert!(!shared.expects_reply());
    }

    #[test]
    fn nothing_is_expected_once_the_program_has_asked_for_an_event() {
        let world = World::new();
        let shared = Arc::clone(world.far_cq.shared().unwrap());
        for _ in 0..REPLY_SIGNS {
            one_message(&world);
            shared.received_unseen(shared.inner.polls());
        }
        assert!(shared.expects_reply());
        assert!(!world.far_cq.req_notify(Notify::Any));
        assert!(!shared.expects_reply());
        // The count of signs restarts as well.
        let (reply, mut polls) = (ReplyWait::default(), 0);
        signs(&reply, &mut polls, REPLY_SIGNS - 1);
        reply.disable();
        signs(&reply, &mut polls, 1);
        assert!(!reply.is_expected());
    }

    #[test]
    fn the_signs_that_it_takes_have_a_bound() {
        let (reply, mut polls) = (ReplyWait::default(), 0);
        for _ in 0..20 {
            signs(&reply, &mut polls, REPLY_SIGNS_MAX);
            assert!(reply.is_expected());
            (0..REPLY_MISSES).for_each(|_| reply.missed());
        }
    }
}
