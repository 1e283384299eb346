//! uwarp over TCP in user space and a byte stream over bare smoltcp, by turns, on links in memory: both ends in one thread,
//! checksums on, CRC on.
//!
//! ```sh
//! cargo run --release -p uwarp-bench --example userspace [MTU LOSS ours|bare|both [MB]]
//! ```
//!
//! Without arguments: all links. Of each, the medians of several alternations, and of their ratios.
#![allow(clippy::print_stdout, reason = "it is a program")]

mod bare;
#[path = "../traffic/pair.rs"]
mod pair;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pair::{Pair, Result, What};
use smoltcp::socket::tcp::CongestionControl;
use uwarp_verbs::TimeSource;
use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::smol::{Congestion, FaultSettings, MemoryNetwork, MemorySettings};

const ROUNDS: u64 = 7;
/// Octets of a Write.
const MESSAGE: u32 = 64 << 10;
const MESSAGES_OF_POST: u64 = 16;

/// A link, and what both stacks are set to.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    mtu: usize,
    loss: f64,
    seed: u64,
    buffer: usize,
    congestion: Congestion,
    ack_delay: Option<Duration>,
}

impl Link {
    fn new(mtu: usize, loss: f64) -> Self {
        Self {
            mtu,
            loss,
            seed: 1,
            buffer: 256 << 10,
            congestion: Congestion::None,
            ack_delay: None,
        }
    }

    /// The congestion control of a bare socket.
    pub(crate) fn bare(&self) -> CongestionControl {
        match self.congestion {
            Congestion::Reno => CongestionControl::Reno,
            Congestion::Cubic => CongestionControl::Cubic,
            _ => CongestionControl::None,
        }
    }

    fn ours(&self, what: What, size: u32, list: u64) -> Result<Pair> {
        let faults = FaultSettings {
            seed: self.seed,
            loss: self.loss,
            ..FaultSettings::default()
        };
        let settings = MemorySettings {
            mtu: self.mtu,
            receive_buffer: self.buffer,
            send_buffer: self.buffer,
            congestion: self.congestion,
            ack_delay: self.ack_delay,
            checksums: true,
            faults: (self.loss > 0.0).then_some(faults),
            ..MemorySettings::default()
        };
        let (first, second) = MemoryNetwork::pair(&settings)?;
        let networks: [Arc<dyn Network>; 2] = [Arc::new(first), Arc::new(second)];
        let at = ([192, 0, 2, 2], 0).into();
        Pair::over(networks, &TimeSource::System, at, (what, size, list))
    }

    /// GB/s of ours.
    fn run_ours(&self, megabytes: u64) -> Result<f64> {
        let count = (megabytes * 1_000_000 / u64::from(MESSAGE)).next_multiple_of(MESSAGES_OF_POST);
        let mut pair = self.ours(What::Write, MESSAGE, MESSAGES_OF_POST)?;
        let start = Instant::now();
        pair.warm(count)?;
        let octets = count * u64::from(MESSAGE);
        Ok(octets as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// GB/s of a bare stream.
    fn run_bare(&self, megabytes: u64) -> Result<f64> {
        let mut stream = bare::Stream::new(*self)?;
        let octets = usize::try_from(megabytes * 1_000_000)?;
        let start = Instant::now();
        stream.carry(octets)?;
        Ok(octets as f64 / start.elapsed().as_secs_f64() / 1e9)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn name(congestion: Congestion) -> String {
    format!("{congestion:?}").to_lowercase()
}

/// One link with every congestion control, by turns.
fn compare(mtu: usize, loss: f64, megabytes: u64) -> Result<()> {
    let kinds = [Congestion::None, Congestion::Reno, Congestion::Cubic];
    let mut rates = vec![Vec::new(); 6];
    for round in 0..ROUNDS {
        for (number, congestion) in kinds.into_iter().enumerate() {
            let mut link = Link::new(mtu, loss);
            link.seed = round;
            link.congestion = congestion;
            rates[number].push(link.run_ours(megabytes)?);
            rates[3 + number].push(link.run_bare(megabytes)?);
        }
    }
    let mut ratios = vec![Vec::new(); 3];
    for round in 0..ROUNDS as usize {
        let best = (3..6).map(|bare| rates[bare][round]).fold(0.0, f64::max);
        for ours in 0..3 {
            ratios[ours].push(rates[ours][round] / best);
        }
    }
    print!("| {mtu} | {} % ", loss * 100.0);
    for rates in &mut rates {
        print!("| {:.3} ", median(rates));
    }
    for ratios in &mut ratios {
        print!("| {:.2} ", median(ratios));
    }
    println!("|");
    Ok(())
}

fn latency() -> Result<()> {
    const TIMES: u64 = 20_000;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let link = Link::new(1500, 0.0);
        let mut pair = link.ours(What::Send, 8, 1)?;
        let start = Instant::now();
        for _ in 0..TIMES {
            pair.warm(1)?;
        }
        ours.push(start.elapsed().as_secs_f64() * 1e6 / TIMES as f64);
        let mut stream = bare::Stream::new(link)?;
        let start = Instant::now();
        stream.ping_pong(u32::try_from(TIMES)?)?;
        bare.push(start.elapsed().as_secs_f64() * 1e6 / TIMES as f64 / 2.0);
    }
    println!(
        "8 B, both ends in one thread: a Send {:.3} us, a message of a bare stream {:.3} us",
        median(&mut ours),
        median(&mut bare)
    );
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mtu, loss, which, rest @ ..] = &args[..] {
        let link = |seed| {
            let mut link = Link::new(mtu.parse()?, loss.parse()?);
            link.seed = seed;
            for option in rest {
                match option.as_str() {
                    "reno" => link.congestion = Congestion::Reno,
                    "cubic" => link.congestion = Congestion::Cubic,
                    _ => {}
                }
            }
            Ok::<_, Box<dyn std::error::Error>>(link)
        };
        let megabytes = rest.iter().find_map(|text| text.parse().ok());
        let megabytes = megabytes.unwrap_or(500);
        for seed in 1..=ROUNDS {
            let link = link(seed)?;
            let ours = if which == "bare" {
                0.0
            } else {
                link.run_ours(megabytes)?
            };
            let bare = if which == "ours" {
                0.0
            } else {
                link.run_bare(megabytes)?
            };
            println!(
                "MTU {mtu}, loss {loss}, {}: ours {ours:.3}, bare {bare:.3} GB/s, ratio {:.2}",
                name(link.congestion),
                ours / bare
            );
        }
        return Ok(());
    }
    println!(
        "| MTU | loss | ours none | reno | cubic | bare none | reno | cubic | ours none to the best bare | reno | cubic |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for mtu in [1500, 9000] {
        for (loss, megabytes) in [(0.0, 300), (0.001, 100), (0.01, 50)] {
            compare(mtu, loss, megabytes)?;
        }
    }
    latency()
}
