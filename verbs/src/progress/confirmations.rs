//! Decides when the Writes of the peer are confirmed: at once, or together with what the program
//! posts next.
//!
//! A Write that completes at its placement ([`Settings::placed_writes`](crate::Settings)) is
//! confirmed by an empty RDMA Read, whose Response this side owes. Two programs that answer each
//! other's Writes would send two segments each: the Response, and then the own Write. If the
//! Response waits for the Write, one segment has both, and one poll of the peer finds both.
//!
//! ```text
//!             a post has followed each of the last 3 Responses
//!   ┌─────────┐ ────────────────────────────────► ┌──────┐
//!   │ at once │                                   │ late │
//!   └─────────┘ ◄──────────────────────────────── └──────┘
//!        post (one segment), or any turn (then the count begins again)
//! ```
//!
//! Only Responses to empty Reads wait, and only if nothing else is to be sent and no thread or task
//! sleeps until something happens. In a poll they also wait only if the poll has completed a
//! request of the program, which is then about to act. If no post comes, the next poll sends them,
//! or the background after the same time as staged requests
//! ([`Qp::post_send`](crate::Qp::post_send)). None waits any more when the process exits
//! ([`Device::finish_confirmations`](crate::Device::finish_confirmations)).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::device::Device;
use crate::policy::progress::{EXIT_CHECK, POST_FOLLOWS, RESPONSES_FOLLOWED};
use crate::policy::{Heuristic, is_on};

/// Thread that gives a turn, at a time of the device's clock in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Giver {
    /// A thread of the program that calls again soon.
    Poll {
        at: u64,
    },
    Background {
        at: u64,
    },
    /// A thread that may not call again, or one while another sleeps.
    Other,
}

/// Confirmations of a device.
#[derive(Default, Debug)]
pub(crate) struct AllConfirmations {
    /// Number of QPs whose Responses wait.
    late: AtomicU32,
    /// The process exits.
    exits: AtomicBool,
}

impl AllConfirmations {
    /// Returns true if none may wait any more.
    pub(crate) fn process_exits(&self) -> bool {
        self.exits.load(Ordering::Relaxed)
    }
}

impl Device {
    /// Makes confirmations of the peers' Writes wait for no post of the program any more
    /// ([`Settings::placed_writes`](crate::Settings::placed_writes)). Returns when all that have
    /// waited are sent, or after `limit`.
    ///
    /// For a process that exits without destroying its QPs: a peer takes a Write that is not
    /// confirmed for one that has failed. Takes no lock, so that a signal handler may call it.
    pub fn finish_confirmations(&self, limit: Duration) {
        let Ok(inner) = self.inner() else {
            return;
        };
        let all = &inner.confirmations;
        all.exits.store(true, Ordering::Relaxed);
        let mut left = limit;
        while all.late.load(Ordering::Relaxed) > 0 && !left.is_zero() {
            thread::sleep(EXIT_CHECK);
            left = left.saturating_sub(EXIT_CHECK);
        }
    }
}

/// State of one QP.
#[derive(Debug)]
pub(crate) struct Confirmations {
    all: Arc<AllConfirmations>,
    is_late: bool,
    /// Number of Responses in a row that a post has followed, up to [`RESPONSES_FOLLOWED`].
    followed: u8,
    /// Time at which the last Response was due, until the next post.
    due_at: Option<u64>,
}

impl Confirmations {
    pub(crate) fn new(all: Arc<AllConfirmations>) -> Self {
        Confirmations {
            all,
            is_late: false,
            followed: 0,
            due_at: None,
        }
    }

    /// Forgets what the connection that has ended has shown.
    pub(crate) fn reset(&mut self) {
        self.sent();
        (self.followed, self.due_at) = (0, None);
    }

    /// Returns true if Responses wait for the next call of the program.
    pub(crate) fn are_late(&self) -> bool {
        self.is_late
    }

