//! Connections whose MPA Request is incomplete, oldest first, and their displacement when all
//! places are taken.
//!
//! An attacker can occupy all places with silent connections. An honest peer sends its Request
//! right after the handshake, so its startup takes milliseconds. Of many connections in startup,
//! the oldest is therefore probably not honest. It is reset, and the new one takes its place, as in
//! a SYN cache. This needs only the order of the connections. A count per address is not needed:
//! each address has its own limit (`per_peer.max_half_open`), and an attacker with many addresses
//! would defeat a count.
//!
//! Requests that have arrived are reported in the order in which their connections were accepted.
//! Programs rely on the order: perftest numbers its queue pairs by it. Between TCP's accept and the
//! first read of a connection, the Request of an older one may arrive. Therefore the older
//! connections are read before a Request is reported, except those that were silent for long.
//!
//! ```text
//!   accepted by TCP ──► in startup ──► Request complete: never given up from here on
//!                          │ older than YOUNG, all places taken, and a newer one arrives
//!                          └──────────► reset, reported as a failed startup
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_mpa::StartupError;

use crate::progress::background::Token;

/// Age below which a connection is not displaced. When few places are free, honest peers that
/// arrive together must not reset each other; they wait in TCP. With 4,096 places, an attacker
/// profits from this minimum age only above 40,960 connections a second. Honest connections are
/// then delayed.
pub(crate) const YOUNG: Duration = Duration::from_millis(100);

/// Maximum number of older connections that are read before a younger one is reported. It bounds
/// the system calls that each Request spends on silent connections.
const LOOKS: usize = 32;
/// Age above which a silent connection is not read. It is generous, because a thread that got no
/// processor for a while may find many connections past `YOUNG`.
const LOOK_BACK: Duration = Duration::from_secs(5);

/// A connection whose MPA Request is incomplete.
pub(crate) trait Startup: Send + Sync {
    /// Resets this connection, so that a newer one can take its place at once, and reports `error`.
    /// Returns false if the startup has ended meanwhile: a connection with a complete Request is
    /// not reset.
    fn make_room(&self, now: Instant, error: StartupError) -> bool;

    /// Reads what has arrived. Reports the Request or the failure if that ends the startup.
    fn read(&self, now: Instant);
}

/// A connection, and when it was accepted.
type Waiting = (Instant, Weak<dyn Startup>);

/// Connections in startup of a listener or of a device.
#[derive(Default)]
pub(crate) struct StartupQueue {
    /// Ordered by arrival, because tokens are given in that order.
    waiting: Mutex<BTreeMap<Token, Waiting>>,
    displaced: AtomicU64,
}

impl StartupQueue {
    pub(crate) fn insert(&self, token: Token, since: Instant, pending: Weak<dyn Startup>) {
        self.waiting.lock().insert(token, (since, pending));
    }

    pub(crate) fn remove(&self, token: Token) {
        self.waiting.lock().remove(&token);
    }

    /// Returns the connections before `token` that were not silent for long, oldest first.
    pub(crate) fn before(&self, token: Token, now: Instant) -> Vec<Arc<dyn Startup>> {
        let waiting = self.waiting.lock();
        let older = waiting.range(..token).rev().take(LOOKS);
        let recent = older.take_while(|(_, (since, _))| now < *since + LOOK_BACK);
        let mut found: Vec<_> = recent.filter_map(|(_, (_, one))| one.upgrade()).collect();
        found.reverse();
        found
    }

    /// Returns when the oldest connection may be displaced; `None` if there are no connections.
    pub(crate) fn next(&self) -> Option<Instant> {
        let waiting = self.waiting.lock();
        waiting
            .first_key_value()
            .map(|(_, (since, _))| *since + YOUNG)
    }

    /// Displaces the oldest connection that is old enough, and reports `error` for it. Returns
    /// false if there is none.
    pub(crate) fn displace(&self, now: Instant, error: StartupError) -> bool {
        while let Some(pending) = self.pop(now) {
            if let Some(pending) = pending.upgrade()
                && pending.make_room(now, error)
            {
                return true;
            }
        }
        false
    }

    /// Removes the oldest connection, if it is old enough. The lock is released on return, because
    /// displacing takes other locks.
    fn pop(&self, now: Instant) -> Option<Weak<dyn Startup>> {
        let mut waiting = self.waiting.lock();
        let oldest = waiting.first_entry()?;
        let ripe = oldest.get().0 + YOUNG <= now;
        ripe.then(|| oldest.remove().1)
    }

    /// Counts a displaced connection.
    pub(crate) fn count_displaced(&self) {
        self.displaced.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of displaced connections.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Gone;

    impl Startup for Gone {
        fn make_room(&self, _: Instant, _: StartupError) -> bool {
            unreachable!("it does not exist")
        }

        fn read(&self, _: Instant) {}
    }

    fn gone() -> Weak<dyn Startup> {
        Weak::<Gone>::new()
    }

    #[test]
    fn the_oldest_goes_first_and_a_young_one_does_not() {
        let startup_queue = StartupQueue::default();
        let start = crate::clock::machine_now();
        assert_eq!(startup_queue.next(), None);
        // The connections are gone, so none of them can be displaced.
        startup_queue.insert(7, start + YOUNG, gone());
        startup_queue.insert(3, start, gone());
        startup_queue.insert(5, start, gone());
        startup_queue.remove(3);
        assert_eq!(startup_queue.next(), Some(start + YOUNG));
        assert!(startup_queue.pop(start).is_none());
        assert!(startup_queue.pop(start + YOUNG).is_some());
        assert!(startup_queue.pop(start + YOUNG).is_none());
        assert_eq!(startup_queue.next(), Some(start + 2 * YOUNG));
        let error = StartupError::RtrMissing;
        assert!(!startup_queue.displace(start + 2 * YOUNG, error));
        assert_eq!((startup_queue.next(), startup_queue.displaced()), (None, 0));
    }
}
