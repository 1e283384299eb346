//! Parts of an inbox that are lent under other STags than the inbox's own: windows of all types,
//! fast regions, and further regions.

use std::sync::{Arc, Mutex};

use uwarp_verbs::{
    Access, Buffer, FastRegion, MemoryRegion, MemoryWindow, Pd, Qp, WindowKind, inc_rkey,
};

use crate::case::{INBOX, Lend};
use crate::ready::ReadyKind;

/// Number of slots of each side, one for each kind of STag.
pub(crate) const SLOTS: usize = 6;

/// Object of a slot, which the slot's STag belongs to.
pub(crate) enum Object {
    /// A type 1 window. The thread that executes the phase binds it by a call.
    ByCall(Arc<Mutex<MemoryWindow>>),
    /// A type 2 window.
    Window(MemoryWindow),
    Fast(FastRegion),
    /// A region for one QP or for all. It may not exist at the moment.
    Region {
        for_qp: bool,
        region: Option<MemoryRegion>,
    },
}

/// A slot, with the state that the model expects.
pub(crate) struct Loan {
    pub(crate) object: Object,
    /// Current or last STag.
    pub(crate) rkey: u32,
    pub(crate) valid: bool,
    /// Phase in which the STag became valid. The peer uses it from the next phase on.
    since: usize,
    /// Last phase in which the peer used the STag. The owner does not change the slot in that
    /// phase.
    used: usize,
    from: usize,
    base: u64,
    access: Access,
}

/// Creates the slots of one side.
pub(crate) fn loans(pd: &Pd, buffer: &Arc<Buffer>) -> Vec<Loan> {
    let window = |kind| pd.alloc_window(kind).unwrap();
    let region = |for_qp| Object::Region {
        for_qp,
        region: None,
    };
    let fast = pd.alloc_fast_region(Arc::clone(buffer)).unwrap();
    let first = window(WindowKind::Type1);
    let objects = [
        (first.rkey(), Object::ByCall(Arc::new(Mutex::new(first)))),
        (0, Object::Window(window(WindowKind::Type2A))),
        (0, Object::Window(window(WindowKind::Type2B))),
        (0, Object::Fast(fast)),
        (0, region(false)),
        (0, region(true)),
    ];
    let loans: Vec<Loan> = objects
        .into_iter()
        .map(|(rkey, object)| Loan {
            rkey: match &object {
                Object::ByCall(_) | Object::Region { .. } => rkey,
                Object::Window(window) => window.rkey(),
                Object::Fast(fast) => fast.stag(),
            },
            object,
            valid: false,
            since: 0,
            used: 0,
            from: 0,
            base: 0,
            access: Access::NONE,
        })
        .collect();
    assert_eq!(loans.len(), SLOTS);
    loans
}

impl Loan {
    /// Records that the peer accesses `at` of the inbox with this right in this phase. Returns the
    /// address for the access, or `None` if the slot does not permit it.
    pub(crate) fn used(&mut self, phase: usize, at: usize, right: Access) -> Option<u64> {
        let usable =
            self.valid && self.since < phase && at >= self.from && self.access.contains(right);
        usable.then(|| {
            self.used = phase;
            self.base + (at - self.from) as u64
        })
    }

    /// Records that the peer invalidates the STag in this phase. Returns the STag, or `None` if the
    /// peer may not.
    pub(crate) fn invalidated(&mut self, phase: usize) -> Option<u32> {
        if !self.valid || self.since >= phase || !self.ends_with_qp_or_peer() {
            return None;
        }
        self.used = phase;
        self.valid = false;
        Some(self.rkey)
    }

    /// Returns true if the STag is valid for one QP only, so that its peer may invalidate it.
    fn ends_with_qp_or_peer(&self) -> bool {
        match &self.object {
            Object::ByCall(_) => false,
            Object::Window(_) | Object::Fast(_) => true,
            Object::Region { for_qp, .. } => *for_qp,
        }
    }

