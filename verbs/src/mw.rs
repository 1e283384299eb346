//! Memory windows.

use std::sync::Arc;

use crate::device::DeviceInner;
use crate::engine::PostErrorKind;
use crate::limits::PdAccount;
use crate::mem::{Access, Purpose, RegisterError, WindowBind, WindowKind};
use crate::mr::MemoryRegion;

/// The STag with the next key: same index, last byte one higher (`ibv_inc_rkey`).
#[must_use]
pub fn inc_rkey(rkey: u32) -> u32 {
    rkey & !0xFF | rkey.wrapping_add(1) & 0xFF
}

/// A memory window: an STag that shows a part of a memory region to peers, for a while and with rights of its own.
/// `ibv_mw` of the verbs (`ibv_alloc_mw`, `ibv_bind_mw`); for its STag RFC 5040 section 8.1.1 holds.
///
/// Binding is quicker than registration, and ends without touching the region: by
/// [`SendWr::local_invalidate`](crate::SendWr::local_invalidate) or the peer's Send with Invalidate (type 2), by a new bind or one of 0 bytes
/// (type 1), by dropping the window, and for type 2 by the end of the QP. A region is not deregistered while windows
/// are bound to it.
///
/// ```
/// use uwarp_verbs::{Access, Device, SendWr, WindowKind, inc_rkey};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::tcp()?.alloc_pd()?;
/// let region = pd.register(vec![0; 4096], Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
/// let window = pd.alloc_window(WindowKind::Type2B)?;
/// let bind = region.window(0, 1024, Access::REMOTE_WRITE).zero_based();
/// let rkey = inc_rkey(window.rkey());
/// let wr = SendWr::bind_window(1, rkey, &bind); // to be posted; then tell the peer `rkey`
/// # let _ = wr; Ok(()) }
/// ```
pub struct MemoryWindow {
    device: Arc<DeviceInner>,
    index: u32,
    kind: WindowKind,
    /// The STag as `Qp::bind_mw` last gave it.
    by_call: u32,
    _pd: Arc<PdAccount>,
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

    /// The STag (`ibv_mw.rkey`): as the last [`Qp::bind_mw`](crate::Qp::bind_mw) gave it (type 1), as the last work
    /// request that was carried out made it (type 2), or one that is not bound yet.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        match self.kind {
            WindowKind::Type1 => self.by_call,
            WindowKind::Type2A | WindowKind::Type2B => self.device.table.slot_stag(self.index).0,
        }
    }

    /// Its kind (`ibv_mw.type`).
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Whether it is bound now, to a region that is valid (the verbs do not tell).
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.device.table.slot_is_valid(self.index)
    }

    /// The STag for the next bind by call.
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
    /// What a memory window is to show (`ibv_mw_bind_info`): `len` bytes from `offset` on. Whether they lie in the
    /// region is checked when the window is bound. `access` are remote rights; the region has to be registered with
    /// [`Access::WINDOW_BIND`], and for remote write and remote atomic with [`Access::LOCAL_WRITE`].
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
