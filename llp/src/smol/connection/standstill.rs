//! Restarts smoltcp in two cases in which it would otherwise wait forever.
//!
//! When smoltcp 0.14 has to send bytes again, it first stops its timer, and restarts it when it
//! sends a segment. If it cannot send one, no timer runs although bytes are unacknowledged. That
//! happens in two cases:
//! * An old segment that arrives late closes the peer's window again, and then TCP's timer fires.
//!   The acknowledgement that opened the window does not arrive a second time.
//! * Three duplicate acknowledgements arrive while the inbox of the peer's link is full.
//!
//! Then neither end sends anything. So the peer's last acknowledgement is replayed to smoltcp, as
//! if the network had duplicated it. If the window is closed, one replay is enough: smoltcp then
//! starts to probe the window. If the window is open, several replays make smoltcp retransmit.
//! smoltcp would not retransmit a FIN if nothing else is unacknowledged, so this module does it.

use smoltcp::socket::tcp::State;
use smoltcp::time::{Duration, Instant};

use super::SmolConnection;

/// Number of equal acknowledgements to replay. smoltcp does not count the first one as a
/// repetition, and retransmits at the third repetition.
const REPEATS: usize = 4;

/// First pause before the FIN is sent again (RFC 6298 section 2.4). Each pause is twice as long as
/// the one before, up to `LONGEST_PAUSE` (section 2.5).
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before the FIN is sent again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Time at which the FIN is sent again, and the pause before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FinAgain {
    pub(super) at: Instant,
    pause: Duration,
}

impl SmolConnection {
    /// Restarts smoltcp if bytes or a FIN are unacknowledged and no timer runs. Returns true if
    /// smoltcp now has something to do.
    pub(super) fn restart(&mut self, now: Instant) -> bool {
        let socket = self.socket();
        let (state, queued) = (socket.state(), socket.send_queue());
        let closing = matches!(state, State::FinWait1 | State::Closing | State::LastAck);
        let sends = closing || matches!(state, State::Established | State::CloseWait);
        let waits = sends && (closing || queued > 0);
        // While packets are held back, a signal will follow, after which this function runs again.
        if !waits || self.device.held_back || self.check_for_timer(now) {
            self.fin_again = None;
            return false;
        }
        if queued == 0 {
            self.repeat_fin(now);
            return false;
        }
        self.replay_last_ack(now);
        self.check_for_timer(now)
    }

    /// Replays the peer's last acknowledgement to smoltcp, often enough that its next poll sends
    /// the first unacknowledged segment.
    pub(super) fn replay_last_ack(&mut self, now: Instant) {
        let queued = self.socket().send_queue();
        let received = self.received();
        let said = self
            .device
            .last_ack_of_peer(&self.key, (self.handed, queued), received);
        let Some(said) = said else {
            return;
        };
        // smoltcp counts repetitions, and may have counted more than three already. An
        // acknowledgement with a different window restarts the count.
        let mut other = said;
        other.window = if said.window == 1 {
            2
        } else {
            said.window.wrapping_sub(1)
        };
        let times = if said.window == 0 { 1 } else { REPEATS };
        if said.window != 0 {
            self.device.replay(other);
        }
        for _ in 0..times {
            self.device.replay(said);
        }
        self.show_replayed(now);
    }

    fn repeat_fin(&mut self, now: Instant) {
        let pause = match self.fin_again {
            None => FIRST_PAUSE,
            Some(again) if again.at > now => return,
            Some(again) => {
                self.device.repeat_fin(&self.key);
                (again.pause * 2).min(LONGEST_PAUSE)
            }
        };
        let at = now + pause;
        self.fin_again = Some(FinAgain { at, pause });
    }

    /// Returns true if smoltcp has a packet to send or a timer running, not counting the timeout
    /// for a silent peer. That timeout is removed during the query.
    fn check_for_timer(&mut self, now: Instant) -> bool {
        let timeout = self.socket().timeout();
        self.socket_mut().set_timeout(None);
        let at = self.interface.poll_at(now, &self.sockets);
        self.socket_mut().set_timeout(timeout);
        at.is_some()
    }
}
