//! How a QP tells whoever connected it what becomes of the connection.

use std::sync::Arc;

use uwarp_mpa::{Negotiated, Role};

use crate::engine::Connection;
use crate::event::EndReason;
use crate::qp::inner::Addrs;
use crate::qp::state::QpState;

/// Who wants to know. Called under the lock of the QP: an implementation only queues, and calls
/// neither the QP nor the program.
pub(crate) trait Observer: Send + Sync {
    /// MPA startup is done.
    fn established(&self, negotiated: &Negotiated, addrs: Option<Addrs>);

    /// The connection is over, with all work flushed. Nothing is told after this.
    fn over(&self, reason: &EndReason);
}

/// An observer, and what it was told.
pub(crate) struct Observed {
    observer: Arc<dyn Observer>,
    told: bool,
}

impl Observed {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Observed {
            observer,
            told: false,
        }
    }

    /// Whether this is the one who is told.
    pub(crate) fn is(&self, observer: *const ()) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.observer).cast(), observer)
    }

    /// Tells what is new about the connection; true when nothing more can come. `gone`: the LLP stream was given up,
    /// so that its addresses are free again.
    #[inline]
    pub(crate) fn look(&mut self, conn: &Connection, addrs: Option<Addrs>, gone: bool) -> bool {
        if !self.told
            && let Some(negotiated) = &conn.negotiated
            && (conn.established || negotiated.role == Role::Responder)
        {
            self.told = true;
            self.observer.established(negotiated, addrs);
        }
        if conn.state != QpState::Error || !gone {
            return false;
        }
        self.observer
            .over(conn.end.as_ref().unwrap_or(&EndReason::Aborted));
        true
    }
}
