//! Compares unmodified RDMA programs on the drop-in library with `uwarp perf` and raw TCP. Compares
//! MPI over uwarp with MPI over libfabric's own TCP provider.
//!
//! The programs are Debian's perftest and a small MPI program (`bench/c/mpi.c`), which is compiled
//! on first use. They run under `uwarp run`, which finds the library next to itself.

mod figures;
mod lab;
mod mpi;
mod perftest;
mod report;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::distance::Processors;
use crate::ours::Uwarp;
use crate::process::Pinning;
use crate::progress;
use crate::sample::Sample;
use crate::{document, machine, namespace, peers};
use lab::Lab;
use report::Measured;

/// Options.
#[derive(Parser, Debug)]
#[command(
    name = "uwarp-bench dropin",
    about = "Unmodified RDMA programs on the drop-in library, beside uwarp perf and raw TCP"
)]
struct Options {
    /// The command to measure; the library must be next to it
    #[arg(long, default_value = "target/release/uwarp")]
    uwarp: PathBuf,
    /// Rounds; each measures everything once, by turns
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Seconds for each figure of a round
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Congestion control of all connections: the machine's default may pace
    #[arg(long, value_name = "NAME", default_value = "reno")]
    congestion: String,
    /// Install the programs that are missing (Debian, as root)
    #[arg(long)]
    install_peers: bool,
    /// Report to write: a section of this run replaces that of an earlier one
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Measure only figures with this in their names, and those they are compared with
    #[arg(value_name = "FILTER", conflicts_with = "write")]
    only: Vec<String>,
}

/// Programs with their Debian packages. Missing ones can be installed.
const PACKAGES: [(&str, &str); 4] = [
    (perftest::PROGRAM, perftest::PACKAGE),
    ("mpirun", "openmpi-bin"),
    ("mpicc", "libopenmpi-dev"),
    ("fi_info", "libfabric-bin"),
];

/// Runs this benchmark if the program's first argument is its name.
pub(crate) fn is_wanted(args: &[String]) -> Option<io::Result<()>> {
    (args.get(1)? == "dropin").then(|| run(&Options::parse_from(&args[1..])))
}

fn run(options: &Options) -> io::Result<()> {
    if options.install_peers && !namespace::is_own() {
        peers::install_packages(&PACKAGES)?;
    }
    namespace::enter(&options.congestion)?;
    let time = Duration::try_from_secs_f64(options.seconds)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let uwarp = Uwarp {
        path: options.uwarp.clone(),
        congestion: Some(options.congestion.clone()),
        pinning: Pinning::usual(),
        with: Vec::new(),
    };
    let processors = Processors::new(&uwarp.pinning);
    let mut lab = Lab::new(uwarp, time)?;
    let goals = figures::goals();
    let named = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
    };
    let mut all: Vec<Measured> = figures::all()
        .into_iter()
        .filter(|figure| named(figure.name) || report::is_base(figure, &goals, named))
        .map(Measured::new)
        .collect();
    for round in 1..=options.rounds {
        measure(&mut lab, &processors, (round, options.rounds), &mut all);
    }
    progress::over();
    let mut about = machine::about(options.rounds, options.seconds, &processors);
    about.push_str(&versions());
    let text = format!("{about}\n\n{}", report::report(&goals, &all));
    println!("{text}");
    match &options.write {
        Some(path) => document::write(path, &[("Unmodified programs", text)]),
        None => Ok(()),
    }
}

/// Returns the installed versions of the packages.
fn versions() -> String {
    let told = |package: &str| match peers::version(package) {
        Some(version) => format!("{package} {version}"),
        None => format!("{package} is not installed"),
    };
    let packages = [
        perftest::PACKAGE,
        "openmpi-bin",
        "libopenmpi-dev",
        "libfabric1",
    ];
    format!(" Programs: {}.", packages.map(told).join(", "))
}

/// Measures every figure once.
fn measure(
    lab: &mut Lab,
    processors: &Processors,
    (round, rounds): (u64, u64),
    all: &mut [Measured],
) {
    let count = all.len();
    for (at, measured) in all.iter_mut().enumerate() {
        let name = measured.figure.name;
        progress::now(format_args!(
            "round {round} of {rounds}: {} of {count}, {name}",
            at + 1
        ));
        let sample = processors.sample(|| lab.measure(&measured.figure.of));
        let sample = sample.unwrap_or_else(|error| {
            if measured.failure.is_none() {
                progress::tell(format_args!("{name}: {error}"));
            }
            measured.failure = Some(error.to_string());
            Sample::NONE
        });
        measured.samples.push(sample);
    }
}
