//! Interface by which a connection tells the meeting of its QP with a peer of a given number
//! (`rendezvous`) that something is due.

use std::time::Instant;

use super::inner::{Locked, QpInner};

/// Meeting of a QP that has a number of a rendezvous. The calls with `locked` are made under the
/// lock of the QP.
pub(crate) trait Meeting: Send + Sync {
    /// Does what is due while the QP meets its peer.
    fn attend(&self, qp: &QpInner, locked: &mut Locked, now: Instant);

    /// Sets the timer of a QP that has no stream and meets its peer.
    fn arm(&self, qp: &QpInner, locked: &mut Locked);

    /// Rejects the call that is held. The handle of the QP was dropped, and no lock is held.
    fn end(&self);
}
