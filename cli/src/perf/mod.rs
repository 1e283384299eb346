//! `uwarp perf`: bandwidth, message rate and latency, with the flags and the output of perftest.

mod table;

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use uwarp_perf::{PerfError, Plan, Server, Test, Until, Waiting};
use uwarp_verbs::Device;

use crate::address::resolve;
use crate::common::{self, Common};
use crate::device::{DeviceOption, look_at_network};
use crate::explain;
use crate::failure::{Failure, Report};
use crate::output::{Output, notice};

/// Options of `uwarp perf`: those of perftest.
#[derive(Args, Debug)]
#[command(after_help = "Example, in two terminals:\n  \
    uwarp perf write_bw\n  \
    uwarp perf write_bw 127.0.0.1 -a\n\
    A server takes its part from the client: its own TEST need not be the client's, and may be left out.")]
pub(crate) struct Options {
    /// What is measured: a client has to say it
    #[arg(value_name = "TEST", value_enum)]
    test: Option<TestName>,
    /// Where the server is; without it, this is the server
    #[arg(value_name = "ADDRESS", requires = "test")]
    server: Option<String>,
    /// Port of the server
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 18515)]
    port: u16,
    /// Server: serve clients, one after the other, until it is stopped; otherwise one
    #[arg(short = 'P', long, conflicts_with = "server")]
    persistent: bool,
    #[command(flatten)]
    load: Load,
    /// Print the results as JSON (client)
    #[arg(long, requires = "server")]
    json: bool,
    /// Bandwidth in Gbit/s (10^9) in place of MB/s (2^20)
    #[arg(long = "report_gbits", alias = "report-gbits")]
    gigabits: bool,
    #[command(flatten)]
    device: DeviceOption,
    #[command(flatten)]
    common: Common,
}

/// The load: the client's business.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load (client)")]
struct Load {
    /// Octets of a message; with K, M or G that many KiB, MiB, GiB [default: 64K for bandwidth, 2 for latency]
    #[arg(short = 's', long, value_name = "SIZE", value_parser = size)]
    size: Option<u32>,
    /// All sizes from 2 to 8 MiB (2^23)
    #[arg(short = 'a', long, conflicts_with = "size")]
    all: bool,
    /// Messages on each QP [default: 5000 for bandwidth, 1000 for latency]
    #[arg(short = 'n', long = "iters", value_name = "COUNT")]
    iterations: Option<u64>,
    /// Measure for this time in place of a number of messages
    #[arg(
        short = 'D',
        long,
        value_name = "SECONDS",
        conflicts_with = "iterations"
    )]
    duration: Option<f64>,
    /// Messages on each QP before those that are measured [default: a tenth of them]
    #[arg(long = "warm-up", value_name = "COUNT")]
    warm_up: Option<u64>,
    /// Connections
    #[arg(short = 'q', long = "qp", value_name = "COUNT", default_value_t = 1)]
    qps: u32,
    /// Messages outstanding on each QP
    #[arg(
        short = 't',
        long = "tx-depth",
        value_name = "COUNT",
        default_value_t = 128
    )]
    tx_depth: u32,
    /// Receives posted on each QP
    #[arg(
        short = 'r',
        long = "rx-depth",
        value_name = "COUNT",
        default_value_t = 512
    )]
    rx_depth: u32,
    /// Work requests for one post
    #[arg(
        short = 'l',
        long = "post_list",
        alias = "post-list",
        value_name = "COUNT",
        default_value_t = 1
    )]
    post_list: u32,
    /// One completion for so many messages
    #[arg(
        short = 'Q',
        long = "cq-mod",
        value_name = "COUNT",
        default_value_t = 100
    )]
    cq_moderation: u32,
    /// Post messages of at most so many octets inline
    #[arg(
        short = 'I',
        long = "inline_size",
        alias = "inline-size",
        value_name = "SIZE",
        default_value_t = 0
    )]
    inline: u32,
    /// Reads outstanding on each QP
    #[arg(short = 'o', long = "outs", value_name = "COUNT", default_value_t = 16)]
    reads: u16,
    /// Both sides send (bandwidth)
    #[arg(short = 'b', long = "bidirectional")]
    bidirectional: bool,
    /// Sleep in the wait call while there is nothing to do: --wait block
    #[arg(short = 'e', long = "events", conflicts_with = "wait")]
    events: bool,
    /// What a side does while it has nothing to do
    #[arg(long, value_enum, default_value = "poll", value_name = "HOW")]
    wait: WaitName,
    /// The application at the server of a one-sided test sleeps, and does not poll
    #[arg(long = "target-sleeps")]
    target_sleeps: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum TestName {
    /// RDMA Writes, as many as go
    WriteBw,
    /// RDMA Reads, as many as go
    ReadBw,
    /// Sends, as many as go
    SendBw,
    /// An RDMA Write and one back, seen in memory: half of the round trip
    WriteLat,
    /// An RDMA Read, from post to completion
    ReadLat,
    /// A Send and one back: half of the round trip
    SendLat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum WaitName {
    /// It polls the completion queue
    Poll,
    /// It blocks in our own wait call
    Block,
    /// It blocks in poll(2) on the descriptor of a completion channel
    Channel,
    /// It polls once and then looks at the buffer, without a call (write_lat)
    Memory,
}

impl From<TestName> for Test {
    fn from(name: TestName) -> Self {
        match name {
            TestName::WriteBw => Test::WriteBandwidth,
            TestName::ReadBw => Test::ReadBandwidth,
            TestName::SendBw => Test::SendBandwidth,
            TestName::WriteLat => Test::WriteLatency,
            TestName::ReadLat => Test::ReadLatency,
            TestName::SendLat => Test::SendLatency,
        }
    }
}

/// `64`, `4K`, `1M`.
fn size(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u32 = digits.parse().map_err(|error| format!("{error}"))?;
    number
        .checked_mul(unit)
        .filter(|size| *size <= Plan::MAX_SIZE)
        .ok_or_else(|| "at most 1G".to_owned())
}

impl Load {
    fn plan(&self, test: Test) -> Plan {
        let sizes = match (self.all, self.size) {
            (true, _) => (1..=23).map(|bit| 1 << bit).collect(),
            (false, Some(size)) => vec![size],
            (false, None) if test.is_latency() => vec![2],
            (false, None) => vec![64 << 10],
        };
        let usual = Plan::new(test, &sizes);
        let iterations = self.iterations.unwrap_or(usual.iterations);
        Plan {
            iterations,
            warm_up: self.warm_up.unwrap_or(iterations / 10),
            until: self.duration.map_or(Until::Iterations, Until::Seconds),
            qps: self.qps,
            tx_depth: self.tx_depth,
            rx_depth: self.rx_depth,
            post_list: self.post_list,
            cq_moderation: self.cq_moderation,
            inline: self.inline,
            bidirectional: self.bidirectional,
            waiting: match self.wait {
                _ if self.events => Waiting::Block,
                WaitName::Poll => Waiting::Poll,
                WaitName::Block => Waiting::Block,
                WaitName::Channel => Waiting::Channel,
                WaitName::Memory => Waiting::Memory,
            },
            target_sleeps: self.target_sleeps,
            reads: self.reads,
            ..usual
        }
    }
}

/// Runs one side to its end.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let recording = options.common.capture()?;
    let device = options
        .device
        .open(options.common.settings(), recording.as_ref())?;
    let result = match (&options.server, options.test) {
        (Some(server), Some(test)) => client(options, &device, server, test.into()),
        _ => serve(options, &device),
    };
    if result.is_err() {
        let _ = look_at_network(&device);
    }
    drop(device);
    common::finish(result, recording.as_ref())
}

