//! The endpoint of uwarp passes all cases: over kernel TCP and user-space TCP, with and without
//! CRCs and Markers, with MPA revisions 1 and 2, and as Responder and Initiator.
//!
//! These tests play four of sixteen configurations. Each value of a setting occurs in two of the
//! four. `./ci.sh conformance-full` plays all sixteen three times and compares the verdicts. These
//! tests use the system clock; those in `virtual_time.rs` use a virtual one.

mod endpoint;
mod virtual_time;
#[path = "../world/mod.rs"]
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use endpoint::endpoint;
use uwarp_conformance::report::failure;
use uwarp_conformance::{Selection, Verdict, run};
use world::Setting;

/// One of sixteen configurations of the endpoint and the suite.
#[derive(Clone, Copy)]
struct Configuration {
    smoltcp: bool,
    setting: Setting,
}

impl Configuration {
    /// Returns the configuration with this number, counted from 0.
    fn of(number: u8) -> Self {
        Configuration {
            smoltcp: number & 1 != 0,
            setting: Setting {
                crc: number & 2 == 0,
                markers: number & 4 != 0,
                revision: if number & 8 == 0 { 2 } else { 1 },
            },
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |yes: bool| if yes { "with" } else { "without" };
        let Configuration { smoltcp, setting } = self;
        write!(
            f,
            "{} TCP, {} CRCs, {} Markers, revision {}",
            if *smoltcp { "user-space" } else { "kernel" },
            with(setting.crc),
            with(setting.markers),
            setting.revision
        )
    }
}

/// Results of all cases in one configuration and one role of the target.
struct Played {
    verdicts: BTreeMap<String, &'static str>,
    bad: Vec<String>,
    passed: usize,
    skipped: usize,
    took: Duration,
}

fn play(configuration: Configuration, target_initiates: bool) -> Played {
    let began = Instant::now();
    let mut endpoint = endpoint(configuration.setting, configuration.smoltcp);
    endpoint.config.target_initiates = target_initiates;
    let outcomes = run(&endpoint.config, &Selection::default(), &()).unwrap();
    let count = |word: &str| {
        let are = outcomes.iter().filter(|one| one.verdict.word() == word);
        are.count()
    };
    Played {
        bad: outcomes
            .iter()
            .filter(|one| !matches!(one.verdict, Verdict::Pass | Verdict::Skipped(_)))
            .map(failure)
            .collect(),
        passed: count("pass"),
        skipped: count("skipped"),
        took: began.elapsed(),
        verdicts: outcomes
            .into_iter()
            .map(|outcome| (outcome.id, outcome.verdict.word()))
            .collect(),
    }
}

fn passes(configuration: Configuration, target_initiates: bool) {
    let played = play(configuration, target_initiates);
    assert!(played.bad.is_empty(), "{}", played.bad.join("\n"));
    let all = played.verdicts.len();
    assert!(played.passed * 10 > all * 7, "too many cases are skipped");
}

#[test]
fn kernel_tcp_with_crc_by_revision_2_as_responder() {
    passes(Configuration::of(0), false);
}

#[test]
fn kernel_tcp_without_crc_with_markers_by_revision_1_as_initiator() {
    passes(Configuration::of(0b1110), true);
}

#[test]
fn smoltcp_with_crc_and_markers_by_revision_2_as_initiator() {
    passes(Configuration::of(0b0101), true);
}

#[test]
fn smoltcp_without_crc_by_revision_1_as_responder() {
    passes(Configuration::of(0b1011), false);
}

/// Plays sixteen configurations in two roles, three times each. All cases pass, the verdicts do not
/// change, and no run takes long.
#[test]
#[ignore = "takes long; ./ci.sh conformance-full plays it"]
fn every_configuration_has_the_same_verdicts_three_times() {
    let mut wrong = Vec::new();
    for number in 0..16 {
        let configuration = Configuration::of(number);
        for target_initiates in [false, true] {
            let role = if target_initiates {
                "initiator"
            } else {
                "responder"
            };
            let runs: Vec<Played> = (0..3)
                .map(|_| play(configuration, target_initiates))
                .collect();
            let problems = problems(&runs);
            let took = runs
                .iter()
                .map(|run| format!("{:.1} s", run.took.as_secs_f64()));
            let line = format!(
                "{:2} {configuration}, as {role}: {} passed, {} skipped; {}; {}",
                number + 1,
                runs[0].passed,
                runs[0].skipped,
                took.collect::<Vec<_>>().join(", "),
                match problems.len() {
                    0 => "three times the same verdicts".to_owned(),
                    many => format!("{many} PROBLEMS"),
                }
            );
            eprintln!("{line}");
            if !problems.is_empty() {
                wrong.push(format!("{line}\n{}", problems.join("\n")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Describes problems in the runs of one configuration: failures, verdicts that differ from the
/// first run, and runs longer than three minutes.
fn problems(runs: &[Played]) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, run) in (1..).zip(runs) {
        problems.extend(run.bad.iter().map(|bad| format!("run {number}: {bad}")));
        for (id, verdict) in &run.verdicts {
            let first = runs[0].verdicts.get(id);
            if first != Some(verdict) {
                problems.push(format!(
                    "run {number}: {id} is {verdict}, and was {first:?}"
                ));
            }
        }
        if run.took > Duration::from_secs(180) {
            problems.push(format!("run {number} took {:?}", run.took));
        }
    }
    problems
}
