//! Runs all cases for every mutant, and writes the report.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::process::ExitCode;

use uwarp_conformance::report::failure;
use uwarp_conformance::{Level, Outcome, Verdict, list};
use uwarp_mutant::Mutant;

use crate::map::{Map, Row};
use crate::trial::{fails, play};

/// Result of one mutant.
struct Found {
    mutant: Mutant,
    /// Cases that must fail and did not.
    blind: Vec<String>,
    /// Cases that failed and that `mutants.toml` lists or explains.
    explained: Vec<String>,
    /// MUST cases that failed without an explanation in `mutants.toml`.
    unexplained: Vec<String>,
    /// Other cases that failed. They need no explanation.
    weaker: Vec<String>,
    played: usize,
    total: usize,
}

/// Runs the cases, prints a line for each mutant on stderr and writes the report. Fails if a mutant
/// is not detected, or if a MUST case fails without an explanation.
pub(crate) fn write(map: &Map, path: &OsStr, filter: Option<&str>) -> ExitCode {
    let mut all = Vec::new();
    for mutant in Mutant::ALL {
        if filter.is_some_and(|filter| !mutant.name().contains(filter)) {
            continue;
        }
        match look(*mutant, map.get(*mutant)) {
            Ok(found) => {
                eprintln!("{}", line(&found));
                all.push(found);
            }
            Err(error) => {
                eprintln!("{}: {error}", mutant.name());
                return ExitCode::FAILURE;
            }
        }
    }
    if let Err(error) = std::fs::write(path, text(&all, map)) {
        eprintln!("{}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    eprintln!("mutants: wrote {}", path.display());
    let right = |found: &Found| found.blind.is_empty() && found.unexplained.is_empty();
    if all.iter().all(right) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn look(mutant: Mutant, row: &Row) -> Result<Found, String> {
    let all = list().into_iter().map(|case| case.id).collect();
    let outcomes = play(Some(mutant), row, all)?;
    let (explained, others): (Vec<&Outcome>, Vec<&Outcome>) = outcomes
        .iter()
        .filter(|outcome| fails(outcome))
        .partition(|outcome| row.explains(&outcome.id));
    let total = explained.len() + others.len();
    let ids =
        |ones: Vec<&Outcome>| -> Vec<String> { ones.iter().map(|one| one.id.clone()).collect() };
    let (binding, weaker): (Vec<&Outcome>, Vec<&Outcome>) = others
        .into_iter()
        .partition(|outcome| outcome.level == Level::Must);
    let explained = ids(explained);
    for outcome in &binding {
        eprintln!("{}: {}", mutant.name(), failure(outcome));
    }
    let skipped = outcomes
        .iter()
        .filter(|one| matches!(one.verdict, Verdict::Skipped(_)));
    Ok(Found {
        mutant,
        blind: row
            .cases
            .iter()
            .filter(|id| !explained.contains(id))
            .cloned()
            .collect(),
        explained,
        unexplained: ids(binding),
        weaker: ids(weaker),
        played: outcomes.len() - skipped.count(),
        total,
    })
}

fn line(found: &Found) -> String {
    let (name, total, played) = (found.mutant.name(), found.total, found.played);
    let mut line = format!("{name}: {total} of {played} cases fail");
    if !found.blind.is_empty() {
        let _ = write!(line, "; NOT FOUND by {}", found.blind.join(", "));
    }
    if !found.unexplained.is_empty() {
        let _ = write!(line, "; UNEXPLAINED: {}", found.unexplained.join(", "));
    }
    line
}

fn text(all: &[Found], map: &Map) -> String {
    let found = all.iter().filter(|found| found.blind.is_empty()).count();
    let unexplained: usize = all.iter().map(|found| found.unexplained.len()).sum();
    let mut text = format!(
        "# Mutants\n\n\
         Written by `./ci.sh mutants`. A mutant is a deliberate fault of uwarp's own endpoint (`dev/mutant/src/lib.rs`). Each mutant \
         faces all cases of the conformance suite, in virtual time. `dev/mutant/mutants.toml` names the cases that must find it, and \
         explains the other MUST cases that fail.\n\n\
         {} mutants, {found} of them found by the cases that must find them; {unexplained} failures of MUST cases without an \
         explanation.\n",
        all.len()
    );
    let mut layer = None;
    for found in all {
        if layer != Some(found.mutant.layer()) {
            layer = Some(found.mutant.layer());
            let _ = write!(
                text,
                "\n## {}\n\n| mutant | what is wrong | found by | fail in all | others that fail |\n|---|---|---|---|---|\n",
                match found.mutant.layer() {
                    uwarp_mutant::Layer::Mpa => "MPA (RFC 5044)",
                    uwarp_mutant::Layer::Enhanced => "Enhanced connection setup (RFC 6581)",
                    uwarp_mutant::Layer::Ddp => "DDP (RFC 5041)",
                    uwarp_mutant::Layer::Rdmap => "RDMAP (RFC 5040)",
                    uwarp_mutant::Layer::Extensions => "RDMAP extensions (RFC 7306)",
                }
            );
        }
        let row = map.get(found.mutant);
        let by: Vec<&String> = row
            .cases
            .iter()
            .filter(|id| !found.blind.contains(id))
            .collect();
        let by: Vec<String> = by.iter().map(|id| format!("`{id}`")).collect();
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} of {} | {} |",
            found.mutant.name(),
            found.mutant.fault(),
            if by.is_empty() {
                "**nothing**".to_owned()
            } else {
                by.join(", ")
            },
            found.total,
            found.played,
            others(found, row)
        );
    }
    text
}

/// Formats the failed cases that the row does not list, with the row's explanation.
fn others(found: &Found, row: &Row) -> String {
    let besides: Vec<&String> = found
        .explained
        .iter()
        .filter(|id| !row.cases.contains(id))
        .collect();
    let mut parts = Vec::new();
    if let Some(why) = &row.why {
        let ids: Vec<&str> = besides.iter().map(|id| id.as_str()).collect();
        parts.push(if ids.is_empty() {
            String::new()
        } else if ids.len() > 12 {
            why.clone()
        } else {
            format!("{why}: {}", ids.join(", "))
        });
    }
    if !found.unexplained.is_empty() {
        parts.push(format!("**unexplained**: {}", found.unexplained.join(", ")));
    }
    if !found.weaker.is_empty() {
        parts.push(format!("SHOULD or MAY: {}", found.weaker.join(", ")));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("; ")
}