    /// Makes the STag valid in this phase. Returns `None` if that is impossible, `Some(None)` if it
    /// is already done, and otherwise the request that does it.
    pub(crate) fn lend(
        &mut self,
        phase: usize,
        lend: &Lend,
        (inbox, buffer): (&MemoryRegion, &Arc<Buffer>),
        qp: &Qp,
    ) -> Option<Option<ReadyKind>> {
        if self.valid || self.used == phase {
            return None;
        }
        let (access, _) = Access::from_bits(lend.rights);
        let len = INBOX - lend.from;
        let mut base = lend.base;
        let mut window = || {
            let bind = inbox.window(lend.from as u64, len as u64, access);
            if lend.base == 0 {
                return bind.zero_based();
            }
            base = bind.addr;
            bind
        };
        let local = access | Access::LOCAL_WRITE;
        let kind = match &mut self.object {
            Object::ByCall(object) => {
                self.rkey = inc_rkey(self.rkey);
                Some(ReadyKind::ByCall {
                    window: Arc::clone(object),
                    rkey: self.rkey,
                    bind: window(),
                })
            }
            Object::Window(_) => {
                self.rkey = inc_rkey(self.rkey);
                Some(ReadyKind::Bind {
                    rkey: self.rkey,
                    bind: window(),
                })
            }
            Object::Fast(fast) => {
                self.rkey = inc_rkey(self.rkey);
                let part = fast.register(self.rkey, lend.from as u64, len as u64, local);
                Some(ReadyKind::Register(part.iova(lend.base)))
            }
            Object::Region { for_qp, region } => {
                let mut builder = qp.pd().region().access(local).iova(lend.base);
                if *for_qp {
                    builder = builder.for_qp(qp);
                }
                let made = builder.buffer(Arc::clone(buffer)).unwrap();
                self.rkey = made.rkey();
                *region = Some(made);
                None
            }
        };
        let from = match self.object {
            Object::Region { .. } => 0,
            Object::ByCall(_) | Object::Window(_) | Object::Fast(_) => lend.from,
        };
        (self.valid, self.since) = (true, phase);
        (self.from, self.base, self.access) = (from, base, access);
        Some(kind)
    }

    /// Invalidates the STag in this phase as its owner. Returns `None` if that is impossible,
    /// `Some(None)` if it is already done, and otherwise the request that does it.
    pub(crate) fn recall(
        &mut self,
        phase: usize,
        inbox: &MemoryRegion,
    ) -> Option<Option<ReadyKind>> {
        if !self.valid || self.used == phase {
            return None;
        }
        self.valid = false;
        Some(match &mut self.object {
            Object::ByCall(object) => {
                self.rkey = inc_rkey(self.rkey);
                Some(ReadyKind::ByCall {
                    window: Arc::clone(object),
                    rkey: self.rkey,
                    bind: inbox.window(0, 0, Access::NONE),
                })
            }
            Object::Window(_) | Object::Fast(_) => Some(ReadyKind::Invalidate(self.rkey)),
            Object::Region { region, .. } => {
                region.take().unwrap().deregister().unwrap();
                None
            }
        })
    }

    /// Records that the connection has ended and its QP was reset. This invalidates the STags that
    /// work requests made valid.
    pub(crate) fn life_ended(&mut self) {
        match &self.object {
            Object::Window(_) | Object::Fast(_) => self.valid = false,
            Object::ByCall(_) | Object::Region { .. } => {}
        }
    }

    /// Returns true if the slot prevents the reregistration of the inbox.
    pub(crate) fn holds_inbox(&self) -> bool {
        let is_window = matches!(self.object, Object::ByCall(_) | Object::Window(_));
        is_window && self.valid
    }

    /// Checks that the object has the state that the model expects.
    pub(crate) fn check(&self, who: &str) {
        let (is_valid, rkey) = match &self.object {
            Object::ByCall(window) => {
                let window = window.lock().unwrap();
                (window.is_bound(), window.rkey())
            }
            Object::Window(window) => (window.is_bound(), window.rkey()),
            Object::Fast(fast) => (fast.is_valid(), fast.stag()),
            // A region that its peer has invalidated still exists.
            Object::Region { region, .. } => (
                self.valid,
                region.as_ref().map_or(self.rkey, MemoryRegion::rkey),
            ),
        };
        assert_eq!((is_valid, rkey), (self.valid, self.rkey), "{who}");
    }
}
