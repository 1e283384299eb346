//! The conformance suite against Linux siw, in both roles, and against uwarp for comparison; see `./ci.sh interop`.
//!
//! `UWARP_CONFORMANCE_CASES` has patterns of cases, with spaces between, for a part of the run.
//! `UWARP_CONFORMANCE_DANGEROUS=1` plays those that crash or wedge the guest, too.

mod document;
mod guests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs};

use libtest_mimic::{Arguments, Failed, Trial};
use uwarp_conformance::report::{Counts, failure, html, json, pcaps, summary};
use uwarp_conformance::{
    CaseInfo, Config, Outcome, Progress, Selection, Target, Verdict, list, run, run_with_targets,
};
use uwarp_interop::{
    Failure, HostTap, Image, Result, Unready, Uwarp, enter_namespace, uwarp_binary,
};

use document::{Document, Part};
use guests::Guests;

/// What siw has to send comes within this time, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(3);
/// What siw must not send, but would, comes within this time.
const QUIET: Duration = Duration::from_millis(300);
/// siw misses an FPDU that comes while it makes a connection its own (Q7). It has done so when the agent has answered to
/// `accept`; this is for the rest.
const SETTLE: Duration = Duration::from_millis(20);
/// Guests of one run: an ordinary one needs a single one.
const GUESTS: usize = 12;

type Played = Result<Vec<Outcome>>;

/// One test: cases against a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    SiwResponds,
    SiwInitiates,
    /// What may end the guest.
    Dangerous,
    Uwarp,
}

impl Run {
    const ALL: [Run; 4] = [
        Run::SiwResponds,
        Run::SiwInitiates,
        Run::Dangerous,
        Run::Uwarp,
    ];

    fn name(self) -> &'static str {
        match self {
            Run::SiwResponds => "conformance::siw_responds",
            Run::SiwInitiates => "conformance::siw_initiates",
            Run::Dangerous => "conformance::siw_dangerous",
            Run::Uwarp => "conformance::uwarp",
        }
    }

    /// Of the column in the matrix.
    fn title(self) -> &'static str {
        match self {
            Run::SiwResponds => "siw",
            Run::SiwInitiates => "siw as Initiator",
            Run::Dangerous => "siw, dangerous cases",
            Run::Uwarp => "uwarp",
        }
    }

    /// Cases whose rule holds in both roles are played in both. The others have their own, whatever the run says.
    fn takes(self, case: &CaseInfo) -> bool {
        match self {
            Run::SiwResponds => !case.dangerous,
            Run::SiwInitiates => !case.dangerous && case.both_roles,
            Run::Dangerous => case.dangerous,
            Run::Uwarp => true,
        }
    }

    fn cases(self, wanted: &Selection) -> Vec<String> {
        let all = list().into_iter();
        all.filter(|case| self.takes(case) && wanted.takes(&case.id))
            .map(|case| case.id)
            .collect()
    }
}

/// What the tests share.
struct Shared {
    image: Image,
    tap: HostTap,
    wanted: Selection,
    played: Mutex<Vec<(Run, Vec<Outcome>)>>,
}

fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What siw is known to do.
fn deviations() -> PathBuf {
    manifest().join("siw.toml")
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| value == "1")
}

