//! Work requests that concern only memory of this side.

use super::{SendOp, SendWr, Source};
use crate::engine::LocalOp;
use crate::mem::{FastRegister, WindowBind};

impl SendWr<'_> {
    /// Binds a memory window of type 2A or 2B, for the QP that this is posted to (`IBV_WR_BIND_MW`). `rkey` is the STag
    /// that the window shall have: its index with a new key, [`inc_rkey`](crate::inc_rkey) of the one it had. The
    /// window must not be bound. What is posted behind this finds it bound.
    ///
    /// One that cannot be carried out completes with [`Status::WindowBind`](crate::Status::WindowBind) and ends the
    /// connection, as every error does; [`Qp::end_reason`](crate::Qp::end_reason) says why.
    #[must_use]
    pub fn bind_window(wr_id: u64, rkey: u32, bind: &WindowBind) -> SendWr<'static> {
        let op = LocalOp::Bind {
            rkey,
            bind: *bind,
            by_call: false,
        };
        SendWr::new(wr_id, SendOp::Local(op), Source::Sges(&[]))
    }

    /// Makes a part of a [`FastRegion`](crate::FastRegion) valid (the kernel's `IB_WR_REG_MR`). What is posted behind this
    /// to the same queue, at once or in the same list, may use it: tell the peer of the STag, or name it as lkey.
    ///
    /// An SGE that names the STag of a registration that has not had its turn is checked against that request when it is
    /// posted (rights, bounds), and against what is registered when its own turn comes: if it is not valid by then,
    /// because something between invalidates it, the request completes with
    /// [`Status::LocalProtection`](crate::Status::LocalProtection). Another queue, and a receive queue too, has no order
    /// with this one: there the STag is good as an lkey from the completion of this on.
    ///
    /// One that cannot be carried out completes with [`Status::LocalProtection`](crate::Status::LocalProtection) or
    /// [`Status::LocalQpOperation`](crate::Status::LocalQpOperation) and ends the connection.
    #[must_use]
    pub fn register(wr_id: u64, register: &FastRegister) -> SendWr<'static> {
        let op = LocalOp::Register(*register);
        SendWr::new(wr_id, SendOp::Local(op), Source::Sges(&[]))
    }

    /// Invalidates an STag of this side (`IBV_WR_LOCAL_INV`): of a window of type 2 that is bound for this QP, of a
    /// fast region, or of a region of the domain, which can then only be deregistered or registered anew. When it
    /// completes no peer reaches anything by the STag (RFC 5041 section 8.3). A Read that is outstanding fails if this
    /// was its sink: [`fence`](SendWr::fence) lets it finish first, and [`SendWr::invalidate_sink`] needs no other
    /// request.
    ///
    /// It has its turn between the messages of its QP. So behind the Response to a Read of the peer it waits until all
    /// of that is framed, however slowly the peer takes it, and that Response may be of the memory that it is about.
    /// Posted to another QP that may use the STag it does not wait, and ends such a Read with a Terminate.
    ///
    /// One that cannot be carried out completes with [`Status::LocalProtection`](crate::Status::LocalProtection) or
    /// [`Status::LocalQpOperation`](crate::Status::LocalQpOperation) and ends the connection.
    #[must_use]
    pub fn local_invalidate(wr_id: u64, stag: u32) -> SendWr<'static> {
        let op = LocalOp::Invalidate { stag };
        SendWr::new(wr_id, SendOp::Local(op), Source::Sges(&[]))
    }
}

/// A request to bind a memory window of type 1 (`ibv_mw_bind`), for [`Qp::post_bind`](crate::Qp::post_bind). Windows of
/// type 2 have [`SendWr::bind_window`].
///
/// ```
/// use uwarp_verbs::{Access, BindWr, WindowBind};
/// let bind = WindowBind {
///     lkey: 0x1234_5601, addr: 0x1000, len: 64, access: Access::REMOTE_READ, zero_based: false,
/// };
/// let wr = BindWr::new(7, &bind).fence().unsignaled();
/// # let _ = wr;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BindWr {
    wr_id: u64,
    bind: WindowBind,
    signaled: bool,
    fence: bool,
}

impl BindWr {
    /// A request that binds what `bind` says, or with 0 bytes ends the binding (`ibv_mw_bind`).
    #[must_use]
    pub fn new(wr_id: u64, bind: &WindowBind) -> Self {
        BindWr {
            wr_id,
            bind: *bind,
            signaled: true,
            fence: false,
        }
    }

    /// Make no completion when this request succeeds (no `IBV_SEND_SIGNALED`): as [`SendWr::unsignaled`].
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Start only after all earlier RDMA Reads and Atomic Operations of the QP have completed (`IBV_SEND_FENCE`): as
    /// [`SendWr::fence`].
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }

    /// As it goes into the send queue, with the STag that the window shall have.
    pub(crate) fn to_send_wr(self, rkey: u32) -> SendWr<'static> {
        let op = LocalOp::Bind {
            rkey,
            bind: self.bind,
            by_call: true,
        };
        SendWr {
            signaled: self.signaled,
            fence: self.fence,
            ..SendWr::new(self.wr_id, SendOp::Local(op), Source::Sges(&[]))
        }
    }
}
