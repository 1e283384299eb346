//! Slows peers down that guess STags.
//!
//! A wrong STag ends its connection, so a guess costs a connection. Without more, a peer could make
//! thousands of guesses a second. Each such end therefore counts against the peer's address:
//!
//! ```text
//!   errors of the address      its next connections
//!   0 ..= allowed              accepted at once
//!   allowed + n                one at a time, 100 ms * 2^(n - 1) after the last one, at most 10 s
//! ```
//!
//! One error is forgotten every [`FORGET`], and a penalty lasts at most [`LONGEST`] after the last
//! one. Connections that come too early are rejected. Connections that exist are not affected, and
//! neither are other addresses.
//!
//! **Guesses of one address.** An STag has 2^24 indices and 2^8 keys. The delay applies to each
//! acceptance and not only to errors. An address that opens all its connections before the first
//! guess therefore gains one burst: `per_peer.max_qp`, 16,384. The penalty of a burst lasts a day,
//! in which one connection is accepted every 10 s, 8,640 in all. With the 4,096 allowed errors this
//! makes at most 29,120 guesses a day. 2^32 guesses take 404 years. Of `n` valid STags, one is
//! found after 1/(n + 1) of that on average. Without the penalty and at 10,000
//! connections a second, 2^32 guesses would take five days.
//!
//! **Memory.** The table has at most [`MAX_SOURCES`] addresses. If it is full, the address with the
//! least to forget is removed, so an attacker who owns many addresses does not clear the worst.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uwarp_mpa::StartupError;
use uwarp_rdmap::StreamError;

use super::PeerKey;

/// Time after which one error is forgotten.
const FORGET: Duration = Duration::from_secs(10);
/// First delay.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest delay. It equals [`FORGET`], so an address that makes an error with each connection
/// stays at it.
const LONGEST_DELAY: Duration = FORGET;
/// Longest time after an error in which the address is penalized.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum number of remembered addresses.
const MAX_SOURCES: usize = 4096;

/// Addresses whose connections ended because of their STags.
pub(super) struct Penalties {
    /// Number of errors that have no consequence.
    allowed: u32,
    /// Ordered, so that runs of the simulator do not differ.
    sources: BTreeMap<PeerKey, Source>,
}

#[derive(Clone, Copy)]
struct Source {
    /// Time at which all errors are forgotten. Each error moves it by `FORGET`.
    forgotten: Instant,
    /// Time at which the next connection may be accepted, if the address is penalized.
    next: Instant,
}

impl Source {
    /// Number of errors that are not forgotten, rounded up.
    fn errors(&self, now: Instant) -> u64 {
        let left = self.forgotten.saturating_duration_since(now);
        left.as_nanos().div_ceil(FORGET.as_nanos()) as u64
    }

    /// Time between two connections; `None` without a penalty.
    fn delay(&self, now: Instant, allowed: u32) -> Option<Duration> {
        let above = self.errors(now).checked_sub(u64::from(allowed) + 1)?;
        let doublings = u32::try_from(above).unwrap_or(u32::MAX).min(16);
        Some(LONGEST_DELAY.min(FIRST_DELAY * (1 << doublings)))
    }
}

impl Penalties {
    pub(super) fn new(allowed: u32) -> Self {
        Penalties {
            allowed,
            sources: BTreeMap::new(),
        }
    }

    /// Counts a connection of this address that ended because of an STag.
    pub(super) fn count(&mut self, peer: PeerKey, now: Instant) {
        if self.allowed == u32::MAX {
            return;
        }
        self.sources.retain(|_, source| now < source.forgotten);
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&peer) {
            let least = self.sources.iter().min_by_key(|(_, one)| one.forgotten);
            if let Some((&least, _)) = least {
                self.sources.remove(&least);
            }
        }
        let source = self.sources.entry(peer).or_insert(Source {
            forgotten: now,
            next: now,
        });
        let latest = now + LONGEST + FORGET.saturating_mul(self.allowed);
        source.forgotten = latest.min(source.forgotten + FORGET);
        if let Some(delay) = source.delay(now, self.allowed) {
            source.next = source.next.max(now + delay);
        }
    }

    /// Decides on a new connection of this address.
    pub(super) fn admit(&mut self, peer: PeerKey, now: Instant) -> Result<(), StartupError> {
        let Some(source) = self.sources.get_mut(&peer) else {
            return Ok(());
        };
        let Some(delay) = source.delay(now, self.allowed) else {
            return Ok(());
        };
        if now < source.next {
            let wait = source.next - now;
            return Err(StartupError::TooManyStagErrors {
                limit: self.allowed,
                wait_ms: u32::try_from(wait.as_millis() + 1).unwrap_or(u32::MAX),
            });
        }
        source.next = now + delay;
        Ok(())
    }
}

