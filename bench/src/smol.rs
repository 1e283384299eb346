//! Measures uwarp over TCP in user space. It is compared with a bare smoltcp on the same link (in
//! memory, on a TAP device, on a raw socket) and with raw kernel TCP.
//!
//! All measurements run in child processes of this command or of `uwarp perf`. The devices belong
//! to a network namespace that ends with this command.

mod bare;
mod cable;
mod card;
mod child;
mod figures;
mod lab;
mod memory;
mod report;
mod sys;
mod vnet;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::distance::Processors;
use crate::ours::Uwarp;
use crate::process::Pinning;
use crate::progress;
use crate::sample::Sample;
use crate::{document, machine, namespace};
use figures::All;
use lab::Lab;
use report::Measured;

/// Options.
#[derive(Parser, Debug)]
#[command(
    name = "uwarp-bench smol",
    about = "uwarp over TCP in user space, beside a bare smoltcp and beside raw TCP"
)]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/uwarp")]
    uwarp: PathBuf,
    /// Rounds; each measures everything once, bare smoltcp and uwarp by turns
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Seconds for each figure of a round
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Seconds for figures with packet loss: a timer of TCP may be a second
    #[arg(long, default_value_t = 2.0)]
    loss_seconds: f64,
    /// Congestion control of kernel connections: the machine's default may pace
    #[arg(long, value_name = "NAME", default_value = "reno")]
    congestion: String,
    /// Report to write: a section of this run replaces that of an earlier one
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Measure only figures with this in their names, and those they are compared with
    #[arg(value_name = "FILTER", conflicts_with = "write")]
    only: Vec<String>,
}

/// If the program's first argument requests it, runs this benchmark or one of its child processes.
pub(crate) fn is_wanted(args: &[String]) -> Option<io::Result<()>> {
    if args.get(1)? == "smol" {
        return Some(run(&Options::parse_from(&args[1..])));
    }
    child::is_wanted(args)
}

fn run(options: &Options) -> io::Result<()> {
    namespace::enter(&options.congestion)?;
    if !namespace::is_own() {
        return Err(io::Error::other(
            "devices are made in a network namespace alone, and none can be had",
        ));
    }
    let time = |seconds| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    };
    let uwarp = Uwarp {
        path: options.uwarp.clone(),
        congestion: Some(options.congestion.clone()),
        pinning: Pinning::usual(),
        with: Vec::new(),
    };
    let processors = Processors::new(&uwarp.pinning);
    let lab = Lab::new(uwarp, time(options.seconds)?, time(options.loss_seconds)?)?;
    let All { figures, goals } = figures::all();
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
    };
    let mut all: Vec<Measured> = figures
        .into_iter()
        .filter(|figure| wanted(&figure.name) || report::is_base(figure, &goals, wanted))
        .map(|figure| Measured {
            figure,
            samples: Vec::new(),
            failure: None,
        })
        .collect();
    for round in 1..=options.rounds {
        measure(&lab, &processors, (round, options.rounds), &mut all);
    }
    progress::over();
    let about = machine::about(options.rounds, options.seconds, &processors);
    let text = format!("{about}\n\n{}", report::report(&goals, &all));
    println!("{text}");
    match &options.write {
        Some(path) => document::write(path, &[("TCP in user space", text)]),
        None => Ok(()),
    }
}

/// Measures every figure once.
fn measure(lab: &Lab, processors: &Processors, (round, rounds): (u64, u64), all: &mut [Measured]) {
    let count = all.len();
    for (at, measured) in all.iter_mut().enumerate() {
        let Measured {
            figure,
            samples,
            failure,
        } = measured;
        progress::now(format_args!(
            "round {round} of {rounds}: {} of {count}, {}",
            at + 1,
            figure.name
        ));
        let sample = processors.sample(|| lab.measure(&figure.of, round));
        samples.push(sample.unwrap_or_else(|error| {
            if failure.is_none() {
                progress::tell(format_args!("{}: {error}", figure.name));
            }
            *failure = Some(error.to_string());
            Sample::NONE
        }));
    }
}
