//! Keep-alive: probes a silent peer, and ends the connection if it stays silent.
//!
//! smoltcp's own probe carries a byte 00 with the sequence number of the last byte sent. If that
//! byte was lost, the peer accepts the 00 as data. The probe here carries no data and has the
//! sequence number of an acknowledged byte (RFC 9293 section 3.8.4, SHLD-12). So it can be sent
//! while bytes are unacknowledged. That matters because TCP waits up to a minute before it
//! retransmits them. An answer to a probe shows that the path is lossy and the peer is alive.
//!
//! smoltcp's timeout limits the silence of the peer. A probe from the peer does not restart this
//! timeout, so both ends send probes. The answers are duplicate acknowledgements, and the third
//! makes smoltcp retransmit.
//!
//! A connection whose bytes stay unacknowledged ends after twice that timeout (R2 of RFC 9293
//! section 3.8.3). This detects a peer that answers but never acknowledges, and a path that drops
//! all long packets. Twice the time lets several retransmissions happen on a lossy path.

use smoltcp::socket::tcp::State;
use smoltcp::time::{Duration, Instant};

use super::SmolConnection;
use crate::LlpError;

/// State of a connection's keep-alive.
#[derive(Debug)]
pub(super) struct KeepaliveState {
    every: Option<Duration>,
    /// Time at which smoltcp last sent a packet on its own initiative, or a probe was last sent.
    /// Answers to received segments do not count.
    last: Instant,
    /// Maximum time for which the same bytes may stay unacknowledged.
    longest: Duration,
    /// Number of acknowledged bytes at the last check.
    acknowledged: u64,
    /// Time at which `acknowledged` last changed, or at which the send buffer was last empty.
    since: Instant,
    /// Maximum silence of the peer.
    patience: Option<Duration>,
    /// Time at which the last packet of the peer arrived.
    heard: Instant,
    /// True if smoltcp processed a replayed segment since `heard`. smoltcp took this segment as a
    /// sign of life, so smoltcp's timeout was shortened to compensate.
    shortened: bool,
}

impl KeepaliveState {
    /// Creates the state of a connection without keep-alive. [`SmolConnection::watch_over`]
    /// replaces it.
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

    /// Records the time at which a packet was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.last = now;
    }
}

impl SmolConnection {
    /// Starts the keep-alive, if it is configured.
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

    /// Records the time at which a packet arrived, and restores smoltcp's timeout if it was
    /// shortened.
    pub(super) fn record_arrival(&mut self, now: Instant) {
        self.keepalive_state.heard = now;
        if self.keepalive_state.shortened {
            self.keepalive_state.shortened = false;
            let patience = self.keepalive_state.patience;
            self.limit_silence(patience);
        }
    }

    /// Shortens smoltcp's timeout to the time that is left for the peer. A replayed segment has
    /// restarted this timeout.
    pub(super) fn keep_silence_limit(&mut self, now: Instant) {
        if let Some(patience) = self.keepalive_state.patience {
            self.keepalive_state.shortened = true;
            let end = self.keepalive_state.heard + patience;
            let left = if end > now { end - now } else { Duration::ZERO };
            self.limit_silence(Some(left));
        }
    }

    fn limit_silence(&mut self, patience: Option<Duration>) {
        // In states such as TIME-WAIT no timeout is set, and none must be added.
        if self.socket().timeout().is_some() {
            self.socket_mut().set_timeout(patience);
        }
    }

    /// Time at which the connection ends if no more bytes are acknowledged.
    pub(super) fn gives_up_at(&self) -> Option<Instant> {
        self.keepalive_state.every?;
        let waits = self.socket().send_queue() > 0;
        waits.then_some(self.keepalive_state.since + self.keepalive_state.longest)
    }

    /// Ends the connection if bytes have been unacknowledged for too long.
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
