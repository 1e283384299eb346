//! Operations of RFC 7306: atomics and Immediate Data.

use uwarp_engine::mem::RemoteBuffer;

use super::buf::{BufferPool, RegisteredBuf};
use super::connection::Connection;
use super::error::{Error, PoolError};
use super::flagged::{Flagged, fits};
use uwarp_engine::wr::SendWr;

/// Length of the operand of an atomic operation, in bytes.
const WORD: usize = 8;

/// An operand, and the bits of it that an operation uses (RFC 7306 section 5.1.2).
///
/// Used by [`masked_compare_swap`](Connection::masked_compare_swap).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Masked {
    /// The operand.
    pub value: u64,
    /// The bits of `value` that the operation uses.
    pub mask: u64,
}

/// Atomic operations (RFC 7306 section 5).
///
/// Each operation acts on the first 8 bytes of `remote`: a word in the byte order of the peer's
/// host, at an address that is a multiple of 8. The result is the previous value of the word. See
/// [`SendWr::fetch_add`].
impl Connection {
    /// Adds `add` to the word (RFC 7306 section 5.1.1). A carry out of bit 63 is lost.
    ///
    /// # Errors
    /// [`Error::TooSmall`] if `remote` has fewer than 8 bytes; see [`Error`].
    pub async fn fetch_add(&self, remote: RemoteBuffer, add: u64) -> Result<u64, Error> {
        self.plain().fetch_add(remote, add).await
    }

    /// Adds `add` to the word field by field (RFC 7306 section 5.1.1).
    ///
    /// Every bit set in `carries_end_at` is the most significant bit of a field; no carry leaves
    /// the field. See [`SendWr::mask`].
    ///
    /// # Errors
    /// See [`fetch_add`](Self::fetch_add).
    pub async fn masked_fetch_add(
        &self,
        remote: RemoteBuffer,
        add: u64,
        carries_end_at: u64,
    ) -> Result<u64, Error> {
        self.plain()
            .masked_fetch_add(remote, add, carries_end_at)
            .await
    }

    /// Stores `swap` if the word equals `compare` (RFC 7306 section 5.1.2).
    ///
    /// The word was replaced if the result equals `compare`.
    ///
    /// # Errors
    /// See [`fetch_add`](Self::fetch_add).
    pub async fn compare_swap(
        &self,
        remote: RemoteBuffer,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Error> {
        self.plain().compare_swap(remote, compare, swap).await
    }

    /// Compares and replaces only the bits under the masks (RFC 7306 section 5.1.2).
    ///
    /// If the word matches `compare` in the bits of its mask, the bits under the mask of `swap` are
    /// replaced. The bits were replaced if the result matches `compare` in the bits of its mask.
    /// See [`SendWr::compare_mask`] and [`SendWr::swap_mask`].
    ///
    /// # Errors
    /// See [`fetch_add`](Self::fetch_add).
    pub async fn masked_compare_swap(
        &self,
        remote: RemoteBuffer,
        compare: Masked,
        swap: Masked,
    ) -> Result<u64, Error> {
        self.plain()
            .masked_compare_swap(remote, compare, swap)
            .await
    }

    /// Stores `swap` unconditionally (RFC 7306 section 5.1.2).
    ///
    /// # Errors
    /// See [`fetch_add`](Self::fetch_add).
    pub async fn swap(&self, remote: RemoteBuffer, swap: u64) -> Result<u64, Error> {
        self.plain().swap(remote, swap).await
    }

    /// Returns a pool with one word for each place in the send queue. The first call allocates it.
    fn cells(&self) -> Result<&BufferPool, PoolError> {
        if let Some(cells) = self.cells.get() {
            return Ok(cells);
        }
        let count = self.qp.attributes().caps.max_send_wr.max(1);
        let made = self.domain.pool(count as usize, WORD)?;
        // If two tasks get here at once, the pool of one task is dropped.
        Ok(self.cells.get_or_init(|| made))
    }
}

/// Atomic operations with these flags.
impl Flagged<'_> {
    /// [`Connection::fetch_add`] with these flags (RFC 7306 section 5.1.1).
    ///
    /// # Errors
    /// See [`Connection::fetch_add`].
    pub async fn fetch_add(self, remote: RemoteBuffer, add: u64) -> Result<u64, Error> {
        self.masked_fetch_add(remote, add, 0).await
    }

