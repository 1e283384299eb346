//! Work requests that operate on local memory.

use crate::mem::{FastRegister, WindowBind};

use super::{SendOp, SendWr, Source};

/// Operation of a local work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LocalOp {
    Bind {
        /// STag that the window will have.
        rkey: u32,
        bind: WindowBind,
        /// The request is from `Qp::bind_mw`, which binds windows of type 1.
        by_call: bool,
    },
    Register(FastRegister),
    Invalidate {
        stag: u32,
    },
}

impl SendWr<'_> {
    /// Binds a memory window of type 2A or 2B for the QP that this is posted to (`IBV_WR_BIND_MW`).
    ///
    /// `rkey` is the new STag of the window: its index with a new key, as
    /// [`inc_rkey`](crate::mem::inc_rkey) returns it for the old STag. The window must not be
    /// bound. Requests posted after this one find it bound.
    ///
    /// A bind that cannot be carried out completes with
    /// `Status::WindowBind` and ends the connection, as every error
    /// does. `Qp::end_reason` gives the cause.
    #[must_use]
    pub fn bind_window(wr_id: u64, rkey: u32, bind: &WindowBind) -> SendWr<'static> {
        let op = LocalOp::Bind {
            rkey,
            bind: *bind,
            by_call: false,
        };
        SendWr::new(wr_id, SendOp::Local(op), Source::Sges(&[]))
    }

    /// Makes a part of a `FastRegion` valid (the kernel's `IB_WR_REG_MR`).
    /// Requests posted after this one to the same queue, even in the same list, may send the STag
    /// to the peer or name it as lkey.
    ///
    /// An SGE may name the STag of a registration that has not been carried out yet. It is checked
    /// against the rights and bounds of that registration when it is posted, and against the region
    /// when it is carried out. If the region is not valid then, because a request in between
    /// invalidated it, the request completes with
    /// `Status::LocalProtection`. Requests of other queues,
    /// including receive queues, are not ordered with this one. They may use the STag as lkey once
    /// this request has completed.
    ///
    /// A registration that cannot be carried out completes with
    /// `Status::LocalProtection` or
    /// `Status::LocalQpOperation` and ends the connection.
    #[must_use]
    pub fn register(wr_id: u64, register: &FastRegister) -> SendWr<'static> {
        let op = LocalOp::Register(*register);
        SendWr::new(wr_id, SendOp::Local(op), Source::Sges(&[]))
    }

    /// Invalidates a local STag (`IBV_WR_LOCAL_INV`). It may belong to a window of type 2 that is
    /// bound for this QP, to a fast region, or to a region of the domain.
    ///
    /// A region of the domain can then only be deregistered or registered again. After the
    /// completion no peer can access memory through the STag (RFC 5041 section 8.3). An outstanding
    /// Read fails if the STag was its sink: [`fence`](SendWr::fence) lets it finish first, and
    /// [`SendWr::invalidate_sink`] needs no second request.
    ///
    /// The request takes effect between two messages of its QP. If a response to a Read of the peer
    /// is being sent, the request waits until all of it is framed, however slowly the peer takes
    /// it. That response may even come from the memory that is being invalidated. A request posted
    /// to another QP that may use the STag does not wait, and ends such a Read with a Terminate.
    ///
    /// A request that cannot be carried out completes with
    /// `Status::LocalProtection` or
    /// `Status::LocalQpOperation` and ends the connection.
    #[must_use]
    pub fn local_invalidate(wr_id: u64, stag: u32) -> SendWr<'static> {
        let op = LocalOp::Invalidate { stag };
        SendWr::new(wr_id, SendOp::Local(op), Source::Sges(&[]))
    }
}

/// A request to bind a memory window of type 1 (`ibv_mw_bind`), for
/// `Qp::post_bind`. For windows of type 2 use [`SendWr::bind_window`].
///
/// ```
/// use uwarp_engine::mem::{Access, WindowBind};
/// use uwarp_engine::wr::BindWr;
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
    /// Creates a request for the binding `bind` (`ibv_mw_bind`). A length of 0 bytes only ends the
    /// old binding.
    #[must_use]
    pub fn new(wr_id: u64, bind: &WindowBind) -> Self {
        BindWr {
            wr_id,
            bind: *bind,
            signaled: true,
            fence: false,
        }
    }

    /// Makes no completion if this request succeeds (no `IBV_SEND_SIGNALED`); see
    /// [`SendWr::unsignaled`].
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Starts this request only after all earlier RDMA Reads and Atomic Operations of the QP have
    /// completed (`IBV_SEND_FENCE`); see [`SendWr::fence`].
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Converts it to a request of the send queue; `rkey` is the new STag of the window.
    #[doc(hidden)]
    pub fn to_send_wr(self, rkey: u32) -> SendWr<'static> {
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