/// Returns true if the peer accessed memory that it may not access.
pub fn is_stag_error(error: &StreamError) -> bool {
    matches!(error, StreamError::Access(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: u32 = 3;

    fn peer(number: u32) -> PeerKey {
        let ip = std::net::Ipv4Addr::from_bits(0xC000_0200 + number);
        PeerKey::of((ip, 1).into())
    }

    fn penalized(count: u32, now: Instant) -> Penalties {
        let mut penalties = Penalties::new(ALLOWED);
        for _ in 0..count {
            penalties.count(peer(1), now);
        }
        penalties
    }

    #[test]
    fn delays_grow_to_a_limit_and_concern_one_address() {
        let now = Instant::now();
        assert!(penalized(ALLOWED, now).admit(peer(1), now).is_ok());
        let delays: Vec<u128> = (1..10)
            .map(|more| {
                let penalties = penalized(ALLOWED + more, now);
                penalties.sources[&peer(1)]
                    .delay(now, ALLOWED)
                    .unwrap()
                    .as_millis()
            })
            .collect();
        assert_eq!(
            delays,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        let mut penalties = penalized(ALLOWED + 1, now);
        let error = penalties.admit(peer(1), now).unwrap_err();
        let expected = StartupError::TooManyStagErrors {
            limit: ALLOWED,
            wait_ms: 101,
        };
        assert_eq!(error, expected);
        assert!(penalties.admit(peer(2), now).is_ok());
        // One is accepted in time, and the next one waits although the first made no error.
        let later = now + Duration::from_millis(100);
        assert!(penalties.admit(peer(1), later).is_ok());
        assert!(penalties.admit(peer(1), later).is_err());
    }

    #[test]
    fn errors_are_forgotten() {
        let now = Instant::now();
        let mut penalties = penalized(ALLOWED + 2, now);
        assert!(penalties.admit(peer(1), now).is_err());
        let later = now + FORGET * 2;
        assert!((0..5).all(|_| penalties.admit(peer(1), later).is_ok()));
        // However many errors there were, the penalty ends after `LONGEST`.
        let mut penalties = penalized(40_000, now);
        let before = now + LONGEST - FORGET;
        assert!(penalties.admit(peer(1), before).is_ok());
        assert!(penalties.admit(peer(1), before).is_err());
        assert!((0..5).all(|_| penalties.admit(peer(1), now + LONGEST).is_ok()));
    }

    /// Attempts come every 50 ms, and each connection makes one guess.
    #[test]
    fn guesses_become_as_rare_as_errors_are_forgotten() {
        let start = Instant::now();
        let mut penalties = Penalties::new(ALLOWED);
        let mut guesses = 0;
        let hour = 60 * 60 * 20;
        for attempt in 0..hour {
            let now = start + Duration::from_millis(50) * attempt;
            if penalties.admit(peer(1), now).is_ok() {
                penalties.count(peer(1), now);
                guesses += 1;
            }
        }
        // 360 intervals of 10 s, and those before the delay is longest.
        assert!((360..380).contains(&guesses), "{guesses} guesses an hour");
    }

    #[test]
    fn memory_for_addresses_is_bounded_and_keeps_the_worst() {
        let now = Instant::now();
        let mut penalties = penalized(ALLOWED + 5, now);
        for number in 2..10_000 {
            penalties.count(peer(number), now);
        }
        assert_eq!(penalties.sources.len(), MAX_SOURCES);
        assert!(penalties.admit(peer(1), now).is_err());
        penalties.count(peer(1), now + FORGET * 100);
        assert_eq!(penalties.sources.len(), 1);
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let now = Instant::now();
        let mut penalties = Penalties::new(u32::MAX);
        penalties.count(peer(1), now);
        assert!(penalties.sources.is_empty());
        assert!(penalties.admit(peer(1), now).is_ok());
    }
}
