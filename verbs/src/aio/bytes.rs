//! Sends and Writes of [`Bytes`], which need no buffer of a pool.

use bytes::Bytes;
use uwarp_engine::mem::{Access, Buffer, RemoteBuffer};

use super::connection::Connection;
use super::error::{Error, PoolError};
use super::flagged::{Flagged, fits};
use super::table::InFlightMemory;
use uwarp_engine::wr::SendWr;

/// Operations that take their data from [`Bytes`].
///
/// The bytes are registered for the operation, without any right for the peer, and released when
/// the operation is complete. Dropping the future does not change that. The registration costs more
/// than a copy of a short message: use [`send_inline`](Connection::send_inline) for those, and a
/// [`RegisteredBuf`](super::RegisteredBuf) for data that the program writes itself.
///
/// The owner of the bytes (`Bytes::from_owner`) may be dropped under a lock of the library, so its
/// `Drop` must not call the library.
impl Connection {
    /// Sends `bytes` as one message (RFC 5040 section 5.3).
    ///
    /// ```
    /// # use uwarp_verbs::aio::{Connection, Error};
    /// # async fn tell(connection: &Connection) -> Result<(), Error> {
    /// let page = bytes::Bytes::from(vec![7; 4096]);
    /// connection.send_bytes(page.clone()).await?;
    /// connection.send_bytes(page.slice(..100)).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TooSmall`] for more than 2^32 - 1 bytes, and [`Error::Memory`] if the device allows
    /// no further region; see [`Error`].
    pub async fn send_bytes(&self, bytes: Bytes) -> Result<(), Error> {
        self.plain().send_bytes(bytes).await
    }

    /// Writes `bytes` to the start of `remote`, as [`write`](Self::write) does (RFC 5040
    /// section 5.1).
    ///
    /// # Errors
    /// [`Error::TooSmall`] if the bytes do not fit into `remote`; see
    /// [`send_bytes`](Self::send_bytes).
    pub async fn write_bytes(&self, bytes: Bytes, remote: RemoteBuffer) -> Result<(), Error> {
        self.plain().write_bytes(bytes, remote).await
    }
}

impl Flagged<'_> {
    /// [`Connection::send_bytes`] with these flags (RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`Connection::send_bytes`].
    pub async fn send_bytes(self, bytes: Bytes) -> Result<(), Error> {
        self.bytes(bytes, |id, sges| SendWr::send(id, sges)).await
    }

    /// [`Connection::write_bytes`] with these flags (RFC 5040 section 5.1).
    ///
    /// # Errors
    /// See [`Connection::write_bytes`].
    pub async fn write_bytes(self, bytes: Bytes, remote: RemoteBuffer) -> Result<(), Error> {
        fits(bytes.len() as u64, remote.len, "the remote memory")?;
        self.bytes(bytes, |id, sges| SendWr::write(id, sges, remote))
            .await
    }

    /// Registers `bytes`, runs a work request that takes its data from them, and waits for its
    /// completion.
    async fn bytes(
        self,
        bytes: Bytes,
        request: impl for<'a> FnOnce(u64, &'a [crate::Sge]) -> SendWr<'a>,
    ) -> Result<(), Error> {
        let Connection { qp, domain, .. } = self.connection;
        let most = u32::MAX;
        fits(bytes.len() as u64, most.into(), "the longest message")?;
        if bytes.is_empty() {
            return self.bare(|wr_id| request(wr_id, &[])).await;
        }
        let ops = self.connection.ops()?;
        let len = u32::try_from(bytes.len()).unwrap_or(most);
        let region = domain
            .pd()
            .register_buffer(Buffer::from(bytes), Access::NONE)
            .map_err(PoolError::from)?;
        let slot = ops.room().await;
        let source = [region.sge(0, len)];
        let memory = Some(InFlightMemory::Region(region));
        let posted = ops.start(slot, memory, |wr_id| {
            qp.post_send(&self.mark(request(wr_id, &source)))
        });
        match posted {
            Ok(flight) => self.connection.result(flight.await.0).map(|_| ()),
            Err((error, _)) => Err(error.into()),
        }
    }
}
