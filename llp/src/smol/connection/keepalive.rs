//! Keep-alive: probes a quiet peer, and gives up one that stays silent.
//!
//! smoltcp's own probe carries a byte 00 in place of the last byte that it sent. If that byte is
//! not acknowledged, the peer takes the 00 for data. The probe here carries no data and names an
//! acknowledged byte (RFC 9293 section 3.8.4, SHLD-12). So it may be sent while other bytes are
//! unacknowledged. That matters because TCP waits up to a minute before it sends those again. An
//! answer to a probe tells a lossy path from a dead peer.
//!
//! smoltcp's timeout limits the silence of the peer. A probe from the peer does not count for it,
//! so both ends send probes. The answers are duplicate acknowledgements, and the third makes
//! smoltcp retransmit.
//!
//! A connection whose bytes stay unacknowledged is given up after twice that time: R2 of RFC 9293
//! section 3.8.3. This catches a peer that answers and never acknowledges, and a path that drops
//! all long packets. A lossy path needs that long for several attempts.

use smoltcp::socket::tcp::State;
use smoltcp::time::{Duration, Instant};

use super::SmolConnection;
use crate::LlpError;

/// State of a connection's keep-alive.
#[derive(Debug)]
pub(super) struct KeepaliveState {
    every: Option<Duration>,
    /// Last time that smoltcp sent anything by itself, or a probe was sent. Answers to segments do
    /// not count.
    last: Instant,
    /// Longest time that the same bytes may wait for their acknowledgement.
    longest: Duration,
    /// Number of acknowledged bytes, and the time since which no more were acknowledged while
    /// others wait.
    acknowledged: u64,
    since: Instant,
    /// Longest silence of the peer, and the time of the last arrival.
    patience: Option<Duration>,
    heard: Instant,
    /// smoltcp was shown a replayed segment since then, so it takes the silence for shorter.
    shortened: bool,
}

impl KeepaliveState {
    /// Creates a state without keep-alive, until [`SmolConnection::watch_over`].
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

    /// Records that something was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.last = now;
    }
}

impl SmolConnection {
    /// Starts the keep-alive, if one is set.
    pub(super) fn watch_over(&mut self, now: Instant) {
        let Some(keepalive) = self.keepalive else {
            return;
        };
        self.keepalive_state = KeepaliveState {
            every: Some(keepalive.idle.min(keepalive.interval).into()),
            last: now,
            longest: (keepalive.patience() * 2).into(),
            acknowledged: self.handed - self.socket().send_queue() as u64,
            since: now,
            patience: Some(keepalive.patience().into()),
            heard: self.keepalive_state.heard,
            shortened: false,
        };
        self.socket_mut()
            .set_timeout(Some(keepalive.patience().into()));
    }

    /// Records that something arrived.
    pub(super) fn record_arrival(&mut self, now: Instant) {
        self.keepalive_state.heard = now;
        if self.keepalive_state.shortened {
            self.keepalive_state.shortened = false;
            let patience = self.keepalive_state.patience;
            self.limit_silence(patience);
        }
    }

    /// Corrects smoltcp's timeout after it was shown a replayed segment. That does not shorten the
    /// peer's silence.
    pub(super) fn keep_silence_limit(&mut self, now: Instant) {
        if let Some(patience) = self.keepalive_state.patience {
            self.keepalive_state.shortened = true;
            let end = self.keepalive_state.heard + patience;
            let left = if end > now { end - now } else { Duration::ZERO };
            self.limit_silence(Some(left));
        }
    }

    fn limit_silence(&mut self, patience: Option<Duration>) {
        // In states such as TIME-WAIT there is no timeout.
        if self.socket().timeout().is_some() {
            self.socket_mut().set_timeout(patience);
        }
    }

    /// Time at which bytes will have waited too long for their acknowledgement.
    pub(super) fn gives_up_at(&self) -> Option<Instant> {
        self.keepalive_state.every?;
        let waits = self.socket().send_queue() > 0;
        waits.then_some(self.keepalive_state.since + self.keepalive_state.longest)
    }

    /// Ends the connection if bytes have waited too long.
    pub(super) fn give_up_if_stuck(&mut self, now: Instant) {
        let queued = self.socket().send_queue();
        let acknowledged = self.handed - queued as u64;
        if queued == 0 || acknowledged != self.keepalive_state.acknowledged {
            self.keepalive_state.acknowledged = acknowledged;
            self.keepalive_state.since = now;
        } else if self.gives_up_at().is_some_and(|at| at <= now) {
            let addr = self.key.remote;
            self.lose(LlpError::TimedOut { addr });
        }
    }

    /// Time at which the next probe is due.
    pub(super) fn keepalive_at(&self) -> Option<Instant> {
        let every = self.keepalive_state.every?;
        let socket = self.socket();
        let answered = match socket.state() {
            State::Established | State::CloseWait | State::FinWait2 => true,
            State::FinWait1 | State::Closing => socket.send_queue() > 0,
            _ => false,
        };
        answered.then_some(self.keepalive_state.last + every)
    }

    /// Sends a probe if one is due.
    pub(super) fn send_keepalive_if_due(&mut self, now: Instant) {
        if self.keepalive_at().is_some_and(|at| at <= now) && !self.device.hold_back_if_full() {
            let queued = self.socket().send_queue();
            self.device.request_ack(&self.key, self.handed, queued);
            self.keepalive_state.sent(now);
        }
    }
}

#[cfg(test)]
mod tests;