fn client(options: &Options, device: &Device, server: &str, test: Test) -> Result<(), Failure> {
    let plan = options.load.plan(test);
    plan.check()
        .map_err(|error| Failure::Usage(Report::new(error.to_string())))?;
    let addr = resolve(server, options.port)?;
    let output = options.common.output();
    let table = table::Table {
        gigabits: options.gigabits,
    };
    // A line that cannot be written is told after the measurement.
    let mut written = Ok(());
    let results = uwarp_perf::run(device, addr, &plan, |event| {
        if !options.json && written.is_ok() {
            written = table.tell(output, &event, device);
        }
    })
    .map_err(|error| failure(&error))?;
    written?;
    if options.json {
        let text = serde_json::to_string_pretty(&results)
            .map_err(|error| Failure::because(error.to_string()))?;
        return output.line(text);
    }
    output.line(table::RULE)
}

fn serve(options: &Options, device: &Device) -> Result<(), Failure> {
    let addr = SocketAddr::new(options.device.listen_ip(), options.port);
    let server = Server::listen(device, addr)
        .map_err(|error| Failure::because(format!("cannot listen on {addr}: {error}")))?;
    let output = options.common.output();
    loop {
        output.line(format_args!(
            "\n************************************\n\
             * Waiting for client to connect... *   {}\n\
             ************************************",
            server.local_addr()
        ))?;
        let result = one_client(options, device, &server, output);
        match result {
            Err(failure) if options.persistent && !matches!(failure, Failure::OutputClosed) => {
                failure.tell("perf");
                notice("uwarp perf: the server goes on");
            }
            Ok(()) if options.persistent => {}
            other => return other,
        }
        look_at_network(device)?;
    }
}

fn one_client(
    options: &Options,
    device: &Device,
    server: &Server,
    output: Output,
) -> Result<(), Failure> {
    let table = table::Table {
        gigabits: options.gigabits,
    };
    let mut written = Ok(());
    let served = server.serve_one(|event| {
        if written.is_ok() {
            written = table.tell(output, &event, device);
        }
    });
    written?;
    served.map_err(|error| failure(&error))?;
    output.line(table::RULE)
}

/// What to tell a person.
fn failure(error: &PerfError) -> Failure {
    match error {
        PerfError::Plan(error) => Failure::Usage(Report::new(error.to_string())),
        PerfError::Connect { addr, error } => {
            explain::connect(error, *addr, &format!("uwarp perf -p {}", addr.port())).into()
        }
        PerfError::Ended {
            peer,
            during,
            reason,
        } => explain::ended(*peer, during, reason).into(),
        PerfError::Protocol { .. } => Report::new(error.to_string())
            .fault("the peer: it is iWARP, and not uwarp perf of this version")
            .into(),
        other => Failure::because(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_may_have_a_unit() {
        let sizes = ["0", "64", "4K", "1m", "1G"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [0, 64, 4 << 10, 1 << 20, 1 << 30]);
        for wrong in ["", "K", "2G", "-1", "4Q", "4294967296"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
