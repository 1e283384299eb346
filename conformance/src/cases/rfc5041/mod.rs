//! RFC 5041, DDP.

mod s7_1;

use crate::script::Case;

pub(super) fn all() -> Vec<Case> {
    s7_1::cases()
}
