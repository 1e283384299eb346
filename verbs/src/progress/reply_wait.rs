//! Programs that look at memory: they poll until their own Write has completed, and then wait for the peer's, which completes nothing here,
//! without a call of ours. Only another thread could place it, and that thread wants the processor on which the program spins. So the
//! poll that gives such a program its completion waits a moment for the bytes that the program is about to look for.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a poll waits at most, not counting what other threads ran in.
pub(crate) const MOMENT: Duration = Duration::from_micros(20);
/// How long it does so before it lets other threads run on its processor between two looks: those that wait for a processor are perhaps
/// those that it waits for. Programs that look at their memory never let anybody run, each for milliseconds at a time.
pub(crate) const ALONE: Duration = Duration::from_micros(5);
/// How often one poll lets others run, at most: each may have the processor for some milliseconds.
pub(crate) const YIELDS: u32 = 8;
/// Looks of one poll, at most: a clock may stand still.
pub(crate) const LOOKS: usize = 256;
/// Signs that it takes to begin with.
const SIGNS: u32 = 4;
/// Signs that it takes at most, when it was in vain again and again.
const MOST_SIGNS: u32 = 4096;
/// Moments in a row that may be in vain.
const VAIN: u32 = 4;

/// Whether polls of a CQ wait a moment for what the peer answers. Several threads may count at once; a count that is lost does not matter.
///
/// ```text
///        bytes came while nobody polled, completed nothing,
///        and completions had been taken before: `signs` times
///   no ──────────────────────────────────────────────────────► yes
///    ▲                                                          │
///    ├────────── nothing came, four times in a row ─────────────┤
///    │           (then twice as many signs are wanted)          │
///    └────────── the program asked for an event ────────────────┘
/// ```
#[derive(Debug)]
pub(crate) struct ReplyWait {
    /// Moments that may still be in vain; 0: polls do not wait.
    left: AtomicU32,
    seen: AtomicU32,
    wanted: AtomicU32,
    /// The polls of the CQ at the last sign.
    polls: AtomicU32,
    /// How often the background received bytes that completed nothing.
    unseen: AtomicU32,
}

impl Default for ReplyWait {
    fn default() -> Self {
        ReplyWait {
            left: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            wanted: AtomicU32::new(SIGNS),
            polls: AtomicU32::new(0),
            unseen: AtomicU32::new(0),
        }
    }
}

impl ReplyWait {
    /// Whether a poll with a completion is to wait a moment.
    #[inline]
    pub(crate) fn is_expected(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Another number when the background has received bytes that completed nothing.
    pub(crate) fn unseen(&self) -> u32 {
        self.unseen.load(Ordering::Relaxed)
    }

    /// The background has received bytes that completed nothing; `polls` is another number after completions were taken.
    pub(crate) fn sign(&self, polls: u32) {
        self.unseen.fetch_add(1, Ordering::Relaxed);
        if self.is_expected() || self.polls.swap(polls, Ordering::Relaxed) == polls {
            return;
        }
        let seen = self.seen.load(Ordering::Relaxed) + 1;
        if seen < self.wanted.load(Ordering::Relaxed) {
            self.seen.store(seen, Ordering::Relaxed);
            return;
        }
        self.seen.store(0, Ordering::Relaxed);
        self.left.store(VAIN, Ordering::Relaxed);
    }

    /// The program has asked for an event: it sleeps until there is one, and looks at no memory.
    pub(crate) fn sleeps(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
    }

    /// A poll has waited, and something came.
    pub(crate) fn came(&self) {
        self.left.store(VAIN, Ordering::Relaxed);
        self.wanted.store(SIGNS, Ordering::Relaxed);
    }

    /// A poll has waited in vain.
    pub(crate) fn in_vain(&self) {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(1);
        self.left.store(left, Ordering::Relaxed);
        if left == 0 {
            let wanted = self.wanted.load(Ordering::Relaxed);
            let wanted = wanted.saturating_mul(2).min(MOST_SIGNS);
            self.wanted.store(wanted, Ordering::Relaxed);
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
        signs(&reply, &mut polls, SIGNS - 1);
        assert!(!reply.is_expected());
        // Nothing was taken since: the program does not answer.
        for _ in 0..100 {
            reply.sign(polls);
        }
        assert!(!reply.is_expected());
        signs(&reply, &mut polls, 1);
        assert!(reply.is_expected());
    }

    #[test]
    fn it_is_expected_no_more_after_some_in_vain_and_takes_more_signs_then() {
        let (reply, mut polls) = (ReplyWait::default(), 0);
        signs(&reply, &mut polls, SIGNS);
        for _ in 0..VAIN {
            assert!(reply.is_expected());
            reply.in_vain();
        }
        assert!(!reply.is_expected());
        signs(&reply, &mut polls, 2 * SIGNS - 1);
        assert!(!reply.is_expected());
        signs(&reply, &mut polls, 1);
        assert!(reply.is_expected());
        // One that comes makes up for all.
        reply.in_vain();
        reply.came();
        for _ in 0..VAIN {
            assert!(reply.is_expected());
            reply.in_vain();
        }
        signs(&reply, &mut polls, 2 * SIGNS);
        assert!(reply.is_expected());
    }

    /// A message that the far side takes; nothing follows it.
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
        let shared = Arc::clone(world.far_cq.shared());
        for _ in 0..SIGNS {
            assert!(!shared.expects_reply());
            one_message(&world);
            shared.received_unseen(shared.inner.polls());
        }
        assert!(shared.expects_reply());
        // Each of these polls waits its moment, and nothing comes.
        for _ in 0..VAIN {
            assert!(shared.expects_reply());
            one_message(&world);
        }
        assert!(!shared.expects_reply());
    }

    #[test]
    fn nothing_is_expected_once_the_program_has_asked_for_an_event() {
        let world = World::new();
        let shared = Arc::clone(world.far_cq.shared());
        for _ in 0..SIGNS {
            one_message(&world);
            shared.received_unseen(shared.inner.polls());
        }
        assert!(shared.expects_reply());
        assert!(!world.far_cq.req_notify(Notify::Any));
        assert!(!shared.expects_reply());
        // The signs are counted anew, too.
        let (reply, mut polls) = (ReplyWait::default(), 0);
        signs(&reply, &mut polls, SIGNS - 1);
        reply.sleeps();
        signs(&reply, &mut polls, 1);
        assert!(!reply.is_expected());
    }

    #[test]
    fn the_signs_that_it_takes_have_a_bound() {
        let (reply, mut polls) = (ReplyWait::default(), 0);
        for _ in 0..20 {
            signs(&reply, &mut polls, MOST_SIGNS);
            assert!(reply.is_expected());
            (0..VAIN).for_each(|_| reply.in_vain());
        }
    }
}
