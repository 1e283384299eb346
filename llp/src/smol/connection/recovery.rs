//! Early recovery: sends lost bytes again as soon as the loss is detected, where smoltcp would wait
//! for its timer.
//!
//! smoltcp 0.14 sends one segment again at the third duplicate acknowledgement, and restarts that
//! count whenever the window changes. Other losses wait for a timer of at least one second: the
//! second loss in a window, a segment that is lost again, and the last segment sent. This module
//! therefore does three things:
//! * It keeps its own count of duplicate acknowledgements (RFC 5681 section 3.2).
//! * During recovery, an acknowledgement below the recovery point shows the next gap, which is sent
//!   again (RFC 6582).
//! * It sends a *probe* after about two round trips without an acknowledgement: the first
//!   unacknowledged segment (RFC 8985 section 7 sends the last one).
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
//! Only smoltcp has the bytes, and only duplicate acknowledgements make it retransmit some of them.
//! So the peer's last acknowledgement is replayed to smoltcp as often as needed. Pauses between
//! probes grow. Probes end before smoltcp's timer fires. When it fires, smoltcp retransmits
//! everything as usual. Replayed acknowledgements also shrink a congestion window.
//!
//! Early recovery is active only if [`early_recovery`](crate::smol::MemorySettings::early_recovery)
//! is set, and never on a link that cuts bursts. On such a link smoltcp would send a whole burst
//! again, although the peer may have most of it, and the burst may end within an FPDU.

use std::time::Duration;

use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use super::SmolConnection;

/// Number of repetitions of an acknowledgement that indicate a loss (RFC 5681 section 3.2).
const REPETITIONS: u64 = 3;

/// Shortest pause before a probe, so that no probe is sent to a peer that is only busy for a
/// moment.
const SHORTEST: Duration = Duration::from_millis(2);

/// Longest pause before a probe. smoltcp's timer fires a second after the last segment was sent.
const LONGEST: Duration = Duration::from_millis(500);

/// Shortest retransmission timeout of smoltcp (RFC 6298 section 2.4).
const TIMER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Steady,
    /// A probe was sent, and its acknowledgement is awaited. The bytes sent before the probe end at
    /// this stream offset. Perhaps nothing was lost and the peer was only busy.
    Probing(u64),
    /// A loss was detected. The bytes sent before the detection end at this stream offset.
    Recovering(u64),
    /// smoltcp's timer fired. smoltcp sends everything up to this stream offset again.
    Resending(u64),
}

/// State of loss recovery, and the measured round trip.
#[derive(Debug)]
pub(super) struct Recovery {
    phase: Phase,
    /// Stream offset up to which the peer had acknowledged at the last check.
    acknowledged: u64,
    repetitions: u64,
    /// Start of the current wait for an acknowledgement: the time of the last acknowledgement of
    /// new bytes, or of the last retransmission. `None` if nothing is in flight.
    since: Option<Instant>,
    /// Number of probes since the last acknowledgement of new bytes.
    probes: u32,
    /// Set while nothing is in flight and the peer's window is too small. Holds the start of this
    /// condition, and whether the peer was already asked for its window.
    shut: Option<(Instant, bool)>,
    trip: Trip,
}

