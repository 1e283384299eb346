//! `uwarp conformance`: what an endpoint gets wrong, requirement by requirement.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use uwarp_conformance::report::{Counts, failure, html, json, junit, pcaps, summary};
use uwarp_conformance::{
    Config, Outcome, Progress, Selection, Target, Verdict, codes, coverage, explain, list,
    requirements, run, section_of,
};

use crate::failure::{Failure, Report};
use crate::output::{Output, notice};

/// Options of `uwarp conformance`.
#[derive(Args, Debug)]
#[command(after_help = "Example, in two terminals:\n  \
    uwarp agent -a 127.0.0.1 -p 7174\n  \
    uwarp conformance --target 127.0.0.1:7174\n\n\
    Exit codes: 0 all passed, 1 something failed, 2 it could not run.")]
pub(crate) struct Options {
    /// Cases: ids, beginnings of ids, or patterns with `*`; all without any
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// The endpoint under test listens here
    #[arg(long, value_name = "HOST:PORT", required_unless_present_any = ["listen", "shim", "list", "explain", "coverage"])]
    target: Option<String>,
    /// The suite listens here, and the endpoint under test is told to connect
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["target", "shim"])]
    listen: Option<String>,
    /// A command that is started for each case and connects; {host}, {port} and {addr} in it are replaced, or the
    /// address is added
    #[arg(long, value_name = "CMD", conflicts_with = "target")]
    shim: Option<String>,
    /// The control port of the agent beside the target; by default the target's port + 1
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "no_agent")]
    agent: Option<String>,
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
    #[arg(short, value_name = "N", default_value_t = 4)]
    jobs: usize,
    /// Seconds to wait for what has to come
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    timeout: f64,
    /// Milliseconds to wait after startup, for a target that loses what comes at once
    #[arg(long, value_name = "MS", default_value_t = 0)]
    settle: u64,
    /// Of the payloads: another seed, other octets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The suite's C bit: CRC32C, unless the target does without, too
    #[arg(long, value_enum, default_value = "on")]
    crc: Switch,
    /// The suite's M bit: the target has to send Markers
    #[arg(long, value_enum, default_value = "off")]
    markers: Switch,
    /// MPA revision of the suite's Requests
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2), default_value_t = 2)]
    mpa: u8,
    /// Write the outcomes to FILE as JSON; `-` is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the outcomes to FILE as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the outcomes to FILE as one HTML page, with the wire log of each case
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Another target on that page: what an earlier run wrote with --json
    #[arg(long, value_name = "FILE", requires = "html")]
    beside: Vec<PathBuf>,
    /// Write a pcapng file for each case that fails into DIR
    #[arg(long, value_name = "DIR")]
    pcaps: Option<PathBuf>,
    /// The name of the target in these files; by default its address
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Name the cases, one a line, and play none
    #[arg(long)]
    list: bool,
    /// Tell what a case does, and play none
    #[arg(long, value_name = "ID")]
    explain: Option<String>,
    /// Tell which requirements have cases, and play none
    #[arg(long)]
    coverage: bool,
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
        return tell_list(&Selection(options.ids.clone()));
    }
    if let Some(id) = &options.explain {
        return tell_case(id);
    }
    if options.coverage {
        return tell_coverage();
    }
    let config = config(options)?;
    let selection = Selection(options.ids.clone());
    let outcomes = run(&config, &selection, &Bar::new(options.seed))
        .map_err(|error| Failure::Usage(Report::new(error.to_string())))?;
    tell(options, &outcomes)
}

/// Tells of each case as it ends, on stderr: a bar where that is a terminal, and a line for each that is not passed.
struct Bar {
    bar: ProgressBar,
    seed: u64,
}

impl Bar {
    fn new(seed: u64) -> Self {
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Bar { bar, seed }
    }
}

impl Progress for Bar {
    fn begins(&self, cases: usize) {
        self.bar.set_length(cases as u64);
        notice(format_args!("{cases} cases, seed {}", self.seed));
    }

