//! Memory that peers reach for a while: windows and fast regions.

use super::Domain;
use super::connection::Connection;
use super::error::Error;
use crate::mem::{Buffer, FastRegister, RegisterError, WindowBind, WindowKind};
use crate::mr::{FastRegion, RemoteBuffer};
use crate::mw::{MemoryWindow, inc_rkey};
use crate::qp::wr::{BindWr, SendWr};

impl Domain {
    /// A memory window, not bound (`ibv_alloc_mw`): [`Connection::bind_window`] binds it to memory from
    /// [`Domain::register`].
    ///
    /// # Errors
    /// As [`Pd::alloc_window`](crate::Pd::alloc_window).
    pub fn alloc_window(&self, kind: WindowKind) -> Result<MemoryWindow, RegisterError> {
        self.pd().alloc_window(kind)
    }

    /// Memory for fast registration, none of it registered (the kernel's `ib_alloc_mr`): [`Connection::register`] shows
    /// parts of it to the peer. As all memory that peers reach by themselves, it only copies bytes in and out.
    ///
    /// # Errors
    /// As [`Pd::alloc_fast_region`](crate::Pd::alloc_fast_region).
    pub fn alloc_fast_region(&self, memory: Buffer) -> Result<FastRegion, RegisterError> {
        self.pd().alloc_fast_region(memory)
    }
}

/// What the peer may reach for a while. Each takes its turn in the send queue, in order with the messages, and an error
/// of it ends the connection.
impl Connection {
    /// Binds a window of any kind, under its next STag, and gives what to tell the peer (`ibv_bind_mw`,
    /// `IBV_WR_BIND_MW`). See [`SendWr::bind_window`] and [`Qp::post_bind`](crate::Qp::post_bind). A window of type 2
    /// must not be bound already.
    ///
    /// A future that is dropped after its first poll leaves a window of type 2 that is bound, or about to be.
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

    /// Ends the binding of a window of type 2 (`IBV_WR_LOCAL_INV`): when this is done the peer reaches nothing by it.
    /// See [`SendWr::local_invalidate`]. A window of type 1 is unbound by a bind of 0 bytes.
    ///
    /// # Errors
    /// See [`Error`]. It is an error when the window is not bound (the peer may have invalidated it:
    /// [`Received::invalidated`](super::Received::invalidated)), or is of type 1.
    pub async fn invalidate_window(&self, window: &MemoryWindow) -> Result<(), Error> {
        self.plain()
            .bare(|wr_id| SendWr::local_invalidate(wr_id, window.rkey()))
            .await
    }

    /// Makes a part of a fast region valid ([`FastRegion::register`]), and gives what to tell the peer (the kernel's
    /// `IB_WR_REG_MR`). See [`SendWr::register`].
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn register(&self, part: &FastRegister) -> Result<RemoteBuffer, Error> {
        self.plain()
            .bare(|wr_id| SendWr::register(wr_id, part))
            .await?;
        Ok(part.remote())
    }

    /// Ends what is registered of a fast region (`IBV_WR_LOCAL_INV`): when this is done the peer reaches nothing by it.
    ///
    /// # Errors
    /// See [`Error`]. It is an error when nothing is registered (the peer may have invalidated it).
    pub async fn invalidate_fast(&self, region: &FastRegion) -> Result<(), Error> {
        self.plain()
            .bare(|wr_id| SendWr::local_invalidate(wr_id, region.stag()))
            .await
    }
}
