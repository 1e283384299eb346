//! Regions that lie within larger buffers, and what may change of those.

use std::sync::Arc;

use uwarp_verbs::{
    Access, Buffer, DeregisterError, LocalFault, LocalFaultKind, MemoryRegion, MemoryWindow, Pd,
    Qp, RegisterError, Sge, WindowKind, inc_rkey,
};

use super::world::MAX_MR;
use crate::input::Input;

/// Bytes around a region that belong to nobody.
const GUARD: usize = 64;
/// Bytes of the longest region.
const LONGEST: usize = 1024;
const UNTOUCHED: u8 = 0xC3;

/// A region, and the buffer that it is a part of.
pub(super) struct Region {
    pub(super) region: MemoryRegion,
    buffer: Arc<Buffer>,
    /// What it held in the beginning: each region something else.
    filled: u8,
    pub(super) pd: u32,
    /// The QP that alone may use it.
    qp: Option<u32>,
    access: Access,
    /// It was named in a request to invalidate: nobody knows when it is gone.
    doubtful: bool,
    /// A window was to be bound to it.
    shown: bool,
    /// It was the receive or the sink of a request that was taken, or a peer that may was asked to write it.
    reached: bool,
}

/// All memory of the program.
#[derive(Default)]
pub(super) struct Memory {
    /// Regions that there ever were.
    made: u8,
    pub(super) regions: Vec<Region>,
    pub(super) windows: Vec<(WindowKind, MemoryWindow)>,
    /// What is not registered any more, and how it was then.
    retired: Vec<(Arc<Buffer>, Vec<u8>)>,
}

fn octets(buffer: &Buffer) -> Vec<u8> {
    let mut octets = vec![0; buffer.len()];
    buffer.read_at(0, &mut octets).expect("it is as long");
    octets
}

/// A buffer around a region that holds this byte everywhere.
fn fresh(filled: u8, len: usize) -> Vec<u8> {
    let mut octets = vec![UNTOUCHED; len + 2 * GUARD];
    octets[GUARD..GUARD + len].fill(filled);
    octets
}

impl Region {
    fn check(&self) {
        let octets = octets(&self.buffer);
        let begun = fresh(self.filled, self.region.len());
        let end = octets.len() - GUARD;
        assert!(self.may_change() || octets == begun, "nobody may write it");
        assert!(
            octets[..GUARD] == begun[..GUARD] && octets[end..] == begun[end..],
            "bytes outside of the region have changed"
        );
    }

    /// Whether anybody may have written it.
    fn may_change(&self) -> bool {
        self.access.contains(Access::LOCAL_WRITE) && (self.reached || self.shown)
    }

    /// What is wrong with an element of a work request, as far as it is certain.
    fn refuses(&self, sge: &Sge, write: bool, (pd, qp): (u32, u32)) -> bool {
        let start = sge.addr.checked_sub(self.region.addr());
        let end = start.and_then(|start| start.checked_add(sge.len.into()));
        pd != self.pd
            || self.qp.is_some_and(|own| own != qp)
            || write && !self.access.contains(Access::LOCAL_WRITE)
            || end.is_none_or(|end| end > self.region.len() as u64)
    }
}

impl Memory {
    /// STags that there certainly are: what somebody was asked to invalidate may be gone.
    pub(super) fn stags(&self) -> usize {
        let certain = |region: &&Region| !region.doubtful;
        self.regions.iter().filter(certain).count() + self.windows.len()
    }

