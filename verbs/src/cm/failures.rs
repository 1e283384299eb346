//! Failed startups of a listener, kept for the program.

use std::collections::VecDeque;
use std::net::SocketAddr;

use uwarp_mpa::StartupError;

/// Maximum number of failed startups that a listener keeps.
const FAILURES: usize = 64;

/// The last failures of a listener, in bounded memory.
#[derive(Default)]
pub(super) struct Failures {
    kept: VecDeque<(SocketAddr, StartupError)>,
    lost: u64,
}

impl Failures {
    /// Adds a failure; drops the oldest one if there is no room.
    pub(super) fn push(&mut self, peer: SocketAddr, error: StartupError) {
        if self.kept.len() == FAILURES {
            self.kept.pop_front();
            self.lost += 1;
        }
        self.kept.push_back((peer, error));
    }

    /// Takes the oldest failure.
    pub(super) fn pop(&mut self) -> Option<(SocketAddr, StartupError)> {
        self.kept.pop_front()
    }

    /// Number of failures that were dropped.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_is_counted_and_the_last_ones_are_kept() {
        let mut failures = Failures::default();
        let peer = |port| SocketAddr::from(([192, 0, 2, 1], port));
        for port in 0..1000 {
            failures.push(peer(port), StartupError::RtrMissing);
        }
        assert_eq!((failures.kept.len(), failures.lost()), (FAILURES, 936));
        assert_eq!(failures.pop().unwrap().0, peer(936));
        let rest = std::iter::from_fn(|| failures.pop()).count();
        assert_eq!((rest, failures.lost()), (FAILURES - 1, 936));
    }
}
