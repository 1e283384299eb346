//! A second FPDU for a responder that may have missed the first one.
//!
//! Linux siw sends its MPA Reply before it watches the socket for FPDUs. An FPDU that arrives in
//! between stays unread until another one follows it. A client that waits for an answer to its
//! first message would wait for ever. MPA startup does not reveal whether the peer is siw. So an
//! initiator whose first FPDU brings nothing back sends a second one: an RDMA Write of zero length.
//! No peer checks it (5041-5.2-11), and no program notices it.

use std::time::Instant;

use uwarp_mpa::Rtr;

use super::connection::{Connection, Stage};
use crate::peer::first_fpdu_delay;
use crate::qp::state::QpState;
use crate::wait::after;

/// State of the wake-up of the responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum WakeUp {
    /// It was sent, or none is necessary.
    #[default]
    Done,
    /// The LLP has taken no FPDU yet: none ends at or before this stream position.
    Armed(u64),
    /// The first FPDU was sent. The wake-up is due at this time if no FPDU has come from the peer.
    At(Instant),
}

impl Connection {
    /// Initiator: prepares the wake-up, because startup is over and later FPDUs may be missed.
    pub(super) fn arm_wake_up(&mut self) {
        let settings = &self.ctx.settings;
        // An FPDU that waits for the responder is not missed.
        let wanted = settings.wake_up.is_some() && first_fpdu_delay(settings).is_zero();
        self.wake_up = if wanted {
            WakeUp::Armed(self.tx.framed_to())
        } else {
            WakeUp::Done
        };
    }

    /// Starts the timer of the wake-up once the LLP has taken the first FPDU.
    #[inline]
    pub(super) fn time_wake_up(&mut self) {
        if let WakeUp::Armed(position) = self.wake_up
            && self.tx.taken_to() > position
        {
            let wake_up = self.ctx.settings.wake_up;
            self.wake_up = wake_up.map_or(WakeUp::Done, |wait| WakeUp::At(after(self.now, wait)));
        }
    }

    /// Returns the time at which the wake-up is due.
    pub(super) fn wake_up_due(&self) -> Option<Instant> {
        match self.wake_up {
            WakeUp::At(due) => Some(due),
            WakeUp::Armed(_) | WakeUp::Done => None,
        }
    }

    /// Sends the wake-up if it is due and nothing of an FPDU has come from the peer.
    ///
    /// Call it after everything that arrived was handled. `has_part`: the first bytes of an FPDU
    /// have arrived.
    pub(crate) fn wake_peer(&mut self, has_part: bool) {
        if self.wake_up_due().is_none_or(|due| self.now < due) {
            return;
        }
        self.wake_up = WakeUp::Done;
        let Stage::Open(stream) = &self.stage else {
            return;
        };
        let has_answered = has_part || stream.deframer.position() > 0;
        // An FPDU sent now wakes the peer as well.
        let is_sending = !self.tx.is_empty() || stream.current.is_some() || self.has_next();
        if has_answered || is_sending || self.state != QpState::Rts {
            return;
        }
        tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, "no FPDU from the peer; an empty Write wakes it");
        self.begin_rtr(Rtr::Write);
    }
}
