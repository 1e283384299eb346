//! Memory windows.

use std::sync::Arc;

use uwarp_engine::mem::{Access, Purpose, RegisterError, WindowBind, WindowKind, inc_rkey};

use crate::device::DeviceInner;
use crate::mr::MemoryRegion;
use crate::pd::Pd;
use uwarp_engine::connection::PostErrorKind;
use uwarp_engine::limits::PdAccount;

/// A memory window (`ibv_mw`, `ibv_alloc_mw`, `ibv_bind_mw`): an STag that exposes a part of a
/// memory region to peers, for a limited time and with its own rights. Its STag follows RFC 5040
/// section 8.1.1.
///
/// Binding is faster than registration. A binding ends without a change to the region in one of
/// these ways:
/// * by dropping the window,
/// * type 1: by another bind, which may have 0 bytes,
/// * type 2: by [`SendWr::local_invalidate`](crate::SendWr::local_invalidate), by the peer's Send
///   with Invalidate, or by the end of the QP's stream.
///
/// A region cannot be deregistered while windows are bound to it.
///
/// ```
/// use uwarp_verbs::{Access, Device, SendWr, WindowKind, inc_rkey};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::tcp()?.alloc_pd()?;
/// let region = pd.register(vec![0; 4096], Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
/// let window = pd.alloc_window(WindowKind::Type2B)?;
/// let bind = region.window(0, 1024, Access::REMOTE_WRITE).zero_based();
/// let rkey = inc_rkey(window.rkey());
/// let wr = SendWr::bind_window(1, rkey, &bind); // post it, then send `rkey` to the peer
/// # let _ = wr; Ok(()) }
/// ```
pub struct MemoryWindow {
    device: Arc<DeviceInner>,
    index: u32,
    kind: WindowKind,
    /// STag that `Qp::bind_mw` last returned; before the first call, the STag reserved for the
    /// window.
    by_call: u32,
    _pd: Arc<PdAccount>,
}

impl Pd {
    /// Allocates an unbound memory window in this domain (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// [`RegisterError::TooMany`]: windows count as regions.
    pub fn alloc_window(&self, kind: WindowKind) -> Result<MemoryWindow, RegisterError> {
        MemoryWindow::new(self.device()?, self.account(), kind)
    }
}

impl MemoryWindow {
    pub(crate) fn new(
        device: &Arc<DeviceInner>,
        pd: &Arc<PdAccount>,
        kind: WindowKind,
    ) -> Result<Self, RegisterError> {
        let stag = device.table.reserve(pd.id(), Purpose::Window(kind))?;
        Ok(MemoryWindow {
            device: Arc::clone(device),
            index: stag.0 >> 8,
            kind,
            by_call: stag.0,
            _pd: Arc::clone(pd),
        })
    }

    /// The current STag (`ibv_mw.rkey`). Type 1: the result of the last
    /// [`Qp::bind_mw`](crate::Qp::bind_mw). Type 2: the STag of the last executed bind request.
    /// Before the first bind: an STag that is not valid yet.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        match self.kind {
            WindowKind::Type1 => self.by_call,
            WindowKind::Type2A | WindowKind::Type2B => self.device.table.slot_stag(self.index).0,
        }
    }

    /// Kind of the window (`ibv_mw.type`).
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Returns true if the window is bound to a valid region.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.device.table.slot_is_valid(self.index)
    }

    /// Returns the STag for the next bind by [`Qp::bind_mw`](crate::Qp::bind_mw).
    pub(crate) fn next_by_call(&self) -> Result<u32, PostErrorKind> {
        match self.kind {
            WindowKind::Type1 => Ok(inc_rkey(self.by_call)),
            kind @ (WindowKind::Type2A | WindowKind::Type2B) => {
                Err(PostErrorKind::WindowKind { kind })
            }
        }
    }

    pub(crate) fn set_by_call(&mut self, rkey: u32) {
        self.by_call = rkey;
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        self.device.table.free(self.index);
    }
}

impl std::fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("kind", &self.kind)
            .field("rkey", &format_args!("{:#010x}", self.rkey()))
            .field("bound", &self.is_bound())
            .finish_non_exhaustive()
    }
}

impl MemoryRegion {
    /// Describes a binding (`ibv_mw_bind_info`) of the `len` bytes of this region that start at
    /// `offset`. The range is checked when the window is bound. `access` are remote rights. The
    /// region needs [`Access::WINDOW_BIND`], and [`Access::LOCAL_WRITE`] for remote write and
    /// remote atomic.
    #[must_use]
    pub fn window(&self, offset: u64, len: u64, access: Access) -> WindowBind {
        WindowBind {
            lkey: self.lkey(),
            addr: self.addr().wrapping_add(offset),
            len,
            access,
            zero_based: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_leaves_the_index_alone() {
        assert_eq!(inc_rkey(0x1234_5601), 0x1234_5602);
        assert_eq!(inc_rkey(0x1234_56ff), 0x1234_5600);
    }
}
