//! Runs the conformance suite against Linux siw in both roles, and against uwarp for comparison;
//! see `./ci.sh interop`.
//!
//! `dev/interop/siw.toml` lists the known deviations of siw. A test fails if a deviation is not in
//! the file. It also fails if siw no longer shows a listed deviation, unless the entry is marked
//! `sometimes`.
//!
//! `UWARP_CONFORMANCE_CASES` restricts the run to cases that match one of its patterns, which are
//! separated by spaces. `UWARP_CONFORMANCE_DANGEROUS=1` adds the cases that crash or wedge the
//! guest, each in its own guest. A complete run with these cases writes a report; see `report.rs`.

mod document;
mod findings;
mod guests;
mod report;

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use uwarp_conformance::report::{Counts, failure, summary};
use uwarp_conformance::{
    CaseInfo, Config, Ending, Outcome, Progress, Selection, Target, Verdict, list, run_with_targets,
};
use uwarp_interop::{
    Failure, HostTap, Image, Result, Unready, Uwarp, enter_namespace, uwarp_binary,
};

use guests::{Diary, Guests};

/// Time limit for messages that siw must send, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Waiting time for messages that siw must not send.
const QUIET: Duration = Duration::from_millis(300);
/// Pause after the agent has answered `accept`. siw can miss an FPDU that arrives while siw
/// establishes the connection (Q7). That can still happen shortly after the answer.
const SETTLE: Duration = Duration::from_millis(20);
/// Seed of the payloads. The reports contain it.
const SEED: u64 = 1;
/// Maximum number of guests in one run. A run without crashes needs one.
const GUESTS: usize = 12;

/// A test: cases that are run against one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    SiwResponds,
    SiwInitiates,
    /// Cases that may crash the guest.
    Dangerous,
    UwarpResponds,
    UwarpInitiates,
}

impl Run {
    const ALL: [Run; 5] = [
        Run::SiwResponds,
        Run::SiwInitiates,
        Run::Dangerous,
        Run::UwarpResponds,
        Run::UwarpInitiates,
    ];

    fn name(self) -> &'static str {
        match self {
            Run::SiwResponds => "conformance::siw_responds",
            Run::SiwInitiates => "conformance::siw_initiates",
            Run::Dangerous => "conformance::siw_dangerous",
            Run::UwarpResponds => "conformance::uwarp_responds",
            Run::UwarpInitiates => "conformance::uwarp_initiates",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Run::SiwResponds => "siw as Responder",
            Run::SiwInitiates => "siw as Initiator",
            Run::Dangerous => "siw, dangerous cases",
            Run::UwarpResponds => "uwarp as Responder",
            Run::UwarpInitiates => "uwarp as Initiator",
        }
    }

    fn target_initiates(self) -> bool {
        matches!(self, Run::SiwInitiates | Run::UwarpInitiates)
    }

    /// Returns true if the case belongs to this run. A case for both roles belongs to the runs of
    /// both.
    fn takes(self, case: &CaseInfo) -> bool {
        let right_role = match case.role {
            Some("Initiator") => self.target_initiates(),
            Some(_) => !self.target_initiates(),
            None => true,
        };
        match self {
            // If dangerous cases are enabled, `Run::Dangerous` runs them. Otherwise the suite
            // reports them as skipped.
            Run::SiwResponds | Run::SiwInitiates => right_role && !(case.dangerous && dangerous()),
            Run::Dangerous => case.dangerous,
            Run::UwarpResponds | Run::UwarpInitiates => right_role,
        }
    }

    fn cases(self, wanted: &Selection) -> Vec<String> {
        let all = list().into_iter();
        all.filter(|case| self.takes(case) && wanted.takes(&case.id))
            .map(|case| case.id)
            .collect()
    }
}

/// Results of one test.
struct Played {
    run: Run,
    outcomes: Vec<Outcome>,
    /// Kernel logs of guests that did not survive a case. The key is the id of the case.
    troubles: BTreeMap<String, String>,
}

/// State that the tests share.
struct Shared {
    image: Image,
    tap: HostTap,
    wanted: Selection,
    played: Mutex<Vec<Played>>,
}

fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the path of the file with siw's known deviations.
fn deviations() -> PathBuf {
    manifest().join("siw.toml")
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| value == "1")
}

fn dangerous() -> bool {
    is_set("UWARP_CONFORMANCE_DANGEROUS")
}