    /// [`Connection::masked_fetch_add`] with these flags (RFC 7306 section 5.1.1).
    ///
    /// # Errors
    /// See [`Connection::masked_fetch_add`].
    pub async fn masked_fetch_add(
        self,
        remote: RemoteBuffer,
        add: u64,
        carries_end_at: u64,
    ) -> Result<u64, Error> {
        self.atomic(remote, |id, sink| {
            SendWr::fetch_add(id, sink, remote, add).mask(carries_end_at)
        })
        .await
    }

    /// [`Connection::compare_swap`] with these flags (RFC 7306 section 5.1.2).
    ///
    /// # Errors
    /// See [`Connection::compare_swap`].
    pub async fn compare_swap(
        self,
        remote: RemoteBuffer,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Error> {
        let [compare, swap] = [compare, swap].map(|value| Masked {
            value,
            mask: u64::MAX,
        });
        self.masked_compare_swap(remote, compare, swap).await
    }

    /// [`Connection::masked_compare_swap`] with these flags (RFC 7306 section 5.1.2).
    ///
    /// # Errors
    /// See [`Connection::masked_compare_swap`].
    pub async fn masked_compare_swap(
        self,
        remote: RemoteBuffer,
        compare: Masked,
        swap: Masked,
    ) -> Result<u64, Error> {
        self.atomic(remote, |id, sink| {
            SendWr::compare_swap(id, sink, remote, compare.value, swap.value)
                .compare_mask(compare.mask)
                .swap_mask(swap.mask)
        })
        .await
    }

    /// [`Connection::swap`] with these flags (RFC 7306 section 5.1.2).
    ///
    /// # Errors
    /// See [`Connection::swap`].
    pub async fn swap(self, remote: RemoteBuffer, swap: u64) -> Result<u64, Error> {
        self.atomic(remote, |id, sink| SendWr::swap(id, sink, remote, swap))
            .await
    }

    async fn atomic(
        self,
        remote: RemoteBuffer,
        request: impl for<'a> FnOnce(u64, &'a [crate::Sge]) -> SendWr<'a>,
    ) -> Result<u64, Error> {
        fits(WORD as u64, remote.len, "the remote memory")?;
        self.connection.ops()?;
        let cell = self.connection.cells()?.get().await;
        let (result, cell) = self
            .connection
            .sink(cell, WORD, |id, sink| self.mark(request(id, sink)))
            .await;
        result?;
        let word = cell.first_chunk().copied().unwrap_or_default();
        Ok(u64::from_ne_bytes(word))
    }
}

/// Immediate Data (RFC 7306 section 6): 8 bytes that arrive as a separate message.
///
/// The peer gets them as [`Received::immediate`](super::Received::immediate). See
/// [`SendWr::write_with_immediate`].
impl Connection {
    /// Writes the content of `buf` to the start of `remote`, then notifies the peer with 8 bytes.
    ///
    /// The peer gets `immediate` after the bytes were placed (RFC 7306 section 6).
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub async fn write_with_immediate(
        &self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
        immediate: [u8; 8],
    ) -> (Result<(), Error>, RegisteredBuf) {
        self.plain()
            .write_with_immediate(buf, remote, immediate)
            .await
    }

    /// Sends 8 bytes as Immediate Data (RFC 7306 section 6).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_immediate(&self, immediate: [u8; 8]) -> Result<(), Error> {
        self.plain().send_immediate(immediate).await
    }
}

/// Immediate Data with these flags.
impl Flagged<'_> {
    /// [`Connection::write_with_immediate`] with these flags (RFC 7306 section 6).
    ///
    /// # Errors
    /// See [`Connection::write_with_immediate`].
    pub async fn write_with_immediate(
        self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
        immediate: [u8; 8],
    ) -> (Result<(), Error>, RegisteredBuf) {
        if let Err(error) = fits(buf.len() as u64, remote.len, "the remote memory") {
            return (Err(error), buf);
        }
        let (result, buf) = self
            .connection
            .source(buf, |id, sge| {
                self.mark(SendWr::write_with_immediate(id, sge, remote, immediate))
            })
            .await;
        (result.map(|_| ()), buf)
    }

    /// [`Connection::send_immediate`] with these flags (RFC 7306 section 6).
    ///
    /// # Errors
    /// See [`Connection::send_immediate`].
    pub async fn send_immediate(self, immediate: [u8; 8]) -> Result<(), Error> {
        self.bare(|wr_id| SendWr::immediate(wr_id, immediate)).await
    }
}
