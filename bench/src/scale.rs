//! How it goes with many: connections, active connections, regions.
//!
//! Each number of connections is a pair of processes of its own, that this command starts from itself; all of them stand
//! while it measures, and one pair after the other has its turn. On one side of a pair all connections
//! complete to one CQ, which is the hard case.

mod limit;
mod memory;
mod registration;
mod server;
mod worker;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use uwarp_verbs::llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_verbs::{Device, Settings};

use crate::document;
use crate::process::{Pinning, Running, Side};
use crate::stats::{Spread, digits, median};

/// Options.
#[derive(Parser, Debug)]
#[command(
    name = "uwarp-bench scale",
    about = "Many connections, many active ones, many regions: each beside few of them"
)]
struct Options {
    /// Connections: one pair of processes for each number
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1_000, 10_000])]
    conns: Vec<usize>,
    /// Registered regions at the target: one pair of processes for each number
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1_000, 1_000_000])]
    regions: Vec<usize>,
    /// Rounds: each measures everything once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds for each figure of a round
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Both ends in one process, over TCP in user space and a link in memory
    #[arg(long)]
    smol: bool,
    /// Congestion control of all connections, where the machine allows it: the default may pace
    #[arg(long, value_name = "NAME", default_value = "reno")]
    congestion: String,
    /// Write the table into this document, between its markers
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Only measurements with this in their names
    #[arg(value_name = "FILTER", conflicts_with = "write")]
    only: Vec<String>,
    /// What a process that the command starts is
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// The server of a client
    #[arg(long, hide = true)]
    addr: Option<SocketAddr>,
}

/// What a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Role {
    /// One side of a pair.
    Server,
    /// The other one, which measures.
    Client,
    /// Both, over a link in memory.
    Both,
}

/// What a pair is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Shape {
    conns: usize,
    regions: usize,
}

/// One thing to measure.
struct Figure {
    name: String,
    unit: &'static str,
    shape: Shape,
    /// What the client of the pair is asked.
    ask: String,
    /// It is compared with the first one of its group, which is named here.
    base: Option<String>,
}

/// What processes of a pair know of each other: lines there and back.
struct Peer {
    _child: Running,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(
        role: Role,
        shape: Shape,
        options: &Options,
        addr: Option<SocketAddr>,
    ) -> io::Result<(Self, String)> {
        let side = match role {
            Role::Server => Side::Server,
            Role::Client | Role::Both => Side::Client,
        };
        let pinning = match role {
            // It has the threads of both sides.
            Role::Both => Pinning { processors: None },
            Role::Server | Role::Client => Pinning::usual(),
        };
        let mut command = pinning.command(side, std::env::current_exe()?);
        command.args(["scale", "--role", role.name()]);
        command.args(["--conns", &shape.conns.to_string()]);
        command.args(["--regions", &shape.regions.to_string()]);
        if let Some(addr) = addr {
            command.args(["--addr", &addr.to_string()]);
        }
        command.args(["--congestion", &options.congestion]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a process without pipes"));
        };
        let lines = BufReader::new(stdout).lines();
        let mut peer = Peer {
            _child: Running(child),
            stdin,
            lines,
        };
        let said = peer.hear()?;
        Ok((peer, said))
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdin, "{line}")?;
        self.stdin.flush()
    }

    fn hear(&mut self) -> io::Result<String> {
        let line = self.lines.next().transpose()?;
        line.ok_or_else(|| io::Error::other("a process of the measurement has ended"))
    }

    fn ask(&mut self, line: &str) -> io::Result<f64> {
        self.say(line)?;
        let answer = self.hear()?;
        let number = answer.trim().parse();
        number.map_err(|_| io::Error::other(format!("{line}: {answer}")))
    }
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
            Role::Both => "both",
        }
    }
}

/// Two sides that are connected.
struct Pair {
    /// `None` where one process is both.
    server: Option<Peer>,
    client: Peer,
    kernel: f64,
}

