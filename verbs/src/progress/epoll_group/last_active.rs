//! Who received last in a crowd: while it is the only one, polls ask it alone.
//!
//! A program that exchanges small messages with one peer of many waits for that peer. To ask the set, and then the
//! connection that it names, takes two system calls and what the kernel does to keep the set; to ask the connection takes one, as
//! where there is no crowd. So a look at the set that finds nobody is good for a short time: [`POLLS`] polls or [`NANOSECONDS`],
//! whichever ends first. When the connection has received, the set is asked by the next poll: nobody in the crowd waits for
//! another's second message.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Polls that do without the set after a look that found nobody.
const POLLS: u32 = 16;
/// The same in time, for programs that poll rarely.
const NANOSECONDS: u64 = 10_000;
/// In place of the number of a seat.
const NOBODY: u32 = u32::MAX;
/// In place of a time: the set is to be asked.
const NEVER: u64 = 0;

/// Hints alone: threads that poll at the same time may each overwrite what the other has noted, and the set is asked a
/// poll sooner or later for it.
pub(super) struct LastActive {
    /// The seat that received last, by itself.
    member: AtomicU32,
    /// When the set was asked and had nobody, in nanoseconds of the device's clock.
    asked_at: AtomicU64,
    /// Polls since then.
    polls: AtomicU32,
}

impl Default for LastActive {
    fn default() -> Self {
        LastActive {
            member: AtomicU32::new(NOBODY),
            asked_at: AtomicU64::new(NEVER),
            polls: AtomicU32::new(0),
        }
    }
}

impl LastActive {
    /// Whom a poll of now is to ask in place of the set.
    pub(super) fn alone(&self, now: u64) -> Option<u32> {
        let member = self.member.load(Ordering::Relaxed);
        let asked_at = self.asked_at.load(Ordering::Relaxed);
        let polls = self.polls.load(Ordering::Relaxed);
        let mark_due =
            asked_at == NEVER || polls >= POLLS || now.saturating_sub(asked_at) >= NANOSECONDS;
        if member == NOBODY || mark_due {
            return None;
        }
        self.polls.store(polls + 1, Ordering::Relaxed);
        Some(member)
    }

    /// The next poll asks the set.
    pub(super) fn ask_next(&self) {
        self.asked_at.store(NEVER, Ordering::Relaxed);
    }

    /// The set was asked: these have received.
    pub(super) fn asked(&self, now: u64, received: Received) {
        match received {
            Received::Nobody => {
                self.polls.store(0, Ordering::Relaxed);
                self.asked_at.store(now, Ordering::Relaxed);
            }
            Received::One(member) => {
                self.member.store(member, Ordering::Relaxed);
                self.ask_next();
            }
            Received::Several => {
                self.member.store(NOBODY, Ordering::Relaxed);
                self.ask_next();
            }
        }
    }
}

/// Whom a look at the set had receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    Nobody,
    One(u32),
    Several,
}

impl Received {
    /// This one, too.
    pub(super) fn and(self, member: u32) -> Self {
        match self {
            Received::Nobody => Received::One(member),
            Received::One(_) | Received::Several => Received::Several,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    #[test]
    fn who_received_by_itself_is_asked_alone_once_the_set_had_nobody() {
        let last_active = LastActive::default();
        last_active.asked(NOW, Received::Nobody);
        assert_eq!(last_active.alone(NOW), None, "nobody has received yet");
        last_active.asked(NOW, Received::Nobody.and(7));
        assert_eq!(
            last_active.alone(NOW),
            None,
            "the others may be ready by now"
        );
        last_active.asked(NOW, Received::Nobody);
        assert_eq!(last_active.alone(NOW), Some(7));
        last_active.ask_next();
        assert_eq!(last_active.alone(NOW), None);
    }

    #[test]
    fn a_look_at_the_set_is_good_for_so_many_polls_and_so_long() {
        let last_active = LastActive::default();
        last_active.asked(NOW, Received::One(7));
        last_active.asked(NOW, Received::Nobody);
        for _ in 0..POLLS {
            assert_eq!(last_active.alone(NOW), Some(7));
        }
        assert_eq!(last_active.alone(NOW), None);
        last_active.asked(NOW, Received::Nobody);
        assert_eq!(last_active.alone(NOW + NANOSECONDS - 1), Some(7));
        assert_eq!(last_active.alone(NOW + NANOSECONDS), None);
    }

    #[test]
    fn where_several_receive_the_set_is_asked() {
        let last_active = LastActive::default();
        last_active.asked(NOW, Received::One(7));
        last_active.asked(NOW, Received::Nobody.and(7).and(8));
        last_active.asked(NOW, Received::Nobody);
        assert_eq!(last_active.alone(NOW), None);
    }
}
