//! In a world with one thread and a virtual clock, the seed alone determines what happens.

use std::time::{Duration, Instant};

use uwarp_conformance::report::failure;
use uwarp_conformance::{Outcome, Selection, Verdict};

use crate::world::{Setting, World};

const SETTING: Setting = Setting {
    crc: true,
    markers: true,
    revision: 2,
};

fn play(seed: u64, target_initiates: bool, selection: &[&str]) -> Vec<Outcome> {
    let mut world = World::new(SETTING, seed);
    world.config.target_initiates = target_initiates;
    let selection = selection.iter().map(|id| (*id).to_owned()).collect();
    world.play(&Selection(selection)).unwrap()
}

/// Formats everything that may vary between runs: the verdict, end and duration of each case, and
/// all bytes of both sides with their times.
fn whole(outcomes: &[Outcome]) -> Vec<String> {
    let one = |outcome: &Outcome| {
        let Outcome {
            id,
            verdict,
            ending,
            millis,
            log,
            addresses,
            ..
        } = outcome;
        format!("{id} {verdict:?} {ending:?} {millis} {addresses:?}\n{log:#?}")
    };
    outcomes.iter().map(one).collect()
}

/// Plays all cases in one world, and again in another world with the same seed. Asserts that both
/// runs are equal. The cases include those that choose the MSS.
fn passes_twice_the_same(target_initiates: bool) {
    let outcomes = play(7, target_initiates, &[]);
    let bad: Vec<String> = outcomes
        .iter()
        .filter(|one| !matches!(one.verdict, Verdict::Pass | Verdict::Skipped(_)))
        .map(failure)
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    for outcome in &outcomes {
        if let Verdict::Skipped(why) = &outcome.verdict {
            assert!(!why.contains("MSS"), "{}: {why}", outcome.id);
        }
    }
    let again = play(7, target_initiates, &[]);
    for (one, other) in whole(&outcomes).iter().zip(whole(&again)) {
        assert_eq!(*one, other);
    }
}

#[test]
fn every_case_passes_twice_byte_by_byte_the_same_as_responder() {
    passes_twice_the_same(false);
}

#[test]
fn every_case_passes_twice_byte_by_byte_the_same_as_initiator() {
    passes_twice_the_same(true);
}

#[test]
fn another_seed_is_another_run() {
    let [one, other] = [7, 8].map(|seed| whole(&play(seed, false, &["rdmap/5040-5.1"])));
    assert_ne!(one, other);
}

/// No host has the address of the target, so no SYN is answered. With an agent, four cases fail to
/// connect, and the others are skipped.
#[test]
fn a_silent_target_is_tried_four_times_and_costs_no_time_but_that_of_the_world() {
    let began = Instant::now();
    let mut world = World::new(SETTING, 1);
    world.config.target = uwarp_conformance::Target::At(([192, 0, 2, 77], 0).into());
    // Long enough for the last assertion to hold on a slow machine.
    let timeout = Duration::from_secs(30);
    world.config.timeout = timeout;
    let outcomes = world.play(&Selection(vec!["rdmap".into()])).unwrap();
    let unreachable = |outcome: &&Outcome| {
        outcome.verdict == Verdict::Skipped("the target cannot be reached".into())
    };
    assert!(outcomes.iter().filter(unreachable).count() > 50);
    let tried: Vec<&Outcome> = outcomes
        .iter()
        .filter(|outcome| !matches!(outcome.verdict, Verdict::Skipped(_)))
        .collect();
    assert_eq!(tried.len(), 4, "{tried:?}");
    for outcome in tried {
        let Verdict::Infrastructure(why) = &outcome.verdict else {
            panic!("{outcome:?}");
        };
        assert!(why.contains("takes no connection"), "{why}");
        assert_eq!(u128::from(outcome.millis), timeout.as_millis());
    }
    assert!(began.elapsed() < timeout, "the test waited in real time");
}

/// Some cases wait until the endpoint gives up on a silent peer, which it does after ten seconds.
#[test]
fn the_endpoint_loses_its_patience_by_the_same_clock() {
    let outcomes = play(1, false, &["mpa/5044-7.1.2"]);
    let patience = Duration::from_secs(10);
    let long = |outcome: &&Outcome| u128::from(outcome.millis) >= patience.as_millis();
    let long: Vec<&Outcome> = outcomes.iter().filter(long).collect();
    assert!(!long.is_empty());
    assert!(long.iter().all(|outcome| outcome.verdict == Verdict::Pass));
}
