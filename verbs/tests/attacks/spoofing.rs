//! Sections 5.1 and 6.1: impersonation, and the use of other parties' STags.

use std::collections::{HashMap, HashSet};

use uwarp_verbs::{Access, Cause, Device, StartupError};

use crate::limits::{ATTACKER, OTHER, accepts, goes_on, opens, with};
use crate::peer::{PATIENCE, eventually};
use crate::scene::{NONSENSE, ROLES, Scene, Victim};
use crate::wire::{CRC, REJECT, REPLY, Tagged, WRITE, startup};
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

/// The connections exist before the first guess. After the guesses, the address is accepted again
/// only from time to time. Another address notices nothing.
#[test]
fn s5_1_1_stags_guessed_again_and_again_from_one_address() {
    const GUESSES: usize = 12;
    let victim = Victim::new(with(|limits| {
        limits.max_qp = 32;
        limits.per_peer.max_stag_errors = 2;
    }));
    let accepted = startup(REPLY, CRC, 1, b"");
    let join = |from| {
        let mut peer = opens(&victim, from, None);
        let qp = accepts(&victim).unwrap();
        assert_eq!(peer.receive_startup(), accepted);
        (peer, qp)
    };
    let guessers: Vec<_> = (0..GUESSES).map(|_| join(ATTACKER)).collect();
    for (mut peer, qp) in guessers {
        let guess = Tagged::new(WRITE, NONSENSE, 0, b"octets").bytes();
        peer.send_ulpdus(&[guess]);
        peer.receive_ulpdu();
        peer.fin();
        assert!(qp.wait_closed(PATIENCE));
    }
    let mut next = opens(&victim, ATTACKER, None);
    let reject = startup(REPLY, CRC | REJECT, 1, b"");
    let (who, error) = eventually("a failure at the listener", || {
        assert!(victim.listener.poll_request().is_none(), "it is accepted");
        victim.listener.poll_failure()
    });
    assert_eq!(who, next.addr());
    assert_eq!(next.receive_startup(), reject);
    assert!(
        matches!(error, StartupError::TooManyStagErrors { limit: 2, wait_ms } if wait_ms <= 10_001),
        "{error:?}"
    );
    let hint = Cause::from(error).hint().unwrap();
    assert!(hint.contains("limits.per_peer.max_stag_errors"), "{hint}");
    assert!(victim.listener.poll_request().is_none());
    drop(join(OTHER));
    // The time of the penalty passes.
    eventually("the address is accepted again", || {
        let mut next = opens(&victim, ATTACKER, None);
        eventually("a request, or a failure", || {
            let request = victim.listener.poll_request().map(|_| Some(()));
            request.or_else(|| victim.listener.poll_failure().map(|_| None))
        })
        .inspect(|()| assert_eq!(next.receive_startup(), reject))
    });
    let reasons = victim.reasons();
    assert!(reasons.len() >= GUESSES, "{reasons:?}");
    goes_on(victim);
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
