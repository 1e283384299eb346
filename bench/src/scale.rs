//! Measures scaling with the number of connections, active connections and regions.
//!
//! For each number of connections there is a pair of processes, which this command starts from
//! itself. All pairs exist during the measurement and take turns. On each side of a pair, all
//! connections complete to one CQ, which is the hard case.

mod figures;
mod limit;
mod memory;
mod pair;
mod raw;
mod registration;
mod report;
mod server;
mod validation;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use uwarp_verbs::llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_verbs::{Device, Settings};

use crate::distance::Processors;
use crate::process::Pinning;
use crate::progress;
use crate::sample::Sample;
use crate::targets::Bound;
use crate::{document, machine};
use figures::{Figure, Numbers};
use pair::{Carrier, Pair, Role, Shape};
use report::{Line, Part, Target};
use validation::{Regions, Which};

/// Size in bytes of each socket buffer in user space, for the measurement of the memory of a
/// connection without its buffers.
const SMALL_BUFFER: usize = 4096;
/// Number of descriptors that a process needs besides its connections, with a reserve.
const BESIDES: usize = 100;
/// Target for the memory of a connection in KiB.
const MOST_KIB: f64 = 12.0;

/// Options.
#[derive(Parser, Debug)]
#[command(
    name = "uwarp-bench scale",
    about = "Many connections, many active ones, many regions: each beside few of them"
)]
struct Options {
    /// Connections; one pair of processes for each number
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1_000, 10_000])]
    conns: Vec<usize>,
    /// Registered regions at the target; one pair of processes for each number
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1_000, 1_000_000])]
    regions: Vec<usize>,
    /// Rounds; each measures everything once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds for each figure of a round
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Measure only over this; by default over one after another
    #[arg(long)]
    over: Option<Carrier>,
    /// Congestion control of all kernel connections, if the machine permits it: the default may
    /// pace
    #[arg(long, value_name = "NAME", default_value = "reno")]
    congestion: String,
    /// Report to write: a section of this run replaces that of an earlier one
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Measure only figures with this in their names
    #[arg(value_name = "FILTER", conflicts_with = "write")]
    only: Vec<String>,
    /// Role of a process that this command starts
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// Server of a client
    #[arg(long, hide = true)]
    addr: Option<SocketAddr>,
    /// Bytes of socket buffers in user space
    #[arg(long, hide = true)]
    buffer: Option<usize>,
}

/// Runs this benchmark if the program's first argument is its name.
pub(crate) fn is_wanted(args: &[String]) -> Option<io::Result<()>> {
    (args.get(1)? == "scale").then(|| run(&Options::parse_from(&args[1..])))
}

/// Runs the role of this process: the benchmark itself, or one side of a pair.
fn run(options: &Options) -> io::Result<()> {
    let conns = options.conns.iter().max().copied().unwrap_or(1);
    let needed = conns + BESIDES;
    match options.role {
        Some(Role::Server) => {
            limit::raise_to(needed)?;
            server::serve(options.shape(), &options.device()?)
        }
        Some(Role::Client) => {
            limit::raise_to(needed)?;
            worker::client(options.shape(), options.server()?, &options.device()?)
        }
        Some(Role::RawServer) => {
            limit::raise_to(needed)?;
            raw::serve(conns, &options.congestion)
        }
        Some(Role::RawClient) => {
            limit::raise_to(needed)?;
            raw::client(conns, options.server()?, &options.congestion)
        }
        Some(Role::Both) => {
            limit::raise_to(2 * conns + BESIDES)?;
            worker::both(options.shape())
        }
        None => {
            limit::raise_to(needed)?;
            compare(options)
        }
    }
}

impl Options {
    fn shape(&self) -> Shape {
        Shape {
            conns: self.conns.first().copied().unwrap_or(1),
            regions: self.regions.first().copied().unwrap_or(1),
            buffer: self.buffer,
            raw: false,
        }
    }

    fn server(&self) -> io::Result<SocketAddr> {
        self.addr
            .ok_or_else(|| io::Error::other("a client without a server"))
    }

