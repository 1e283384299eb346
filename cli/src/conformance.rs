//! `uwarp conformance`: tests an endpoint against the RFCs, requirement by requirement.

mod about;
mod files;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use uwarp_conformance::report::{Counts, failure, many, summary};
use uwarp_conformance::{Config, Outcome, Progress, Selection, Target, Verdict, run};
use uwarp_verbs::environment::TOKEN;
use uwarp_verbs::options::Chosen;

use crate::address::HostPort;
use crate::device::DeviceOption;
use crate::failure::{Failure, Report};
use crate::options::{chosen, options_of_table, with_help};
use crate::output::{Output, notice};
use crate::signals::catch_stop_signals;
use about::{print_case, print_coverage, print_list};
use files::Files;

/// Options of `uwarp conformance`.
#[derive(Args, Debug)]
#[command(after_help = "Example, in two terminals:\n  \
    uwarp agent -a 127.0.0.1 -p 7174\n  \
    uwarp conformance --target 127.0.0.1:7174 --token TOKEN\n\n\
    The first Ctrl-C lets the cases under way end and reports them; the second ends at once.\n\
    Exit codes: 0 every case that was played passed, 1 a case failed, 2 no case was played, or the run could not start or \
    finish.")]
pub(crate) struct Options {
    /// Cases to play: ids, prefixes of ids, or patterns with `*` [default: all]
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Address on which the endpoint under test listens
    #[arg(long, value_name = "HOST:PORT", required_unless_present_any = ["listen", "shim", "list", "explain", "coverage"])]
    target: Option<HostPort>,
    /// Address on which the suite listens; the endpoint under test has to connect to it
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["target", "shim"])]
    listen: Option<HostPort>,
    /// Command that is started for each case and connects; {host}, {port} and {addr} in it are
    /// replaced. Without them, the address is appended
    #[arg(long, value_name = "CMD", conflicts_with = "target")]
    shim: Option<String>,
    /// Control port of the agent beside the target [default: the target's port + 1]
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "no_agent")]
    agent: Option<HostPort>,
    /// Token of the agent, as it printed it at its start
    #[arg(
        long,
        value_name = "TOKEN",
        env = TOKEN,
        hide_env_values = true
    )]
    token: Option<String>,
    /// Play only the cases that need no agent beside the target
    #[arg(long)]
    no_agent: bool,
    /// Role of the target in cases whose rule holds in both roles
    #[arg(long, value_enum, default_value = "responder")]
    role: RoleName,
    /// Also check recommendations (SHOULD) and permissions (MAY)
    #[arg(long)]
    strict: bool,
    /// Also play the cases that may crash or block the target; they come last
    #[arg(long)]
    dangerous: bool,
    /// Known deviations of the target (TOML)
    #[arg(long, value_name = "FILE")]
    deviations: Option<PathBuf>,
    /// Number of cases to play at once
    #[arg(short, long, value_name = "N", default_value = "4")]
    jobs: NonZeroUsize,
    /// Print each case as it ends, also if it passed or was skipped
    #[arg(short, long)]
    verbose: bool,
    /// Seconds to wait for an event that has to come
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// Milliseconds to wait after startup, for a target that loses data which comes at once
    #[arg(long, value_name = "MS", default_value_t = 0)]
    settle: u64,
    /// Seed of the payload bytes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    startup: Startup,
    /// List the cases, one a line, and play none
    #[arg(long)]
    list: bool,
    /// Describe the steps of a case, and play none
    #[arg(long, value_name = "ID")]
    explain: Option<String>,
    /// Show which requirements have cases, and play none
    #[arg(long)]
    coverage: bool,
    #[command(flatten)]
    device: DeviceOption,
    #[command(flatten)]
    files: Files,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum RoleName {
    Initiator,
    Responder,
}

/// Options for the MPA startup frames of the suite.
#[derive(Debug)]
struct Startup(Chosen);

options_of_table!(
    Startup,
    with_help(&[
        (
            "crc",
            "C bit that the suite sends; CRC32C is used unless both sides do without"
        ),
        (
            "markers",
            "M bit that the suite sends; if on, the target has to insert Markers"
        ),
        ("mpa", "MPA revision of the suite's Requests"),
    ]),
    chosen
);

/// Plays the cases, or describes them.
///
/// # Errors
/// A case failed, or the run could not start or finish.
pub(crate) fn run_command(options: &Options) -> Result<(), Failure> {
    if options.list {
        return print_list(&options.ids);
    }
    if let Some(id) = &options.explain {
        return print_case(id);
    }
    if options.coverage {
        return print_coverage();
    }
    let mut config = config(options)?;
    let files = options.files.ready()?;
    let opened = options.device.configure(&mut config);
    opened.map_err(Failure::into_usage)?;
    let stop = catch_stop_signals()
        .map_err(|error| Failure::because(format!("signals cannot be handled: {error}")))?;
    let bar = Bar::new(options, stop);
    let outcomes = run(&config, &Selection(options.ids.clone()), &bar)
        .map_err(|error| Failure::Usage(Report::new(error.to_string())))?;
    let cases = bar.cases.load(Ordering::Relaxed);
    drop(bar);
    files.write(&options.target_name(), options.seed, &outcomes)?;
    print_outcomes(options, &outcomes, cases)
}

/// Reports each case on stderr when it ends. A terminal gets a progress bar. Each case that is
/// neither passed nor skipped gets a line; with `--verbose`, every case does.
struct Bar {
    bar: ProgressBar,
    seed: u64,
    verbose: bool,
    cases: AtomicUsize,
    stop: Arc<AtomicBool>,
}

