//! Sections 5.1 and 6.1: impersonation, and the use of other parties' STags.

use std::collections::{HashMap, HashSet};

use uwarp_verbs::{Access, Device};

use crate::scene::{NONSENSE, ROLES, Scene};
use crate::{INVALID, USES, refuses_use};

/// Any sender on the stream, legitimate or not, must guess an STag. It has one guess for each
/// stream.
#[test]
fn s5_1_1_guessed_stag_ends_the_stream_at_its_first_use() {
    for what in USES {
        let s = Scene::new(ROLES[0]);
        let at = (NONSENSE, s.memory.writable.addr());
        refuses_use(s, what, at, &INVALID, "invalid STag");
    }
}

/// 5041-8.2-04: the STag is valid only in its own protection domain.
#[test]
fn s6_1_1_stag_of_another_protection_domain() {
    for role in ROLES {
        for what in USES {
            let s = Scene::new(role);
            let at = (s.memory.foreign.rkey(), s.memory.foreign.addr());
            refuses_use(s, what, at, &INVALID, "not associated");
        }
    }
}

/// An STag of the same protection domain, but bound to another stream (5041-8.2-04, 5041-8.3-03).
#[test]
fn s6_1_1_stag_of_another_stream_of_the_same_domain() {
    for role in ROLES {
        for what in USES {
            let s = Scene::new(role);
            let at = (s.theirs.rkey(), s.theirs.addr());
            refuses_use(s, what, at, &INVALID, "not associated");
        }
    }
}

/// The STag was valid once. Its index is in use again, with another key.
#[test]
fn s6_1_1_stag_with_another_key() {
    for what in USES {
        for wrong in [1, 0x80, 0xFF] {
            let s = Scene::new(ROLES[0]);
            let at = (s.memory.writable.rkey() ^ wrong, s.memory.writable.addr());
            refuses_use(s, what, at, &INVALID, "invalid STag");
        }
    }
}

/// Registers `count` regions at the same time. Returns their STags in the order of creation.
fn stags(count: usize) -> Vec<u32> {
    let pd = Device::tcp().unwrap().alloc_pd().unwrap();
    let regions: Vec<_> = (0..count)
        .map(|_| pd.register(vec![0], Access::REMOTE_READ).unwrap())
        .collect();
    regions
        .iter()
        .map(uwarp_verbs::MemoryRegion::rkey)
        .collect()
}

/// A peer that knows many STags guesses the next one: by a constant step, by the previous step, by
/// the most frequent step, or by flipped bits. The bounds are about eight standard deviations away
/// from the mean. Requirements: 5040-8.1.1-05, 5042-6.1.1-i02, and 5040-8.1.1-06 (every bit is
/// used).
#[test]
fn s6_1_1_next_stag_cannot_be_predicted_from_those_before() {
    let seen = stags(20_000);
    let index = |stag: u32| stag >> 8;
    let mut hits = 0;
    let mut steps: HashMap<u32, u32> = HashMap::new();
    for three in seen.windows(3) {
        let [a, b, next] = [three[0], three[1], three[2]];
        let best = steps.iter().max_by_key(|(_, count)| **count);
        let often = best
            .filter(|_| steps.len() < 64)
            .map_or(1, |(step, _)| *step);
        let guesses = [
            b.wrapping_add(1),
            b.wrapping_add(1 << 8),
            b.wrapping_add(b.wrapping_sub(a)),
            b ^ (a ^ b),
            b.wrapping_add(often),
            a,
        ];
        hits += guesses.iter().filter(|guess| **guess == next).count();
        *steps.entry(next.wrapping_sub(b)).or_default() += 1;
    }
    assert!(hits <= 2, "{hits} of 120,000 guesses were right");
    assert!(
        steps.values().all(|count| *count <= 3),
        "a step comes often"
    );
    // Each bit is set in half of the STags, and does not predict the same bit of the next STag.
    let half = seen.len() as f64 / 2.0;
    let far = 8.0 * (seen.len() as f64).sqrt() / 2.0;
    for bit in 0..32 {
        let of = |stag: u32| stag >> bit & 1;
        let ones = seen.iter().filter(|stag| of(**stag) == 1).count();
        assert!((ones as f64 - half).abs() < far, "bit {bit}: {ones} ones");
        let flips = seen
            .windows(2)
            .filter(|two| of(two[0]) != of(two[1]))
            .count();
        assert!(
            (flips as f64 - half).abs() < far,
            "bit {bit}: {flips} flips"
        );
    }
    // The key does not depend on the index, and all its values are about equally frequent.
    let mut keys = [0_u32; 256];
    for stag in &seen {
        keys[(stag & 0xFF) as usize] += 1;
    }
    assert!(
        keys.iter().all(|count| (10..=200).contains(count)),
        "{keys:?}"
    );
    let indices: HashSet<u32> = seen.iter().map(|stag| index(*stag)).collect();
    assert_eq!(indices.len(), seen.len());
}

/// The STags of two devices have nothing in common, nor have the STags of a device before and after
/// a restart.
#[test]
fn s6_1_1_stags_of_another_device_tell_nothing() {
    let (one, two) = (stags(4000), stags(4000));
    let same_place = one.iter().zip(&two).filter(|(a, b)| a == b).count();
    assert!(same_place <= 1, "{same_place} STags are the same");
    let step = |stags: &[u32]| -> HashSet<u32> {
        let steps = stags.windows(2).map(|two| two[1].wrapping_sub(two[0]));
        steps.collect()
    };
    let shared = step(&one).intersection(&step(&two)).count();
    assert!(shared <= 3, "{shared} steps are the same");
}

/// An STag is "reused at as slow a rate as possible" (5042-6.1.1-i02).
#[test]
fn s6_1_1_stag_that_was_freed_is_not_given_again_soon() {
    let pd = Device::tcp().unwrap().alloc_pd().unwrap();
    let mut seen = HashSet::new();
    for _ in 0..20_000 {
        let region = pd.register(vec![0], Access::NONE).unwrap();
        assert!(seen.insert(region.rkey() >> 8), "the same index again");
    }
}