    /// Opens a device on kernel TCP.
    fn device(&self) -> io::Result<Device> {
        let settings = KernelSettings::default().congestion(Some(self.congestion.clone()));
        let network = KernelNetwork::new(settings, None);
        Device::open(Arc::new(network), Settings::default()).map_err(io::Error::other)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Returns the numbers of connections and regions to measure. With an in-memory link, both ends
    /// are in one process, so its limit of descriptors also limits the connections.
    fn numbers(&self, carrier: Carrier) -> Numbers {
        let fit = |&conns: &usize| match carrier {
            Carrier::Kernel => conns,
            Carrier::Smol => limit::both_ends(conns, BESIDES),
        };
        Numbers {
            conns: self.conns.iter().map(fit).collect(),
            regions: self.regions.clone(),
            seconds: self.seconds,
        }
    }
}

fn compare(options: &Options) -> io::Result<()> {
    let processors = Processors::new(&Pinning::usual());
    let mut parts = Vec::new();
    for carrier in Carrier::ALL {
        if options.over.is_none_or(|over| over == carrier) {
            let (figures, memory) = over(carrier, options, &processors)?;
            parts.push(figures);
            parts.push(memory);
        }
    }
    if options.over != Some(Carrier::Smol) {
        parts.push(of_regions(options)?);
    }
    progress::over();
    let about = machine::about(options.rounds as u64, options.seconds, &processors);
    let text = format!("{about}\n\n{}", report::report(&parts));
    println!("{text}");
    match &options.write {
        Some(path) => document::write(path, &[("Many connections, many regions", text)]),
        None => Ok(()),
    }
}

/// Measures all figures of one carrier, and the memory of its connections. Then ends the processes.
fn over(carrier: Carrier, options: &Options, processors: &Processors) -> io::Result<(Part, Part)> {
    let wanted = |figure: &Figure| options.wants(&figure.name);
    let numbers = options.numbers(carrier);
    let figures = figures::all(carrier, &numbers).into_iter().filter(wanted);
    let mut figures: Vec<(Figure, Vec<Sample>)> =
        figures.map(|figure| (figure, Vec::new())).collect();
    let mut shapes: Vec<Shape> = figures.iter().map(|(figure, _)| figure.shape).collect();
    let small = Shape {
        buffer: Some(SMALL_BUFFER),
        ..Shape::of_conns(1_000)
    };
    if options.wants("memory") {
        shapes.extend(numbers.conns.iter().map(|conns| Shape::of_conns(*conns)));
        shapes.extend((carrier == Carrier::Smol).then_some(small));
    }
    let mut pairs = BTreeMap::new();
    for shape in shapes {
        if let std::collections::btree_map::Entry::Vacant(entry) = pairs.entry(shape) {
            progress::now(format_args!(
                "{}: {} connections, {} regions",
                carrier.told(),
                shape.conns,
                shape.regions
            ));
            entry.insert(Pair::start(carrier, shape, &options.congestion)?);
        }
    }
    let memory = match options.wants("memory") {
        true => memories(carrier, &mut pairs)?,
        false => Vec::new(),
    };
    // The pair with small buffers was needed only for its memory.
    pairs.remove(&small);
    for round in 1..=options.rounds {
        for (figure, samples) in &mut figures {
            progress::now(format_args!(
                "{}, round {round} of {}: {}",
                carrier.told(),
                options.rounds,
                figure.name
            ));
            if let Some(pair) = pairs.get_mut(&figure.shape) {
                let mut measure = || pair.measure(&figure.ask);
                let sample = processors.sample(|| measure().map(Sample::of));
                samples.push(sample?);
            }
        }
    }
    let memory = Part {
        title: format!("Memory of idle connections over {}", carrier.told()),
        lines: memory,
    };
    Ok((report::part(carrier, &figures), memory))
}

/// Measures the memory of idle connections. Each pair is measured before its first use, and again
/// after each of its connections has carried data.
fn memories(carrier: Carrier, pairs: &mut BTreeMap<Shape, Pair>) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    let most = pairs.keys().map(|shape| shape.conns).max();
    for (shape, pair) in pairs
        .iter_mut()
        .filter(|(shape, _)| shape.conns >= 100 && !shape.raw)
    {
        progress::now(format_args!(
            "{}: memory of {}",
            carrier.told(),
            shape.conns
        ));
        let fresh = pair.memory()?;
        pair.measure("touch")?;
        let used = pair.memory()?;
        let buffers = 2.0 * shape.buffer.unwrap_or(0) as f64;
        // A connection in user space has a target only if the size of its buffers is known.
        let judged = match carrier {
            Carrier::Kernel => Some(shape.conns) == most,
            Carrier::Smol => shape.buffer.is_some(),
        };
        let target = judged.then_some(Target::Value(Bound::AtMost(MOST_KIB)));
        let mut line = |what: &str, bytes: f64, target| {
            lines.push(Line {
                name: format!("one side of one of {}{what}", shape.conns),
                unit: "KiB",
                samples: vec![Sample::of(bytes / 1024.0)],
                base: None,
                target,
            });
        };
        let apart = match shape.buffer {
            Some(bytes) => format!(", its two buffers of {bytes} bytes apart"),
            None => String::new(),
        };
        let sides: &[(&str, usize)] = match carrier {
            Carrier::Kernel => &[(", client", 0), (", server", 1)],
            Carrier::Smol => &[("", 0)],
        };
        for (name, side) in sides {
            if shape.buffer.is_none() {
                line(&format!("{name}, never used"), fresh[*side], target);
            }
            let bytes = used[*side] - buffers;
            line(
                &format!("{name}, after 64 KiB each way{apart}"),
                bytes,
                target,
            );
        }
        if carrier == Carrier::Kernel {
            line(", the kernel's own", pair.kernel, None);
        }
    }
    Ok(lines)
}