impl Bar {
    fn new(options: &Options, stop: Arc<AtomicBool>) -> Self {
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        let cases = AtomicUsize::new(0);
        Bar {
            bar,
            seed: options.seed,
            verbose: options.verbose,
            cases,
            stop,
        }
    }
}

impl Progress for Bar {
    fn begins(&self, cases: usize) {
        self.cases.store(cases, Ordering::Relaxed);
        notice(format_args!("{}, seed {}", many(cases, "case"), self.seed));
        self.bar.set_length(cases as u64);
    }

    fn played(&self, outcome: &Outcome) {
        self.bar.set_message(outcome.id.clone());
        self.bar.inc(1);
        let well = matches!(outcome.verdict, Verdict::Pass | Verdict::Skipped(_));
        if self.verbose || !well {
            self.bar.suspend(|| {
                notice(format_args!(
                    "{:<10} {}",
                    outcome.verdict.word(),
                    outcome.id
                ));
            });
        }
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints each case that did not pass in full, and then the counts. `cases`: number of cases that
/// were selected.
fn print_outcomes(options: &Options, outcomes: &[Outcome], cases: usize) -> Result<(), Failure> {
    let out = if options.files.have_stdout() {
        Output::Stderr
    } else {
        Output::Stdout
    };
    for outcome in outcomes {
        if !matches!(outcome.verdict, Verdict::Pass | Verdict::Skipped(_)) {
            out.line(failure(outcome))?;
        }
    }
    out.line(summary(outcomes))?;
    judge(&Counts::of(outcomes), cases)
}

/// Decides the result of a run of `cases` cases. Failed cases are a failed operation (exit code 1).
/// Cases that were not or could not be played are a usage failure (exit code 2).
fn judge(counts: &Counts, cases: usize) -> Result<(), Failure> {
    let failed = counts.failed + counts.unexpected;
    let ended = counts.played() + counts.skipped + counts.errors;
    let stopped = match cases - ended {
        1 => "was not played: the run was stopped",
        _ => "were not played: the run was stopped",
    };
    let mut bad = Vec::new();
    for (count, what) in [
        (failed, "failed"),
        (counts.errors, "could not be played"),
        (cases - ended, stopped),
    ] {
        if count > 0 {
            bad.push(format!("{count} of {} {what}", many(cases, "case")));
        }
    }
    if counts.played() == 0 {
        bad.push("nothing was played".to_owned());
    }
    let report = Report::new(bad.join("; "));
    match failed {
        _ if bad.is_empty() => Ok(()),
        0 if counts.played() == 0 => Err(Failure::Usage(report.advice(if counts.errors > 0 {
            "start the target, or check the address"
        } else {
            "the reasons for skipping are above; --strict and --dangerous play more cases"
        }))),
        0 => Err(Failure::Usage(report)),
        _ => Err(Failure::Operation(report)),
    }
}

impl Options {
    /// Returns the name of the target in reports.
    fn target_name(&self) -> String {
        let dialled = || "a target that connects".to_owned();
        self.target
            .as_ref()
            .map(HostPort::to_string)
            .or_else(|| self.shim.clone())
            .unwrap_or_else(dialled)
    }
}

/// Parses a number of seconds that is not zero.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected seconds, as in 5 or 0.5".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("expected a time above 0".to_owned()),
    }
}

fn config(options: &Options) -> Result<Config, Failure> {
    let target = match (&options.target, &options.listen, &options.shim) {
        (Some(target), ..) => Target::At(usable(target.server())?),
        (_, Some(listen), _) => Target::Dials(usable(listen.listen())?),
        (_, _, Some(command)) => Target::Command(command.clone()),
        _ => return Err(Failure::Usage(Report::new("no target is given"))),
    };
    let mut config = Config::new(target);
    config.agent = match (&options.agent, &config.target) {
        _ if options.no_agent => None,
        (Some(agent), _) => Some(usable(agent.server())?),
        (None, Target::At(target)) => Some(agent_beside(*target)?),
        (None, _) => None,
    };
    config.agent_token.clone_from(&options.token);
    config.timeout = options.timeout;
    config.settle = Duration::from_millis(options.settle);
    let Startup(chosen) = &options.startup;
    config.crc = chosen.settings.crc;
    config.markers = chosen.settings.markers;
    config.revision = chosen.settings.revision.code();
    config.strict = options.strict;
    config.dangerous = options.dangerous;
    config.target_initiates = options.role == RoleName::Initiator;
    config.jobs = options.jobs.get();
    config.seed = options.seed;
    config.deviations.clone_from(&options.deviations);
    Ok(config)
}

/// Turns the error of an address that cannot be resolved into exit code 2, because it prevents the
/// run.
fn usable(addr: Result<SocketAddr, Failure>) -> Result<SocketAddr, Failure> {
    addr.map_err(Failure::into_usage)
}

/// Returns the default address of the target's agent: the target's IP address and the next port.
fn agent_beside(target: SocketAddr) -> Result<SocketAddr, Failure> {
    match target.port().checked_add(1) {
        Some(port) => {
            let mut agent = target;
            agent.set_port(port);
            Ok(agent)
        }
        None => {
            let report = Report::new("there is no port after 65535 for the agent");
            Err(Failure::Usage(
                report.advice("use --agent HOST:PORT or --no-agent"),
            ))
        }
    }
}
