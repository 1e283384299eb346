//! Hostile and broken peers against the real process: `uwarp agent` is attacked over loopback, with its memory, its
//! descriptors and an honest connection beside it watched. Every attack is a test of its own.
//!
//! Small loads by default; `UWARP_ROBUSTNESS=full` has the whole ones, and `UWARP_ROBUSTNESS_REPORT` names the file
//! for the table (`./ci.sh robustness` sets both).

mod attacks;
mod controller;
mod deaths;
mod honest;
mod messages;
mod raw;
mod report;
mod scene;
mod startup;
mod victim;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Resource, getrlimit, setrlimit};

use attacks::{ATTACKS, Attack, Pace};
use report::Row;
use scene::Scene;

/// What goes wrong is told in words.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most memory that an attack may add to what the application takes.
const MOST: u64 = 128 << 20;

/// The part of its throughput that the honest peer must keep, in whole runs.
const LEAST: f64 = 0.5;

fn main() -> ExitCode {
    if let Some(written) = deaths::writer() {
        return written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let mut arguments = Arguments::from_args();
    let full = std::env::var_os("UWARP_ROBUSTNESS").is_some_and(|how| how == "full");
    // What is measured is one attack. Otherwise most of the time goes by until the victim gives somebody up.
    arguments.test_threads = Some(if full { 1 } else { 4 });
    let rows = Arc::new(Mutex::new(Vec::new()));
    let trials = ATTACKS.iter().map(|attack| {
        let rows = Arc::clone(&rows);
        Trial::test(attack.name, move || {
            let row = attacked(attack, full).map_err(|error| Failed::from(error.to_string()))?;
            rows.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(row);
            Ok(())
        })
    });
    let trials = trials.collect();
    enough_descriptors();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let report = std::env::var_os("UWARP_ROBUSTNESS_REPORT").filter(|_| !conclusion.has_failed());
    if let Some(path) = report {
        let rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = report::write(path.as_ref(), &rows) {
            eprintln!("robustness: the table could not be written: {error}");
            return ExitCode::FAILURE;
        }
    }
    conclusion.exit_code()
}

/// Thousands of connections have two ends each; the victim inherits the limit.
fn enough_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// One attack, on a victim of its own.
fn attacked(attack: &Attack, full: bool) -> Result<Row> {
    let pause = Duration::from_millis(if full { 3_000 } else { 100 });
    let mut scene = Scene::new(full, attack.descriptors)?;
    let before = scene.victim.usage()?;
    let quiet = scene.honest.rate_for(pause);
    let memory = scene.canary()?;

    let watch = scene.victim.watch();
    let (from, processor) = (Instant::now(), scene.victim.processor()?);
    let mut pace = Pace::new(attack.load[usize::from(!full)], attack.rate);
    let told = (attack.run)(&mut scene, &mut pace)?;
    let rates = scene.honest.rates(from, Instant::now());
    let processor = scene.victim.processor()? - processor;
    let most = watch.most();
    drop(watch);

    if !scene.victim.is_alive() {
        return Err("the process is dead".into());
    }
    scene.honest.goes_on()?;
    scene.victim.recovers(before)?;
    // The better of the two: what lasts is an effect, too.
    let quiet = quiet.max(scene.honest.rate_for(pause));
    if scene.canary()? != memory {
        return Err("memory of the application has changed".into());
    }
    let said = scene.victim.said();
    if attack.descriptors.is_none() && !said.is_empty() {
        return Err(format!("the process complains:\n{said}").into());
    }
    let added = most.memory.saturating_sub(before.memory);
    if added > told.own_memory + MOST {
        return Err(format!("it took {added} octets of memory").into());
    }
    let Scene { honest, .. } = scene;
    honest.end()?;
    let ratios = rates.map(|rate| rate / quiet);
    if full {
        eprintln!(
            "{}: {}; {} MiB; {} descriptors; {processor} s; {:.0} MB/s before; ratios {ratios:.2?}",
            attack.name,
            told.load,
            most.memory >> 20,
            most.descriptors,
            quiet / 1e6
        );
    }
    if full && ratios[0] < LEAST {
        return Err(format!(
            "the honest peer had {:.2} of its throughput during {}; at least {LEAST} is asked for",
            ratios[0], told.load
        )
        .into());
    }
    Ok(Row {
        title: attack.title,
        told,
        before,
        most,
        processor,
        ratios,
    })
}
