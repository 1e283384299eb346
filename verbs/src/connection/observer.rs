//! Interface by which a QP reports its connection to the object that started it.

use uwarp_mpa::Negotiated;

use crate::trace::Addrs;
use uwarp_engine::event::EndReason;

/// Receiver of the reports, which are the events of the connection that are not for the program.
/// Called under the lock of the QP: an implementation only queues, and calls neither the QP nor the
/// program.
pub(crate) trait Observer: Send + Sync {
    /// MPA startup is done (`ConnectionEvent::StartupDone`).
    fn established(&self, negotiated: &Negotiated, addrs: Option<Addrs>);

    /// The connection has ended, with all work flushed, and the LLP stream was released, so its
    /// addresses are free again (`ConnectionEvent::Released`). This is the last report.
    fn over(&self, reason: &EndReason);
}
