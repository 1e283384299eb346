//! Hostile and broken peers attack a real process, `uwarp agent`, over loopback. Each attack is a
//! test. The test watches the memory and the descriptors of the process, and also an honest
//! connection.
//!
//! Loads are small by default. `UWARP_ROBUSTNESS=full` selects full loads, and
//! `UWARP_ROBUSTNESS_REPORT` names the file of the report; `./ci.sh robustness` sets both.

mod attacks;
mod controller;
mod deaths;
mod floods;
mod honest;
mod link;
mod messages;
mod pings;
mod raw;
mod report;
mod scene;
mod startup;
mod strangers;
mod unread;
mod victim;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Resource, getrlimit, setrlimit};
use uwarp_testkit::netns;

use attacks::{ATTACKS, Attack, AttackOutcome, Own, Pace, Run};
use floods::{FLOODS, Flood};
use honest::Visitors;
use link::LinkKind;
use report::{Figures, Row};
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

/// Function of a test. Returns its row of the report, or nothing if it was skipped.
type Test = Box<dyn FnOnce(bool) -> Result<Option<String>> + Send>;

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
    let trial = |name, run: Test| {
        let rows = Arc::clone(&rows);
        Trial::test(name, move || {
            let row = run(full).map_err(|error| Failed::from(error.to_string()))?;
            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.extend(row);
            Ok(())
        })
    };
    let attacks = ATTACKS.iter().map(|attack| {
        let run = |full| {
            if let Run::Own(run) = attack.run {
                return play_alone(attack, run, full);
            }
            play(attack, Scene::new(full, attack.confined)?, full).map(Some)
        };
        trial(attack.name, Box::new(run))
    });
    let floods = FLOODS.iter().map(|flood| {
        let run = |full| play_on_link(flood, full);
        trial(flood.attack.name, Box::new(run))
    });
    let own_test = Trial::test(
        "memory_grows_where_most_of_the_later_rounds_add_to_it",
        || {
            attacks::memory_grows_where_most_of_the_later_rounds_add_to_it();
            Ok(())
        },
    );
    let trials = attacks.chain(floods).chain([own_test]).collect();
    raise_limit();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let inside = FLOODS
        .iter()
        .any(|flood| netns::is_inside(flood.attack.name));
    let report =
        std::env::var_os("UWARP_ROBUSTNESS_REPORT").filter(|_| !inside && !conclusion.has_failed());
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

/// Runs a flood on its link, in a network namespace if the link needs one. Returns nothing if there
/// can be no namespace.
fn play_on_link(flood: &Flood, full: bool) -> Result<Option<String>> {
    let name = flood.attack.name;
    if flood.link == LinkKind::Tap && !netns::is_inside(name) {
        let said = netns::run_inside(name).unwrap_or_default();
        let row = said.lines().find(|line| line.starts_with(report::ROW));
        return Ok(row.map(str::to_owned));
    }
    if flood.link == LinkKind::Tap && !netns::has_tun(name) {
        return Ok(None);
    }
    let row = play(&flood.attack, Scene::on(flood.link, full)?, full)?;
    if flood.link == LinkKind::Tap {
        // The process outside reads this line.
        let _ = writeln!(std::io::stdout(), "{row}");
    }
    Ok(Some(row))
}

/// Runs an attack that starts the process it attacks, and returns the row of the report.
fn play_alone(attack: &Attack, run: Own, full: bool) -> Result<Option<String>> {
    let mut pace = Pace::new(attack.load[usize::from(!full)], attack.rate);
    let done = run(&mut pace, full)?;
    done.map(|(outcome, figures)| judge(attack, outcome, figures, full))
        .transpose()
}

/// Runs one attack on the victim of a new scene and returns the row of the report.
fn play(attack: &Attack, mut scene: Scene, full: bool) -> Result<String> {
    let (Run::Visited(run) | Run::VisitedLater(run)) = attack.run else {
        return Err("the attack has a victim of its own".into());
    };
    let descriptors = scene.victim.usage()?.descriptors;
    let quiet = scene.honest.rounds.sample(full);
    scene.newcomer()?;
    let before = Usage {
        descriptors,
        ..scene.victim.usage()?
    };
    let canary = scene.canary()?;

    let watch = scene.victim.watch();
    let visitors = matches!(attack.run, Run::Visited(_)).then(|| scene.visitors());
    let (from, processor) = (Instant::now(), scene.victim.processor()?);
    let mut pace = Pace::new(attack.load[usize::from(!full)], attack.rate);
    let outcome = run(&mut scene, &mut pace);
    let rates = scene.honest.rounds.rates(from, Instant::now());
    let visits = visitors.map(Visitors::end).transpose()?;
    let mut outcome = outcome?;
    let visits = visits.map_or_else(|| scene.later_visits(), Ok)?;
    let processor = scene.victim.processor()? - processor;
    let most = watch.most();
    drop(watch);

    if !scene.victim.poll_alive() {
        return Err("the process is dead".into());
    }
    scene.honest.wait_round()?;
    scene.newcomer()?;
    scene.victim.wait_recovered(before)?;
    if let Some(may_keep) = outcome.may_keep {
        let kept = scene.victim.wait_freed(before, may_keep)?;
        outcome.result += &format!("; {} KiB of it are kept", kept >> 10);
    }
    let afterwards = scene.honest.rounds.sample(full);
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
    let figures = Figures {
        before,
        most,
        processor,
        rates,
        quiet: [quiet, afterwards],
        visits,
    };
    judge(attack, outcome, figures, full)
}

/// Checks the limits of an attack, and returns the row of the report.
fn judge(attack: &Attack, outcome: AttackOutcome, figures: Figures, full: bool) -> Result<String> {
    let title = attack.title;
    let row = Row {
        title,
        outcome,
        figures,
    };
    if full {
        eprintln!("{}: {}", attack.name, row.line());
    }
    row.check_memory(attack.memory[usize::from(!full)] << 20)?;
    if full {
        row.check_fairness()?;
    }
    Ok(row.line())
}
