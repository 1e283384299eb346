//! Tests of the key-value store's slots: valid ones, and torn ones.

use super::*;

#[test]
fn a_slot_comes_back_as_it_was_stored() {
    let slot = emit(7, "apple", "a round fruit");
    assert_eq!(slot.len(), SLOT);
    let (version, key, value) = parse(&slot).unwrap();
    assert_eq!(
        (version, key, value),
        (7, &b"apple"[..], &b"a round fruit"[..])
    );
    assert_eq!(parse(&[0; SLOT]).unwrap().0, 0);
}

#[test]
fn a_slot_that_is_half_old_and_half_new_is_seen_as_torn() {
    // The two slots differ in the version and in the value; the values have the same length.
    let old = emit(7, "apple", &"a".repeat(100));
    let new = emit(8, "apple", &"b".repeat(100));
    let differ = (0..SLOT).filter(|at| old[*at] != new[*at]);
    let (first, last) = (differ.clone().min().unwrap(), differ.max().unwrap());
    for at in first + 1..=last {
        assert_eq!(
            parse(&[&new[..at], &old[at..]].concat()),
            None,
            "torn at {at}"
        );
        assert_eq!(
            parse(&[&old[..at], &new[at..]].concat()),
            None,
            "torn at {at}"
        );
    }
}
