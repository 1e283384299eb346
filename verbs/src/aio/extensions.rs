//! The operations of RFC 7306: atomics and Immediate Data.

use super::buf::{BufferPool, RegisteredBuf};
use super::connection::{Connection, fits};
use super::error::{Error, PoolError};
use crate::mr::RemoteBuffer;
use crate::qp::wr::SendWr;

/// Octets that an atomic operation works on.
const WORD: usize = 8;

/// Atomic operations (RFC 7306 section 5): each works on the first 8 octets of `remote`, a word in the byte order of
/// the peer's host at a multiple of 8, and gives what the word held before. See [`SendWr::fetch_add`].
impl Connection {
    /// Adds `add`; a carry out of bit 63 is lost.
    ///
    /// # Errors
    /// [`Error::TooSmall`] when `remote` has less than 8 octets; see [`Error`].
    pub async fn fetch_add(&self, remote: RemoteBuffer, add: u64) -> Result<u64, Error> {
        let RemoteBuffer { addr, rkey, .. } = remote;
        self.atomic(remote, |id, sink| {
            SendWr::fetch_add(id, sink, addr, rkey, add)
        })
        .await
    }

    /// Stores `swap` if the word holds `compare`: it has if the result is `compare`.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add).
    pub async fn compare_swap(
        &self,
        remote: RemoteBuffer,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Error> {
        let RemoteBuffer { addr, rkey, .. } = remote;
        self.atomic(remote, |id, sink| {
            SendWr::compare_swap(id, sink, addr, rkey, compare, swap)
        })
        .await
    }

    /// Stores `swap`, whatever the word holds.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add).
    pub async fn swap(&self, remote: RemoteBuffer, swap: u64) -> Result<u64, Error> {
        let RemoteBuffer { addr, rkey, .. } = remote;
        self.atomic(remote, |id, sink| SendWr::swap(id, sink, addr, rkey, swap))
            .await
    }

    async fn atomic(
        &self,
        remote: RemoteBuffer,
        request: impl for<'a> FnOnce(u64, &'a [crate::Sge]) -> SendWr<'a>,
    ) -> Result<u64, Error> {
        fits(WORD as u64, remote.len, "the remote memory")?;
        let cell = self.cells()?.get().await;
        let (result, cell) = self.sink(cell, WORD, request).await;
        result?;
        let word = cell.first_chunk().copied().unwrap_or_default();
        Ok(u64::from_ne_bytes(word))
    }

    /// A word for each place in the send queue.
    fn cells(&self) -> Result<&BufferPool, PoolError> {
        if let Some(cells) = self.cells.get() {
            return Ok(cells);
        }
        let count = self.qp.inner().ctx.caps.max_send_wr.max(1);
        let made = self.domain.pool(count as usize, WORD)?;
        // Of two tasks that are here at once, one has made it in vain.
        Ok(self.cells.get_or_init(|| made))
    }
}

/// Immediate Data (RFC 7306 section 6): 8 octets that come as a message of their own, as
/// [`Received::immediate`](super::Received::immediate). See [`SendWr::write_with_imm`].
impl Connection {
    /// Writes the content of `buf` to the start of `remote` and tells the peer, with these octets, when it is there.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_with_imm(
        &self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
        imm: [u8; 8],
    ) -> (Result<(), Error>, RegisteredBuf) {
        if let Err(error) = fits(buf.len() as u64, remote.len, "the remote memory") {
            return (Err(error), buf);
        }
        let RemoteBuffer { addr, rkey, .. } = remote;
        let (result, buf) = self
            .source(buf, |id, sge| {
                SendWr::write_with_imm(id, sge, addr, rkey, imm)
            })
            .await;
        (result.map(|_| ()), buf)
    }

    /// Sends 8 octets.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_immediate(&self, imm: [u8; 8]) -> Result<(), Error> {
        self.bare(|wr_id| self.qp.post_send(&SendWr::immediate(wr_id, imm)))
            .await
    }
}
