//! Measurements by turns.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::Options;
use crate::raw::{Kind, Server};

/// One thing to measure.
struct Figure {
    name: &'static str,
    of: Of,
}

/// What it is measured by.
enum Of {
    /// Raw writes of this size: octets a second.
    Writes(usize),
    /// A raw ping-pong of so many octets: microseconds one way.
    PingPong(Kind, usize),
    /// `uwarp perf`: octets a second.
    Bandwidth(&'static [&'static str]),
    /// `uwarp perf`: messages a second.
    Rate(&'static [&'static str]),
    /// `uwarp perf`: microseconds, the median.
    Latency(&'static [&'static str]),
}

const K64: usize = 64 << 10;
const DEEP: &str = "-t16";

/// What is measured. A raw figure stands before those that are compared with it.
const FIGURES: &[Figure] = &[
    figure("raw writes of 64 KiB", Of::Writes(K64)),
    figure("64 KiB Write", Of::Bandwidth(&["write_bw", DEEP])),
    figure("64 KiB Read", Of::Bandwidth(&["read_bw", DEEP])),
    figure("64 KiB Send", Of::Bandwidth(&["send_bw", DEEP])),
    figure("4 KiB Write", Of::Bandwidth(&["write_bw", "-s4K", "-t64"])),
    figure("raw writes of 256 KiB", Of::Writes(4 * K64)),
    figure("raw writes of 1 MiB", Of::Writes(16 * K64)),
    figure("1 MiB Write", Of::Bandwidth(&["write_bw", "-s1M", DEEP])),
    figure("1 MiB Read", Of::Bandwidth(&["read_bw", "-s1M", DEEP])),
    figure("1 MiB Send", Of::Bandwidth(&["send_bw", "-s1M", DEEP])),
    figure("raw ping-pong, spinning", Of::PingPong(Kind::Spin, 8)),
    figure("8 B Write latency", Of::Latency(&["write_lat", "-s8"])),
    figure("8 B Send latency", Of::Latency(&["send_lat", "-s8"])),
    // A Read is a round trip.
    figure(
        "8 B Read latency (both ways)",
        Of::Latency(&["read_lat", "-s8"]),
    ),
    figure("raw ping-pong, blocking", Of::PingPong(Kind::Block, 8)),
    figure(
        "8 B Send latency, blocking",
        Of::Latency(&["send_lat", "-s8", "-e"]),
    ),
    figure(
        "8 B Write rate, lists of 64",
        Of::Rate(&["write_bw", "-s8", "-l64"]),
    ),
    figure(
        "8 B Write rate, one a post",
        Of::Rate(&["write_bw", "-s8", "-t64"]),
    ),
];

const fn figure(name: &'static str, of: Of) -> Figure {
    Figure { name, of }
}

/// `uwarp perf` as a server, which ends with this.
struct Perf<'a> {
    options: &'a Options,
    child: Child,
    addr: SocketAddr,
}

impl<'a> Perf<'a> {
    fn start(options: &'a Options) -> io::Result<Self> {
        let mut child = Self::command(options)
            .args(["-P", "-p0"])
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().map(BufReader::new);
        let mut lines = stdout.into_iter().flat_map(BufRead::lines);
        let addr = lines.find_map(|line| {
            let line = line.ok()?;
            line.contains("Waiting for client")
                .then(|| line.split_whitespace().last()?.parse().ok())?
        });
        // The rest of what it says is of no interest, but has to go somewhere.
        std::thread::spawn(move || lines.for_each(drop));
        match addr {
            Some(addr) => Ok(Perf {
                options,
                child,
                addr,
            }),
            None => Err(io::Error::other("uwarp perf did not start")),
        }
    }

    fn command(options: &Options) -> Command {
        let mut command = Command::new(&options.uwarp);
        let device = match &options.congestion {
            None => "tcp:127.0.0.1".to_owned(),
            Some(name) => format!("tcp:127.0.0.1,congestion={name}"),
        };
        command
            .args(["perf", "--device", &device])
            .args(&options.with);
        command
    }

    /// The figures of a test.
    fn measure(&self, args: &[&str]) -> io::Result<Value> {
        let mut args = args.to_vec();
        args.insert(1, "127.0.0.1");
        let output = Self::command(self.options)
            .args(args)
            .args(["-p", &self.addr.port().to_string(), "--json"])
            .args(["-D", &self.options.seconds.to_string()])
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(io::Error::other("uwarp perf failed"));
        }
        let results: Value = serde_json::from_slice(&output.stdout)?;
        Ok(results["rows"][0]["figures"].clone())
    }
}

impl Drop for Perf<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures everything, and prints it.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    let raw = Server::start(options.congestion.as_deref())?;
    let perf = Perf::start(options)?;
    let wanted: Vec<&Figure> = FIGURES
        .iter()
        .filter(|figure| {
            let named = |part: &String| figure.name.contains(part.as_str());
            options.only.is_empty() || figure.is_raw() || options.only.iter().any(named)
        })
        .collect();
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); wanted.len()];
    for round in 1..=options.rounds {
        eprint!("\rround {round} of {}", options.rounds);
        for (figure, values) in wanted.iter().zip(&mut rounds) {
            values.push(figure.measure(&raw, &perf, options)?);
        }
    }
    eprint!("\r");
    println!(
        "{:30} {:>10} {:6} ratio to raw, median and spread",
        "", "median", ""
    );
    let mut base = None;
    for (figure, values) in wanted.iter().zip(&rounds) {
        if figure.is_raw() {
            base = Some((figure.unit(), values));
        }
        let ratio = match base {
            Some((unit, base)) if !figure.is_raw() && unit == figure.unit() => {
                let ratios = values.iter().zip(base).map(|(ours, raw)| ours / raw);
                told(ratios.collect())
            }
            _ => String::new(),
        };
        let median = median(&mut values.clone());
        println!(
            "{:30} {median:>10.2} {:6} {ratio}",
            figure.name,
            figure.unit()
        );
    }
    Ok(())
}

fn told(mut ratios: Vec<f64>) -> String {
    let middle = median(&mut ratios);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    format!("{middle:.2}  ({least:.2} to {most:.2})")
}

/// The median; the values are sorted then.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Figure {
    fn is_raw(&self) -> bool {
        matches!(self.of, Of::Writes(_) | Of::PingPong(..))
    }

    fn unit(&self) -> &'static str {
        match self.of {
            Of::Writes(_) | Of::Bandwidth(_) => "GB/s",
            Of::PingPong(..) | Of::Latency(_) => "us",
            Of::Rate(_) => "M/s",
        }
    }

    /// In its unit.
    fn measure(&self, raw: &Server, perf: &Perf<'_>, options: &Options) -> io::Result<f64> {
        let time = Duration::from_secs(options.seconds.into());
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        Ok(match &self.of {
            Of::Writes(size) => raw.stream(*size, time)? / 1e9,
            Of::PingPong(kind, size) => raw.ping_pong(*kind, *size, time)? * 1e6,
            Of::Bandwidth(args) => number(&perf.measure(args)?["bandwidth"]["average"]) / 1e9,
            Of::Rate(args) => number(&perf.measure(args)?["bandwidth"]["rate"]) / 1e6,
            Of::Latency(args) => number(&perf.measure(args)?["latency"]["p50"]),
        })
    }
}
