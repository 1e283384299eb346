//! Measures uwarp, raw TCP and other programs alternately on one machine. The report has the
//! medians of all rounds, and ratios of figures that were measured next to each other.
//!
//! ```sh
//! cargo build --release -p uwarp -p uwarp-bench
//! target/release/uwarp-bench --uwarp target/release/uwarp
//! target/release/uwarp-bench scale
//! target/release/uwarp-bench smol --uwarp target/release/uwarp
//! target/release/uwarp-bench dropin --uwarp target/release/uwarp
//! ```

mod bound;
mod distance;
mod document;
mod dropin;
mod figures;
mod instructions;
mod machine;
mod namespace;
mod ours;
mod peers;
mod process;
mod progress;
mod raw;
mod report;
mod rounds;
mod sample;
mod scale;
mod siw;
mod smol;
mod stats;
mod sweep;
mod targets;
mod verdicts;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::distance::Processors;
use crate::process::Pinning;

/// Options.
#[derive(Parser, Debug)]
#[command(
    about = "uwarp beside raw TCP and beside its peers, in alternation",
    after_help = "uwarp-bench instructions --help: instructions a message, by callgrind\n\
        uwarp-bench siw --help: beside Linux siw in a virtual machine\n\
        uwarp-bench scale --help: many connections, many active ones, many regions\n\
        uwarp-bench smol --help: over TCP in user space\n\
        uwarp-bench dropin --help: unmodified RDMA programs"
)]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/uwarp")]
    uwarp: PathBuf,
    /// Rounds; each measures everything once, raw TCP and uwarp by turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rounds with other programs; 0 for none
    #[arg(long, default_value_t = 3)]
    peer_rounds: usize,
    /// Seconds for each figure of a round
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Congestion control of all connections: the machine's default may pace
    #[arg(long, value_name = "NAME", default_value = "reno")]
    congestion: String,
    /// Measure in the machine's network, not in a network namespace in which all programs have the
    /// same congestion control
    #[arg(long)]
    here: bool,
    /// Do not pin clients and servers to a processor each
    #[arg(long)]
    no_pinning: bool,
    /// Install the peers that are missing (Debian, as root)
    #[arg(long)]
    install_peers: bool,
    /// Report to write: a section of this run replaces that of an earlier one
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// More options for every `uwarp perf`, at both sides
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    with: Vec<String>,
    /// Measure only figures with this in their names, and no other programs
    #[arg(value_name = "FILTER", conflicts_with = "write")]
    only: Vec<String>,
}

impl Options {
    fn time(&self) -> io::Result<Duration> {
        Duration::try_from_secs_f64(self.seconds)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    fn pinning(&self) -> Pinning {
        if self.no_pinning {
            Pinning { processors: None }
        } else {
            Pinning::usual()
        }
    }

    fn ours(&self) -> ours::Uwarp {
        ours::Uwarp {
            path: self.uwarp.clone(),
            congestion: Some(self.congestion.clone()),
            pinning: self.pinning(),
            with: self.with.clone(),
        }
    }
}

fn main() -> ExitCode {
    machine::begin();
    let args: Vec<String> = std::env::args().collect();
    let done = raw::is_child(&args)
        .or_else(|| instructions::is_wanted(&args))
        .or_else(|| siw::is_wanted(&args))
        .or_else(|| scale::is_wanted(&args))
        .or_else(|| smol::is_wanted(&args))
        .or_else(|| dropin::is_wanted(&args))
        .unwrap_or_else(|| run(&Options::parse()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uwarp-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    if options.install_peers && !namespace::is_own() {
        peers::install()?;
    }
    if !options.here {
        namespace::enter(&options.congestion)?;
    }
    let processors = Processors::new(&options.pinning());
    let measured = rounds::run(options, &processors)?;
    let swept = if options.only.is_empty() && options.peer_rounds > 0 {
        Some(sweep::run(options, &processors)?)
    } else {
        None
    };
    let sections = [
        ("Machine", machine::describe(options, &processors)),
        ("Targets", report::targets(&measured, swept.as_ref())),
        ("All figures over kernel TCP", report::tables(&measured)),
        (
            "Beside other programs",
            (swept.as_ref()).map_or_else(|| "Not measured.".to_owned(), report::peers),
        ),
    ];
    for (_, text) in &sections {
        println!("\n{text}");
    }
    if let Some(path) = &options.write {
        document::write(path, &sections)?;
    }
    Ok(())
}
