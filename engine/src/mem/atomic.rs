//! Atomic Operations on registered memory (RFC 7306 section 5.1).
//!
//! They use the atomic instructions of the CPU on a word in host byte order. So they are atomic
//! with respect to each other (7306-5-01), on all connections of all devices of this host
//! (7306-5.3-01). They are also atomic with respect to programs that access the same word by atomic
//! instructions, which the RFC does not require.

use uwarp_ddp::{STag, TaggedFault};
use uwarp_rdmap::{AtomicFault, AtomicOp};

use super::region::Use;
use super::table::{Asker, Need, RegionTable};
use super::target::Target;
use super::{Access, raw};
use crate::mutants::mutate;

/// Length of the operand of an Atomic Operation, in bytes.
pub const ATOMIC_LEN: u32 = 8;

/// Reason why an Atomic Operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicFailure {
    /// The operation is not permitted.
    Fault(AtomicFault),
    /// The program has unmapped the memory, without deregistering it.
    Unmapped,
}

impl From<AtomicFault> for AtomicFailure {
    fn from(fault: AtomicFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<TaggedFault> for AtomicFailure {
    fn from(fault: TaggedFault) -> Self {
        Self::Fault(fault.into())
    }
}

impl RegionTable {
    /// Checks whether the peer of `asker` may execute an Atomic Operation at `to`.
    ///
    /// The alignment check applies to the memory address, not to `to`, and comes last
    /// (7306-5.2.1-01).
    pub fn check_atomic(&self, stag: STag, to: u64, asker: &Asker) -> Result<Target, AtomicFault> {
        let target = self.check(stag, to, ATOMIC_LEN, Need::RemoteAtomic, asker)?;
        target.check_aligned()?;
        Ok(target)
    }
}

impl Target {
    /// Checks that the memory address is a multiple of 8 (7306-8.2-04).
    ///
    /// # Errors
    /// [`AtomicFault::Misaligned`], and the errors of [`atomic`](Self::atomic).
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

    /// Executes an operation and returns the previous value of the word.
    ///
    /// # Errors
    /// * `InvalidSTag`: the STag was revoked after the check.
    /// * `AccessRights`: the check was not for an Atomic Operation.
    /// * `BaseOrBounds`: the target is not 8 bytes long.
    /// * `Misaligned`: the address is not a multiple of 8.
    /// * `Unmapped`: the memory is gone.
    ///
    /// On error the memory is unchanged (7306-5.1.1-03, 7306-5.1.2-03).
    pub fn atomic(&self, op: AtomicOp) -> Result<u64, AtomicFailure> {
        if self.need() != Need::RemoteAtomic {
            return Err(TaggedFault::AccessRights.into());
        }
        self.check_aligned()?;
        let region = self.region().enter().ok_or(TaggedFault::InvalidSTag)?; // 5041-8.3.1-03
        region.atomic(self.offset(), op)
    }
}

impl Use<'_> {
    /// Executes an operation on the word at `offset` and returns the previous value of the word.
    /// Does nothing if the word is outside the region or misaligned, if the region does not grant
    /// the right, or if the memory is gone.
    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, AtomicFailure> {
        let region = self.region();
        let offset = mutate!(offset, MisalignedAtomicDone => offset & !7);
        let word = region.pointer(offset, ATOMIC_LEN as usize);
        let word = word.ok_or(TaggedFault::AccessRights)?;
        let right = region.access().contains(Access::REMOTE_ATOMIC);
        let may = mutate!(right, AtomicRightIgnored => true) && region.is_placeable();
        if word.addr() % ATOMIC_LEN as usize != 0 || !may {
            return Err(TaggedFault::AccessRights.into());
        }
        let word = word.cast::<u64>().cast_mut();
        // SAFETY: the word lies in the region, is aligned and was registered as writable. The
        // memory exists while a use is counted. No Rust reference to it exists (see `Use::place`).
        let original = unsafe {
            match op {
                AtomicOp::FetchAdd { add, mask: 0 } => raw::fetch_add(word, add),
                op => raw::fetch_update(word, |original| op.apply(original)),
            }
        };
        original.ok_or(AtomicFailure::Unmapped)
    }
}
