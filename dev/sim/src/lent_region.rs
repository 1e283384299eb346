//! Memory whose STag becomes valid and invalid during the run. It is loaned to the peer, or used by
//! this side for one request.

use std::sync::Arc;

use uwarp_verbs::{
    Access, FastRegion, FastRegister, MemoryWindow, Pd, Qp, SendWr, WindowBind, WindowKind,
    inc_rkey,
};

use crate::memory::Tracked;

/// Kind of object that owns the STag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A region that only one QP may use.
    Region,
    /// A type 1 window. It is bound by a call and valid for the whole domain, so no peer can
    /// invalidate it.
    Window1,
    /// A type 2 window, bound by a work request.
    Window2,
    /// Memory that a work request registers.
    Fast,
}

/// Stage in the life of a loaned STag. `Own` is for an STag that is not loaned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Not valid yet; a work request or a call makes it valid.
    Asked,
    /// Valid, and the peer may use it.
    Ready,
    /// The peer has posted requests that use it and return it.
    Used,
    /// Invalidated.
    Dead,
    /// Used by requests of this side only.
    Own,
}

enum By {
    Region,
    Window(MemoryWindow),
    Fast(FastRegion),
}

/// A buffer with a part that has the STag. The rest of the buffer must stay untouched.
pub(crate) struct LentRegion {
    /// Declared before the memory, so that a window is dropped before its region.
    by: By,
    pub(crate) memory: Tracked,
    pub(crate) kind: Kind,
    /// Offset of the part that has the STag.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) rkey: u32,
    /// TO of the first byte of the part.
    pub(crate) to: u64,
    pub(crate) stage: Stage,
}

/// Action that makes the STag valid.
pub(crate) enum Ask {
    Nothing,
    Request(SendWr<'static>),
    /// A bind by a call.
    Bind(WindowBind),
}

/// Returns the access rights of the peer.
fn rights() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ
}

impl LentRegion {
    /// Sets up a buffer with a part of `len` bytes that is loaned to the peer of `qp`. `base` is
    /// the address of the buffer, or with fast registration the TO of the part. A window may
    /// instead be zero-based.
    pub(crate) fn new(
        pd: &Pd,
        qp: &Qp,
        kind: Kind,
        (at, len): (usize, usize),
        (base, zero_based): (u64, bool),
    ) -> Result<Self, String> {
        let what = "loaned memory";
        let (local, whole) = (Access::LOCAL_WRITE, at + len + 3);
        let said = |error: uwarp_verbs::RegisterError| error.to_string();
        let (by, memory, at) = match kind {
            Kind::Region => {
                let memory = Tracked::blank(pd, what, len, local | rights(), base, Some(qp))?;
                (By::Region, memory, 0)
            }
            Kind::Window1 | Kind::Window2 => {
                let access = local | Access::WINDOW_BIND;
                let memory = Tracked::blank(pd, what, whole, access, base, None)?;
                let kind = match kind {
                    Kind::Window1 => WindowKind::Type1,
                    _ => WindowKind::Type2B,
                };
                (By::Window(pd.alloc_window(kind).map_err(said)?), memory, at)
            }
            Kind::Fast => {
                let memory = Tracked::unregistered(what, whole)?;
                let fast = pd.alloc_fast_region(Arc::clone(memory.buffer()));
                (By::Fast(fast.map_err(said)?), memory, at)
            }
        };
        let rkey = match &by {
            By::Region => memory.rkey(),
            By::Window(window) => inc_rkey(window.rkey()),
            By::Fast(fast) => inc_rkey(fast.stag()),
        };
        let ready = matches!(by, By::Region);
        let to = match &by {
            By::Window(_) if zero_based => 0,
            By::Region | By::Window(_) => memory.to(at),
            By::Fast(_) => base,
        };
        Ok(LentRegion {
            by,
            to,
            memory,
            kind,
            at,
            len,
            rkey,
            stage: if ready { Stage::Ready } else { Stage::Asked },
        })
    }

    /// Sets up memory with this content. Requests of this side register, use and invalidate it.
    pub(crate) fn own(pd: &Pd, content: &[u8], base: u64) -> Result<Self, String> {
        let memory = Tracked::holding("memory of one request", content)?;
        let fast = pd
            .alloc_fast_region(Arc::clone(memory.buffer()))
            .map_err(|error| error.to_string())?;
        Ok(LentRegion {
            rkey: inc_rkey(fast.stag()),
            by: By::Fast(fast),
            memory,
            kind: Kind::Fast,
            at: 0,
            to: base,
            len: content.len(),
            stage: Stage::Own,
        })
    }

    /// Returns the action that makes the STag valid.
    pub(crate) fn ask(&self, wr_id: u64) -> Ask {
        match &self.by {
            By::Region => Ask::Nothing,
            By::Window(_) => {
                let bind = self.window(self.len);
                match self.kind {
                    Kind::Window1 => Ask::Bind(bind),
                    _ => Ask::Request(SendWr::bind_window(wr_id, self.rkey, &bind)),
                }
            }
            By::Fast(_) => Ask::Request(SendWr::register(wr_id, &self.part())),
        }
    }

    /// Returns the arguments of a bind to the first `len` bytes of the part.
    pub(crate) fn window(&self, len: usize) -> WindowBind {
        WindowBind {
            lkey: self.memory.sge(0, 0).lkey,
            addr: self.memory.to(self.at),
            len: len as u64,
            access: rights(),
            zero_based: self.to == 0,
        }
    }

    /// Returns the arguments of the registration of the part.
    pub(crate) fn part(&self) -> FastRegister {
        let access = match self.stage {
            Stage::Own => Access::LOCAL_WRITE,
            _ => Access::LOCAL_WRITE | rights(),
        };
        FastRegister {
            stag: self.rkey,
            offset: self.at as u64,
            len: self.len as u64,
            iova: self.to,
            access,
            for_pd: false,
        }
    }

    pub(crate) fn window_mut(&mut self) -> Option<&mut MemoryWindow> {
        match &mut self.by {
            By::Window(window) => Some(window),
            By::Region | By::Fast(_) => None,
        }
    }

    /// Returns whether the device reports the STag as valid; `None` for a region, which has no such
    /// query.
    fn is_valid(&self) -> Option<bool> {
        match &self.by {
            By::Region => None,
            By::Window(window) => Some(window.is_bound()),
            By::Fast(fast) => Some(fast.is_valid()),
        }
    }

    /// Records that the STag has become valid. While the connection `lives`, the device must report
    /// it as valid.
    pub(crate) fn mark_ready(&mut self, lives: bool) -> Result<(), String> {
        if self.stage == Stage::Asked {
            self.stage = Stage::Ready;
            // The peer learns the STag only after this, so it cannot have invalidated it yet.
            if lives && self.is_valid() == Some(false) {
                return Err(format!("STag {:08x} should be valid", self.rkey));
            }
        }
        Ok(())
    }

    /// Records that the STag was invalidated, and checks that the device reports this.
    pub(crate) fn mark_dead(&mut self) -> Result<(), String> {
        self.stage = Stage::Dead;
        self.check_dead()
    }

    /// Checks that the device does not report the STag as valid.
    pub(crate) fn check_dead(&self) -> Result<(), String> {
        if self.is_valid() == Some(true) {
            return Err(format!("STag {:08x} should be invalid", self.rkey));
        }
        Ok(())
    }

    /// Returns true if the STag becomes invalid when the QP ends.
    pub(crate) fn is_of_qp(&self) -> bool {
        matches!(self.kind, Kind::Window2 | Kind::Fast)
    }
}