    /// Registers a region for a domain, perhaps for a QP (of which domain) alone. Whether it was refused because there
    /// are as many as there may be.
    pub(super) fn register(
        &mut self,
        input: &mut Input<'_>,
        (pd, number): (&Pd, u32),
        qp: Option<(&Qp, u32)>,
    ) -> bool {
        let len = usize::from(input.u16()) % (LONGEST + 1);
        let (access, _) = Access::from_bits(u32::from(input.u8()) & 31);
        let iova = (input.u8() & 1 == 1).then(|| input.u64());
        self.made = self.made.wrapping_add(1);
        let filled = self.made;
        let buffer = Arc::new(Buffer::from(fresh(filled, len)));
        let mut builder = pd.region().access(access);
        if let Some((qp, _)) = qp {
            builder = builder.for_qp(qp);
        }
        if let Some(iova) = iova {
            builder = builder.iova(iova);
        }
        let remote_write =
            access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC);
        let lacks_local = remote_write && !access.contains(Access::LOCAL_WRITE);
        let wraps = iova.is_some_and(|iova| iova.checked_add(len as u64).is_none());
        let elsewhere = qp.filter(|(_, pd)| *pd != number);
        let refused = match builder.part(Arc::clone(&buffer), GUARD..GUARD + len) {
            Ok(region) => {
                assert!(
                    len > 0 && !lacks_local && !wraps && elsewhere.is_none(),
                    "{access} of {len} bytes at {iova:?} for {qp:?}"
                );
                self.regions.push(Region {
                    region,
                    buffer,
                    filled,
                    pd: number,
                    qp: qp.map(|(qp, _)| qp.qp_num()),
                    access,
                    doubtful: false,
                    shown: false,
                    reached: false,
                });
                return false;
            }
            Err(refused) => refused,
        };
        assert_eq!(octets(&buffer), fresh(filled, len));
        let so = match refused {
            RegisterError::TooMany { limit } => return limit == MAX_MR,
            RegisterError::Empty => len == 0,
            RegisterError::NeedsLocalWrite { access: said } => lacks_local && said == access,
            RegisterError::Wraps { base, len: said } => wraps && (Some(base), said) == (iova, len),
            RegisterError::QpOfOtherPd { qp } => {
                elsewhere.is_some_and(|(other, _)| other.qp_num() == qp)
            }
            _ => false,
        };
        assert!(so, "{access} of {len} bytes at {iova:?}: {refused}");
        false
    }

    /// An element that is right more often than not.
    pub(super) fn sge(&self, input: &mut Input<'_>) -> Sge {
        let (choice, offset, len) = (input.u8(), input.u16(), input.u16());
        match self
            .regions
            .get(usize::from(choice) % (self.regions.len() + 1))
        {
            Some(Region { region, .. }) => {
                let offset = u64::from(offset) % (region.len() as u64 + 1);
                let left = region.len() as u64 - offset + u64::from(choice >> 7);
                region.sge(offset, (u64::from(len) % (left + 1)) as u32)
            }
            None => Sge {
                addr: u64::from(offset) << 20,
                len: u32::from(len) << 16,
                lkey: u32::from(choice) << 8 | u32::from(offset),
            },
        }
    }

    /// Where a peer reaches something: address and rkey.
    pub(super) fn remote(&self, input: &mut Input<'_>) -> (u64, u32) {
        let (choice, offset) = (input.u8(), input.u16());
        let at = usize::from(choice);
        if let Some((_, window)) = self.windows.get(at % 8)
            && choice & 0x80 != 0
        {
            return (u64::from(offset), window.rkey());
        }
        match self.regions.get(at % (self.regions.len() + 1)) {
            Some(Region { region, .. }) => {
                let offset = u64::from(offset) % (region.len() as u64 + 8);
                (region.addr().wrapping_add(offset & !7), region.rkey())
            }
            None => (u64::from(offset), u32::from(offset) << 8),
        }
    }

    /// Somebody was asked to invalidate this STag.
    pub(super) fn doubt(&mut self, stag: u32) {
        for region in &mut self.regions {
            region.doubtful |= region.region.rkey() == stag;
        }
    }

    /// A bind of a window to some region: the region's index decides where.
    pub(super) fn bind(
        &mut self,
        input: &mut Input<'_>,
    ) -> Option<(usize, u32, uwarp_verbs::WindowBind)> {
        let window = input.choice(self.windows.len());
        let region = input.choice(self.regions.len());
        let (offset, len, access) = (input.u16(), input.u16(), input.u8());
        let (_, own) = self.windows.get(window)?;
        let shown = self.regions.get_mut(region)?;
        shown.shown = true;
        let all = shown.region.len() as u64 + 1;
        let (access, _) = Access::from_bits(u32::from(access) & 31);
        let bind = shown
            .region
            .window(u64::from(offset) % all, u64::from(len) % all, access);
        Some((window, inc_rkey(own.rkey()), bind.zero_based()))
    }

    /// What is said of an element is so; `None`: it was taken.
    pub(super) fn judge(
        &self,
        sges: &[Sge],
        write: bool,
        owner: (u32, u32),
        said: Option<LocalFault>,
    ) {
        for (index, sge) in sges.iter().enumerate() {
            if sge.len == 0 {
                continue;
            }
            let found = self
                .regions
                .iter()
                .find(|region| region.region.lkey() == sge.lkey);
            let blamed = said.is_some_and(|fault| fault.index == index);
            let refuses = found.is_none_or(|region| region.refuses(sge, write, owner));
            match said.filter(|_| blamed) {
                None => assert!(!refuses, "element {index} of {sges:?} was taken: {said:?}"),
                Some(fault) => {
                    let invalid = matches!(fault.kind, LocalFaultKind::InvalidKey { .. });
                    let doubtful = found.is_some_and(|region| region.doubtful);
                    assert!(refuses || invalid && doubtful, "{sge:?} is right: {fault}");
                    return;
                }
            }
        }
        assert!(said.is_none(), "no element is wrong: {said:?}");
    }

    /// A request was taken that is to place bytes there.
    pub(super) fn placed_into(&mut self, sges: &[Sge]) {
        for region in &mut self.regions {
            region.reached |= sges.iter().any(|sge| sge.lkey == region.region.lkey());
        }
    }

    /// A request was taken that writes where `rkey` says, if the QP at the other end may. `None`: there is none yet.
    pub(super) fn written_by_peer(&mut self, rkey: u32, right: Access, end: Option<(u32, u32)>) {
        for region in &mut self.regions {
            let may = |(pd, qp)| region.pd == pd && region.qp.is_none_or(|own| own == qp);
            region.reached |= region.region.rkey() == rkey
                && region.access.contains(right)
                && end.is_none_or(may);
        }
    }

    /// Ends a region: by a call that may be refused, or by dropping it.
    pub(super) fn deregister(&mut self, at: usize, drop: bool, sends: bool) {
        let ended = self.regions.swap_remove(at);
        ended.check();
        if drop {
            std::mem::drop(ended.region);
        } else if let Err((region, error)) = ended.region.deregister() {
            match error {
                DeregisterError::Busy { pins } => assert!(pins > 0 && sends, "{error}"),
                DeregisterError::WindowsBound { count } => {
                    assert!(count > 0 && ended.shown, "{error}");
                }
                other => panic!("a region cannot be refused so: {other}"),
            }
            self.regions.push(Region { region, ..ended });
            return;
        }
        let now = octets(&ended.buffer);
        self.retired.push((ended.buffer, now));
    }

    /// Nothing has changed that nobody may write.
    pub(super) fn check(&self) {
        self.regions.iter().for_each(Region::check);
        for (buffer, then) in &self.retired {
            assert!(octets(buffer) == *then, "written after it was deregistered");
        }
    }
}
