//! What one protection domain has: the share of one part of the local program (RFC 5042 section 6.4.1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// QPs of a protection domain. (Regions are counted in their table, which knows the domain of each.)
#[derive(Default)]
pub(crate) struct PdAccount {
    qps: AtomicU32,
}

impl PdAccount {
    /// One more QP; `None` at the limit.
    pub(crate) fn take_qp(self: &Arc<Self>, limit: u32) -> Option<PdQp> {
        self.qps
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |qps| {
                (qps < limit).then_some(qps + 1)
            })
            .ok()
            .map(|_| PdQp(Arc::clone(self)))
    }
}

/// A QP of a domain, counted until this is dropped.
pub(crate) struct PdQp(Arc<PdAccount>);

impl Drop for PdQp {
    fn drop(&mut self) {
        self.0.qps.fetch_sub(1, Ordering::AcqRel);
    }
}
