//! Fast registration of a part of a buffer.

use super::{Access, LocalFaultKind, RemoteBuffer, Sge};

/// Parameters of a fast registration (`ib_reg_wr` in the kernel).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastRegister {
    /// The new STag: the index of the fast region with a key that differs from the previous key.
    pub stag: u32,
    /// Offset of the first byte in the memory of the fast region.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// TO of the first byte, and the address of that byte in SGEs.
    pub iova: u64,
    /// Access rights.
    pub access: Access,
    /// True if all QPs of the domain may use the registration. False if only the QP that the
    /// request is posted to may use it.
    ///
    /// A peer may invalidate only a registration for a single QP (5040-8.1.1-04).
    pub for_pd: bool,
}

impl FastRegister {
    /// Checks whether this registration will allow a non-empty SGE. `write`: the request places
    /// data there.
    pub fn check_sge(&self, sge: &Sge, write: bool) -> Result<(), LocalFaultKind> {
        let &Sge { addr, len, lkey } = sge;
        if write && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(LocalFaultKind::NotWritable { lkey });
        }
        let offset = addr.checked_sub(self.iova);
        let room = offset.and_then(|offset| self.len.checked_sub(offset));
        if room.is_none_or(|room| room < u64::from(len)) {
            return Err(LocalFaultKind::OutOfBounds { lkey, addr, len });
        }
        Ok(())
    }

    /// Sets the address of the first byte for peers and in SGEs (`iova` of the kernel's `ib_mr`).
    #[must_use]
    pub fn iova(mut self, iova: u64) -> Self {
        self.iova = iova;
        self
    }

    /// Allows all QPs of the protection domain to use the registration (a shared STag, RFC 5040
    /// section 8.1.1). No peer may then invalidate it (5040-8.1.1-04).
    #[must_use]
    pub fn for_pd(mut self) -> Self {
        self.for_pd = true;
        self
    }

    /// Returns a scatter/gather element for `len` bytes from `offset` of the registered part on
    /// (`ibv_sge`).
    #[must_use]
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.iova.wrapping_add(offset),
            len,
            lkey: self.stag,
        }
    }

    /// Returns the address, length and STag with which the peer can access the registered part (an
    /// Advertisement, RFC 5040 section 2.1).
    #[must_use]
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer {
            addr: self.iova,
            len: self.len,
            rkey: self.stag,
        }
    }
}
