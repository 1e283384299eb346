//! Waiting until queues are empty.

use std::time::Duration;

use super::Qp;

impl Qp {
    /// Waits until every request that is in the send queue now has completed, as `ib_drain_sq` does: with success or
    /// not, signaled or not. Requests that are posted meanwhile are not waited for. The completions are in the send
    /// CQ when this returns.
    ///
    /// It does not make requests fail: on a connection that stands they complete as the network takes them; after
    /// a disconnect or an error they are flushed. False when `timeout` passed first, and in
    /// the child of a fork.
    #[must_use]
    pub fn drain_sends(&self, timeout: Duration) -> bool {
        if self.is_inherited() {
            return false;
        }
        let inner = self.inner();
        let posted_to = inner.lock().driven.conn.sq.posted_to();
        inner.drain(Some(timeout), |conn| conn.sq.completed_to() >= posted_to)
    }

    /// Waits until every receive that this QP has now has completed, as `ib_drain_rq` does. On a connection that
    /// stands, receives complete as the peer sends: close it or reset the QP first to have them flushed. Of a shared
    /// receive queue only the receive of a message under way is waited for; the others are not this QP's. False when
    /// `timeout` passed first.
    #[must_use]
    pub fn drain_receives(&self, timeout: Duration) -> bool {
        if self.is_inherited() {
            return false;
        }
        let inner = self.inner();
        let until = inner.lock().driven.conn.rq.completed_when_drained();
        inner.drain(Some(timeout), |conn| conn.rq.completed() >= until)
    }
}
