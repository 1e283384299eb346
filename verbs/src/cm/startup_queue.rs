//! Connections whose MPA Request has not come whole, the oldest first: who gives way when all places are taken.
//!
//! An attacker can take all places by connections that say nothing. An honest peer sends its Request right behind the
//! handshake, so it is done in milliseconds, and of many in startup the oldest is hardly an honest one: it is reset, and
//! the newcomer has its place, as a SYN cache does it. So all that is needed is their order, and no count for each
//! address: an address has a limit of its own (`per_peer.max_half_open`), and an attacker with many addresses would
//! defeat a count anyway.
//!
//! Requests are told in the order in which their connections were accepted, as far as they have come: between TCP's accept and the
//! first look at a connection the Request of an older one may come, and programs count on the order (perftest numbers its queue
//! pairs by it). So before a Request is told, the older ones are looked at, but for those that have been silent for long.
//!
//! ```text
//!   accepted by TCP ──► in startup ──► Request whole: never given up from here on
//!                          │ not for YOUNG; then, where all places are taken and a newer one comes
//!                          └──────────► reset, told as a failed startup
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_mpa::StartupError;

use super::pending_startup::PendingStartup;
use crate::progress::background::Token;

/// For so long nobody has to give way: honest peers that come all at once to few places must not reset each other, but wait
/// in TCP. An attacker gets no more of it than that with 4,096 places, and 40,960 connections a second, the others
/// come late.
pub(crate) const YOUNG: Duration = Duration::from_millis(100);

/// Connections that are looked at before a younger one is told, at most: so many system calls for each Request are all that silent
/// ones can cost.
const LOOKS: usize = 32;
/// Who has been silent for longer is not looked at. A thread that had no processor for a while may find many that are no longer
/// young.
const LOOK_BACK: Duration = Duration::from_secs(5);

/// The connections in startup of a listener, or of a device.
#[derive(Default)]
pub(crate) struct StartupQueue {
    /// In the order in which they came, for tokens are given in that order.
    waiting: Mutex<BTreeMap<Token, (Instant, Weak<PendingStartup>)>>,
    displaced: AtomicU64,
}

impl StartupQueue {
    pub(super) fn insert(&self, token: Token, since: Instant, incoming: Weak<PendingStartup>) {
        self.waiting.lock().insert(token, (since, incoming));
    }

    pub(super) fn remove(&self, token: Token) {
        self.waiting.lock().remove(&token);
    }

    /// Those that came before `token` and have not been silent for long, the oldest first.
    pub(super) fn before(&self, token: Token, now: Instant) -> Vec<Arc<PendingStartup>> {
        let waiting = self.waiting.lock();
        let older = waiting.range(..token).rev().take(LOOKS);
        let recent = older.take_while(|(_, (since, _))| now < *since + LOOK_BACK);
        let mut found: Vec<_> = recent.filter_map(|(_, (_, one))| one.upgrade()).collect();
        found.reverse();
        found
    }

    /// When the oldest may have to give way; `None` when there are none.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiting = self.waiting.lock();
        waiting
            .first_key_value()
            .map(|(_, (since, _))| *since + YOUNG)
    }

    /// The oldest one that is not young any more gives its place away, which is told as `error`. False when there
    /// is none.
    pub(super) fn displace(&self, now: Instant, error: StartupError) -> bool {
        while let Some(incoming) = self.pop(now) {
            if let Some(incoming) = incoming.upgrade()
                && incoming.give_way(now, error)
            {
                return true;
            }
        }
        false
    }

    /// Takes out the oldest one. Without the lock when this returns: to give way takes others.
    fn pop(&self, now: Instant) -> Option<Weak<PendingStartup>> {
        let mut waiting = self.waiting.lock();
        let oldest = waiting.first_entry()?;
        let ripe = oldest.get().0 + YOUNG <= now;
        ripe.then(|| oldest.remove().1)
    }

    /// One was displaced.
    pub(super) fn count(&self) {
        self.displaced.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were displaced.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_a_young_one_does_not() {
        let startups = StartupQueue::default();
        let start = crate::clock::machine_now();
        assert_eq!(startups.next(), None);
        // Nobody has them any more, so none of them can give way.
        startups.insert(7, start + YOUNG, Weak::new());
        startups.insert(3, start, Weak::new());
        startups.insert(5, start, Weak::new());
        startups.remove(3);
        assert_eq!(startups.next(), Some(start + YOUNG));
        assert!(startups.pop(start).is_none());
        assert!(startups.pop(start + YOUNG).is_some());
        assert!(startups.pop(start + YOUNG).is_none());
        assert_eq!(startups.next(), Some(start + 2 * YOUNG));
        let error = StartupError::RtrMissing;
        assert!(!startups.displace(start + 2 * YOUNG, error));
        assert_eq!((startups.next(), startups.displaced()), (None, 0));
    }
}
