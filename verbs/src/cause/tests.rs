//! The words of every cause, to be read as a user would.

use super::*;

#[test]
fn a_cause_is_small_enough_for_every_completion() {
    assert!(size_of::<Cause>() <= 56, "{}", size_of::<Cause>());
    assert!(size_of::<Option<Cause>>() <= 56);
}
