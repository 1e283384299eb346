//! Our own endpoint passes: over the kernel's TCP and over TCP in user space, with CRCs and without, with Markers and
//! without, with revision 1 and 2; as responder and as initiator.
//!
//! Four configurations, in which each setting comes twice; `./ci.sh conformance-full` plays all sixteen three times and
//! compares the verdicts.

mod endpoint;

use std::collections::BTreeMap;

use endpoint::{Setting, endpoint};
use uwarp_conformance::report::failure;
use uwarp_conformance::{Outcome, Selection, Verdict, run};
use uwarp_verbs::Timeouts;

impl Setting {
    /// One of sixteen, from 0.
    fn of(number: u8) -> Self {
        Setting {
            smoltcp: number & 1 != 0,
            crc: number & 2 == 0,
            markers: number & 4 != 0,
            revision: if number & 8 == 0 { 2 } else { 1 },
        }
    }
}

/// All cases in one configuration and with the target in one role; the verdicts.
fn play(setting: Setting, target_initiates: bool) -> BTreeMap<String, &'static str> {
    let mut endpoint = endpoint(setting, Timeouts::default());
    endpoint.config.target_initiates = target_initiates;
    let outcomes = run(&endpoint.config, &Selection::default(), &()).unwrap();
    let bad: Vec<String> = outcomes
        .iter()
        .filter(|one| is_bad(one))
        .map(failure)
        .collect();
    assert!(
        bad.is_empty(),
        "{setting:?}, the target initiates: {target_initiates}\n{}",
        bad.join("\n")
    );
    let passed = outcomes.iter().filter(|one| one.verdict == Verdict::Pass);
    assert!(
        passed.count() * 10 > outcomes.len() * 7,
        "{setting:?}: most cases are skipped"
    );
    outcomes
        .into_iter()
        .map(|outcome| (outcome.id, outcome.verdict.word()))
        .collect()
}

fn is_bad(outcome: &Outcome) -> bool {
    !matches!(outcome.verdict, Verdict::Pass | Verdict::Skipped(_))
}

#[test]
fn kernel_tcp_with_crc_by_revision_2_as_responder() {
    play(Setting::of(0), false);
}

#[test]
fn kernel_tcp_without_crc_with_markers_by_revision_1_as_initiator() {
    play(Setting::of(0b1110), true);
}

#[test]
fn smoltcp_with_crc_and_markers_by_revision_2_as_initiator() {
    play(Setting::of(0b0101), true);
}

#[test]
fn smoltcp_without_crc_by_revision_1_as_responder() {
    play(Setting::of(0b1011), false);
}

/// Sixteen configurations, two roles, three times: no case changes its mind.
#[test]
#[ignore = "takes long; ./ci.sh conformance-full plays it"]
fn every_configuration_has_the_same_verdicts_three_times() {
    for number in 0..16 {
        for target_initiates in [false, true] {
            let setting = Setting::of(number);
            let first = play(setting, target_initiates);
            for _ in 1..3 {
                assert_eq!(play(setting, target_initiates), first, "{setting:?}");
            }
        }
    }
}
