//! Operations without a completion.

use uwarp_engine::mem::RemoteBuffer;

use super::buf::RegisteredBuf;
use super::connection::Connection;
use super::error::Error;
use super::flagged::{Flagged, fits};
use super::table::{InFlightMemory, ReclaimedMemory};
use uwarp_engine::wr::SendWr;

/// A connection, and flags for operations without a completion (no `IBV_SEND_SIGNALED`).
///
/// The future of such an operation is ready when the operation is posted; see
/// [`SendWr::unsignaled`]. Its buffer returns to the pool when a later signaled operation
/// completes. After the connection was dropped, the buffer returns when the connection has ended. A
/// program therefore posts a signaled operation after a number of unsignaled ones. An operation
/// that fails ends the connection, and [`Connection::end_reason`] gives the reason.
///
/// In two cases the library requests a completion anyway: when unsignaled operations occupy half of
/// the send queue, and for the last buffer of a pool. Otherwise the program could wait forever for
/// a place or a buffer.
///
/// ```
/// # use uwarp_verbs::RemoteBuffer;
/// # use uwarp_verbs::aio::{Connection, Error, RegisteredBuf};
/// # async fn reply(
/// #     connection: &Connection,
/// #     buf: RegisteredBuf,
/// #     to: RemoteBuffer,
/// # ) -> Result<(), Error> {
/// // The Send completes after the Write, so its completion covers both.
/// connection.unsignaled().write(buf, to).await.map_err(|(error, _)| error)?;
/// connection.send_inline(b"written").await
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Unsignaled<'a>(Flagged<'a>);

impl Connection {
    /// Clears the signaled flag: operations create no completion on success (no
    /// `IBV_SEND_SIGNALED`).
    #[must_use]
    pub fn unsignaled(&self) -> Unsignaled<'_> {
        self.plain().unsignaled()
    }
}

impl<'a> Flagged<'a> {
    /// Clears the signaled flag (no `IBV_SEND_SIGNALED`): [`Connection::unsignaled`].
    #[must_use]
    pub fn unsignaled(self) -> Unsignaled<'a> {
        Unsignaled(self)
    }
}

/// The future of each operation is ready when the operation is posted. An error means that the
/// operation was not posted. The error returns the buffer.
impl Unsignaled<'_> {
    /// [`Connection::send`] without a completion (RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send(self, buf: RegisteredBuf) -> Result<(), (Error, RegisteredBuf)> {
        self.buffer(buf, |id, sges| SendWr::send(id, sges)).await
    }

    /// [`Connection::send_inline`] without a completion (RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_inline(self, bytes: &[u8]) -> Result<(), Error> {
        self.bare(|wr_id| SendWr::send_inline(wr_id, bytes)).await
    }

    /// [`Connection::write`] without a completion (RFC 5040 section 5.1).
    ///
    /// # Errors
    /// See [`Connection::write`].
    pub async fn write(
        self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
    ) -> Result<(), (Error, RegisteredBuf)> {
        if let Err(error) = fits(buf.len() as u64, remote.len, "the remote memory") {
            return Err((error, buf));
        }
        self.buffer(buf, |id, sges| SendWr::write(id, sges, remote))
            .await
    }

    /// [`Connection::write_with_immediate`] without a local completion (RFC 7306 section 6).
    ///
    /// # Errors
    /// See [`Connection::write`].
    pub async fn write_with_immediate(
        self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
        immediate: [u8; 8],
    ) -> Result<(), (Error, RegisteredBuf)> {
        if let Err(error) = fits(buf.len() as u64, remote.len, "the remote memory") {
            return Err((error, buf));
        }
        self.buffer(buf, |id, sges| {
            SendWr::write_with_immediate(id, sges, remote, immediate)
        })
        .await
    }

    /// [`Connection::send_immediate`] without a local completion (RFC 7306 section 6).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_immediate(self, immediate: [u8; 8]) -> Result<(), Error> {
        self.bare(|wr_id| SendWr::immediate(wr_id, immediate)).await
    }

    async fn buffer(
        self,
        buf: RegisteredBuf,
        request: impl for<'w> FnOnce(u64, &'w [crate::Sge]) -> SendWr<'w>,
    ) -> Result<(), (Error, RegisteredBuf)> {
        let Flagged { connection, .. } = self.0;
        let ops = match connection.ops() {
            Ok(ops) => ops,
            Err(error) => return Err((error.into(), buf)),
        };
        let slot = ops.room().await;
        let last = buf.is_last();
        let in_flight = buf.start_transfer();
        let source = [in_flight.content()];
        let memory = Some(InFlightMemory::Buf(in_flight));
        let posted = ops.start_unsignaled(slot, memory, last, |wr_id, signaled| {
            let wr = self.0.mark(request(wr_id, &source));
            connection.qp.post_send(&unsignaled_unless(wr, signaled))
        });
        posted.map_err(|(error, memory)| (error.into(), ReclaimedMemory::buf(memory)))
    }

    async fn bare<'w>(self, request: impl FnOnce(u64) -> SendWr<'w>) -> Result<(), Error> {
        let Flagged { connection, .. } = self.0;
        let ops = connection.ops()?;
        let slot = ops.room().await;
        let posted = ops.start_unsignaled(slot, None, false, |wr_id, signaled| {
            let wr = self.0.mark(request(wr_id));
            connection.qp.post_send(&unsignaled_unless(wr, signaled))
        });
        posted.map_err(|(error, _)| error.into())
    }
}

/// Makes a request unsignaled, unless `signaled` is set.
fn unsignaled_unless(wr: SendWr<'_>, signaled: bool) -> SendWr<'_> {
    if signaled { wr } else { wr.unsignaled() }
}
