//! RFC 5040, RDMAP.

mod s5;

use crate::script::Case;

pub(super) fn all() -> Vec<Case> {
    s5::cases()
}
