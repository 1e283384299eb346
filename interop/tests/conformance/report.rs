//! What a run leaves: pages and captures in the target directory, and the document in docs/.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::{env, fs};

use serde_json::Value;
use uwarp_conformance::report::{About, html, json, pcaps};
use uwarp_conformance::{Outcome, Verdict, list};
use uwarp_interop::{Failure, Result};

use super::document::{Document, not_always};
use super::{Played, Run, Shared, deviations, manifest};

/// Entries of a log that the page in docs/ has: the last ones.
const LOG: usize = 12;

/// Writes what was found: everything into the target directory, and, after a whole run in which all was as it is known to
/// be, the document.
pub(crate) fn write(shared: &Shared, all_well: bool) -> Result<()> {
    let played = shared.played.lock().unwrap_or_else(PoisonError::into_inner);
    if played.is_empty() {
        return Ok(());
    }
    let to = directory()?;
    // What an earlier run has left is not of this one.
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(&to)?;
    for one in played.iter() {
        let name = one.run.name().rsplit(':').next().unwrap_or_default();
        let run = of_run(one.run, &one.outcomes);
        fs::write(to.join(format!("{name}.json")), run.to_string())?;
        let failed: Vec<Outcome> = one
            .outcomes
            .iter()
            .filter(|outcome| matches!(outcome.verdict, Verdict::Fail(_)))
            .cloned()
            .collect();
        pcaps(&to.join(name), &failed)?;
    }
    let columns = columns(&played);
    let page = to.join("index.html");
    fs::write(&page, html(&columns))?;
    eprintln!("conformance: see {}", page.display());

    let Some(file) = env::var_os("UWARP_CONFORMANCE_REPORT").map(PathBuf::from) else {
        return Ok(());
    };
    let whole = Run::ALL
        .iter()
        .all(|run| played.iter().any(|one| one.run == *run));
    if !whole || !shared.wanted.0.is_empty() || !all_well {
        eprintln!(
            "conformance: {} is not written: this was not the whole run with the dangerous cases, or not all was as it is known to be",
            file.display()
        );
        return Ok(());
    }
    let brief: Vec<Value> = columns.into_iter().map(brief).collect();
    fs::write(file.with_extension("html"), html(&brief))?;
    let document = Document {
        versions: &shared.image.versions,
        played: &played,
        known: &known(&fs::read_to_string(deviations())?)?,
    };
    fs::write(&file, document.markdown())?;
    eprintln!("conformance: wrote {}", file.display());
    Ok(())
}

/// The document of a run.
fn of_run(run: Run, outcomes: &[Outcome]) -> Value {
    json(&About::now(run.title(), super::SEED), outcomes)
}

/// The file of deviations, read.
fn known(file: &str) -> Result<toml::Table> {
    file.parse()
        .map_err(|error| Failure::new(format!("interop/siw.toml: {error}")))
}

/// Beside the other results of a build.
fn directory() -> Result<PathBuf> {
    let binary = env::current_exe()?;
    let target = binary.ancestors().nth(3).unwrap_or(Path::new("."));
    Ok(target.join("conformance-siw"))
}

/// The columns of the matrix: a target in a role. Dangerous cases are where their role is.
fn columns(played: &[Played]) -> Vec<Value> {
    let initiators: BTreeSet<String> = list()
        .into_iter()
        .filter(|case| case.role == Some("Initiator"))
        .map(|case| case.id)
        .collect();
    let dangerous = played.iter().find(|one| one.run == Run::Dangerous);
    let columns = played.iter().filter(|one| one.run != Run::Dangerous);
    columns
        .map(|one| {
            let mut outcomes = one.outcomes.clone();
            if matches!(one.run, Run::SiwResponds | Run::SiwInitiates) {
                let more = dangerous.into_iter().flat_map(|one| &one.outcomes);
                let of_role = |outcome: &&Outcome| {
                    initiators.contains(&outcome.id) == one.run.target_initiates()
                };
                outcomes.extend(more.filter(of_role).cloned());
            }
            of_run(one.run, &outcomes)
        })
        .collect()
}

/// Without bytes, and with logs of what is no pass alone: for a page that is small enough for a repository.
fn brief(mut run: Value) -> Value {
    for case in run["cases"].as_array_mut().into_iter().flatten() {
        let failed = case.get("received").is_some();
        let entries = case["log"].as_array_mut().map(std::mem::take);
        let entries = entries.filter(|_| failed).unwrap_or_default();
        let skipped = entries.len().saturating_sub(LOG);
        let last = entries.into_iter().skip(skipped).map(|mut entry| {
            entry["bytes"] = Value::from("");
            entry["fields"] = Value::from(Vec::<Value>::new());
            entry
        });
        case["log"] = last.collect();
    }
    run
}

/// The document in docs/ has what siw is known to do (`interop/siw.toml`), and what it did in this run.
pub(crate) fn compare(shared: &Shared) -> Result<()> {
    let file = manifest().join("../docs/conformance-siw.md");
    let document = fs::read_to_string(&file)?;
    let told: BTreeSet<&str> = document
        .split("**`")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("`**")?.0))
        .collect();
    let file = fs::read_to_string(deviations())?;
    let not_always = not_always(&known(&file)?);
    let mut wrong: Vec<String> = told
        .iter()
        .filter(|id| !file.contains(&format!("\"{id}\"")))
        .map(|id| format!("{id} is told, and not in siw.toml any more"))
        .collect();
    if !document.contains(&not_always) {
        let why = "what does not show in every run is other than in siw.toml";
        wrong.push(format!("{why}:\n{not_always}"));
    }
    let played = shared.played.lock().unwrap_or_else(PoisonError::into_inner);
    let shown = played.iter().flat_map(|one| &one.outcomes);
    for outcome in shown.filter(|one| matches!(one.verdict, Verdict::Deviation(..))) {
        if !told.contains(outcome.id.as_str()) {
            wrong.push(format!("{} deviates, and is not told", outcome.id));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "docs/conformance-siw.md is of an older run:\n{}\ntry: ./ci.sh interop --dangerous, which writes it anew",
        wrong.join("\n")
    )))
}
