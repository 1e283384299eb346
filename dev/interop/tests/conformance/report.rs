//! Files that a run writes to `reports` in the target directory. `conformance-siw/` has a page,
//! JSON and captures; `conformance-siw.md` is the document for siw's maintainers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::{env, fs};

use serde_json::Value;
use uwarp_conformance::report::{About, html, json, pcaps};
use uwarp_conformance::{Outcome, Verdict, list};
use uwarp_interop::{Failure, Result};

use super::document::Document;
use super::{Played, Run, Shared, deviations};

/// Writes the folder after every run. Writes the document only after a run of all cases, including
/// dangerous ones, that agrees with `dev/interop/siw.toml`.
pub(crate) fn write(shared: &Shared, all_well: bool) -> Result<()> {
    let played = shared.played.lock().unwrap_or_else(PoisonError::into_inner);
    if played.is_empty() {
        return Ok(());
    }
    let to = directory()?;
    // Removes the files of an earlier run.
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

    let file = to.with_extension("md");
    let whole = Run::ALL
        .iter()
        .all(|run| played.iter().any(|one| one.run == *run));
    if !whole || !shared.wanted.0.is_empty() {
        return Ok(());
    }
    if !all_well {
        eprintln!(
            "conformance: {} was not written, because a test failed",
            file.display()
        );
        return Ok(());
    }
    let document = Document {
        versions: &shared.image.versions,
        played: &played,
        known: &known(&fs::read_to_string(deviations())?)?,
    };
    fs::write(&file, document.markdown())?;
    eprintln!("conformance: wrote {}", file.display());
    Ok(())
}

/// Returns the results of a run as JSON.
fn of_run(run: Run, outcomes: &[Outcome]) -> Value {
    json(&About::now(run.title(), super::SEED), outcomes)
}

/// Parses the file of deviations.
fn known(file: &str) -> Result<toml::Table> {
    file.parse()
        .map_err(|error| Failure::new(format!("dev/interop/siw.toml: {error}")))
}

/// Returns the folder of the run, `reports/conformance-siw` in the target directory.
fn directory() -> Result<PathBuf> {
    let binary = env::current_exe()?;
    let target = binary.ancestors().nth(3).unwrap_or(Path::new("."));
    Ok(target.join("reports/conformance-siw"))
}

/// Returns the columns of the page, one for each target and role. A dangerous case is in the column
/// of its role.
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
