//! Registered regions in larger buffers, and the check that only permitted bytes change.

use std::sync::Arc;

use uwarp_verbs::{
    Access, Buffer, DeregisterError, LocalFault, LocalFaultKind, MemoryRegion, MemoryWindow, Pd,
    Qp, RegisterError, Sge, WindowKind, inc_rkey,
};

use super::world::MAX_MR;
use crate::input::Input;

/// Number of unregistered bytes before and after a region in its buffer.
const GUARD: usize = 64;
/// Maximum length of a region in bytes.
const LONGEST: usize = 1024;
const UNTOUCHED: u8 = 0xC3;

/// A region and the buffer that contains it.
pub(super) struct Region {
    pub(super) region: MemoryRegion,
    buffer: Arc<Buffer>,
    /// Initial value of its bytes, a different one for each region.
    filled: u8,
    pub(super) pd: u32,
    /// The only QP that may use the region, if there is one.
    qp: Option<u32>,
    access: Access,
    /// True if a request to invalidate named the region. Its STag may be gone at any time.
    doubtful: bool,
    /// True if a bind of a window named the region.
    shown: bool,
    /// True if bytes may have been placed into the region: by a posted receive or Read, or by a
    /// Write that was posted to a peer.
    reached: bool,
}

/// All memory of the program.
#[derive(Default)]
pub(super) struct Memory {
    /// Number of registrations that were attempted, modulo 256.
    made: u8,
    pub(super) regions: Vec<Region>,
    pub(super) windows: Vec<(WindowKind, MemoryWindow)>,
    /// Buffers of deregistered regions, with their bytes at the time of the deregistration.
    retired: Vec<(Arc<Buffer>, Vec<u8>)>,
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read_at(0, &mut bytes).expect("it is as long");
    bytes
}

/// Returns the bytes of a new buffer, whose region holds `filled` everywhere.
fn fresh(filled: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![UNTOUCHED; len + 2 * GUARD];
    bytes[GUARD..GUARD + len].fill(filled);
    bytes
}

impl Region {
    fn check(&self) {
        let bytes = bytes(&self.buffer);
        let begun = fresh(self.filled, self.region.len());
        let end = bytes.len() - GUARD;
        assert!(
            self.may_change() || bytes == begun,
            "bytes without write access have changed"
        );
        assert!(
            bytes[..GUARD] == begun[..GUARD] && bytes[end..] == begun[end..],
            "bytes outside the region have changed"
        );
    }

    /// Returns true if the bytes of the region may have changed.
    fn may_change(&self) -> bool {
        self.access.contains(Access::LOCAL_WRITE) && (self.reached || self.shown)
    }

    /// Returns true if an element of a work request is invalid for this region. `pd` and `qp` are
    /// the numbers of the domain and of the QP to which the request is posted.
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
    /// Returns the number of STags that certainly exist. Regions named in a request to invalidate
    /// are excluded.
    pub(super) fn stags(&self) -> usize {
        let certain = |region: &&Region| !region.doubtful;
        self.regions.iter().filter(certain).count() + self.windows.len()
    }

    /// Registers a region for a domain, perhaps for one QP (given with its own domain). Checks the
    /// error of a refusal. Returns true if the limit of regions was the reason for the refusal.
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
        assert_eq!(bytes(&buffer), fresh(filled, len));
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

    /// Creates a scatter/gather element, which is usually valid.
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

    /// Chooses the remote address and the rkey of a request.
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

    /// Records that a request to invalidate named this STag.
    pub(super) fn doubt(&mut self, stag: u32) {
        for region in &mut self.regions {
            region.doubtful |= region.region.rkey() == stag;
        }
    }

    /// Creates a bind of a window to a region. Returns the window's index, its next rkey and the
    /// bind.
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

    /// Checks that a work request was refused exactly if an element is invalid. `said` is the
    /// fault, or `None` if the request was accepted.
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
                None => assert!(
                    !refuses,
                    "element {index} of {sges:?} was accepted: {said:?}"
                ),
                Some(fault) => {
                    let invalid = matches!(fault.kind, LocalFaultKind::InvalidKey { .. });
                    let doubtful = found.is_some_and(|region| region.doubtful);
                    assert!(refuses || invalid && doubtful, "{sge:?} is valid: {fault}");
                    return;
                }
            }
        }
        assert!(said.is_none(), "no element is wrong: {said:?}");
    }

    /// Records an accepted request that will place bytes into these elements.
    pub(super) fn placed_into(&mut self, sges: &[Sge]) {
        for region in &mut self.regions {
            region.reached |= sges.iter().any(|sge| sge.lkey == region.region.lkey());
        }
    }

    /// Records an accepted request that writes at `rkey`, if the QP at the other end may use that
    /// STag. `end` is `None` if that QP is not known.
    pub(super) fn written_by_peer(&mut self, rkey: u32, right: Access, end: Option<(u32, u32)>) {
        for region in &mut self.regions {
            let may = |(pd, qp)| region.pd == pd && region.qp.is_none_or(|own| own == qp);
            region.reached |= region.region.rkey() == rkey
                && region.access.contains(right)
                && end.is_none_or(may);
        }
    }

    /// Drops a region or deregisters it by a call. Checks the error if the call is refused. A
    /// region may be busy only if `sends` is true, that is, if some QP may have posted work.
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
                other => panic!("impossible for a region: {other}"),
            }
            self.regions.push(Region { region, ..ended });
            return;
        }
        let now = bytes(&ended.buffer);
        self.retired.push((ended.buffer, now));
    }

    /// Checks that only permitted bytes have changed.
    pub(super) fn check(&self) {
        self.regions.iter().for_each(Region::check);
        for (buffer, then) in &self.retired {
            assert!(bytes(buffer) == *then, "written after it was deregistered");
        }
    }
}
