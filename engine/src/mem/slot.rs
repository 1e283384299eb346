//! STags that work requests make valid and invalid: memory windows and fast-registered regions.
//!
//! Such an STag has a fixed index, with a *slot* in the table, and a key that changes each time the
//! STag is made valid. Each work request that makes it valid creates a new [`Region`]; invalidation
//! drops that region. So the checks and guards of all other regions apply to it, too.
//!
//! ```text
//!                 bind, register (key k)
//!   not valid ─────────────────────────────► valid with key k
//!      ▲  ▲                                     │   │  │
//!      │  └── local, remote invalidate, ────────┘   │  └─┐ type 1: bind (key k'),
//!      │      type 1: bind of length 0,             │  ◄─┘         the old binding ends
//!      │      end of the QP it was for              │
//!      └── deallocated: the index is free ◄─────────┘
//! ```

use core::fmt;
use std::sync::Arc;

use uwarp_ddp::STag;

use super::backing::{Backing, RegionSpec, check_spec};
use super::error::RegisterError;
use super::region::Region;
use super::table::{Asker, Entry, RegionTable};
use super::{Access, Buffer, FastRegister};

/// Types of memory windows, named as in the verbs specification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowKind {
    /// Bound by `Qp::bind_mw` of `uwarp-verbs`, for every QP of the protection domain.
    ///
    /// A new bind ends the old one. Only the local program can end a binding, never a peer.
    Type1,
    /// Bound by a work request, for the QP that the request was posted to.
    Type2A,
    /// Bound by a work request, for the QP that the request was posted to and its protection
    /// domain.
    ///
    /// This library treats 2A and 2B alike: for both, QP, window and region must belong to one
    /// domain.
    Type2B,
}

impl fmt::Display for WindowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type1 => "type 1",
            Self::Type2A => "type 2A",
            Self::Type2B => "type 2B",
        })
    }
}

/// Parameters of a bind (`ibv_mw_bind_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowBind {
    /// Key of the region, which must be registered with [`Access::WINDOW_BIND`].
    pub lkey: u32,
    /// Address of the first byte in the region's address space.
    pub addr: u64,
    /// Length in bytes. 0 unbinds a window of type 1 and is an error for the others.
    pub len: u64,
    /// Rights of the peer: remote rights only.
    ///
    /// Remote write and remote atomic need a region registered for local write.
    pub access: Access,
    /// True if the TOs of the window start at 0 (`IBV_ACCESS_ZERO_BASED`) instead of at `addr`.
    pub zero_based: bool,
}

impl WindowBind {
    /// Makes the TOs of the window start at 0 (`IBV_ACCESS_ZERO_BASED`).
    #[must_use]
    pub fn zero_based(mut self) -> Self {
        self.zero_based = true;
        self
    }
}

/// Purpose of a slot.
pub enum Purpose {
    /// A memory window of this type.
    Window(WindowKind),
    /// Fast registration of parts of this memory.
    Fast(Arc<Buffer>),
}

/// State that the table keeps of an STag even while it is not valid.
pub(super) struct Slot {
    purpose: Purpose,
    pd: u32,
    /// Current key, or the last one if the STag is not valid. Initially the key chosen by
    /// [`RegionTable::reserve`].
    key: u8,
    /// True if the STag was ever valid with `key`. Then the next key must differ: otherwise the old
    /// STag, which peers may know, would become valid again.
    used: bool,
    /// The QP that the STag was made valid for, if it was made valid for only one. The end of that
    /// QP's stream invalidates the STag.
    qp: Option<u32>,
}

