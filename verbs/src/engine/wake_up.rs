//! The FPDU that wakes a responder which has overlooked the first one.
//!
//! Linux siw sends its MPA Reply before it watches the socket for FPDUs. An FPDU that arrives in between stays unread until
//! another one follows it, so that a client that waits for an answer to its first message waits for ever. Nothing in MPA
//! startup tells siw from others. So an initiator whose first FPDU has brought nothing back sends a second one: an RDMA
//! Write of zero length, which no peer checks (5041-5.2-11) and no program notices.

use std::time::Instant;

use uwarp_mpa::Rtr;

use super::connection::{Connection, Stage};
use crate::peer::first_fpdu_delay;
use crate::qp::state::QpState;
use crate::wait::after;

/// Where the wake-up of the responder stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum WakeUp {
    /// It was sent, or none is necessary.
    #[default]
    Done,
    /// The LLP has not taken an FPDU of ours yet: none ends at or before this position of the stream.
    Armed(u64),
    /// The first FPDU was sent. If none has come from the peer by then, the wake-up is due.
    At(Instant),
}

impl Connection {
    /// Initiator: startup is over, and what is sent from now on may be overlooked.
    pub(super) fn arm_wake_up(&mut self) {
        let settings = &self.ctx.settings;
        // An FPDU that waits for the responder is not overlooked.
        let wanted = settings.wake_up.is_some() && first_fpdu_delay(settings).is_zero();
        self.wake_up = if wanted {
            WakeUp::Armed(self.tx.framed_to())
        } else {
            WakeUp::Done
        };
    }

    /// The LLP has taken bytes.
    #[inline]
    pub(super) fn time_wake_up(&mut self) {
        if let WakeUp::Armed(position) = self.wake_up
            && self.tx.taken_to() > position
        {
            let wake_up = self.ctx.settings.wake_up;
            self.wake_up = wake_up.map_or(WakeUp::Done, |wait| WakeUp::At(after(self.now, wait)));
        }
    }

    /// When the wake-up is due.
    pub(super) fn wake_up_due(&self) -> Option<Instant> {
        match self.wake_up {
            WakeUp::At(due) => Some(due),
            WakeUp::Armed(_) | WakeUp::Done => None,
        }
    }

    /// After everything that has arrived was handled: sends the wake-up if it is due and nothing of
    /// an FPDU has come from the peer. `has_part`: the first bytes of an FPDU have.
    pub(crate) fn wake_peer(&mut self, has_part: bool) {
        if self.wake_up_due().is_none_or(|due| self.now < due) {
            return;
        }
        self.wake_up = WakeUp::Done;
        let Stage::Open(stream) = &self.stage else {
            return;
        };
        let has_answered = has_part || stream.deframer.position() > 0;
        // What is sent now wakes it as well.
        let is_sending = !self.tx.is_empty() || stream.current.is_some() || self.has_next();
        if has_answered || is_sending || self.state != QpState::Rts {
            return;
        }
        tracing::debug!(parent: &self.span, qp = self.ctx.qp_num, "no FPDU from the peer: an empty Write wakes it");
        self.begin_rtr(Rtr::Write);
    }
}
