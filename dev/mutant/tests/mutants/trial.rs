//! Runs the cases of one mutant against it, and the cases of all mutants against the correct
//! endpoint.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, available_parallelism};

use uwarp_conformance::report::failure;
use uwarp_conformance::{Outcome, Selection, Verdict};
use uwarp_mutant::{Mutant, switch};

use crate::map::{Map, Row};

/// Runs cases against an endpoint with this fault, each case in its own world. Returns the outcomes
/// in the order of the cases.
pub(crate) fn play(
    mutant: Option<Mutant>,
    row: &Row,
    cases: Vec<String>,
) -> Result<Vec<Outcome>, String> {
    let queue: Mutex<VecDeque<_>> = Mutex::new(cases.into_iter().enumerate().collect());
    let next = || {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    };
    let worker = || -> Result<Vec<(usize, Vec<Outcome>)>, String> {
        let mut outcomes = Vec::new();
        while let Some((number, case)) = next() {
            let played = row.world().play(&Selection(vec![case]));
            outcomes.push((number, played.map_err(|error| error.to_string())?));
        }
        Ok(outcomes)
    };
    switch(mutant);
    let played = thread::scope(|scope| {
        let workers = available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let ended = workers.into_iter().map(|worker| match worker.join() {
            Ok(outcomes) => outcomes,
            Err(_) => Err("a worker thread panicked".to_owned()),
        });
        ended.collect::<Result<Vec<_>, String>>()
    });
    switch(None);
    let mut outcomes: Vec<_> = played?.into_iter().flatten().collect();
    outcomes.sort_by_key(|(number, _)| *number);
    Ok(outcomes
        .into_iter()
        .flat_map(|(_, played)| played)
        .collect())
}

pub(crate) fn fails(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Verdict::Fail(_))
}

/// Checks that each case of the row detects the mutant.
pub(crate) fn mapped(mutant: Mutant, row: &Row) -> Result<(), String> {
    let outcomes = play(Some(mutant), row, row.cases.clone())?;
    let blind: Vec<String> = outcomes
        .iter()
        .filter(|outcome| !fails(outcome))
        .map(|outcome| format!("{}: {:?}", outcome.id, outcome.verdict))
        .collect();
    if blind.is_empty() {
        Ok(())
    } else {
        Err(format!("{}\n{}", mutant.fault(), blind.join("\n")))
    }
}

/// Checks that the cases of all mutants pass against the correct endpoint, in each configuration of
/// the map.
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
        let mut cases: Vec<String> = same.flat_map(|row| row.cases.clone()).collect();
        cases.sort();
        cases.dedup();
        let outcomes = play(None, row, cases)?;
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
