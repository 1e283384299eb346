//! Waiting until a queue is empty.

use std::time::Duration;

use super::Qp;

impl Qp {
    /// Waits until every request that is now in the send queue has completed (`ib_drain_sq`),
    /// successfully or not, signaled or not.
    ///
    /// Does not wait for requests that are posted later. When this returns true, the completions
    /// are in the send CQ.
    ///
    /// This call does not make requests fail. On an open connection they complete as the network
    /// accepts them; after a disconnect or an error they are flushed. Returns false if `timeout`
    /// passed first, and in the child of a fork.
    #[must_use]
    pub fn drain_sends(&self, timeout: Duration) -> bool {
        let Ok(inner) = self.inner() else {
            return false;
        };
        let posted_to = inner.lock().driven.conn.sq.posted_to();
        inner.drain(Some(timeout), |conn| conn.sq.completed_to() >= posted_to)
    }

    /// Waits until every receive that is now posted to this QP has completed (`ib_drain_rq`).
    ///
    /// On an open connection receives complete as the peer sends. Close the connection or reset the
    /// QP first to have them flushed. With a shared receive queue this waits only for the receive
    /// of a message in progress, because the other receives do not belong to this QP. Returns false
    /// if `timeout` passed first, and in the child of a fork.
    #[must_use]
    pub fn drain_receives(&self, timeout: Duration) -> bool {
        let Ok(inner) = self.inner() else {
            return false;
        };
        let until = inner.lock().driven.conn.rq.completed_when_drained();
        inner.drain(Some(timeout), |conn| conn.rq.completed() >= until)
    }
}
