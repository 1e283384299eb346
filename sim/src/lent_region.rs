//! Memory with an STag that comes and goes: lent to the peer, or used by this side for one request.

use std::sync::Arc;

use uwarp_verbs::{
    Access, FastRegion, FastRegister, MemoryWindow, Pd, Qp, SendWr, WindowBind, WindowKind,
    inc_rkey,
};

use crate::memory::Tracked;

/// What the STag is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A region for one QP alone.
    Region,
    /// A memory window, bound by call and for the whole domain: no peer ends it.
    Window1,
    /// A memory window, bound by a work request.
    Window2,
    /// Memory that a work request registers.
    Fast,
}

/// Its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// A work request is to make it valid.
    Asked,
    /// The peer may use it.
    Ready,
    /// The peer has used it and gives it back.
    Used,
    /// The STag is dead.
    Dead,
    /// It serves requests of this side alone.
    Own,
}

enum By {
    Region,
    Window(MemoryWindow),
    Fast(FastRegion),
}

/// Such memory, of which a part has the STag; the rest is nobody's business.
pub(crate) struct LentRegion {
    /// Before the memory, so that a window goes before its region.
    by: By,
    pub(crate) memory: Tracked,
    pub(crate) kind: Kind,
    /// The part.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) rkey: u32,
    /// The TO of the first byte of the part.
    pub(crate) to: u64,
    pub(crate) stage: Stage,
}

/// What is to be posted so that the STag becomes valid.
pub(crate) enum Ask {
    Nothing,
    Request(SendWr<'static>),
    /// By call.
    Bind(WindowBind),
}

/// What a peer may do with it.
fn rights() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ
}

impl LentRegion {
    /// Memory around a part of `len` bytes that is to be lent to the peer of `qp`, and that begins at `base`: the memory, or
    /// the part. A window may count from 0 all the same.
    pub(crate) fn new(
        pd: &Pd,
        qp: &Qp,
        kind: Kind,
        (at, len): (usize, usize),
        (base, zero_based): (u64, bool),
    ) -> Result<Self, String> {
        let what = "lent memory";
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

    /// Memory that requests of this side register, use, and invalidate; with this content.
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

    /// What makes it valid.
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

    /// What the window is to show.
    pub(crate) fn window(&self, len: usize) -> WindowBind {
        WindowBind {
            lkey: self.memory.sge(0, 0).lkey,
            addr: self.memory.to(self.at),
            len: len as u64,
            access: rights(),
            zero_based: self.to == 0,
        }
    }

    /// The part that is registered.
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

    /// Whether the device says that the STag is valid; `None` where it does not tell.
    fn is_valid(&self) -> Option<bool> {
        match &self.by {
            By::Region => None,
            By::Window(window) => Some(window.is_bound()),
            By::Fast(fast) => Some(fast.is_valid()),
        }
    }

    /// The STag has become valid.
    pub(crate) fn begins(&mut self, lives: bool) -> Result<(), String> {
        if self.stage == Stage::Asked {
            self.stage = Stage::Ready;
            // The peer may have invalidated it since, but for this it has to be told first.
            if lives && self.is_valid() == Some(false) {
                return Err(format!("{:08x} is not valid, and it should be", self.rkey));
            }
        }
        Ok(())
    }

    /// The STag is dead.
    pub(crate) fn ends(&mut self) -> Result<(), String> {
        self.stage = Stage::Dead;
        self.is_dead()
    }

    /// Whether the device, too, says that it is dead.
    pub(crate) fn is_dead(&self) -> Result<(), String> {
        if self.is_valid() == Some(true) {
            return Err(format!("{:08x} is still valid", self.rkey));
        }
        Ok(())
    }

    /// Whether it ends with the QP.
    pub(crate) fn is_of_qp(&self) -> bool {
        matches!(self.kind, Kind::Window2 | Kind::Fast)
    }
}