/// Progress of the sent stream, as stream offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    /// Every byte before this offset is acknowledged.
    acknowledged: u64,
    /// Every byte before this offset was sent.
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

    /// Counts a repeated acknowledgement.
    pub(super) fn repeated(&mut self) {
        self.repetitions += 1;
    }

    /// Records that the connection is established. The handshake is the first measured round trip.
    /// It does not count if it took so long that the SYN may have been sent again.
    pub(super) fn established(&mut self, now: Instant) {
        self.trip.answered(0, now);
    }

    /// Processes the arrival of packets. Returns true if the first unacknowledged segment has to be
    /// sent again now.
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
        // With few segments in flight, fewer repetitions are enough, because no more can arrive
        // (RFC 5827 section 3.1).
        let others = (stream.left - stream.acknowledged).div_ceil(segment as u64) - 1;
        let enough = others.clamp(1, REPETITIONS);
        if may_find && self.repetitions >= enough {
            self.phase = Phase::Recovering(stream.left);
            return self.again(now);
        }
        false
    }

    /// Records a retransmission, which cancels the current measurement of the round trip. Returns
    /// true.
    fn again(&mut self, now: Instant) -> bool {
        self.since = Some(now);
        self.trip.forget();
        true
    }

    /// Records the progress of the stream after smoltcp had a chance to send.
    fn sent(&mut self, stream: Stream, now: Instant) {
        if stream.acknowledged < stream.left {
            self.since.get_or_insert(now);
        }
        self.trip.sent(stream.left, now);
    }

    /// Time at which a probe is due, or `None` if none is. `delay` is the time for which the peer
    /// may delay an acknowledgement of less than two segments.
    fn probe_at(&self, stream: Stream, segment: usize, delay: Duration) -> Option<Instant> {
        // The peer acknowledges two full segments immediately. For fewer bytes it may delay the
        // acknowledgement (RFC 9293 section 3.8.6.3).
        let few = stream.left - stream.acknowledged < 2 * segment as u64;
        let late = if few { delay } else { Duration::ZERO };
        let pause = (self.trip.patience()? + late).checked_mul(1 << self.probes.min(16))?;
        let since = self.since.filter(|_| pause <= LONGEST)?;
        Some(since + pause.into())
    }

    /// Records a probe and returns true if one has to be sent now. Enters `Resending` instead if
    /// smoltcp's timer has fired.
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

    /// Records whether this side waits for a larger window with nothing in flight. The peer may
    /// have sent a window update that was lost.
    fn set_shut(&mut self, shut: bool, now: Instant) {
        match (shut, self.shut) {
            (true, None) => self.shut = Some((now, false)),
            (false, Some(_)) => self.shut = None,
            _ => {}
        }
    }

    /// Time at which to ask the peer for its window. The peer is asked only once, because many
    /// peers answer only one such segment a second. smoltcp's own probe follows after a second.
    fn window_probe_at(&self) -> Option<Instant> {
        let (since, asked) = self.shut?;
        let patience = self.trip.patience().filter(|_| !asked)?;
        Some(since + patience.into())
    }

    fn is_resending(&self) -> bool {
        matches!(self.phase, Phase::Resending(_))
    }
}

/// Round-trip time as in RFC 6298 section 2. There is one measurement at a time, and a
/// retransmission cancels it. smoltcp's own measurement is private, and in milliseconds.
#[derive(Debug)]
struct Trip {
    smoothed: Option<Duration>,
    variance: Duration,
    /// Measurement in progress: the stream offset that has to be acknowledged, and the time at
    /// which its bytes were sent.
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
            // smoltcp may have sent the bytes again, so the measurement is ambiguous.
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

    /// Returns the time after which an acknowledgement is overdue: two round trips, or the round
    /// trip plus four times its variance if that is longer. It is at least [`SHORTEST`]. `None`
    /// before the first measurement.
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
        // An acknowledgement may cover bytes that were not sent yet.
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

    /// Makes smoltcp send lost bytes again, if received packets show a loss.
    pub(super) fn recover(&mut self, now: Instant) {
        if !self.stack.settings.early_recovery {
            return;
        }
        let (stream, segment) = (self.stream(), self.segment_bytes());
        if self.recovery.arrived(stream, segment, now) && self.may_recover() {
            self.replay_last_ack(now);
        }
    }

    /// Makes smoltcp send the first unacknowledged segment again if its acknowledgement is overdue.
    /// Asks the peer for its window if the window stays too small.
    pub(super) fn probe_if_due(&mut self, now: Instant) {
        let due = |this: &Self| this.recovers_at().is_some_and(|at| at <= now);
        if !due(self) {
            return;
        }
        // The process may not have run for a while, so the acknowledgement may have arrived
        // already.
        self.stack.poll();
        self.take_in(now);
        // While the link is full, the peer has not received the bytes that it would acknowledge.
        if !due(self) || self.device.hold_back_if_full() {
            return;
        }
        if self.recovery.window_probe_at().is_some_and(|at| at <= now) {
            self.recovery.shut = Some((now, true));
            let queued = self.socket().send_queue();
            self.device.request_ack(&self.key, self.handed, queued);
            return;
        }
        let (stream, segment) = (self.stream(), self.segment_bytes());
        let delay = self.stack.settings.peer_ack_delay;
        if self
            .recovery
            .begin_probe_if_due(stream, segment, delay, now)
        {
            self.replay_last_ack(now);
        }
    }

    /// Records the progress of the stream. Returns the time at which [`Self::probe_if_due`] has to
    /// run.
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
        let probe = (self.recovery).probe_at(self.stream(), self.segment_bytes(), delay);
        // The time of smoltcp's timer is included, because recovery has to notice that it fired.
        let timer = self.recovery.since.map(|since| since + TIMER.into());
        probe.into_iter().chain(timer).min()
    }
}

#[cfg(test)]
mod tests;
