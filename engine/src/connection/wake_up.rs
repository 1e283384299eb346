//! A second FPDU for a responder that may not have noticed the first one.
//!
//! Linux siw sends its MPA Reply before it watches the socket for FPDUs. An FPDU that arrives in
//! between stays unread until the next one arrives. A client that waits for an answer to its first
//! message would then wait for ever. MPA startup does not reveal whether the peer is siw. Therefore
//! an initiator that receives nothing after its first FPDU sends a second one: an empty RDMA Write.
//! No peer checks its STag (5041-5.2-11), and no program notices it.

use crate::state::QpState;
use crate::timers::Timer;
use crate::times::after;
use uwarp_mpa::Rtr;

use super::Connection;
use super::LOG_TARGET;
use crate::completion::CompletionQueue;
use crate::peer::first_fpdu_delay;

impl<Q: CompletionQueue> Connection<Q> {
    /// Initiator: prepares the wake-up at the end of startup.
    pub(super) fn arm_wake_up(&mut self) {
        let settings = &self.ctx.settings;
        // With `first_fpdu_delay`, the first FPDU waits until the responder watches its socket.
        let wanted = settings.wake_up.is_some() && first_fpdu_delay(settings).is_zero();
        if wanted && let Some(stream) = self.stage.open_mut() {
            stream.outbound.wakes_after = Some(self.tx.framed_to());
        }
    }

    /// Starts the timer of the wake-up once the LLP has taken the first FPDU.
    #[inline]
    pub(super) fn time_wake_up(&mut self) {
        if let Some(stream) = self.stage.open_mut()
            && let Some(position) = stream.outbound.wakes_after
            && self.tx.taken_to() > position
        {
            stream.outbound.wakes_after = None;
            if let Some(wait) = self.ctx.settings.wake_up {
                self.timers.set(Timer::WakeUp, after(self.now, wait));
            }
        }
    }

    /// Sends the wake-up if it is due and no byte of an FPDU has arrived from the peer.
    ///
    /// Call it after everything that arrived was handled. `has_part`: the first bytes of an FPDU
    /// have arrived.
    pub fn wake_peer(&mut self, has_part: bool) {
        if !self.timers.take_due(Timer::WakeUp, self.now) {
            return;
        }
        let Some(stream) = self.stage.open() else {
            return;
        };
        let has_answered = has_part || stream.inbound.has_begun();
        // An FPDU sent now wakes the peer as well.
        let is_sending = !self.tx.is_empty() || stream.has_next(&self.ctx, &self.sq);
        if has_answered || is_sending || self.state != QpState::Rts {
            return;
        }
        tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, "no FPDU from the peer; an empty Write wakes it");
        self.begin_rtr(Rtr::Write);
    }
}
