//! One mutant before its cases, and no mutant before all of them.

use std::time::Duration;

use uwarp_conformance::report::failure;
use uwarp_conformance::{Level, Outcome, Selection, Verdict, run};
use uwarp_mutant::{Mutant, switch};
use uwarp_verbs::Timeouts;

use crate::map::{Map, Row};

/// How long the suite waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// For what has to come.
    timeout: Duration,
    /// For what must not come.
    quiet: Duration,
    /// Cases at once.
    jobs: usize,
    /// For what the endpoint waits; some cases see it give up.
    endpoint: Duration,
}

impl Pace {
    fn timeouts(self) -> Timeouts {
        Timeouts {
            reply: self.endpoint,
            request: self.endpoint,
            rtr: self.endpoint,
            close: self.endpoint,
            ..Timeouts::default()
        }
    }
}

/// What does not come from a mutant is not waited for long: every failure by silence takes this time.
pub(crate) const BRISK: Pace = Pace {
    timeout: Duration::from_millis(500),
    quiet: Duration::from_millis(100),
    jobs: 8,
    endpoint: Duration::from_secs(2),
};

/// For the verdicts that a busy machine may have changed. These cases do little but wait, so there are many at once.
pub(crate) const AMPLE: Pace = Pace {
    timeout: Duration::from_secs(3),
    quiet: Duration::from_secs(1),
    jobs: 64,
    endpoint: Duration::from_secs(2),
};

/// For the few verdicts that are still a surprise.
const PATIENT: Pace = Pace {
    timeout: Duration::from_secs(20),
    quiet: Duration::from_secs(2),
    jobs: 2,
    endpoint: Duration::from_secs(10),
};

/// Over which TCP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Memory,
    Kernel,
}

/// Plays cases against an endpoint with this fault.
pub(crate) fn play(
    mutant: Option<Mutant>,
    row: &Row,
    over: Over,
    pace: Pace,
    selection: &Selection,
) -> Result<Vec<Outcome>, String> {
    let mut endpoint = row.endpoint(over == Over::Memory, pace.timeouts());
    endpoint.config.timeout = pace.timeout;
    endpoint.config.quiet = pace.quiet;
    endpoint.config.jobs = pace.jobs;
    switch(mutant);
    let outcomes = run(&endpoint.config, selection, &());
    drop(endpoint);
    switch(None);
    outcomes.map_err(|error| error.to_string())
}

pub(crate) fn fails(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Verdict::Fail(_))
}

/// Plays all cases over the kernel's TCP, and those again with more time whose verdict may come from a lack of it: what
/// failed by waiting, and what is not as the map has it.
pub(crate) fn play_all(mutant: Mutant, row: &Row) -> Result<Vec<Outcome>, String> {
    let play = |pace, selection: &Selection| play(Some(mutant), row, Over::Kernel, pace, selection);
    let surprises = |outcome: &Outcome| match outcome.verdict {
        Verdict::Fail(_) => outcome.level == Level::Must && !row.explains(&outcome.id),
        Verdict::Pass | Verdict::Skipped(_) => row.cases.contains(&outcome.id),
        _ => true,
    };
    let waited = |outcome: &Outcome| {
        fails(outcome) && u128::from(outcome.millis) >= BRISK.timeout.as_millis()
    };
    let mut outcomes = play(BRISK, &Selection::default())?;
    for pace in [AMPLE, PATIENT] {
        let doubtful = outcomes
            .iter()
            .filter(|outcome| surprises(outcome) || pace == AMPLE && waited(outcome));
        let doubtful: Vec<String> = doubtful.map(|outcome| outcome.id.clone()).collect();
        if doubtful.is_empty() {
            break;
        }
        for again in play(pace, &Selection(doubtful))? {
            if let Some(outcome) = outcomes.iter_mut().find(|outcome| outcome.id == again.id) {
                *outcome = again;
            }
        }
    }
    Ok(outcomes)
}

/// Plays cases over TCP in memory, and those that it cannot do (they choose the MSS) over the kernel's.
fn play_in_memory(
    mutant: Option<Mutant>,
    row: &Row,
    pace: Pace,
    cases: Vec<String>,
) -> Result<Vec<Outcome>, String> {
    let mut outcomes = play(mutant, row, Over::Memory, pace, &Selection(cases))?;
    let is_skipped = |outcome: &Outcome| matches!(outcome.verdict, Verdict::Skipped(_));
    let skipped = outcomes.iter().filter(|outcome| is_skipped(outcome));
    let skipped: Vec<String> = skipped.map(|outcome| outcome.id.clone()).collect();
    if !skipped.is_empty() {
        outcomes.retain(|outcome| !is_skipped(outcome));
        let selection = Selection(skipped);
        outcomes.extend(play(mutant, row, Over::Kernel, pace, &selection)?);
    }
    Ok(outcomes)
}

/// Each of its cases finds the mutant; one that does not at first, with more time to look.
pub(crate) fn mapped(mutant: Mutant, row: &Row) -> Result<(), String> {
    let blind = |pace, cases| -> Result<Vec<Outcome>, String> {
        let mut outcomes = play_in_memory(Some(mutant), row, pace, cases)?;
        outcomes.retain(|outcome| !fails(outcome));
        Ok(outcomes)
    };
    let mut left = blind(BRISK, row.cases.clone())?;
    if !left.is_empty() {
        left = blind(AMPLE, left.into_iter().map(|outcome| outcome.id).collect())?;
    }
    if left.is_empty() {
        return Ok(());
    }
    let left: Vec<String> = left
        .iter()
        .map(|outcome| format!("{}: {:?}", outcome.id, outcome.verdict))
        .collect();
    Err(format!("{}\n{}", mutant.fault(), left.join("\n")))
}

/// Without a mutant all of these cases pass, in each configuration that the map has.
pub(crate) fn without(map: &Map) -> Result<(), String> {
    let mut done = Vec::new();
    let mut wrong = Vec::new();
    for row in map.rows() {
        let configuration = row.configuration();
        if done.contains(&configuration) {
            continue;
        }
        done.push(configuration);
        let same = map
            .rows()
            .filter(|other| other.configuration() == configuration);
        let cases = same.flat_map(|row| row.cases.clone()).collect();
        let pace = Pace { jobs: 8, ..AMPLE };
        let outcomes = play_in_memory(None, row, pace, cases)?;
        let bad = outcomes
            .iter()
            .filter(|outcome| outcome.verdict != Verdict::Pass);
        wrong.extend(bad.map(|outcome| format!("{configuration:?}: {}", failure(outcome))));
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}
