//! RFC 5044, MPA.

mod s7_1_1;

use crate::script::Case;

pub(super) fn all() -> Vec<Case> {
    s7_1_1::cases()
}
