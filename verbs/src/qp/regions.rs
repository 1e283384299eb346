//! Regions that are registered for one QP.

use uwarp_engine::mem::{Access, RegisterError};

use super::Qp;
use crate::mr::{MemoryRegion, RegionBuilder};
use crate::pd::Pd;

impl RegionBuilder {
    /// Restricts the region to `qp`, a QP of the same domain (5042-6.1.1-01). The peer of `qp` can
    /// then invalidate the region by a Send with Invalidate (RFC 5040 section 8.1.1). Apart from
    /// such regions, it can invalidate only windows of type 2 and fast registrations for this QP.
    pub fn for_qp(self, qp: &Qp) -> Self {
        self.only_for(qp.pd().id(), qp.number())
    }
}

impl Pd {
    /// Registers memory for one QP of this domain; only `qp` can access it. By a Send with
    /// Invalidate, a peer can invalidate only regions that were registered for its QP (RFC 5040
    /// section 8.1.1).
    ///
    /// # Errors
    /// See [`Pd::register`].
    pub fn register_for(
        &self,
        qp: &Qp,
        data: Vec<u8>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.region().access(access).for_qp(qp).vec(data)
    }
}
