//! Detection of a peer that vanished without closing the connection.

use std::time::Duration;

use super::LlpError;

/// Time limits after which a silent peer counts as dead. After [`patience`](Self::patience) without
/// an answer, the connection ends with [`LlpError::TimedOut`], whether or not bytes are in flight.
///
/// The connection also ends if the peer answers but never acknowledges the bytes in flight. The
/// kernel's TCP then waits for the same time, and a stack in user space for twice that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Time of silence after which the peer is probed. The kernel's TCP rounds it up to whole
    /// seconds, from 1 to 32,767.
    pub idle: Duration,
    /// Time to wait for the answer to a probe, and therefore the interval between probes. If it is
    /// shorter than `idle`, a stack in user space also probes an idle peer at this interval.
    pub interval: Duration,
    /// Number of probes that may stay unanswered, from 1 to 127.
    pub probes: u32,
}

impl Keepalive {
    /// Returns the time for which a peer may be silent: `idle` plus one `interval` for each probe.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.idle
            .saturating_add(self.interval.saturating_mul(self.probes))
    }

    /// Rejects values that no TCP supports.
    ///
    /// # Errors
    /// [`LlpError::Misuse`], with the reason.
    pub fn check(&self) -> Result<(), LlpError> {
        let misuse = |why| {
            Err(LlpError::Misuse {
                op: "keep watch over a connection",
                why,
            })
        };
        if self.idle.is_zero() || self.interval.is_zero() {
            return misuse("a keep-alive without a pause would never end");
        }
        if !(1..=127).contains(&self.probes) {
            return misuse("a keep-alive asks from 1 to 127 times");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPALIVE: Keepalive = Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(10),
        probes: 3,
    };

    #[test]
    fn a_peer_is_dead_when_all_questions_stayed_without_an_answer() {
        assert_eq!(KEEPALIVE.patience(), Duration::from_secs(90));
        assert_eq!(KEEPALIVE.check(), Ok(()));
    }

    #[test]
    fn a_keepalive_without_pause_or_question_is_refused() {
        for wrong in [
            Keepalive {
                idle: Duration::ZERO,
                ..KEEPALIVE
            },
            Keepalive {
                interval: Duration::ZERO,
                ..KEEPALIVE
            },
            Keepalive {
                probes: 0,
                ..KEEPALIVE
            },
            Keepalive {
                probes: 128,
                ..KEEPALIVE
            },
        ] {
            assert!(
                matches!(wrong.check(), Err(LlpError::Misuse { .. })),
                "{wrong:?}"
            );
        }
    }
}
