//! Memory that peers can access for a limited time: windows and fast regions.

use uwarp_engine::mem::{
    Buffer, FastRegister, RegisterError, RemoteBuffer, WindowBind, WindowKind, inc_rkey,
};

use super::Domain;
use super::connection::Connection;
use super::error::Error;
use crate::mr::FastRegion;
use crate::mw::MemoryWindow;
use uwarp_engine::wr::{BindWr, SendWr};

impl Domain {
    /// Allocates a memory window that is not bound (`ibv_alloc_mw`).
    ///
    /// [`Connection::bind_window`] binds it to memory from [`Domain::register`].
    ///
    /// # Errors
    /// See [`Pd::alloc_window`](crate::Pd::alloc_window).
    pub fn alloc_window(&self, kind: WindowKind) -> Result<MemoryWindow, RegisterError> {
        self.pd().alloc_window(kind)
    }

    /// Allocates memory for fast registration (`ib_alloc_mr` in the kernel); nothing is registered
    /// yet.
    ///
    /// [`Connection::register`] exposes parts of the memory to the peer. Like all memory that peers
    /// access on their own, the region only copies bytes in and out.
    ///
    /// # Errors
    /// See [`Pd::alloc_fast_region`](crate::Pd::alloc_fast_region).
    pub fn alloc_fast_region(&self, memory: Buffer) -> Result<FastRegion, RegisterError> {
        self.pd().alloc_fast_region(memory)
    }
}

/// Operations that grant and revoke the peer's access to memory.
///
/// Each operation takes a place in the send queue, and executes in order with the messages there.
/// An operation that completes with an error ends the connection.
impl Connection {
    /// Binds a window of any kind under its next STag (`ibv_bind_mw`, `IBV_WR_BIND_MW`).
    ///
    /// Returns the address, length and STag, to be sent to the peer. A window of type 2 must not be
    /// bound already. See [`SendWr::bind_window`] and [`Qp::post_bind`](crate::Qp::post_bind).
    ///
    /// If the future is dropped after its first poll, a window of type 2 is bound or about to be
    /// bound.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn bind_window(
        &self,
        window: &mut MemoryWindow,
        bind: &WindowBind,
    ) -> Result<RemoteBuffer, Error> {
        let mut rkey = 0;
        self.bare(|wr_id| {
            rkey = match window.kind() {
                WindowKind::Type1 => self.qp.post_bind(window, &BindWr::new(wr_id, bind))?,
                WindowKind::Type2A | WindowKind::Type2B => {
                    let next = inc_rkey(window.rkey());
                    self.qp.post_send(&SendWr::bind_window(wr_id, next, bind))?;
                    next
                }
            };
            Ok(())
        })
        .await?;
        Ok(RemoteBuffer {
            addr: if bind.zero_based { 0 } else { bind.addr },
            len: bind.len,
            rkey,
        })
    }

    /// Unbinds a window of type 2 (`IBV_WR_LOCAL_INV`).
    ///
    /// After completion the peer cannot access memory through the window. To unbind a window of
    /// type 1, bind it with a length of 0 bytes. See [`SendWr::local_invalidate`].
    ///
    /// # Errors
    /// See [`Error`]. The operation fails if the window is of type 1 or is not bound. The peer may
    /// have invalidated it: [`Received::invalidated`](super::Received::invalidated).
    pub async fn invalidate_window(&self, window: &MemoryWindow) -> Result<(), Error> {
        self.plain()
            .bare(|wr_id| SendWr::local_invalidate(wr_id, window.rkey()))
            .await
    }

    /// Registers part of a fast region ([`FastRegion::register`]; `IB_WR_REG_MR` in the kernel).
    ///
    /// Returns the address, length and STag, to be sent to the peer. See [`SendWr::register`].
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn register(&self, part: &FastRegister) -> Result<RemoteBuffer, Error> {
        self.plain()
            .bare(|wr_id| SendWr::register(wr_id, part))
            .await?;
        Ok(part.remote())
    }

    /// Invalidates the registration of a fast region (`IBV_WR_LOCAL_INV`).
    ///
    /// After completion the peer cannot access the region.
    ///
    /// # Errors
    /// See [`Error`]. The operation fails if nothing is registered; the peer may have invalidated
    /// it.
    pub async fn invalidate_fast(&self, region: &FastRegion) -> Result<(), Error> {
        self.plain()
            .bare(|wr_id| SendWr::local_invalidate(wr_id, region.stag()))
            .await
    }
}
