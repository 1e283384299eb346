//! Hostile and broken peers attack a real process, `uwarp agent`, over loopback. Each attack is a
//! test. The test watches the memory and the descriptors of the process, and also an honest
//! connection.
//!
//! Loads are small by default. `UWARP_ROBUSTNESS=full` selects full loads, and
//! `UWARP_ROBUSTNESS_REPORT` names the file of the report; `./ci.sh robustness` sets both.

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
use honest::Visitors;
use report::Row;
use scene::Scene;
use victim::{Confined, Usage};

/// Result of a step. Its errors are sentences that explain the failure.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Time limit of every wait. A wait that takes longer has hung.
const PATIENCE: Duration = Duration::from_secs(300);

/// Fraction of its throughput that the honest peer must keep, in full runs.
const LEAST: f64 = 0.5;

/// Maximum duration of a visit by an honest peer during an attack, in full runs.
const LATE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    if let Some(written) = deaths::writer() {
        return written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let mut arguments = Arguments::from_args();
    let full = std::env::var_os("UWARP_ROBUSTNESS").is_some_and(|how| how == "full");
    // A full run measures one attack at a time. In a small run victims mostly wait for their
    // timeouts, so several attacks run at once.
    arguments.test_threads = Some(if full { 1 } else { 4 });
    let rows = Arc::new(Mutex::new(Vec::new()));
    let trials = ATTACKS.iter().map(|attack| {
        let rows = Arc::clone(&rows);
        Trial::test(attack.name, move || {
            let row = play(attack, full).map_err(|error| Failed::from(error.to_string()))?;
            rows.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(row);
            Ok(())
        })
    });
    let own_test = Trial::test(
        "memory_grows_where_most_of_the_later_rounds_add_to_it",
        || {
            attacks::memory_grows_where_most_of_the_later_rounds_add_to_it();
            Ok(())
        },
    );
    let trials = trials.chain([own_test]).collect();
    raise_limit();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let report = std::env::var_os("UWARP_ROBUSTNESS_REPORT").filter(|_| !conclusion.has_failed());
    if let Some(path) = report {
        let rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = report::write(path.as_ref(), &rows) {
            eprintln!("robustness: the report could not be written: {error}");
            return ExitCode::FAILURE;
        }
        eprintln!("robustness: wrote {}", path.display());
    }
    conclusion.exit_code()
}

/// Raises the limit of descriptors, because this process holds one end of thousands of connections.
/// The victim inherits the new limit.
fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Runs one attack on a new victim and returns the row of the report.
fn play(attack: &Attack, full: bool) -> Result<Row> {
    let pause = Duration::from_millis(if full { 1_000 } else { 30 });
    let mut scene = Scene::new(full, attack.confined)?;
    let descriptors = scene.victim.usage()?.descriptors;
    let quiet = [(); 3].map(|()| scene.honest.rate_for(pause));
    scene.newcomer()?;
    let before = Usage {
        descriptors,
        ..scene.victim.usage()?
    };
    let canary = scene.canary()?;

    let watch = scene.victim.watch();
    let visitors = attack.visited.then(|| scene.visitors());
    let (from, processor) = (Instant::now(), scene.victim.processor()?);
    let mut pace = Pace::new(attack.load[usize::from(!full)], attack.rate);
    let outcome = (attack.run)(&mut scene, &mut pace);
    let rates = scene.honest.rates(from, Instant::now());
    let visits = visitors.map(Visitors::end).transpose()?;
    let outcome = outcome?;
    let processor = scene.victim.processor()? - processor;
    let most = watch.most();
    drop(watch);

    if !scene.victim.poll_alive() {
        return Err("the process is dead".into());
    }
    scene.honest.wait_round()?;
    scene.newcomer()?;
    scene.victim.wait_recovered(before)?;
    let afterwards = [(); 3].map(|()| scene.honest.rate_for(pause));
    if scene.canary()? != canary {
        return Err("the attack changed memory of the application".into());
    }
    let said = scene.victim.said();
    let complains = matches!(attack.confined, Confined::Descriptors(_));
    if !complains && !said.is_empty() {
        return Err(format!("the process printed errors:\n{said}").into());
    }
    let Scene { honest, .. } = scene;
    honest.end()?;
    let row = Row::new(attack, outcome, [before, most], processor);
    let row = row.measured(rates, [quiet, afterwards], visits);
    if full {
        eprintln!("{}: {}", attack.name, row.line());
    }
    row.check_memory(attack.memory[usize::from(!full)] << 20)?;
    if full {
        row.check_fairness()?;
    }
    Ok(row)
}
