//! Atomic Operations on registered memory (RFC 7306 section 5.1).
//!
//! They are done by the atomic instructions of the CPU on a word in host byte order. So they are atomic towards each
//! other (7306-5-01) on every connection of every device of this machine (7306-5.3-01), and towards programs that reach
//! the same word by atomic instructions: more than the RFC asks for.

use uwarp_ddp::{STag, TaggedFault};
use uwarp_rdmap::{AtomicFault, AtomicOp};

use super::region::Use;
use super::table::{Asker, Need, RegionTable};
use super::target::Target;
use super::{Access, raw};
use crate::mutants::mutate;

/// Bytes of the word that an Atomic Operation works on.
pub(crate) const ATOMIC_LEN: u32 = 8;

impl RegionTable {
    /// May the peer of `asker` do an Atomic Operation at `to`? The alignment is that of the memory, not of `to`, and
    /// comes last (7306-5.2.1-01).
    pub(crate) fn check_atomic(
        &self,
        stag: STag,
        to: u64,
        asker: &Asker,
    ) -> Result<Target, AtomicFault> {
        let target = self.check(stag, to, ATOMIC_LEN, Need::RemoteAtomic, asker)?;
        target.check_aligned()?;
        Ok(target)
    }
}

impl Target {
    /// That the memory is where an Atomic Operation can be done on it: at an address that is a multiple of 8
    /// (7306-8.2-04).
    ///
    /// # Errors
    /// [`AtomicFault::Misaligned`], and what [`atomic`](Self::atomic) has.
    fn check_aligned(&self) -> Result<(), AtomicFault> {
        let pointer = self.region().pointer(self.offset(), ATOMIC_LEN as usize);
        match pointer {
            None => Err(AtomicFault::Tagged(TaggedFault::BaseOrBounds)),
            Some(pointer)
                if mutate!(pointer.addr(), MisalignedAtomicDone => 0) % ATOMIC_LEN as usize
                    != 0 =>
            {
                Err(AtomicFault::Misaligned)
            }
            Some(_) => Ok(()),
        }
    }

    /// Does an operation, and gives what the memory held before.
    ///
    /// # Errors
    /// `InvalidSTag` when the STag was revoked meanwhile, `AccessRights` when the check was not for an Atomic
    /// Operation, `BaseOrBounds` when the target is not 8 bytes, `Misaligned` when its address is no multiple of 8.
    /// The memory is as it was then (7306-5.1.1-03, 7306-5.1.2-03).
    pub(crate) fn atomic(&self, op: AtomicOp) -> Result<u64, AtomicFault> {
        if self.need() != Need::RemoteAtomic {
            return Err(TaggedFault::AccessRights.into());
        }
        self.check_aligned()?;
        let region = self.region().enter().ok_or(TaggedFault::InvalidSTag)?; // 5041-8.3.1-03
        region
            .atomic(self.offset(), op)
            .ok_or(AtomicFault::Tagged(TaggedFault::AccessRights))
    }
}

impl Use<'_> {
    /// Does an operation on the word at `offset`, and gives what it held before. `None`, and nothing is done, when the
    /// word is not in the region or not aligned, or the region was not registered for this.
    fn atomic(&self, offset: usize, op: AtomicOp) -> Option<u64> {
        let region = self.region();
        let offset = mutate!(offset, MisalignedAtomicDone => offset & !7);
        let word = region.pointer(offset, ATOMIC_LEN as usize)?;
        let right = region.access().contains(Access::REMOTE_ATOMIC);
        let may = mutate!(right, AtomicRightIgnored => true) && region.is_placeable();
        if word.addr() % ATOMIC_LEN as usize != 0 || !may {
            return None;
        }
        let word = word.cast::<u64>().cast_mut();
        // SAFETY: the word is in the region, whose memory is there while a use is counted, and which was registered
        // as writable; it is aligned. No Rust reference to it exists (see `Use::place`).
        Some(unsafe {
            match op {
                AtomicOp::FetchAdd { add, mask: 0 } => raw::fetch_add(word, add),
                op => raw::fetch_update(word, |original| op.apply(original)),
            }
        })
    }
}