/// Reason why a work request on an STag failed. The local program is at fault in all cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SlotFault {
    /// No window has this STag.
    #[error("STag {stag:#010x} names no memory window (never allocated, or deallocated)")]
    NoWindow {
        /// STag of the request.
        stag: u32,
    },
    /// No fast region has this STag.
    #[error("STag {stag:#010x} names no fast region (never allocated, or deallocated)")]
    NoFastRegion {
        /// STag of the request.
        stag: u32,
    },
    /// A window of this type is bound in another way.
    #[error(
        "memory window {stag:#010x} is of {kind}: type 1 is bound with Qp::bind_mw, types 2A and 2B with a work request"
    )]
    WrongKind {
        /// STag of the request.
        stag: u32,
        /// Type of the window.
        kind: WindowKind,
    },
    /// The STag is not for this protection domain or queue pair.
    #[error("STag {stag:#010x} belongs to another protection domain or queue pair")]
    NotAssociated {
        /// STag of the request.
        stag: u32,
    },
    /// The STag has to be invalidated first.
    #[error("STag {stag:#010x} is still valid (as {now:#010x})")]
    StillValid {
        /// STag of the request.
        stag: u32,
        /// STag that is valid.
        now: u32,
    },
    /// The key of the new STag must differ from the last one.
    #[error("STag {stag:#010x} has the previous key, which would make the old STag valid again")]
    SameKey {
        /// STag of the request.
        stag: u32,
    },
    /// The local key of a bind names no region.
    #[error("lkey {lkey:#010x} names no valid memory region")]
    NoRegion {
        /// Local key of the bind.
        lkey: u32,
    },
    /// The region allows no windows.
    #[error(
        "the memory region of lkey {lkey:#010x} is not registered for binding windows (WINDOW_BIND)"
    )]
    NoBindRight {
        /// Local key of the bind.
        lkey: u32,
    },
    /// The region does not have the rights that the bind grants.
    #[error(
        "the bind requests {access} of a region that allows {region}: a window has remote rights only, and its region needs local write for remote write and remote atomic"
    )]
    Rights {
        /// Rights that the bind grants.
        access: Access,
        /// Rights of the region.
        region: Access,
    },
    /// The bytes are not in the memory.
    #[error("{len} bytes at {addr:#x} are not inside the memory ({size} bytes from {base:#x} on)")]
    OutOfBounds {
        /// Address of the first byte.
        addr: u64,
        /// Number of bytes.
        len: u64,
        /// Address of the memory.
        base: u64,
        /// Length of the memory in bytes.
        size: u64,
    },
    /// Only a window of type 1 is unbound by a bind.
    #[error("a bind of 0 bytes is only valid for a window of type 1")]
    NoBytes,
    /// The rules of a registration forbid it.
    #[error("{0}")]
    Register(RegisterError),
    /// The STag is not valid.
    #[error("STag {stag:#010x} is not valid, so there is nothing to invalidate")]
    NotValid {
        /// STag of the request.
        stag: u32,
    },
    /// A window of type 1 is not invalidated.
    #[error("STag {stag:#010x} names a window of type 1, which a bind of 0 bytes unbinds")]
    Type1 {
        /// STag of the request.
        stag: u32,
    },
    /// A region with windows is not invalidated.
    #[error("{count} memory window(s) are bound to region {stag:#010x}")]
    WindowsBound {
        /// STag of the region.
        stag: u32,
        /// Number of windows.
        count: u32,
    },
}

/// Previous region of a slot. It is ended after the lock of the table is released, because ending
/// it waits for its users.
struct Former(Option<Arc<Region>>);

impl Former {
    /// Ends all access through the region. If it is the binding of a window, the region under it
    /// counts one window less.
    fn end(self) {
        if let Some(region) = self.0 {
            region.retire_at_once();
            if let Some(under) = region.bound_to() {
                under.remove_window();
            }
        }
    }
}

impl Slot {
    /// Creates the slot with the key of its first STag.
    pub(super) fn new(purpose: Purpose, pd: u32, key: u8) -> Self {
        Self {
            purpose,
            pd,
            key,
            used: false,
            qp: None,
        }
    }

    /// Describes the slot while it is not valid.
    pub(super) fn describe(&self) -> String {
        match &self.purpose {
            Purpose::Window(kind) => format!("a memory window ({kind}), not bound"),
            Purpose::Fast(buffer) => format!(
                "a fast region over {} bytes, not registered now",
                buffer.len()
            ),
        }
    }

    /// Checks whether the slot may become valid under `stag`, for the asking QP.
    fn check_next(&self, stag: u32, asker: &Asker) -> Result<(), SlotFault> {
        if self.pd != asker.pd {
            return Err(SlotFault::NotAssociated { stag });
        }
        if self.used && self.key == stag as u8 {
            return Err(SlotFault::SameKey { stag });
        }
        Ok(())
    }

    /// Sets the key of the slot, and the only QP that may use it (`None`: every QP of the domain).
    /// Returns true if the slot is now reserved for one QP, and was not reserved for that QP
    /// before.
    fn rotate(&mut self, stag: u32, qp: Option<u32>) -> bool {
        self.key = stag as u8;
        self.used = true;
        let new = qp.is_some() && self.qp != qp;
        self.qp = qp;
        new
    }
}