impl Pair {
    fn start(shape: Shape, options: &Options) -> io::Result<Self> {
        let kernel = memory::kernel();
        let (server, addr) = match options.smol {
            true => (None, None),
            false => {
                let (server, addr) = Peer::start(Role::Server, shape, options, None)?;
                let addr = addr.parse().map_err(|_| io::Error::other(addr))?;
                (Some(server), Some(addr))
            }
        };
        let role = if options.smol {
            Role::Both
        } else {
            Role::Client
        };
        let (client, said) = Peer::start(role, shape, options, addr)?;
        if said != "ready" {
            return Err(io::Error::other(said));
        }
        Ok(Pair {
            server,
            client,
            kernel: (memory::kernel() - kernel) / (2 * shape.conns) as f64,
        })
    }

    /// The server polls while the client does what it is asked.
    fn measure(&mut self, ask: &str) -> io::Result<f64> {
        if let Some(server) = &mut self.server {
            server.say("spin")?;
        }
        self.client.ask(ask)
    }

    /// Octets of the processes' own for one connection.
    fn memory(&mut self) -> io::Result<[f64; 2]> {
        let client = self.client.ask("memory")?;
        let server = match &mut self.server {
            Some(server) => server.ask("memory")?,
            None => client,
        };
        Ok([client, server])
    }
}

/// What to do when the arguments of the program ask for this.
pub(crate) fn is_wanted(args: &[String]) -> Option<io::Result<()>> {
    (args.get(1)? == "scale").then(|| run(&Options::parse_from(&args[1..])))
}

/// What this process was started as.
fn run(options: &Options) -> io::Result<()> {
    let needed = options.conns.iter().max().copied().unwrap_or(1) + 100;
    match options.role {
        Some(Role::Server) => {
            limit::raise_to(needed)?;
            server::serve(options.shape(), &options.device()?)
        }
        Some(Role::Client) => {
            limit::raise_to(needed)?;
            let Some(addr) = options.addr else {
                return Err(io::Error::other("a client without a server"));
            };
            worker::client(options.shape(), addr, &options.device()?)
        }
        Some(Role::Both) => {
            limit::raise_to(2 * needed)?;
            worker::both(options.shape())
        }
        None => {
            limit::raise_to(if options.smol { 2 * needed } else { needed })?;
            compare(options)
        }
    }
}

impl Options {
    fn shape(&self) -> Shape {
        Shape {
            conns: self.conns.first().copied().unwrap_or(1),
            regions: self.regions.first().copied().unwrap_or(1),
        }
    }

    /// A device of kernel TCP.
    fn device(&self) -> io::Result<Device> {
        let settings = KernelSettings {
            congestion: Some(self.congestion.clone()),
            ..KernelSettings::default()
        };
        let network = KernelNetwork::new(settings, None);
        Device::open(Arc::new(network), Settings::default()).map_err(io::Error::other)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// All that may be measured.
    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let seconds = self.seconds;
        let mut group = |kind: &str, unit, asks: Vec<(String, Shape, String)>| {
            let mut base = None;
            for (name, shape, ask) in asks {
                let name = format!("{kind}, {name}");
                if self.wants(&name) {
                    figures.push(Figure {
                        name: name.clone(),
                        unit,
                        shape,
                        ask,
                        base: base.clone(),
                    });
                    base.get_or_insert(name);
                }
            }
        };
        for (kind, unit, ask) in [
            ("8 B Send latency", "us", "latency"),
            ("8 B Send latency, blocking", "us", "sleepy"),
            ("64 KiB Write", "GB/s", "bandwidth"),
        ] {
            let of = |&conns: &usize| {
                let shape = Shape { conns, regions: 1 };
                (
                    format!("1 of {conns} active"),
                    shape,
                    format!("{ask} {seconds}"),
                )
            };
            group(kind, unit, self.conns.iter().map(of).collect());
        }
        let most = self
            .conns
            .iter()
            .copied()
            .filter(|conns| *conns >= 1000)
            .min();
        if let Some(conns) = most {
            let shape = Shape { conns, regions: 1 };
            for (list, how) in [(16, "lists of 16"), (1, "one a post")] {
                let of = |active| {
                    let ask = format!("rate {active} {list} {seconds}");
                    (format!("{active} of {conns} active"), shape, ask)
                };
                let kind = format!("64 B Write rate, {how}");
                group(&kind, "M/s", [16, conns].map(of).into());
            }
        }
        for (kind, unit, ask) in [
            ("8 B Read latency (both ways)", "us", "region-latency"),
            ("64 B Write rate, lists of 64", "M/s", "region-rate"),
        ] {
            let of = |&regions: &usize| {
                let shape = Shape { conns: 1, regions };
                (
                    format!("{regions} regions"),
                    shape,
                    format!("{ask} {seconds}"),
                )
            };
            group(kind, unit, self.regions.iter().map(of).collect());
        }
        let largest = self.regions.iter().copied().max().unwrap_or(1);
        let shape = Shape {
            conns: 1,
            regions: largest,
        };
        let of = |(name, ask): (&str, &str)| {
            (
                format!("memory of {largest}, {name}"),
                shape,
                format!("{ask} {seconds}"),
            )
        };
        let asks = [
            ("one region", "spread-rate"),
            ("its own regions", "region-rate"),
        ];
        group(
            "64 B Write rate, same addresses",
            "M/s",
            asks.map(of).into(),
        );
        figures
    }
}

