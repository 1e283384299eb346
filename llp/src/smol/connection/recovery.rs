//! Early recovery: sends lost bytes again as soon as the loss shows, where smoltcp would wait for
//! its timer.
//!
//! smoltcp 0.14 sends one segment again at the third duplicate acknowledgement, and restarts that
//! count whenever the window changes. Everything else waits for a timer of at least one second: the
//! second loss in a window, a segment that is lost again, and the last segment sent. This module
//! therefore does three things:
//! * It counts duplicate acknowledgements by itself (RFC 5681 section 3.2).
//! * It sends the next gap again when an acknowledgement ends there (RFC 6582).
//! * It sends a *probe* when nothing was heard for about two round trips: the first unacknowledged
//!   segment (RFC 8985 section 7 does so with the last one).
//!
//! ```text
//!    +----- acknowledged to `to` ------+
//!    v           3 repetitions         |   +-- acknowledged to a gap: send that again --+
//!  Steady -----------------------> Recovering(to) <-------------------------------------+
//!    |  ^                              ^
//!    |  |                              | no more than the probe is acknowledged
//!    |  +-- much is acknowledged -- Probing(to)
//!    +---------- a probe -------------^
//!
//!  any of them -- smoltcp's timer fires --> Resending(to) -- acknowledged to `to` --> Steady
//! ```
//! Only smoltcp has the bytes, and only acknowledgements make it send some again. So it is shown
//! the peer's last acknowledgement as often as needed. Pauses between probes grow, and probes end
//! before smoltcp's timer fires, which sends everything again as usual. Replayed acknowledgements
//! also shrink a congestion window.
//!
//! It is active only if [`early_recovery`](crate::smol::MemorySettings::early_recovery) is set, and
//! never on a link that cuts bursts. There smoltcp would send a whole burst again, of which the
//! peer may have most, and which ends within an FPDU.

use std::time::Duration;

use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use super::SmolConnection;

/// Number of repetitions of an acknowledgement that indicate a loss (RFC 5681 section 3.2).
const REPETITIONS: u64 = 3;

/// Shortest pause before a probe. A peer that is busy for a moment has lost nothing.
const SHORTEST: Duration = Duration::from_millis(2);

/// Longest pause before a probe. smoltcp's timer fires a second after the last segment was sent.
const LONGEST: Duration = Duration::from_millis(500);

/// smoltcp's timer (RFC 6298 section 2.4).
const TIMER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Steady,
    /// A probe, which is a retransmission, was sent and its answer is due. The bytes sent before it
    /// end at this offset of the stream. Perhaps nothing was lost and the peer was busy.
    Probing(u64),
    /// A loss was found. The bytes sent until then end at this offset.
    Recovering(u64),
    /// smoltcp sends everything up to this offset again.
    Resending(u64),
}

/// State of loss recovery, and the measured round trip.
#[derive(Debug)]
pub(super) struct Recovery {
    phase: Phase,
    /// Stream offset up to which the peer had acknowledged at the last check.
    acknowledged: u64,
    repetitions: u64,
    /// Time since which an answer is due: the last answer with news, or the last retransmission.
    since: Option<Instant>,
    /// Number of probes since the last answer with news.
    probes: u32,
    /// Time since which nothing is in flight and the peer's window is closed, and whether the peer
    /// was asked about it.
    shut: Option<(Instant, bool)>,
    trip: Trip,
}

/// Progress of the sent stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    /// Everything before `acknowledged` is acknowledged, and everything before `left` was sent.
    acknowledged: u64,
    left: u64,
}