/// Why the tests cannot run here; what they need when they can.
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
        // First of all: it may begin this program anew.
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
    // One guest at a time.
    arguments.test_threads = Some(1);
    let filter = arguments.filter.take_if(|filter| filter.contains(','));
    let shared = prepared.ok().map(Arc::new);
    let mut trials: Vec<Trial> = Run::ALL
        .into_iter()
        .map(|run| trial(run, shared.clone()))
        .collect();
    if let Some(filter) = filter {
        trials.retain(|trial| filter.split(',').any(|part| trial.name().contains(part)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(shared) = shared
        && let Err(error) = write(&shared, !conclusion.has_failed())
    {
        eprintln!("conformance: {error}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn trial(run: Run, shared: Option<Arc<Shared>>) -> Trial {
    let ignored =
        shared.is_none() || run == Run::Dangerous && !is_set("UWARP_CONFORMANCE_DANGEROUS");
    let test = move || match &shared {
        Some(shared) => perform(run, shared).map_err(|error| Failed::from(error.to_string())),
        None => Err("there is no guest: see what was said when the tests began".into()),
    };
    Trial::test(run.name(), test).with_ignored_flag(ignored)
}

fn perform(run: Run, shared: &Shared) -> Result<()> {
    let cases = run.cases(&shared.wanted);
    if cases.is_empty() {
        return Ok(());
    }
    let began = Instant::now();
    let outcomes = match run {
        Run::Uwarp => against_uwarp(cases)?,
        _ => against_siw(run, shared, cases)?,
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
    played.push((run, outcomes));
    match counts.failed + counts.unexpected + counts.errors {
        0 => Ok(()),
        bad => Err(Failure::new(format!(
            "{bad} cases are not as they are known to be\n{said}"
        ))),
    }
}

fn against_siw(run: Run, shared: &Shared, cases: Vec<String>) -> Played {
    let mut config = Config::new(Target::At((shared.tap.guest_ip(), 0).into()));
    config.timeout = TIMEOUT;
    config.quiet = QUIET;
    config.settle = SETTLE;
    config.strict = true;
    config.dangerous = run == Run::Dangerous;
    config.target_initiates = run == Run::SiwInitiates;
    config.deviations = Some(deviations());
    let most = if config.dangerous {
        GUESTS + cases.len()
    } else {
        GUESTS
    };
    let mut guests = Guests::new(&shared.image, &shared.tap, most);
    let progress = Lines {
        booted: guests.booted(),
        began: Instant::now(),
    };
    let selection = Selection(cases);
    Ok(run_with_targets(
        &config,
        &mut guests,
        &selection,
        &progress,
    )?)
}

/// Our own stack, on the loopback interface of this namespace.
fn against_uwarp(cases: Vec<String>) -> Played {
    let mut agent = Uwarp::start(&["agent", "-a", "127.0.0.1", "-p", "0"])?;
    let mut port = |what: &str| -> Result<_> {
        let line = agent.wait_for(what, Duration::from_secs(20))?;
        let at = line.rsplit(' ').next().unwrap_or_default();
        Ok(at.parse()?)
    };
    let mut config = Config::new(Target::At(port("RDMA on ")?));
    config.agent = Some(port("control on ")?);
    config.strict = true;
    config.dangerous = true;
    Ok(run(&config, &Selection(cases), &())?)
}

/// What is no pass, as it comes.
struct Lines {
    booted: Arc<AtomicUsize>,
    began: Instant,
}

impl Progress for Lines {
    fn begins(&self, cases: usize) {
        eprintln!("{cases} cases");
    }

    fn played(&self, outcome: &Outcome) {
        if !matches!(outcome.verdict, Verdict::Pass | Verdict::Skipped(_)) {
            let ending = outcome.ending.map(|ending| format!(", {ending}"));
            eprintln!(
                "{:>5.1} s, guest {}: {} {} ({} ms{})",
                self.began.elapsed().as_secs_f32(),
                self.booted.load(Ordering::Relaxed),
                outcome.verdict.word(),
                outcome.id,
                outcome.millis,
                ending.unwrap_or_default()
            );
        }
    }
}

/// Writes what was found: pages for the reader into the target directory, and, after a whole run that found nothing new,
/// the document.
fn write(shared: &Shared, all_well: bool) -> Result<()> {
    let played = shared.played.lock().unwrap_or_else(PoisonError::into_inner);
    if played.is_empty() {
        return Ok(());
    }
    let binary = env::current_exe()?;
    let target = binary.ancestors().nth(3).unwrap_or(Path::new("."));
    let to = target.join("conformance-siw");
    // What an earlier run has left is not of this one.
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(&to)?;
    let mut runs = Vec::new();
    for (run, outcomes) in played.iter() {
        let run_json = json(run.title(), outcomes);
        let name = run.name().rsplit(':').next().unwrap_or_default();
        fs::write(to.join(format!("{name}.json")), run_json.to_string())?;
        runs.push(run_json);
        let failed: Vec<Outcome> = outcomes
            .iter()
            .filter(|outcome| matches!(outcome.verdict, Verdict::Fail(_)))
            .cloned()
            .collect();
        pcaps(&to.join(name), &failed)?;
    }
    fs::write(to.join("index.html"), html(&runs))?;
    eprintln!("conformance: see {}", to.join("index.html").display());

    let Some(file) = env::var_os("UWARP_CONFORMANCE_REPORT") else {
        return Ok(());
    };
    let part = |which: Run| {
        let found = played.iter().find(|(run, _)| *run == which);
        found.map(|(run, outcomes)| Part {
            title: run.title(),
            outcomes,
        })
    };
    let parts = [part(Run::SiwResponds), part(Run::SiwInitiates)];
    let [Some(responds), Some(initiates)] = parts else {
        return Ok(());
    };
    if !shared.wanted.0.is_empty() || !all_well {
        eprintln!("conformance: the document is not written: not all is as it is known to be");
        return Ok(());
    }
    let document = Document {
        versions: &shared.image.versions,
        parts: [responds, initiates],
        dangerous: part(Run::Dangerous),
        uwarp: part(Run::Uwarp),
    };
    fs::write(file, document.markdown())?;
    Ok(())
}
