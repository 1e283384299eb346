//! Has smoltcp go on where it would wait for ever.
//!
//! When smoltcp 0.14 finds that it has to send again, it stops its timer first and starts it with the
//! segment that leaves. If none can leave, no timer runs although bytes are not acknowledged:
//! * TCP's timer fires while the window is closed, because an old segment that was overtaken on the
//!   way has closed it again, and the acknowledgement that opened it does not come again;
//! * three acknowledgements repeat themselves while the inbox of the peer's link is full.
//!
//! Neither end has anything to say then. So smoltcp hears once more what the peer has said last, as it
//! could from a network that doubles packets: of a closed window once, which starts the probes; of an
//! open one so often that it sends again. Where only the FIN is not acknowledged it would not send that
//! again, so that we do.

use smoltcp::socket::tcp::State;
use smoltcp::time::{Duration, Instant};

use super::SmolConnection;

/// Acknowledgements in a row that say the same: smoltcp sends again at the third that adds nothing.
const REPEATS: usize = 4;

/// Pauses before the FIN is sent again: as TCP's (RFC 6298 sections 2.4 and 2.5).
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// When the FIN is sent again, and the pause before that.
#[derive(Debug, Clone, Copy)]
pub(super) struct FinAgain {
    pub(super) at: Instant,
    pause: Duration,
}

impl SmolConnection {
    /// Has smoltcp go on if it stands still. Whether it has something to do now.
    pub(super) fn restart(&mut self, now: Instant) -> bool {
        let socket = self.socket();
        let (state, queued) = (socket.state(), socket.send_queue());
        let closing = matches!(state, State::FinWait1 | State::Closing | State::LastAck);
        let sends = closing || matches!(state, State::Established | State::CloseWait);
        let waits = sends && (closing || queued > 0);
        // While packets are held back a signal comes, and then this is asked again.
        if !waits || self.device.held_back || self.has_timer(now) {
            self.fin_again = None;
            return false;
        }
        if queued == 0 {
            self.repeat_fin(now);
            return false;
        }
        self.say_again(now);
        self.has_timer(now)
    }

    /// Shows smoltcp once more what the peer has said last, so often that it sends again what the peer
    /// has to have next. It does so when it is polled.
    pub(super) fn say_again(&mut self, now: Instant) {
        let queued = self.socket().send_queue();
        let received = self.received();
        let said = self
            .device
            .said_last(&self.key, (self.handed, queued), received);
        let Some(said) = said else {
            return;
        };
        // smoltcp counts repetitions, and may have counted beyond the third. Another window begins
        // a new count.
        let mut other = said;
        other.window = if said.window == 1 {
            2
        } else {
            said.window.wrapping_sub(1)
        };
        let times = if said.window == 0 { 1 } else { REPEATS };
        if said.window != 0 {
            self.device.hear_again(other);
        }
        for _ in 0..times {
            self.device.hear_again(said);
        }
        self.show_what_is_ours(now);
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

    /// Whether smoltcp has something to do, now or later, other than to give the peer up.
    fn has_timer(&mut self, now: Instant) -> bool {
        let timeout = self.socket().timeout();
        self.socket_mut().set_timeout(None);
        let at = self.interface.poll_at(now, &self.sockets);
        self.socket_mut().set_timeout(timeout);
        at.is_some()
    }
}