impl Recovery {
    /// Creates the state for a connection whose SYN is sent now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Steady,
            acknowledged: 0,
            repetitions: 0,
            since: None,
            probes: 0,
            shut: None,
            trip: Trip::begun(now),
        }
    }

    /// Records a repeated acknowledgement.
    pub(super) fn repeated(&mut self) {
        self.repetitions += 1;
    }

    /// Records the end of the handshake. Its time is the first measured round trip, unless the SYN
    /// was sent again.
    pub(super) fn stands(&mut self, now: Instant) {
        self.trip.answered(0, now);
    }

    /// Processes an arrival. Returns true if the first gap has to be sent again now.
    fn arrived(&mut self, stream: Stream, segment: usize, now: Instant) -> bool {
        let more = stream.acknowledged.saturating_sub(self.acknowledged);
        if more > 0 {
            self.acknowledged = stream.acknowledged;
            self.trip.answered(stream.acknowledged, now);
            self.repetitions = 0;
            self.probes = 0;
            self.since = Some(now);
        }
        if stream.acknowledged >= stream.left {
            (self.since, self.repetitions) = (None, 0);
            self.phase = Phase::Steady;
            return false;
        }
        match self.phase {
            Phase::Probing(to) | Phase::Recovering(to) | Phase::Resending(to)
                if stream.acknowledged >= to =>
            {
                self.phase = Phase::Steady;
            }
            Phase::Probing(_) if more > segment as u64 => self.phase = Phase::Steady,
            Phase::Probing(to) | Phase::Recovering(to) if more > 0 => {
                self.phase = Phase::Recovering(to);
                return self.again(now);
            }
            _ => {}
        }
        let may_find = matches!(self.phase, Phase::Steady | Phase::Probing(_));
        // With little in flight, fewer repetitions can arrive (RFC 5827 section 3.1).
        let others = (stream.left - stream.acknowledged).div_ceil(segment as u64) - 1;
        let enough = others.clamp(1, REPETITIONS);
        if may_find && self.repetitions >= enough {
            self.phase = Phase::Recovering(stream.left);
            return self.again(now);
        }
        false
    }

    /// Records a retransmission. A round trip cannot be measured over it.
    fn again(&mut self, now: Instant) -> bool {
        self.since = Some(now);
        self.trip.forget();
        true
    }

    /// Records the state of the stream after something may have been sent.
    fn sent(&mut self, stream: Stream, now: Instant) {
        if stream.acknowledged < stream.left {
            self.since.get_or_insert(now);
        }
        self.trip.sent(stream.left, now);
    }

    /// Time at which a probe is due. `delay` is the time that the peer may delay an acknowledgement
    /// of little data.
    fn probe_at(&self, stream: Stream, segment: usize, delay: Duration) -> Option<Instant> {
        // Two full segments are acknowledged at once, less may be delayed (RFC 9293 section
        // 3.8.6.3).
        let few = stream.left - stream.acknowledged < 2 * segment as u64;
        let late = if few { delay } else { Duration::ZERO };
        let pause = (self.trip.patience()? + late).checked_mul(1 << self.probes.min(16))?;
        let since = self.since.filter(|_| pause <= LONGEST)?;
        Some(since + pause.into())
    }

    /// Returns true, and records the probe, if a probe has to be sent now.
    fn begin_probe_if_due(
        &mut self,
        stream: Stream,
        segment: usize,
        delay: Duration,
        now: Instant,
    ) -> bool {
        if self.since.is_some_and(|since| since + TIMER.into() <= now) {
            self.phase = Phase::Resending(stream.left);
            self.trip.forget();
            return false;
        }
        let due = self.probe_at(stream, segment, delay);
        if self.is_resending() || due.is_none_or(|at| at > now) {
            return false;
        }
        self.probes += 1;
        if self.phase == Phase::Steady {
            self.phase = Phase::Probing(stream.left);
        }
        self.again(now)
    }

    /// Records whether the peer's window is closed with nothing in flight. The update that opened
    /// it may be lost.
    fn set_shut(&mut self, shut: bool, now: Instant) {
        match (shut, self.shut) {
            (true, None) => self.shut = Some((now, false)),
            (false, Some(_)) => self.shut = None,
            _ => {}
        }
    }

    /// Time at which to ask the peer about its window. It is asked once, because many peers answer
    /// only one such segment a second. smoltcp's own probe follows after a second.
    fn window_probe_at(&self) -> Option<Instant> {
        let (since, asked) = self.shut?;
        let patience = self.trip.patience().filter(|_| !asked)?;
        Some(since + patience.into())
    }

    fn is_resending(&self) -> bool {
        matches!(self.phase, Phase::Resending(_))
    }
}

/// Round-trip time as in RFC 6298 section 2: one measurement at a time, and none over a
/// retransmission. smoltcp's own measurement is private, and in milliseconds.
#[derive(Debug)]
struct Trip {
    smoothed: Option<Duration>,
    variance: Duration,
    /// Measurement in progress: the offset that has to be acknowledged, and the time it was sent.
    timed: Option<(u64, Instant)>,
    left: u64,
}

impl Trip {
    fn begun(now: Instant) -> Self {
        Self {
            smoothed: None,
            variance: Duration::ZERO,
            timed: Some((0, now)),
            left: 0,
        }
    }

