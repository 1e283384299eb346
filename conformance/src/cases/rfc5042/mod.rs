//! RFC 5042, the security of DDP and RDMAP: requirements that are visible on the wire.

mod s6;

use crate::script::Case;

pub(super) fn all() -> Vec<Case> {
    s6::cases()
}