/// Checks a bind against its region. Returns the offset of the bound bytes in the region.
fn check_bind(region: &Region, bind: &WindowBind, asker: &Asker) -> Result<usize, SlotFault> {
    let WindowBind {
        lkey, addr, len, ..
    } = *bind;
    if !region.is_associated(asker.pd, asker.qp) {
        return Err(SlotFault::NotAssociated { stag: lkey });
    }
    let (access, own) = (bind.access, region.access());
    if !own.contains(Access::WINDOW_BIND) {
        return Err(SlotFault::NoBindRight { lkey });
    }
    let local = access.contains(Access::LOCAL_WRITE) || access.contains(Access::WINDOW_BIND);
    // True if the peer may change the memory (remote write or remote atomic). A window itself never
    // has local write.
    let writes = access.lacks_local_write();
    if local || (writes && !own.contains(Access::LOCAL_WRITE)) {
        let region = own;
        return Err(SlotFault::Rights { access, region });
    }
    region.offset_of(addr, len).ok_or(SlotFault::OutOfBounds {
        addr,
        len,
        base: region.to_base(),
        size: region.len() as u64,
    })
}

impl RegionTable {
    /// Reserves an STag that is not valid yet.
    pub fn reserve(&self, pd: u32, purpose: Purpose) -> Result<STag, RegisterError> {
        self.add(pd, |stag| Entry {
            pd,
            region: None,
            slot: Some(Box::new(Slot::new(purpose, pd, stag.0 as u8))),
        })
    }

    /// Returns the current STag of a slot, or the last one if the slot is not valid.
    pub fn slot_stag(&self, index: u32) -> STag {
        self.with_entry(index, |entry| {
            let slot = entry.slot.as_ref();
            STag(index << 8 | slot.map_or(0, |slot| u32::from(slot.key)))
        })
        .unwrap_or(STag(index << 8))
    }

    /// Returns true if the slot is valid now.
    pub fn slot_is_valid(&self, index: u32) -> bool {
        let valid = |entry: &mut Entry| {
            entry
                .region
                .as_ref()
                .is_some_and(|region| region.is_valid())
        };
        self.with_entry(index, valid).unwrap_or(false)
    }

    /// Deallocates a slot, valid or not. When this returns, no memory is accessed through its STag
    /// any more.
    pub fn free(&self, index: u32) {
        if !self.is_here() {
            return;
        }
        if let Some(entry) = self.take_entry(index) {
            Former(entry.region).end();
        }
    }

    /// Binds a window, or unbinds one of type 1. `by_call` is true for a request from
    /// `Qp::bind_mw`.
    ///
    /// Returns true if the STag is now valid for the asking QP only, and was not assigned to that
    /// QP before. The caller must then call [`end_for`](Self::end_for) when that QP's stream ends.
    pub fn bind(
        &self,
        stag: u32,
        bind: &WindowBind,
        by_call: bool,
        asker: &Asker,
    ) -> Result<bool, SlotFault> {
        let region = match bind.len {
            0 => None,
            _ => {
                let lkey = bind.lkey;
                let region = self.find(STag(lkey)).filter(|region| region.is_valid());
                let region = region.ok_or(SlotFault::NoRegion { lkey })?;
                if region.bound_to().is_some() {
                    return Err(SlotFault::NoRegion { lkey });
                }
                let offset = check_bind(&region, bind, asker)?;
                Some((region, offset))
            }
        };
        let no_window = SlotFault::NoWindow { stag };
        let done = self.with_entry(stag >> 8, |entry| {
            let slot = entry.slot.as_deref_mut().ok_or(no_window)?;
            let Purpose::Window(kind) = slot.purpose else {
                return Err(no_window);
            };
            let type_1 = kind == WindowKind::Type1;
            if type_1 != by_call {
                return Err(SlotFault::WrongKind { stag, kind });
            }
            slot.check_next(stag, asker)?;
            if let Some(now) = entry
                .region
                .as_ref()
                .filter(|now| !type_1 && now.is_valid())
            {
                let now = now.stag().0;
                return Err(SlotFault::StillValid { stag, now });
            }
            let new = match region {
                None if type_1 => None,
                None => return Err(SlotFault::NoBytes),
                Some((region, offset)) => Some(window(stag, bind, type_1, asker, region, offset)?),
            };
            let listed = slot.rotate(stag, new.as_ref().and_then(Region::qp));
            let former = core::mem::replace(&mut entry.region, new.map(Arc::new));
            Ok((Former(former), listed))
        });
        let (former, listed) = done.ok_or(no_window)??;
        former.end();
        Ok(listed)
    }

    /// Returns true if an STag, with any key, belongs to a fast region of this protection domain.
    pub fn is_fast(&self, stag: u32, pd: u32) -> bool {
        self.with_entry(stag >> 8, |entry| {
            let slot = entry.slot.as_ref();
            slot.is_some_and(|slot| slot.pd == pd && matches!(slot.purpose, Purpose::Fast(_)))
        })
        .unwrap_or(false)
    }