    fn sent(&mut self, left: u64, now: Instant) {
        if left > self.left {
            self.left = left;
            self.timed.get_or_insert((left, now));
        }
    }

    fn forget(&mut self) {
        self.timed = None;
    }

    fn answered(&mut self, acknowledged: u64, now: Instant) {
        let Some((_, at)) = self.timed.filter(|(to, _)| *to <= acknowledged) else {
            return;
        };
        self.timed = None;
        let measured = Duration::from(now - at);
        if measured >= TIMER {
            // smoltcp may have sent it again.
            return;
        }
        match &mut self.smoothed {
            None => {
                self.smoothed = Some(measured);
                self.variance = measured / 2;
            }
            Some(smoothed) => {
                self.variance = (self.variance * 3 + smoothed.abs_diff(measured)) / 4;
                *smoothed = (*smoothed * 7 + measured) / 8;
            }
        }
    }

    /// Longest time that an answer takes, as far as known.
    fn patience(&self) -> Option<Duration> {
        let smoothed = self.smoothed?;
        Some(
            (smoothed * 2)
                .max(smoothed + self.variance * 4)
                .max(SHORTEST),
        )
    }
}

impl SmolConnection {
    fn stream(&self) -> Stream {
        let acknowledged = self.acknowledged();
        // A peer can acknowledge bytes that were not sent yet.
        let left = (self.handed - self.unsent() as u64).max(acknowledged);
        Stream { acknowledged, left }
    }

    /// Returns true if smoltcp can send bytes again in this state.
    fn may_recover(&self) -> bool {
        let socket = self.socket();
        let state = socket.state();
        let sends = matches!(
            state,
            State::Established | State::CloseWait | State::FinWait1 | State::Closing
        );
        sends && socket.send_queue() > 0 && self.device.peer.window > 0
    }

    /// Makes smoltcp send lost bytes again. Called after an arrival.
    pub(super) fn recover(&mut self, now: Instant) {
        if !self.stack.settings.early_recovery {
            return;
        }
        let (stream, segment) = (self.stream(), self.segment_octets());
        if self.recovery.arrived(stream, segment, now) && self.may_recover() {
            self.replay_last_ack(now);
        }
    }

    /// Makes smoltcp send bytes again that were unanswered for too long, and asks about a window
    /// that stays closed.
    pub(super) fn probe_if_due(&mut self, now: Instant) {
        let due = |this: &Self| this.recovers_at().is_some_and(|at| at <= now);
        if !due(self) {
            return;
        }
        // Perhaps this process did not run for a while, and the answer is here.
        self.stack.poll();
        self.take_in(now);
        // While the link accepts nothing, the peer has received nothing to answer.
        if !due(self) || self.device.hold_back_if_full() {
            return;
        }
        if self.recovery.window_probe_at().is_some_and(|at| at <= now) {
            self.recovery.shut = Some((now, true));
            let queued = self.socket().send_queue();
            self.device.request_ack(&self.key, self.handed, queued);
            return;
        }
        let (stream, segment) = (self.stream(), self.segment_octets());
        let delay = self.stack.settings.peer_ack_delay;
        if self
            .recovery
            .begin_probe_if_due(stream, segment, delay, now)
        {
            self.replay_last_ack(now);
        }
    }

    /// Records what smoltcp sent, and returns the time for [`Self::probe_if_due`].
    pub(super) fn schedule_probe(&mut self, now: Instant) -> Option<Instant> {
        if !self.stack.settings.early_recovery {
            return None;
        }
        let stream = self.stream();
        self.recovery.sent(stream, now);
        let idle = stream.acknowledged == stream.left;
        let closed = self.device.peer.window == 0 && self.socket().send_queue() > 0;
        let waits = self.aligner.deadline().is_some() || closed;
        self.recovery.set_shut(idle && waits, now);
        self.recovers_at()
    }

    fn recovers_at(&self) -> Option<Instant> {
        if self.recovery.shut.is_some() {
            return self.recovery.window_probe_at();
        }
        if self.recovery.since.is_none() || self.recovery.is_resending() || !self.may_recover() {
            return None;
        }
        let delay = self.stack.settings.peer_ack_delay;
        let probe = (self.recovery).probe_at(self.stream(), self.segment_octets(), delay);
        // smoltcp's timer counts as well, because recovery has to notice when it fires.
        let timer = self.recovery.since.map(|since| since + TIMER.into());
        probe.into_iter().chain(timer).min()
    }
}

#[cfg(test)]
mod tests;
