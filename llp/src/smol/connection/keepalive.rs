//! Asks a quiet peer whether it is there.
//!
//! smoltcp's own question carries an byte 00 in the place of the last one that it sent. If that one
//! is not acknowledged, the peer takes the 00 for data. Ours carries none and names an byte that is
//! acknowledged (RFC 9293 section 3.8.4, SHLD-12). So it may be asked while others are not: TCP
//! waits up to a minute before it sends them again, and an answer tells a path that loses much from a
//! peer that is gone. How long a peer may be silent is smoltcp's timeout. A question of the peer's
//! does not count for it, so both ends ask. The answers are duplicate acknowledgements, and the third has
//! smoltcp send again.
//!
//! A peer that answers and never acknowledges, or a path that drops whatever is long, is given up
//! when no byte was acknowledged for twice as long: R2 of RFC 9293 section 3.8.3, which a path that
//! loses much needs for several tries.

use smoltcp::socket::tcp::State;
use smoltcp::time::{Duration, Instant};

use super::SmolConnection;
use crate::LlpError;

/// When a connection is asked about.
#[derive(Debug)]
pub(super) struct Questions {
    every: Option<Duration>,
    /// When something last left by smoltcp's own motion, or a question. What answers a segment does not count.
    last: Instant,
    /// How long the same bytes may wait for their acknowledgement.
    longest: Duration,
    /// How many bytes were acknowledged, and since when no more, while others wait.
    acknowledged: u64,
    since: Instant,
    /// How long the peer may be silent, and when something last arrived.
    patience: Option<Duration>,
    heard: Instant,
    /// smoltcp was shown something since then that did not arrive, and takes its silence for shorter.
    shortened: bool,
}

impl Questions {
    /// None, until [`SmolConnection::watch_over`].
    pub(super) fn none(now: Instant) -> Self {
        Self {
            every: None,
            last: Instant::ZERO,
            longest: Duration::ZERO,
            acknowledged: 0,
            since: Instant::ZERO,
            patience: None,
            heard: now,
            shortened: false,
        }
    }

    /// Something left.
    pub(super) fn asked(&mut self, now: Instant) {
        self.last = now;
    }
}

impl SmolConnection {
    /// Asks from now on, and gives the peer up when it stays silent, if a keep-alive is set.
    pub(super) fn watch_over(&mut self, now: Instant) {
        let Some(keepalive) = self.keepalive else {
            return;
        };
        self.questions = Questions {
            every: Some(keepalive.idle.min(keepalive.interval).into()),
            last: now,
            longest: (keepalive.patience() * 2).into(),
            acknowledged: self.handed - self.socket().send_queue() as u64,
            since: now,
            patience: Some(keepalive.patience().into()),
            heard: self.questions.heard,
            shortened: false,
        };
        self.socket_mut()
            .set_timeout(Some(keepalive.patience().into()));
    }

    /// Something has arrived.
    pub(super) fn heard_something(&mut self, now: Instant) {
        self.questions.heard = now;
        if self.questions.shortened {
            self.questions.shortened = false;
            let patience = self.questions.patience;
            self.limit_silence(patience);
        }
    }

    /// smoltcp was shown what did not arrive: the peer's silence is no shorter for that.
    pub(super) fn forgive_nothing(&mut self, now: Instant) {
        if let Some(patience) = self.questions.patience {
            self.questions.shortened = true;
            let end = self.questions.heard + patience;
            let left = if end > now { end - now } else { Duration::ZERO };
            self.limit_silence(Some(left));
        }
    }

    fn limit_silence(&mut self, patience: Option<Duration>) {
        // It has none where none counts, as in TIME-WAIT.
        if self.socket().timeout().is_some() {
            self.socket_mut().set_timeout(patience);
        }
    }

    /// When bytes have waited too long for their acknowledgement.
    pub(super) fn gives_up_at(&self) -> Option<Instant> {
        self.questions.every?;
        let waits = self.socket().send_queue() > 0;
        waits.then_some(self.questions.since + self.questions.longest)
    }

    /// Ends the connection if bytes have waited too long.
    pub(super) fn give_up_if_stuck(&mut self, now: Instant) {
        let queued = self.socket().send_queue();
        let acknowledged = self.handed - queued as u64;
        if queued == 0 || acknowledged != self.questions.acknowledged {
            self.questions.acknowledged = acknowledged;
            self.questions.since = now;
        } else if self.gives_up_at().is_some_and(|at| at <= now) {
            let addr = self.key.remote;
            self.lose(LlpError::TimedOut { addr });
        }
    }

    /// When the next question is due.
    pub(super) fn asks_at(&self) -> Option<Instant> {
        let every = self.questions.every?;
        let socket = self.socket();
        let answered = match socket.state() {
            State::Established | State::CloseWait | State::FinWait2 => true,
            State::FinWait1 | State::Closing => socket.send_queue() > 0,
            _ => false,
        };
        answered.then_some(self.questions.last + every)
    }

    /// Asks, if it is time.
    pub(super) fn ask_if_due(&mut self, now: Instant) {
        if self.asks_at().is_some_and(|at| at <= now) && !self.device.holds_back() {
            let queued = self.socket().send_queue();
            self.device.ask(&self.key, self.handed, queued);
            self.questions.asked(now);
        }
    }
}

#[cfg(test)]
mod tests;
