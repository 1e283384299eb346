//! Cases for RFC 5042, the security of DDP and RDMAP. They cover the requirements that a peer can
//! observe.

mod s6;

use crate::script::Case;

pub(super) fn all() -> Vec<Case> {
    s6::cases()
}