/// Prepares the state for the tests, or returns the reason why they cannot run here.
fn prepare() -> std::result::Result<Shared, Unready> {
    if !is_set("UWARP_INTEROP") {
        let how = "they boot a virtual machine; run './ci.sh interop', or set UWARP_INTEROP=1";
        return Err(Unready::Missing(how.to_owned()));
    }
    enter_namespace().map_err(Unready::Missing)?;
    let failed = |failure: Failure| Unready::Failed(failure.to_string());
    uwarp_binary().map_err(failed)?;
    let patterns = env::var("UWARP_CONFORMANCE_CASES").unwrap_or_default();
    Ok(Shared {
        image: Image::find()?,
        tap: HostTap::new().map_err(|failure| Unready::Missing(failure.to_string()))?,
        wanted: Selection(patterns.split_whitespace().map(str::to_owned).collect()),
        played: Mutex::default(),
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let prepared = if arguments.list {
        Err(Unready::Missing(String::new()))
    } else {
        // `prepare` must run before any thread starts, because it may restart this program.
        prepare()
    };
    match &prepared {
        Err(Unready::Failed(why)) => {
            eprintln!("conformance: the guest is not ready: {why}");
            return ExitCode::FAILURE;
        }
        Err(Unready::Missing(why)) if !arguments.list => {
            eprintln!("conformance: SKIPPED, every test is reported as ignored: {why}");
        }
        _ => {}
    }
    // Only one guest runs at a time.
    arguments.test_threads = Some(1);
    let filter = arguments.filter.take_if(|filter| filter.contains(','));
    let shared = prepared.ok().map(Arc::new);
    let mut trials: Vec<Trial> = Run::ALL
        .into_iter()
        .map(|run| {
            let ignored = run == Run::Dangerous && !dangerous();
            let test = move |shared: &Shared| perform(run, shared);
            trial(run.name(), ignored, shared.clone(), test)
        })
        .collect();
    if let Some(filter) = filter {
        trials.retain(|trial| filter.split(',').any(|part| trial.name().contains(part)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(shared) = shared
        && let Err(error) = report::write(&shared, !conclusion.has_failed())
    {
        eprintln!("conformance: {error}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn trial(
    name: &str,
    ignored: bool,
    shared: Option<Arc<Shared>>,
    test: impl FnOnce(&Shared) -> Result<()> + Send + 'static,
) -> Trial {
    let ignored = ignored || shared.is_none();
    let test = move || match &shared {
        Some(shared) => test(shared).map_err(|error| Failed::from(error.to_string())),
        None => Err("there is no guest: see the first lines of the output".into()),
    };
    Trial::test(name, test).with_ignored_flag(ignored)
}

fn perform(run: Run, shared: &Shared) -> Result<()> {
    let cases = run.cases(&shared.wanted);
    if cases.is_empty() {
        return Ok(());
    }
    let began = Instant::now();
    let (outcomes, troubles) = match run {
        Run::UwarpResponds | Run::UwarpInitiates => (against_uwarp(run, cases)?, BTreeMap::new()),
        Run::SiwResponds | Run::SiwInitiates | Run::Dangerous => against_siw(run, shared, cases)?,
    };
    let counts = Counts::of(&outcomes);
    let seconds = began.elapsed().as_secs();
    eprintln!("{}: {} ({seconds} s)", run.title(), summary(&outcomes));
    let mut said = String::new();
    for outcome in &outcomes {
        if let Verdict::Fail(_) | Verdict::Unexpected(_) | Verdict::Infrastructure(_) =
            outcome.verdict
        {
            said += &failure(outcome);
        }
    }
    let mut played = shared.played.lock().unwrap_or_else(PoisonError::into_inner);
    played.push(Played {
        run,
        outcomes,
        troubles,
    });
    match counts.failed + counts.unexpected + counts.errors {
        0 => Ok(()),
        bad => Err(Failure::new(format!(
            "{bad} cases differ from the known results\n{said}"
        ))),
    }
}

fn against_siw(
    run: Run,
    shared: &Shared,
    cases: Vec<String>,
) -> Result<(Vec<Outcome>, BTreeMap<String, String>)> {
    let mut config = Config::new(Target::At((shared.tap.guest_ip(), 0).into()));
    config.timeout = TIMEOUT;
    config.quiet = QUIET;
    config.settle = SETTLE;
    config.strict = true;
    config.seed = SEED;
    config.dangerous = run == Run::Dangerous;
    config.target_initiates = run.target_initiates();
    config.deviations = Some(deviations());
    let most = if config.dangerous {
        GUESTS + cases.len()
    } else {
        GUESTS
    };
    let diary = Diary::default();
    let progress = Lines {
        diary: &diary,
        began: Instant::now(),
        alone: config.dangerous,
        last: Mutex::default(),
    };
    let selection = Selection(cases);
    let mut guests = Guests::new(&shared.image, &shared.tap, &diary, most);
    let outcomes = run_with_targets(&config, &mut guests, &selection, &progress)?;
    drop(guests);
    let last = progress
        .last
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let troubles = last
        .into_iter()
        .filter_map(|(case, guest)| Some((case, diary.trouble(guest)?)))
        .collect();
    Ok((outcomes, troubles))
}

/// Runs cases against our own stack on the loopback interface of this namespace.
fn against_uwarp(run: Run, cases: Vec<String>) -> Result<Vec<Outcome>> {
    let mut agent = Uwarp::start(&["agent", "-a", "127.0.0.1", "-p", "0", "--no-token"])?;
    let mut port = |what: &str| -> Result<_> {
        let line = agent.wait_for(what, Duration::from_secs(20))?;
        let at = line.rsplit(' ').next().unwrap_or_default();
        Ok(at.parse()?)
    };
    let mut config = Config::new(Target::At(port("RDMA on ")?));
    config.agent = Some(port("control on ")?);
    config.strict = true;
    config.seed = SEED;
    config.dangerous = true;
    config.target_initiates = run.target_initiates();
    Ok(uwarp_conformance::run(&config, &Selection(cases), &())?)
}

/// Progress observer that prints a line for each case that does not pass.
struct Lines<'a> {
    diary: &'a Diary,
    began: Instant,
    /// True if each case has its own guest.
    alone: bool,
    /// Cases that may have crashed their guests, each with the number of its guest.
    last: Mutex<Vec<(String, usize)>>,
}

impl Progress for Lines<'_> {
    fn begins(&self, cases: usize) {
        eprintln!("{cases} cases");
    }

    fn played(&self, outcome: &Outcome) {
        if matches!(outcome.verdict, Verdict::Pass | Verdict::Skipped(_)) {
            return;
        }
        let guest = self.diary.booted();
        let ending = outcome.ending.map(|ending| format!(", {ending}"));
        eprintln!(
            "{:>5.1} s, guest {guest}: {} {} ({} ms{})",
            self.began.elapsed().as_secs_f32(),
            outcome.verdict.word(),
            outcome.id,
            outcome.millis,
            ending.unwrap_or_default()
        );
        if self.alone || outcome.ending == Some(Ending::Died) {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.push((outcome.id.clone(), guest));
        }
    }
}