    fn played(&self, outcome: &Outcome) {
        self.bar.set_message(outcome.id.clone());
        self.bar.inc(1);
        if !matches!(outcome.verdict, Verdict::Pass | Verdict::Skipped(_)) {
            self.bar.suspend(|| {
                notice(format_args!(
                    "{:<10} {}",
                    outcome.verdict.word(),
                    outcome.id
                ));
            });
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Writes the files that were asked for.
fn write_files(options: &Options, outcomes: &[Outcome]) -> Result<(), Failure> {
    let dialled = "a target that dials".to_owned();
    let name = options.name.as_ref().or(options.target.as_ref());
    let target = name.unwrap_or(&dialled);
    if let Some(path) = &options.json {
        let text = json(target, outcomes).to_string();
        if path.as_os_str() == "-" {
            Output::Stdout.line(text)?;
        } else {
            write_file(path, &text)?;
        }
    }
    if let Some(path) = &options.junit {
        write_file(path, &junit(target, outcomes))?;
    }
    if let Some(path) = &options.html {
        let mut runs = vec![json(target, outcomes)];
        for other in &options.beside {
            runs.push(read_json(other)?);
        }
        write_file(path, &html(&runs))?;
    }
    if let Some(directory) = &options.pcaps {
        pcaps(directory, outcomes).map_err(|error| {
            let what = format!(
                "captures cannot be written into {}: {error}",
                directory.display()
            );
            Failure::because(what)
        })?;
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::because(format!("{} cannot be written: {error}", path.display())))
}

fn read_json(path: &Path) -> Result<serde_json::Value, Failure> {
    let unusable = |error: String| {
        let what = format!("{} cannot be used: {error}", path.display());
        let expected = "a file that `uwarp conformance --json` wrote";
        Failure::Usage(Report::new(what).expected(expected))
    };
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let run: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    if run["cases"].is_array() {
        Ok(run)
    } else {
        Err(unusable("it has no cases".into()))
    }
}

fn tell(options: &Options, outcomes: &[Outcome]) -> Result<(), Failure> {
    let out = match &options.json {
        Some(path) if path.as_os_str() == "-" => Output::Stderr,
        _ => Output::Stdout,
    };
    write_files(options, outcomes)?;
    for outcome in outcomes {
        if !matches!(outcome.verdict, Verdict::Pass | Verdict::Skipped(_)) {
            out.line(failure(outcome))?;
        }
    }
    out.line(summary(outcomes))?;
    let counts = Counts::of(outcomes);
    let bad = counts.failed + counts.errors + counts.unexpected;
    if bad > 0 {
        return Err(Failure::because(format!(
            "{bad} of {} cases",
            outcomes.len()
        )));
    }
    Ok(())
}

fn config(options: &Options) -> Result<Config, Failure> {
    let target = match (&options.target, &options.listen, &options.shim) {
        (Some(target), ..) => Target::At(address(target)?),
        (_, Some(listen), _) => Target::Dials(address(listen)?),
        (_, _, Some(command)) => Target::Command(command.clone()),
        _ => return Err(Failure::Usage(Report::new("no target is named"))),
    };
    let mut config = Config::new(target);
    config.agent = match (&options.agent, &config.target) {
        _ if options.no_agent => None,
        (Some(agent), _) => Some(address(agent)?),
        (None, Target::At(target)) => Some((target.ip(), target.port().wrapping_add(1)).into()),
        (None, _) => None,
    };
    config.timeout = Duration::try_from_secs_f64(options.timeout).map_err(|error| {
        Failure::Usage(Report::new(format!(
            "--timeout {}: {error}",
            options.timeout
        )))
    })?;
    config.settle = Duration::from_millis(options.settle);
    config.crc = options.crc == Switch::On;
    config.markers = options.markers == Switch::On;
    config.revision = options.mpa;
    config.strict = options.strict;
    config.dangerous = options.dangerous;
    config.target_initiates = options.role == RoleName::Initiator;
    config.jobs = options.jobs;
    config.seed = options.seed;
    config.deviations.clone_from(&options.deviations);
    Ok(config)
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    let mut found = text.to_socket_addrs().map_err(|error| {
        let what = format!("{text} is no address: {error}");
        Failure::Usage(Report::new(what).expected("HOST:PORT"))
    })?;
    found
        .next()
        .ok_or_else(|| Failure::Usage(Report::new(format!("{text} has no address"))))
}

fn tell_list(selection: &Selection) -> Result<(), Failure> {
    for case in list() {
        if selection.takes(&case.id) {
            Output::Stdout.line(format_args!("{} {} {}", case.id, case.level, case.rule))?;
        }
    }
    Ok(())
}

fn tell_case(id: &str) -> Result<(), Failure> {
    let Some((case, steps)) = explain(id) else {
        let report = Report::new(format!("there is no case {id}"));
        return Err(Failure::Usage(report.advice("--list shows them all")));
    };
    let out = Output::Stdout;
    out.line(format_args!("{} ({})\n{}", case.id, case.level, case.rule))?;
    let catalogue = requirements();
    for id in &case.requirements {
        let words = catalogue.get(id).map_or("", |row| row.text.as_str());
        out.line(format_args!("  {id}: {words}"))?;
    }
    for (number, step) in steps.iter().enumerate() {
        out.line(format_args!("{:>3}. {step}", number + 1))?;
    }
    Ok(())
}

fn tell_coverage() -> Result<(), Failure> {
    let coverage = coverage();
    let out = Output::Stdout;
    let mut sections: Vec<(String, [usize; 4])> = Vec::new();
    for row in requirements().into_values() {
        if row.observable != "wire" {
            continue;
        }
        let section = section_of(&row.id).to_owned();
        if sections.last().is_none_or(|(last, _)| *last != section) {
            sections.push((section, [0; 4]));
        }
        if let Some((_, counts)) = sections.last_mut() {
            counts[0] += 1;
            if coverage.cases.contains_key(&row.id) {
                counts[1] += 1;
            } else if coverage.exceptions.contains_key(&row.id) {
                counts[2] += 1;
            } else if row.is_must() || row.is_should() {
                counts[3] += 1;
            }
        }
    }
    out.line(format_args!(
        "{:<16} {:>5} {:>6} {:>9} {:>8}",
        "section", "rows", "cases", "exception", "missing"
    ))?;
    let mut sum = [0; 4];
    for (section, counts) in &sections {
        let [rows, cases, exceptions, missing] = counts;
        out.line(format_args!(
            "{section:<16} {rows:>5} {cases:>6} {exceptions:>9} {missing:>8}"
        ))?;
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    let [rows, cases, exceptions, missing] = sum;
    out.line(format_args!(
        "{:<16} {rows:>5} {cases:>6} {exceptions:>9} {missing:>8}",
        "all"
    ))?;
    let codes = codes();
    let [cases, exceptions, missing] = [
        codes.cases.len(),
        codes.exceptions.len(),
        codes.missing.len(),
    ];
    out.line(format_args!(
        "{:<16} {:>5} {cases:>6} {exceptions:>9} {missing:>8}",
        "Terminate codes",
        cases + exceptions + missing
    ))
}
