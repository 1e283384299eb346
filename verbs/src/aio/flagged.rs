//! Operations with flags. The operations of [`Connection`] call these without flags.

use uwarp_engine::mem::RemoteBuffer;

use super::buf::RegisteredBuf;
use super::connection::Connection;
use super::error::Error;
use uwarp_engine::wr::SendWr;

/// A connection, and the flags for the operations started through it (`send_flags` of
/// `ibv_send_wr`).
///
/// ```
/// # use uwarp_verbs::aio::{Connection, Error};
/// # async fn tell(connection: &Connection) -> Result<(), Error> {
/// // Sent after the Reads of all tasks have completed; it wakes the peer.
/// connection.fence().solicited().send_inline(b"done").await
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Flagged<'a> {
    pub(super) connection: &'a Connection,
    fence: bool,
    solicited: bool,
}

impl Connection {
    /// Sets the fence flag (`IBV_SEND_FENCE`): [`SendWr::fence`].
    ///
    /// The operation starts after all earlier Reads and atomic operations of the connection have
    /// completed. A task that first awaits those operations needs no fence.
    #[must_use]
    pub fn fence(&self) -> Flagged<'_> {
        self.plain().fence()
    }

    /// Sets the solicited flag (`IBV_SEND_SOLICITED`): [`SendWr::solicited`].
    ///
    /// The message raises a solicited event at the receiver (RFC 5040 section 5.3).
    #[must_use]
    pub fn solicited(&self) -> Flagged<'_> {
        self.plain().solicited()
    }

    /// Wraps the connection without flags.
    pub(super) fn plain(&self) -> Flagged<'_> {
        Flagged {
            connection: self,
            fence: false,
            solicited: false,
        }
    }
}

impl Flagged<'_> {
    /// Adds a fence (`IBV_SEND_FENCE`): [`Connection::fence`].
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Adds a solicited event (`IBV_SEND_SOLICITED`): [`Connection::solicited`].
    ///
    /// Operations that complete nothing at the peer ignore this flag, as [`SendWr::solicited`]
    /// does.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Applies the flags to a request.
    pub(super) fn mark(self, wr: SendWr<'_>) -> SendWr<'_> {
        let wr = if self.fence { wr.fence() } else { wr };
        if self.solicited { wr.solicited() } else { wr }
    }

    /// [`Connection::send`] with these flags (RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`Error`]. The buffer is always returned.
    pub async fn send(self, buf: RegisteredBuf) -> (Result<(), Error>, RegisteredBuf) {
        let (result, buf) = self
            .connection
            .source(buf, |id, sge| self.mark(SendWr::send(id, sge)))
            .await;
        (result.map(|_| ()), buf)
    }

    /// [`Connection::send_and_invalidate`] with these flags (RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`Error`]. The buffer is always returned.
    pub async fn send_and_invalidate(
        self,
        buf: RegisteredBuf,
        rkey: u32,
    ) -> (Result<(), Error>, RegisteredBuf) {
        let (result, buf) = self
            .connection
            .source(buf, |id, sge| {
                self.mark(SendWr::send(id, sge).invalidate(rkey))
            })
            .await;
        (result.map(|_| ()), buf)
    }

    /// [`Connection::send_inline`] with these flags (`IBV_SEND_INLINE`; RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_inline(self, bytes: &[u8]) -> Result<(), Error> {
        self.bare(|wr_id| SendWr::send_inline(wr_id, bytes)).await
    }

    /// [`Connection::write`] with these flags (RFC 5040 section 5.1).
    ///
    /// # Errors
    /// See [`Connection::write`]. The buffer is always returned.
    pub async fn write(
        self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
    ) -> (Result<(), Error>, RegisteredBuf) {
        if let Err(error) = fits(buf.len() as u64, remote.len, "the remote memory") {
            return (Err(error), buf);
        }
        let (result, buf) = self
            .connection
            .source(buf, |id, sge| self.mark(SendWr::write(id, sge, remote)))
            .await;
        (result.map(|_| ()), buf)
    }

    /// [`Connection::read`] with these flags (RFC 5040 section 5.2).
    ///
    /// # Errors
    /// See [`Connection::read`]. The buffer is always returned.
    pub async fn read(
        self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
    ) -> (Result<(), Error>, RegisteredBuf) {
        if let Err(error) = fits(remote.len, buf.capacity() as u64, "the buffer") {
            return (Err(error), buf);
        }
        let len = usize::try_from(remote.len).unwrap_or(usize::MAX);
        let (result, buf) = self
            .connection
            .sink(buf, len, |id, sge| self.mark(SendWr::read(id, sge, remote)))
            .await;
        (result.map(|_| ()), buf)
    }

    /// Runs a work request without a buffer, and waits for its completion.
    pub(super) async fn bare<'w>(
        self,
        request: impl FnOnce(u64) -> SendWr<'w>,
    ) -> Result<(), Error> {
        self.connection
            .bare(|wr_id| {
                let wr = self.mark(request(wr_id));
                self.connection.qp.post_send(&wr)
            })
            .await
    }
}

pub(super) fn fits(len: u64, room: u64, which: &'static str) -> Result<(), Error> {
    if len <= room {
        return Ok(());
    }
    Err(Error::TooSmall { len, room, which })
}