fn compare(options: &Options) -> io::Result<()> {
    let figures = options.figures();
    let mut pairs = BTreeMap::new();
    for figure in &figures {
        let shape = figure.shape;
        if let std::collections::btree_map::Entry::Vacant(entry) = pairs.entry(shape) {
            eprint!(
                "\r{} connections, {} regions   ",
                shape.conns, shape.regions
            );
            entry.insert(Pair::start(shape, options)?);
        }
    }
    let memory = memories(options, &mut pairs)?;
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); figures.len()];
    let mut registered = Vec::new();
    for round in 1..=options.rounds {
        eprint!("\rround {round} of {}                 ", options.rounds);
        for (figure, values) in figures.iter().zip(&mut rounds) {
            if let Some(pair) = pairs.get_mut(&figure.shape) {
                values.push(pair.measure(&figure.ask)?);
            }
        }
        if options.wants("registration") && !options.smol {
            registered.push(registration::measure(&options.regions)?);
        }
    }
    eprint!("\r{:40}\r", "");
    let mut text =
        String::from("| | median | | ratio to the first of its kind |\n|---|---|---|---|\n");
    for (figure, values) in figures.iter().zip(&rounds) {
        let base = figure.base.as_ref().and_then(|base| {
            let at = figures.iter().position(|figure| figure.name == *base)?;
            rounds.get(at)
        });
        text += &row(&figure.name, figure.unit, values, base);
    }
    for (name, rates) in registration::by_count(&options.regions, &registered) {
        let first = (rates.len() > 1).then(|| &rates[0].1);
        for (at, (count, values)) in rates.iter().enumerate() {
            let name = format!("{name}, up to {count} regions");
            text += &row(&name, "M/s", values, first.filter(|_| at > 0));
        }
    }
    text += &memory;
    print!("{text}");
    if let Some(path) = &options.write {
        document::write(path, &[("scale", text)])?;
    }
    Ok(())
}

/// A row of the table.
fn row(name: &str, unit: &str, values: &[f64], base: Option<&Vec<f64>>) -> String {
    let ratio = base.and_then(|base| Spread::of_ratios(values, base));
    let ratio = ratio.map_or(String::new(), |ratio| ratio.to_string());
    let median = digits(median(&mut values.to_vec()));
    format!("| {name} | {median} | {unit} | {ratio} |\n")
}

/// What idle connections hold. Each pair is asked before it has done anything, and after each of its connections
/// has carried data.
fn memories(options: &Options, pairs: &mut BTreeMap<Shape, Pair>) -> io::Result<String> {
    let mut text = String::new();
    if !options.wants("memory") {
        return Ok(text);
    }
    for (shape, pair) in pairs.iter_mut().filter(|(shape, _)| shape.conns >= 100) {
        let fresh = pair.memory()?;
        pair.measure("touch")?;
        let used = pair.memory()?;
        let whose = if options.smol {
            ["both sides", ""]
        } else {
            ["client", "server"]
        };
        for (side, name) in whose
            .into_iter()
            .enumerate()
            .filter(|(_, name)| !name.is_empty())
        {
            let states = [("", fresh[side]), (", after 64 KiB each way", used[side])];
            for (state, octets) in states {
                let name = format!(
                    "memory of one of {} idle connections, {name}{state}",
                    shape.conns
                );
                text += &row(&name, "KiB", &[octets / 1024.0], None);
            }
        }
        let name = format!("the same, the kernel's own of one side, of {}", shape.conns);
        text += &row(&name, "KiB", &[pair.kernel / 1024.0], None);
    }
    Ok(text)
}
