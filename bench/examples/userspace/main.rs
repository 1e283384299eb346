//! Compares uwarp over TCP in user space with a byte stream over bare smoltcp, on in-memory links.
//! Both ends are in one thread. Checksums are on, and uwarp also uses its CRC.
//!
//! ```sh
//! cargo run --release -p uwarp-bench --example userspace \
//!     [MTU [LOSS ours|bare|both none|reno|cubic MB]]
//! cargo run --release -p uwarp-bench --example userspace ping ours|bare COUNT
//! ```
//!
//! Without arguments it measures all links. It prints the medians of several rounds, and the
//! medians of the ratios.
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

const ROUNDS: u64 = 5;
/// Length of a Write in bytes.
const MESSAGE: u32 = 64 << 10;
const MESSAGES_OF_POST: u64 = 16;

/// A link, and the settings of both stacks on it.
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

    /// Returns the congestion control for a bare socket.
    pub(crate) fn bare(&self) -> CongestionControl {
        match self.congestion {
            Congestion::Reno => CongestionControl::Reno,
            Congestion::Cubic => CongestionControl::Cubic,
            _ => CongestionControl::None,
        }
    }

    fn ours(&self, what: What, size: u32, list: u64) -> Result<Pair> {
        let faults = FaultSettings::default().seed(self.seed).loss(self.loss);
        let settings = MemorySettings::default()
            .mtu(self.mtu)
            .receive_buffer(self.buffer)
            .send_buffer(self.buffer)
            .congestion(self.congestion)
            .early_recovery(self.loss > 0.0)
            .ack_delay(self.ack_delay)
            .checksums(true)
            .faults((self.loss > 0.0).then_some(faults));
        let (first, second) = MemoryNetwork::pair(&settings)?;
        let networks: [Arc<dyn Network>; 2] = [Arc::new(first), Arc::new(second)];
        let at = ([192, 0, 2, 2], 0).into();
        Pair::over(networks, &TimeSource::System, at, (what, size, list))
    }

    /// Returns the bandwidth of uwarp in GB/s.
    fn run_ours(&self, megabytes: u64) -> Result<f64> {
        let count = (megabytes * 1_000_000 / u64::from(MESSAGE)).next_multiple_of(MESSAGES_OF_POST);
        let mut pair = self.ours(What::Write, MESSAGE, MESSAGES_OF_POST)?;
        let start = Instant::now();
        pair.warm(count)?;
        let bytes = count * u64::from(MESSAGE);
        Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// Returns the bandwidth of a bare stream in GB/s.
    fn run_bare(&self, megabytes: u64) -> Result<f64> {
        let mut stream = bare::Stream::new(*self)?;
        let bytes = usize::try_from(megabytes * 1_000_000)?;
        let start = Instant::now();
        stream.carry(bytes)?;
        Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the number of megabytes to transfer. A bare stream that loses packets sometimes waits
/// for a second. The number is large enough to include such waits, and small enough for a short
/// run.
fn megabytes(loss: f64, bare: bool, congestion: Congestion) -> u64 {
    match (loss > 0.001, bare, congestion) {
        _ if loss == 0.0 => 300,
        (false, false, _) | (false, true, Congestion::None) => 100,
        (true, false, _) => 20,
        (false, true, _) => 15,
        (true, true, _) => 3,
    }
}

/// Compares both stacks on one link with every congestion control, alternately.
fn compare(mtu: usize, loss: f64) -> Result<()> {
    let kinds = [Congestion::None, Congestion::Reno, Congestion::Cubic];
    let mut rates = vec![Vec::new(); 6];
    for round in 0..ROUNDS {
        for (number, congestion) in kinds.into_iter().enumerate() {
            let mut link = Link::new(mtu, loss);
            link.seed = round;
            link.congestion = congestion;
            rates[number].push(link.run_ours(megabytes(loss, false, congestion))?);
            rates[3 + number].push(link.run_bare(megabytes(loss, true, congestion))?);
        }
    }
    let mut ratios = vec![Vec::new(); 3];
    let rounds = |number: usize| rates[number].iter().copied();
    let best: Vec<f64> = (rounds(3).zip(rounds(4)).zip(rounds(5)))
        .map(|((none, reno), cubic)| none.max(reno).max(cubic))
        .collect();
    for (number, ratios) in ratios.iter_mut().enumerate() {
        ratios.extend(rounds(number).zip(&best).map(|(ours, best)| ours / best));
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

/// Sends 8 bytes in each direction `count` times, for a profiler. In the profile of uwarp,
/// `sender_turn_counted` contains the work of one end.
fn ping(which: &str, count: u32) -> Result<()> {
    let link = Link::new(1500, 0.0);
    if which == "bare" {
        return bare::Stream::new(link)?.ping_pong(count);
    }
    let mut pair = link.ours(What::Ping, 8, 1)?;
    pair.counted(count.into())?;
    println!("{} messages", pair.done);
    Ok(())
}

/// Measures one link round by round, for a profiler.
fn single(link: Link, which: &str, megabytes: u64) -> Result<()> {
    for seed in 1..=ROUNDS {
        let link = Link { seed, ..link };
        let run = |wanted: &str, run: &dyn Fn() -> Result<f64>| {
            if which == wanted || which == "both" {
                run()
            } else {
                Ok(0.0)
            }
        };
        let ours = run("ours", &|| link.run_ours(megabytes))?;
        let bare = run("bare", &|| link.run_bare(megabytes))?;
        println!("ours {ours:.3} GB/s, bare {bare:.3} GB/s");
    }
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let kind = |name: &str| match name {
        "reno" => Congestion::Reno,
        "cubic" => Congestion::Cubic,
        _ => Congestion::None,
    };
    let mtus = match &args[..] {
        [] => vec![1500, 9000],
        [mtu] => vec![mtu.parse()?],
        ["ping", which, count] => return ping(which, count.parse()?),
        [mtu, loss, which, congestion, megabytes] => {
            let mut link = Link::new(mtu.parse()?, loss.parse()?);
            link.congestion = kind(congestion);
            return single(link, which, megabytes.parse()?);
        }
        _ => {
            return Err(
                "arguments: [MTU [LOSS ours|bare|both none|reno|cubic MB]], or ping ours|bare COUNT".into(),
            );
        }
    };
    println!("GB/s, medians of {ROUNDS} rounds; ratios to the best bare one of each round");
    println!(
        "| MTU | loss | ours: none | reno | cubic | bare: none | reno | cubic | ratio: none | reno | cubic |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for mtu in mtus {
        for loss in [0.0, 0.001, 0.01] {
            compare(mtu, loss)?;
        }
    }
    latency()
}
