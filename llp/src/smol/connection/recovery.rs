//! Sends again what was lost as soon as it shows, where smoltcp would wait for its timer.
//!
//! smoltcp 0.14 sends one segment again at the third duplicate acknowledgement, and counts from
//! nothing again whenever the window changes. All else is left to a timer of at least a second: the
//! second loss of a window, a segment that is lost once more, the last one of what is sent. So
//! this counts by itself (RFC 5681 section 3.2), sends the next gap again when an acknowledgement
//! ends there (RFC 6582), and asks by a *probe*, the first segment that is not acknowledged, when
//! nothing was heard for about two round trips (as RFC 8985 section 7 does with the last one).
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
//! Only smoltcp has the bytes, and nothing but acknowledgements makes it send some again. So it is
//! shown the last one that the peer sent as often as that takes. Probes come after ever longer pauses
//! and end before smoltcp's timer, which then does what it does, and sends everything again. A
//! congestion window becomes smaller by what it is shown.
//!
//! Only where [`early_recovery`](crate::smol::MemorySettings::early_recovery) is set, and never on a link that cuts bursts: what smoltcp
//! would send again there is a whole burst, of which the peer may have most, and which ends within an FPDU.

use std::time::Duration;

use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use super::SmolConnection;

/// So many repetitions of an acknowledgement show a loss: RFC 5681 section 3.2.
const REPETITIONS: u64 = 3;

/// The shortest pause before a probe: a peer that is busy for a moment has lost nothing.
const SHORTEST: Duration = Duration::from_millis(2);

/// No probe comes after a longer pause. smoltcp's timer has a second from what was sent last.
const LONGEST: Duration = Duration::from_millis(500);

/// smoltcp's timer: RFC 6298 section 2.4.
const TIMER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Steady,
    /// A probe left, which had been sent before and whose answer is due; what had left then ends at this
    /// offset of the stream. It may be that nothing was lost, and the peer had something else to do.
    Probing(u64),
    /// Something was lost of what had left when that was found: up to this offset.
    Recovering(u64),
    /// smoltcp sends everything up to here again.
    Resending(u64),
}

/// What is known about loss, and about the time that an answer takes.
#[derive(Debug)]
pub(super) struct Recovery {
    phase: Phase,
    /// Offset of the stream to which the peer has acknowledged, when that was last looked at.
    acknowledged: u64,
    repetitions: u64,
    /// Since when an answer is due: the last one with news, or what was sent again.
    since: Option<Instant>,
    /// Probes since the last answer with news.
    probes: u32,
    /// Since when nothing is under way and the peer's window takes nothing, and whether it was asked about it.
    shut: Option<(Instant, bool)>,
    trip: Trip,
}

/// How far the stream got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    /// The peer has acknowledged everything before this offset, and something after it has left up to the other.
    acknowledged: u64,
    left: u64,
}

impl Recovery {
    /// For a connection whose SYN leaves now.
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

    /// The peer has acknowledged once more what it had acknowledged.
    pub(super) fn repeated(&mut self) {
        self.repetitions += 1;
    }

    /// The handshake is over: its time is the first that is known, unless the SYN was sent again.
    pub(super) fn stands(&mut self, now: Instant) {
        self.trip.answered(0, now);
    }

