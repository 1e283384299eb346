//! One mutant before its cases, and no mutant before all of them.

use std::time::Duration;

use uwarp_conformance::report::failure;
use uwarp_conformance::{Outcome, Selection, Verdict, run};
use uwarp_mutant::{Mutant, switch};

use crate::map::{Map, Row};

/// What does not come from a mutant is not waited for long: every failure by silence takes this time.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

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
    selection: &Selection,
) -> Result<Vec<Outcome>, String> {
    let mut endpoint = row.endpoint(over == Over::Memory);
    if mutant.is_some() {
        endpoint.config.timeout = PATIENCE;
    }
    switch(mutant);
    let outcomes = run(&endpoint.config, selection, &());
    drop(endpoint);
    switch(None);
    outcomes.map_err(|error| error.to_string())
}

/// Plays cases over TCP in memory, and those that it cannot do (they choose the MSS) over the kernel's.
fn play_in_memory(
    mutant: Option<Mutant>,
    row: &Row,
    cases: Vec<String>,
) -> Result<Vec<Outcome>, String> {
    let mut outcomes = play(mutant, row, Over::Memory, &Selection(cases))?;
    let is_skipped = |outcome: &Outcome| matches!(outcome.verdict, Verdict::Skipped(_));
    let skipped = outcomes.iter().filter(|outcome| is_skipped(outcome));
    let skipped: Vec<String> = skipped.map(|outcome| outcome.id.clone()).collect();
    if !skipped.is_empty() {
        outcomes.retain(|outcome| !is_skipped(outcome));
        outcomes.extend(play(mutant, row, Over::Kernel, &Selection(skipped))?);
    }
    Ok(outcomes)
}

/// Each of its cases finds the mutant.
pub(crate) fn mapped(mutant: Mutant, row: &Row) -> Result<(), String> {
    let outcomes = play_in_memory(Some(mutant), row, row.cases.clone())?;
    let blind: Vec<String> = outcomes
        .iter()
        .filter(|outcome| !matches!(outcome.verdict, Verdict::Fail(_)))
        .map(|outcome| format!("{}: {:?}", outcome.id, outcome.verdict))
        .collect();
    if blind.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n{}", mutant.fault(), blind.join("\n")))
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
        let outcomes = play_in_memory(None, row, cases)?;
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