    /// Decides at the end of a turn in which nothing but Responses to empty Reads is to be sent.
    /// `completed`: the turn has completed a request of the program. Returns true if they wait.
    pub(crate) fn wait(&mut self, giver: Giver, completed: bool) -> bool {
        if !is_on(Heuristic::LateConfirmations) {
            return false;
        }
        let (at, may_wait) = match giver {
            Giver::Poll { at } => (at, completed),
            Giver::Background { at } => (at, true),
            Giver::Other => return false,
        };
        if self.due_at.replace(at).is_some() {
            // No post has followed the last one.
            self.followed = 0;
        }
        self.is_late = may_wait && self.followed == RESPONSES_FOLLOWED;
        if self.is_late {
            self.all.late.fetch_add(1, Ordering::Relaxed);
        }
        self.is_late
    }

    /// Records a post.
    pub(crate) fn posted(&mut self, at: u64) {
        if let Some(due_at) = self.due_at.take() {
            self.followed = match u128::from(at.saturating_sub(due_at)) < POST_FOLLOWS.as_nanos() {
                true => (self.followed + 1).min(RESPONSES_FOLLOWED),
                false => 0,
            };
        }
    }

    /// Records that a turn begins. Returns true if Responses have waited, and are to be sent first.
    pub(crate) fn turn(&mut self) -> bool {
        if self.is_late && self.due_at.take().is_some() {
            // No post came.
            self.followed = 0;
        }
        self.is_late
    }

    /// Records that everything is being sent.
    pub(crate) fn sent(&mut self) {
        if std::mem::take(&mut self.is_late) {
            self.all.late.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Confirmations {
    fn drop(&mut self) {
        self.sent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 50_000;

    /// Lets a post follow three Responses.
    fn followed() -> Confirmations {
        let mut confirmations = Confirmations::new(Arc::default());
        for round in 0..3 {
            assert!(!confirmations.wait(Giver::Background { at: round }, true));
            confirmations.posted(round + LONG - 1);
        }
        confirmations
    }

    #[test]
    fn a_response_waits_for_a_program_that_has_answered_three_times() {
        for giver in [Giver::Background { at: 7 }, Giver::Poll { at: 7 }] {
            let mut confirmations = followed();
            for _ in 0..3 {
                assert!(confirmations.wait(giver, true) && confirmations.are_late());
                confirmations.posted(8);
                confirmations.sent();
            }
            // A late answer does not count, and the count begins again.
            assert!(confirmations.wait(giver, true));
            confirmations.posted(7 + LONG);
            confirmations.sent();
            assert!(!confirmations.wait(giver, true));
        }
    }

    #[test]
    fn a_response_after_which_no_post_came_is_sent_and_the_next_ones_at_once() {
        let mut confirmations = followed();
        assert!(confirmations.wait(Giver::Poll { at: 9 }, true));
        assert!(confirmations.turn());
        confirmations.sent();
        assert!(!confirmations.turn());
        assert!(!confirmations.wait(Giver::Poll { at: 10 }, true));
    }

    #[test]
    fn a_response_after_one_without_a_post_begins_the_count_again() {
        let mut confirmations = followed();
        assert!(confirmations.wait(Giver::Background { at: 9 }, true));
        confirmations.sent();
        assert!(!confirmations.wait(Giver::Background { at: 10 }, true));
    }

    #[test]
    fn those_that_wait_are_counted_until_they_are_sent_or_their_qp_is_gone() {
        let mut confirmations = followed();
        let all = Arc::clone(&confirmations.all);
        let late = || all.late.load(Ordering::Relaxed);
        for _ in 0..2 {
            assert!(confirmations.wait(Giver::Background { at: 9 }, true));
            assert_eq!(late(), 1);
            confirmations.posted(10);
            confirmations.sent();
            confirmations.sent();
            assert_eq!(late(), 0);
        }
        confirmations.wait(Giver::Background { at: 9 }, true);
        assert_eq!(late(), 1);
        drop(confirmations);
        assert_eq!(late(), 0);
    }

    #[test]
    fn a_poll_that_completes_nothing_and_a_thread_that_may_not_return_send_at_once() {
        let mut confirmations = followed();
        assert!(!confirmations.wait(Giver::Poll { at: 8 }, false));
        confirmations.posted(8);
        assert!(!confirmations.wait(Giver::Other, true));
        assert!(confirmations.wait(Giver::Poll { at: 9 }, true));
    }
}