    /// Looks at what has arrived; whether the first gap is to be filled now.
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
        // Where little is under way, fewer can come: RFC 5827 section 3.1.
        let others = (stream.left - stream.acknowledged).div_ceil(segment as u64) - 1;
        let enough = others.clamp(1, REPETITIONS);
        if may_find && self.repetitions >= enough {
            self.phase = Phase::Recovering(stream.left);
            return self.again(now);
        }
        false
    }

    /// Something is sent again: what is measured from now on would say nothing.
    fn again(&mut self, now: Instant) -> bool {
        self.since = Some(now);
        self.trip.forget();
        true
    }

    /// After something may have left; `length` of the segments.
    fn sent(&mut self, stream: Stream, now: Instant) {
        if stream.acknowledged < stream.left {
            self.since.get_or_insert(now);
        }
        self.trip.sent(stream.left, now);
    }

    /// When a probe is due, if the answer to little may be `delay` late.
    fn probe_at(&self, stream: Stream, segment: usize, delay: Duration) -> Option<Instant> {
        // Two full segments are acknowledged at once (RFC 9293 section 3.8.6.3), fewer need not be.
        let few = stream.left - stream.acknowledged < 2 * segment as u64;
        let late = if few { delay } else { Duration::ZERO };
        let pause = (self.trip.patience()? + late).checked_mul(1 << self.probes.min(16))?;
        let since = self.since.filter(|_| pause <= LONGEST)?;
        Some(since + pause.into())
    }

    /// Whether a probe is to be sent now.
    fn probes(&mut self, stream: Stream, segment: usize, delay: Duration, now: Instant) -> bool {
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

    /// Whether the peer's window takes nothing although nothing is under way. What opened it may be lost.
    fn set_shut(&mut self, shut: bool, now: Instant) {
        match (shut, self.shut) {
            (true, None) => self.shut = Some((now, false)),
            (false, Some(_)) => self.shut = None,
            _ => {}
        }
    }

    /// When the peer is to be asked about its window: once, for many a peer answers such a question once in a second.
    /// smoltcp's own probe comes after a second.
    fn asks_at(&self) -> Option<Instant> {
        let (since, asked) = self.shut?;
        let patience = self.trip.patience().filter(|_| !asked)?;
        Some(since + patience.into())
    }

    fn is_resending(&self) -> bool {
        matches!(self.phase, Phase::Resending(_))
    }
}

/// The round trip, as RFC 6298 section 2 measures it: one at a time, and never one of what was sent
/// again. smoltcp's own is private, and in milliseconds.
#[derive(Debug)]
struct Trip {
    smoothed: Option<Duration>,
    variance: Duration,
    /// What is measured: the offset that has to be acknowledged, and when it left.
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
            // Perhaps smoltcp has sent it again.
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

    /// How long an answer takes at most, as far as is known.
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
        // A peer can acknowledge what has not left yet.
        let left = (self.handed - self.unsent() as u64).max(acknowledged);
        Stream { acknowledged, left }
    }

    /// Whether smoltcp could send bytes again.
    fn may_recover(&self) -> bool {
        let socket = self.socket();
        let state = socket.state();
        let sends = matches!(
            state,
            State::Established | State::CloseWait | State::FinWait1 | State::Closing
        );
        sends && socket.send_queue() > 0 && self.device.peer.window > 0
    }

    /// After something arrived: has smoltcp send again what shows to be lost.
    pub(super) fn recover(&mut self, now: Instant) {
        if !self.stack.settings.early_recovery {
            return;
        }
        let (stream, segment) = (self.stream(), self.segment_octets());
        if self.recovery.arrived(stream, segment, now) && self.may_recover() {
            self.say_again(now);
        }
    }

    /// Has smoltcp send again what nobody has answered for too long, and asks about a window that does not open.
    pub(super) fn probe_if_due(&mut self, now: Instant) {
        let due = |this: &Self| this.recovers_at().is_some_and(|at| at <= now);
        if !due(self) {
            return;
        }
        // It may be we who were away.
        self.stack.poll();
        self.take_in(now);
        // While the link takes nothing, the peer has had nothing to answer.
        if !due(self) || self.device.holds_back() {
            return;
        }
        if self.recovery.asks_at().is_some_and(|at| at <= now) {
            self.recovery.shut = Some((now, true));
            let queued = self.socket().send_queue();
            self.device.ask(&self.key, self.handed, queued);
            return;
        }
        let (stream, segment) = (self.stream(), self.segment_octets());
        let delay = self.stack.settings.peer_ack_delay;
        if self.recovery.probes(stream, segment, delay, now) {
            self.say_again(now);
        }
    }

    /// After smoltcp has sent what it may: when it is time for [`Self::probe_if_due`].
    pub(super) fn probes_at(&mut self, now: Instant) -> Option<Instant> {
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
            return self.recovery.asks_at();
        }
        if self.recovery.since.is_none() || self.recovery.is_resending() || !self.may_recover() {
            return None;
        }
        let delay = self.stack.settings.peer_ack_delay;
        let probe = (self.recovery).probe_at(self.stream(), self.segment_octets(), delay);
        // Then smoltcp's timer, which is to be known here as well.
        let timer = self.recovery.since.map(|since| since + TIMER.into());
        probe.into_iter().chain(timer).min()
    }
}

#[cfg(test)]
mod tests;
