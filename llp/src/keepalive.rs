//! Noticing that a peer has vanished without a word.

use std::time::Duration;

use crate::LlpError;

/// When a silent peer is taken for dead: after [`patience`](Self::patience), whether octets are under way or
/// not. The connection is then [`LlpError::TimedOut`]. So it is when the peer answers and acknowledges no octet: on the
/// kernel's TCP after the same time, on a stack in user space after twice as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// After so long without a word of the peer it is asked whether it is still there. The kernel counts in
    /// seconds, 1 at least, and up to 32,767.
    pub idle: Duration,
    /// How long each answer is waited for, and so how often is asked. A stack in user space asks so often
    /// from the beginning, when this is shorter than `idle`.
    pub interval: Duration,
    /// How many questions may stay without an answer; from 1 to 127.
    pub probes: u32,
}

impl Keepalive {
    /// How long a peer may be silent.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.idle
            .saturating_add(self.interval.saturating_mul(self.probes))
    }

    /// Refuses what no TCP can do.
    ///
    /// # Errors
    /// [`LlpError::Misuse`], which says what is wrong.
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
