//! `uwarp conformance`: what an endpoint gets wrong, requirement by requirement.

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

use crate::address::HostPort;
use crate::device::DeviceOption;
use crate::failure::{Failure, Report};
use crate::output::{Output, notice};
use crate::signals::asked_to_stop;
use about::{tell_case, tell_coverage, tell_list};
use files::Files;

/// Options of `uwarp conformance`.
#[derive(Args, Debug)]
#[command(after_help = "Example, in two terminals:\n  \
    uwarp agent -a 127.0.0.1 -p 7174\n  \
    uwarp conformance --target 127.0.0.1:7174\n\n\
    The first Ctrl-C lets the cases under way end and reports them; the second ends at once.\n\
    Exit codes: 0 all that was played passed, 1 something failed, 2 it could not run, not to its end, or nothing was played.")]
pub(crate) struct Options {
    /// Cases: ids, beginnings of ids, or patterns with `*`; all without any
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// The endpoint under test listens here
    #[arg(long, value_name = "HOST:PORT", required_unless_present_any = ["listen", "shim", "list", "explain", "coverage"])]
    target: Option<HostPort>,
    /// The suite listens here, and the endpoint under test is told to connect
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["target", "shim"])]
    listen: Option<HostPort>,
    /// A command that is started for each case and connects; {host}, {port} and {addr} in it are replaced, or the
    /// address is added
    #[arg(long, value_name = "CMD", conflicts_with = "target")]
    shim: Option<String>,
    /// The control port of the agent beside the target; by default the target's port + 1
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "no_agent")]
    agent: Option<HostPort>,
    /// Only the cases that any server makes possible
    #[arg(long)]
    no_agent: bool,
    /// The role of the target in cases whose rule holds in both
    #[arg(long, value_enum, default_value = "responder")]
    role: RoleName,
    /// What is recommended (SHOULD) and allowed (MAY), too
    #[arg(long)]
    strict: bool,
    /// Cases that crash or wedge some targets, too; they come last
    #[arg(long)]
    dangerous: bool,
    /// Known deviations of the target (TOML)
    #[arg(long, value_name = "FILE")]
    deviations: Option<PathBuf>,
    /// Cases at once
    #[arg(short, long, value_name = "N", default_value = "4")]
    jobs: NonZeroUsize,
    /// Print each case as it ends, also those that pass or are skipped
    #[arg(short, long)]
    verbose: bool,
    /// Seconds to wait for what has to come
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// Milliseconds to wait after startup, for a target that loses what comes at once
    #[arg(long, value_name = "MS", default_value_t = 0)]
    settle: u64,
    /// Of the payloads: another seed, other bytes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The suite's C bit: CRC32C, unless the target does without, too
    #[arg(
        long,
        value_enum,
        default_value = "on",
        env = "UWARP_CRC",
        hide_env_values = true
    )]
    crc: Switch,
    /// The suite's M bit: the target has to send Markers
    #[arg(
        long,
        value_enum,
        default_value = "off",
        env = "UWARP_MARKERS",
        hide_env_values = true
    )]
    markers: Switch,
    /// MPA revision of the suite's Requests
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2), default_value_t = 2, env = "UWARP_MPA", hide_env_values = true)]
    mpa: u8,
    /// Name the cases, one a line, and play none
    #[arg(long)]
    list: bool,
    /// Tell what a case does, and play none
    #[arg(long, value_name = "ID")]
    explain: Option<String>,
    /// Tell which requirements have cases, and play none
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

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Plays the cases, or tells of them.
///
/// # Errors
/// Something failed, or it could not run.
pub(crate) fn run_command(options: &Options) -> Result<(), Failure> {
    if options.list {
        return tell_list(&options.ids);
    }
    if let Some(id) = &options.explain {
        return tell_case(id);
    }
    if options.coverage {
        return tell_coverage();
    }
    let mut config = config(options)?;
    let files = options.files.ready()?;
    let opened = options.device.use_for(&mut config);
    opened.map_err(Failure::before_the_run)?;
    let stop = asked_to_stop()
        .map_err(|error| Failure::because(format!("signals cannot be taken: {error}")))?;
    let bar = Bar::new(options, stop);
    let outcomes = run(&config, &Selection(options.ids.clone()), &bar)
        .map_err(|error| Failure::Usage(Report::new(error.to_string())))?;
    let cases = bar.cases.load(Ordering::Relaxed);
    drop(bar);
    files.write(&options.called(), options.seed, &outcomes)?;
    tell(options, &outcomes, cases)
}

/// Reports each case as it ends, on stderr: a bar if that is a terminal, and a line for each case that
/// is neither passed nor skipped; with `--verbose`, for each case.
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

/// What is not passed, in full, and how many of what there are, of `cases` that were to be played.
fn tell(options: &Options, outcomes: &[Outcome], cases: usize) -> Result<(), Failure> {
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

/// The status of a run of `cases` cases.
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
            "see above why cases were skipped; --strict and --dangerous play more of them"
        }))),
        0 => Err(Failure::Usage(report)),
        _ => Err(Failure::Operation(report)),
    }
}

impl Options {
    /// What the target is called in reports.
    fn called(&self) -> String {
        let dialled = || "a target that dials".to_owned();
        self.target
            .as_ref()
            .map(HostPort::to_string)
            .or_else(|| self.shim.clone())
            .unwrap_or_else(dialled)
    }
}

/// A time that is not zero.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected seconds, as 5 or 0.5".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("expected a time, and more than none".to_owned()),
    }
}

fn config(options: &Options) -> Result<Config, Failure> {
    let target = match (&options.target, &options.listen, &options.shim) {
        (Some(target), ..) => Target::At(usable(target.server())?),
        (_, Some(listen), _) => Target::Dials(usable(listen.listen())?),
        (_, _, Some(command)) => Target::Command(command.clone()),
        _ => return Err(Failure::Usage(Report::new("no target is named"))),
    };
    let mut config = Config::new(target);
    config.agent = match (&options.agent, &config.target) {
        _ if options.no_agent => None,
        (Some(agent), _) => Some(usable(agent.server())?),
        (None, Target::At(target)) => Some(agent_beside(*target)?),
        (None, _) => None,
    };
    config.timeout = options.timeout;
    config.settle = Duration::from_millis(options.settle);
    config.crc = options.crc == Switch::On;
    config.markers = options.markers == Switch::On;
    config.revision = options.mpa;
    config.strict = options.strict;
    config.dangerous = options.dangerous;
    config.target_initiates = options.role == RoleName::Initiator;
    config.jobs = options.jobs.get();
    config.seed = options.seed;
    config.deviations.clone_from(&options.deviations);
    Ok(config)
}

/// An address that cannot be found keeps the run from beginning.
fn usable(addr: Result<SocketAddr, Failure>) -> Result<SocketAddr, Failure> {
    addr.map_err(Failure::before_the_run)
}

/// Where its control port is, unless another one is named.
fn agent_beside(target: SocketAddr) -> Result<SocketAddr, Failure> {
    match target.port().checked_add(1) {
        Some(port) => {
            let mut agent = target;
            agent.set_port(port);
            Ok(agent)
        }
        None => {
            let report = Report::new("there is no port behind 65535 for the agent");
            Err(Failure::Usage(
                report.advice("--agent HOST:PORT, or --no-agent"),
            ))
        }
    }
}