/// Measures the validation and the registration of regions in this process.
fn of_regions(options: &Options) -> io::Result<Part> {
    let mut lines = Vec::new();
    if options.wants("validation") {
        lines.extend(validations(options)?);
    }
    if options.wants("registration") {
        let mut rounds = Vec::new();
        for round in 1..=options.rounds {
            progress::now(format_args!(
                "registration, round {round} of {}",
                options.rounds
            ));
            rounds.push(registration::measure(&options.regions)?);
        }
        for (what, rates) in registration::by_count(&options.regions, &rounds) {
            let bound = Bound::AtLeast(1.0);
            let target = (what == registration::REGISTRATION).then_some(Target::Value(bound));
            lines.extend(series(what, "M/s", &rates, |_| target));
        }
    }
    Ok(Part {
        title: "Regions, in one thread".to_owned(),
        lines,
    })
}

fn validations(options: &Options) -> io::Result<Vec<Line>> {
    let time = Duration::try_from_secs_f64(options.seconds / 4.0)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mut regions = Vec::new();
    for &count in &options.regions {
        progress::now(format_args!("validation: {count} regions"));
        regions.push(Regions::register(count)?);
    }
    let series_of = |which| {
        let empty = regions.iter().map(|regions| (regions.count, Vec::new()));
        (which, empty.collect::<Vec<(usize, Vec<f64>)>>())
    };
    let mut all = Which::ALL.map(series_of);
    for _ in 0..options.rounds {
        for (which, rates) in &mut all {
            for (regions, (_, values)) in regions.iter().zip(rates) {
                values.push(regions.measure(*which, time)?);
            }
        }
    }
    let lines = all.iter().flat_map(|(which, rates)| {
        let what = match which {
            Which::One => "STag validation, the same again and again",
            Which::Any => "STag validation, any at random (with what caches miss of the table)",
        };
        series(what, "ns", rates, |at| {
            (at > 0).then_some(Target::Ratio(Bound::AtMost(1.2)))
        })
    });
    Ok(lines.collect())
}

/// Returns one row of values for each number. Each row is compared with the row of the first
/// number.
fn series(
    what: &str,
    unit: &'static str,
    rates: &[(usize, Vec<f64>)],
    target: impl Fn(usize) -> Option<Target>,
) -> Vec<Line> {
    let name = |count: usize| format!("{what}, of {count}");
    let mut lines: Vec<Line> = Vec::new();
    for (at, (count, values)) in rates.iter().enumerate() {
        let base = lines
            .first()
            .map(|first| (first.name.clone(), first.samples.clone()));
        lines.push(Line {
            name: name(*count),
            unit,
            samples: values.iter().copied().map(Sample::of).collect(),
            base,
            target: target(at),
        });
    }
    lines
}