    /// Registers part of a fast region. The result is that of [`bind`](Self::bind).
    pub fn register_fast(&self, register: &FastRegister, asker: &Asker) -> Result<bool, SlotFault> {
        let FastRegister {
            stag, offset, len, ..
        } = *register;
        let none = SlotFault::NoFastRegion { stag };
        let done = self.with_entry(stag >> 8, |entry| {
            let slot = entry.slot.as_deref_mut().ok_or(none)?;
            let Purpose::Fast(buffer) = &slot.purpose else {
                return Err(none);
            };
            slot.check_next(stag, asker)?;
            if let Some(now) = entry.region.as_ref().filter(|now| now.is_valid()) {
                let now = now.stag().0;
                return Err(SlotFault::StillValid { stag, now });
            }
            let memory = Backing::part(Arc::clone(buffer), offset, len);
            let spec = RegionSpec {
                memory: memory.ok_or(SlotFault::OutOfBounds {
                    addr: offset,
                    len,
                    base: 0,
                    size: buffer.len() as u64,
                })?,
                to_base: Some(register.iova),
                pd: asker.pd,
                qp: (!register.for_pd).then_some(asker.qp),
                access: register.access,
            };
            check_spec(&spec).map_err(SlotFault::Register)?;
            let listed = slot.rotate(stag, spec.qp);
            let new = Arc::new(Region::new(spec, STag(stag)));
            Ok((Former(entry.region.replace(new)), listed))
        });
        let (former, listed) = done.ok_or(none)??;
        former.end();
        Ok(listed)
    }

    /// Invalidates an STag for the local program: a window of type 2, a fast region, or any other
    /// region.
    pub fn invalidate_locally(&self, stag: u32, asker: &Asker) -> Result<(), SlotFault> {
        let not_valid = SlotFault::NotValid { stag };
        let region = self.find(STag(stag)).filter(|region| region.is_valid());
        let region = region.ok_or(not_valid)?;
        if !region.is_associated(asker.pd, asker.qp) {
            return Err(SlotFault::NotAssociated { stag });
        }
        if region.bound_to().is_some() && region.qp().is_none() {
            return Err(SlotFault::Type1 { stag });
        }
        region
            .invalidate_unless_bound()
            .map_err(|count| SlotFault::WindowsBound { stag, count })?;
        self.vacate(&region);
        Ok(())
    }

    /// Removes an invalidated region from its slot, so that the slot can become valid again.
    pub(super) fn vacate(&self, region: &Arc<Region>) {
        let former = self.with_entry(region.stag().0 >> 8, |entry| {
            entry.slot.as_ref()?;
            entry.region.take_if(|now| Arc::ptr_eq(now, region))
        });
        Former(former.flatten()).end();
    }

    /// Returns true if a slot was last made valid for this QP only.
    pub fn is_for(&self, index: u32, qp: u32) -> bool {
        let own = |entry: &mut Entry| entry.slot.as_ref().is_some_and(|slot| slot.qp == Some(qp));
        self.with_entry(index, own).unwrap_or(false)
    }

    /// Invalidates a slot that was made valid for `qp` only, because the stream of `qp` has ended.
    /// The STag is invalid even for the next stream of the same QP (5040-8.1.1-02, 5041-8.2-02).
    pub fn end_for(&self, index: u32, qp: u32) {
        let former = self.with_entry(index, |entry| {
            let slot = entry.slot.as_mut().filter(|slot| slot.qp == Some(qp))?;
            slot.qp = None;
            entry.region.take()
        });
        Former(former.flatten()).end();
    }
}

/// Creates the binding of a window and counts it at its region.
fn window(
    stag: u32,
    bind: &WindowBind,
    type_1: bool,
    asker: &Asker,
    region: Arc<Region>,
    offset: usize,
) -> Result<Region, SlotFault> {
    // The region may have been revoked since it was found. `add_window` checks it again under the
    // lock that deregistration takes.
    if !region.add_window() {
        return Err(SlotFault::NoRegion { lkey: bind.lkey });
    }
    // The range is inside the region, whose length is a `usize`.
    let len = usize::try_from(bind.len).unwrap_or(0);
    let spec = RegionSpec {
        memory: Backing::window(region, offset, len),
        to_base: Some(if bind.zero_based { 0 } else { bind.addr }),
        pd: asker.pd,
        qp: (!type_1).then_some(asker.qp),
        access: bind.access,
    };
    Ok(Region::new(spec, STag(stag)))
}
