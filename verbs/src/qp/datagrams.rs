//! Calls of a QP for datagrams.

use uwarp_engine::connection::PostError;

use super::Qp;
use crate::datagram::DatagramWr;

impl Qp {
    /// Makes a QP for datagrams ([`QpBuilder::datagrams`](crate::QpBuilder::datagrams)) receive and
    /// send (`ibv_modify_qp` to RTR and RTS). Returns false if it is no such QP, or if it is not
    /// idle.
    pub fn open_datagrams(&self) -> bool {
        self.inner()
            .is_ok_and(|inner| inner.with(crate::connection::Connection::open_datagrams))
    }

    /// Sets the Q_Key of the QP: datagrams with another one are dropped. Default, and after a
    /// reset: 0.
    pub fn set_qkey(&self, qkey: u32) {
        if let Ok(inner) = self.inner() {
            inner.with(|conn| conn.attr.qkey = qkey);
        }
    }

    /// Sends a datagram. The request is complete when the call returns, whether the datagram
    /// arrives or not.
    ///
    /// # Errors
    /// See [`PostErrorKind`](crate::PostErrorKind). A request posted to a QP in an error state is
    /// accepted and completes as flushed.
    pub fn post_datagram(&self, wr: &DatagramWr<'_>) -> Result<(), PostError> {
        self.post_datagrams([*wr])
    }

    /// Sends all datagrams of a list, or none if one of them is refused (`ibv_wr_complete`).
    /// Otherwise it works like [`post_datagram`](Self::post_datagram). The list is gone through
    /// several times.
    ///
    /// # Errors
    /// [`PostError`] names the first request that would be refused. None was posted, unless another
    /// thread has posted to the QP or deregistered memory of the list meanwhile.
    pub fn post_datagrams<'a, I>(&self, wrs: I) -> Result<(), PostError>
    where
        I: IntoIterator<Item = DatagramWr<'a>>,
        I::IntoIter: Clone,
    {
        self.to_post()?.post_datagrams(wrs.into_iter())
    }
}
