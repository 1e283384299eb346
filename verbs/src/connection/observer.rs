//! Interface by which a QP reports its connection to the object that started it.

use std::sync::Arc;

use uwarp_engine::state::QpState;
use uwarp_mpa::{Negotiated, Role};

use crate::connection::Connection;
use crate::trace::Addrs;
use uwarp_engine::event::EndReason;

/// Receiver of the reports. Called under the lock of the QP: an implementation only queues, and
/// calls neither the QP nor the program.
pub(crate) trait Observer: Send + Sync {
    /// MPA startup is done.
    fn established(&self, negotiated: &Negotiated, addrs: Option<Addrs>);

    /// The connection has ended, with all work flushed. This is the last report.
    fn over(&self, reason: &EndReason);
}

/// An observer, and the reports that it has received.
pub(crate) struct Observed {
    observer: Arc<dyn Observer>,
    has_reported: bool,
}

impl Observed {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Observed {
            observer,
            has_reported: false,
        }
    }

    /// Returns true if this is the observer at that address.
    pub(crate) fn is(&self, observer: *const ()) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.observer).cast(), observer)
    }

    /// Reports changes of the connection. Returns true if no further report can follow. `gone`: the
    /// LLP stream was released, so its addresses are free again.
    #[inline]
    pub(crate) fn look(&mut self, conn: &Connection, addrs: Option<Addrs>, gone: bool) -> bool {
        if !self.has_reported
            && let Some(negotiated) = &conn.negotiated
            && (conn.established || negotiated.role == Role::Responder)
        {
            self.has_reported = true;
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
