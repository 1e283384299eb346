//! Options of `uwarp perf`, and the plan that they define.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use uwarp_perf::{ATOMIC_SIZE, Atomic, Plan, Test, Until, Waiting};

use super::perftest::Ignored;
use crate::address::Host;
use crate::common::{Common, memory_size};
use crate::device::DeviceOption;

/// Options of `uwarp perf`, with the names of perftest.
#[derive(Args, Debug)]
#[command(
    version,
    after_help = "Example, in two terminals:\n  \
    uwarp perf\n  \
    uwarp perf write_bw 127.0.0.1 -a\n\
    The client tells the server which test to run, so the server needs no TEST.\n\
    Without --bind (and without an address in --device) a server serves clients of this host only."
)]
pub(crate) struct Options {
    /// Test to run; a client needs it
    #[arg(value_name = "TEST", value_enum)]
    pub(super) test: Option<TestName>,
    /// Address or name of the server; without it, this is the server
    #[arg(value_name = "ADDRESS", requires = "test")]
    pub(super) server: Option<Host>,
    /// Port of the server
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 18515)]
    pub(super) port: u16,
    /// Server: address to listen on, 0.0.0.0 or :: for all (default: the device's address, or
    /// loopback). Client: address to connect from
    #[arg(
        long,
        value_name = "ADDRESS",
        aliases = ["bind_source_ip", "source_ip"]
    )]
    pub(super) bind: Option<Host>,
    /// Server: serve clients one after the other until it is stopped, instead of one client
    #[arg(short = 'P', long, conflicts_with = "server")]
    pub(super) persistent: bool,
    /// Server: memory that the test of a client may use; K, M or G after the number stand for KiB,
    /// MiB, GiB
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1G",
        value_parser = memory_size,
        conflicts_with = "server"
    )]
    pub(super) max_memory: u64,
    /// Token: a server serves only clients that send the same one. It is sent unencrypted [default
    /// of a server: the environment variable UWARP_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub(super) token: Option<String>,
    #[command(flatten)]
    pub(super) load: Load,
    #[command(flatten)]
    pub(super) report: Report,
    #[command(flatten)]
    pub(super) ignored: Ignored,
    #[command(flatten)]
    pub(super) device: DeviceOption,
    #[command(flatten)]
    pub(super) common: Common,
}

/// Load of a test. The client sends it to the server.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load (client)")]
pub(super) struct Load {
    /// Bytes of a message; K, M or G after the number stand for KiB, MiB, GiB [default: 64K for
    /// bandwidth, 2 for latency; atomics always have 8]
    #[arg(short = 's', long, value_name = "SIZE", value_parser = size)]
    size: Option<u32>,
    /// Run all sizes from 2 to 8 MiB (2^23)
    #[arg(short = 'a', long, conflicts_with = "size")]
    all: bool,
    /// Messages on each QP [default: 5000 for bandwidth, 1000 for latency]
    #[arg(short = 'n', long = "iters", value_name = "COUNT")]
    iterations: Option<u64>,
    /// Measure for this time instead of a number of messages
    #[arg(
        short = 'D',
        long,
        value_name = "SECONDS",
        conflicts_with = "iterations"
    )]
    duration: Option<f64>,
    /// With -D: exclude this time at the beginning and at the end [default: 0]
    #[arg(short = 'f', long, value_name = "SECONDS", requires = "duration")]
    margin: Option<f64>,
    /// Repeat the measurement, with a row for each -D (default 5 s), until it is stopped
    #[arg(long = "run_infinitely", alias = "run-infinitely",
        conflicts_with_all = ["iterations", "all", "json", "histogram", "unsorted"])]
    pub(super) run_infinitely: bool,
    /// Messages on each QP before the measured ones [default: a tenth of these]
    #[arg(long = "warm-up", value_name = "COUNT")]
    warm_up: Option<u64>,
    /// Number of QPs, each with its own connection
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
    /// Receives posted on each QP, or in the shared receive queue
    #[arg(
        short = 'r',
        long = "rx-depth",
        value_name = "COUNT",
        default_value_t = 512
    )]
    rx_depth: u32,
    /// Let all QPs of a side share one receive queue (tests with receives)
    #[arg(long = "use-srq", alias = "use_srq")]
    srq: bool,
    /// Work requests in one post
    #[arg(
        short = 'l',
        long = "post_list",
        alias = "post-list",
        value_name = "COUNT",
        default_value_t = 1
    )]
    post_list: u32,
    /// Messages for one completion
    #[arg(
        short = 'Q',
        long = "cq-mod",
        value_name = "COUNT",
        default_value_t = 100
    )]
    cq_moderation: u32,
    /// Post messages of at most this many bytes inline
    #[arg(
        short = 'I',
        long = "inline_size",
        alias = "inline-size",
        value_name = "SIZE",
        default_value_t = 0
    )]
    inline: u32,
    /// Reads and atomic operations outstanding on each QP
    #[arg(short = 'o', long = "outs", value_name = "COUNT", default_value_t = 16)]
    reads: u16,
    /// Operation of the atomic tests
    #[arg(
        short = 'A',
        long = "atomic_type",
        alias = "atomic-type",
        value_enum,
        ignore_case = true,
        value_name = "TYPE",
        default_value = "FETCH_AND_ADD"
    )]
    atomic: AtomicName,
    /// Write tests: use Writes with Immediate Data, as write_imm_bw and write_imm_lat do
    #[arg(long = "write_with_imm", alias = "write-with-imm")]
    write_with_imm: bool,
    /// Send in both directions (bandwidth)
    #[arg(short = 'b', long = "bidirectional")]
    bidirectional: bool,
    /// Sleep in the wait call while idle; the same as --wait block
    #[arg(short = 'e', long = "events", conflicts_with = "wait")]
    events: bool,
    /// Way to wait for completions
    #[arg(long, value_enum, default_value = "poll", value_name = "HOW")]
    wait: WaitName,
    /// Let the server's application sleep in one-sided tests, instead of polling
    #[arg(long = "target-sleeps")]
    target_sleeps: bool,
}

/// Content and format of the results.
#[derive(Args, Debug)]
#[command(next_help_heading = "Report")]
pub(super) struct Report {
    /// Print the results as JSON (client)
    #[arg(long, requires = "server")]
    pub(super) json: bool,
    /// Save the last row to a file in perftest's JSON format (client)
    #[arg(long = "out_json", alias = "out-json", conflicts_with = "all")]
    pub(super) out_json: bool,
    /// Name of that file
    #[arg(
        long = "out_json_file",
        alias = "out-json-file",
        value_name = "FILE",
        requires = "out_json",
        default_value = "perftest_out.json"
    )]
    pub(super) out_json_file: PathBuf,
    /// Show bandwidth in Gbit/s (10^9) instead of MB/s (2^20)
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub(super) gigabits: bool,
    /// Latency tests: list the time of each message, sorted
    #[arg(short = 'H', long = "report-histogram", alias = "report-histogrm")]
    pub(super) histogram: bool,
    /// Latency tests: list the time of each message, in the order of the messages
    #[arg(short = 'U', long = "report-unsorted")]
    pub(super) unsorted: bool,
    /// Bandwidth tests: do not measure the peak
    #[arg(short = 'N', long = "noPeak", alias = "no-peak")]
    pub(super) no_peak: bool,
    /// With -D: add a column with the busy time of all processors of this machine
    #[arg(long = "cpu_util", alias = "cpu-util", requires = "duration")]
    pub(super) cpu_util: bool,
    /// Bandwidth tests: fail (exit code 1) if no row reaches this average, in the unit of the
    /// report
    #[arg(short = 'w', long = "limit_bw", alias = "limit-bw", value_name = "BANDWIDTH", value_parser = limit)]
    pub(super) limit_bw: Option<f64>,
    /// Bandwidth tests: fail (exit code 1) if no row reaches this message rate, in millions a
    /// second
    #[arg(short = 'y', long = "limit_msgrate", alias = "limit-msgrate", value_name = "RATE", value_parser = limit)]
    pub(super) limit_msgrate: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum TestName {
    /// Bandwidth of RDMA Writes
    WriteBw,
    /// Bandwidth of RDMA Reads
    ReadBw,
    /// Bandwidth of Sends
    SendBw,
    /// Bandwidth of RDMA Writes with Immediate Data
    WriteImmBw,
    /// Rate of atomic operations
    AtomicBw,
    /// Half of the round trip of two RDMA Writes, detected in memory
    WriteLat,
    /// Time of an RDMA Read, from post to completion
    ReadLat,
    /// Half of the round trip of two Sends
    SendLat,
    /// Half of the round trip of two RDMA Writes with Immediate Data
    WriteImmLat,
    /// Time of an atomic operation, from post to completion
    AtomicLat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum AtomicName {
    /// Add 1 to a word of the server
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    /// Compare a word of the server with 0, and store 0
    #[value(name = "CMP_AND_SWAP")]
    CmpAndSwap,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum WaitName {
    /// Poll the completion queue
    Poll,
    /// Block in uwarp's wait call
    Block,
    /// Block in poll(2) on the descriptor of a completion channel
    Channel,
    /// Poll once and then watch the buffer, without a call (write_lat)
    Memory,
}

impl From<TestName> for Test {
    fn from(name: TestName) -> Self {
        match name {
            TestName::WriteBw => Test::WriteBandwidth,
            TestName::ReadBw => Test::ReadBandwidth,
            TestName::SendBw => Test::SendBandwidth,
            TestName::WriteImmBw => Test::WriteImmBandwidth,
            TestName::AtomicBw => Test::AtomicBandwidth,
            TestName::WriteLat => Test::WriteLatency,
            TestName::ReadLat => Test::ReadLatency,
            TestName::SendLat => Test::SendLatency,
            TestName::WriteImmLat => Test::WriteImmLatency,
            TestName::AtomicLat => Test::AtomicLatency,
        }
    }
}

/// Parses `64`, `4K`, `1M`.
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

fn limit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(limit) if limit >= 0.0 && limit.is_finite() => Ok(limit),
        _ => Err("expected a number that is not negative".to_owned()),
    }
}

impl Options {
    /// Returns the plan that a client requests.
    ///
    /// # Errors
    /// The options exclude each other.
    pub(super) fn plan(&self, test: TestName) -> Result<Plan, String> {
        let test = self.load.test(test)?;
        self.report.check(test)?;
        let mut plan = self.load.plan(test);
        plan.peak = !self.report.no_peak;
        plan.samples = self.report.histogram || self.report.unsorted;
        Ok(plan)
    }
}

impl Report {
    /// Returns the names of given options that have an effect only at a client. Users of perftest
    /// give both sides the same options.
    pub(super) fn client_only(&self) -> Vec<&'static str> {
        let given = [
            (self.out_json, "--out_json"),
            (self.histogram, "-H"),
            (self.unsorted, "-U"),
            (self.no_peak, "-N"),
            (self.limit_bw.is_some(), "-w"),
            (self.limit_msgrate.is_some(), "-y"),
        ];
        let names = given
            .iter()
            .filter_map(|(given, name)| given.then_some(*name));
        names.collect()
    }

    /// Rejects combinations that perftest rejects as well.
    fn check(&self, test: Test) -> Result<(), String> {
        let is_for_bandwidth = [
            (self.no_peak, "-N"),
            (self.limit_bw.is_some(), "-w"),
            (self.limit_msgrate.is_some(), "-y"),
        ];
        for (is_given, option) in is_for_bandwidth {
            if is_given && test.is_latency() {
                let name = test.name();
                return Err(format!(
                    "{option} is for bandwidth tests, but {name} measures latency"
                ));
            }
        }
        Ok(())
    }
}

impl Load {
    fn test(&self, name: TestName) -> Result<Test, String> {
        let test = Test::from(name);
        match test {
            _ if !self.write_with_imm => Ok(test),
            Test::WriteBandwidth | Test::WriteImmBandwidth => Ok(Test::WriteImmBandwidth),
            Test::WriteLatency | Test::WriteImmLatency => Ok(Test::WriteImmLatency),
            other => Err(format!(
                "--write_with_imm is for write tests, not for {}",
                other.name()
            )),
        }
    }

    fn plan(&self, test: Test) -> Plan {
        let sizes = match (self.all, self.size) {
            (true, _) => (1..=23).map(|bit| 1 << bit).collect(),
            (false, Some(size)) => vec![size],
            (false, None) if test.is_atomic() => vec![ATOMIC_SIZE],
            (false, None) if test.is_latency() => vec![2],
            (false, None) => vec![64 << 10],
        };
        let mut plan = Plan::new(test, &sizes);
        plan.iterations = self.iterations.unwrap_or(plan.iterations);
        plan.warm_up = self.warm_up.unwrap_or(plan.iterations / 10);
        let duration = match self.duration {
            None if self.run_infinitely => Some(5.0),
            duration => duration,
        };
        plan.until = duration.map_or(Until::Iterations, Until::Seconds);
        plan.margin = self.margin.unwrap_or(0.0);
        plan.qps = self.qps;
        plan.tx_depth = self.tx_depth;
        plan.rx_depth = self.rx_depth;
        plan.srq = self.srq;
        plan.post_list = self.post_list;
        plan.cq_moderation = self.cq_moderation;
        plan.inline = self.inline;
        plan.atomic = match self.atomic {
            AtomicName::FetchAndAdd => Atomic::FetchAdd,
            AtomicName::CmpAndSwap => Atomic::CompareSwap,
        };
        plan.bidirectional = self.bidirectional;
        plan.waiting = match self.wait {
            _ if self.events => Waiting::Block,
            WaitName::Poll => Waiting::Poll,
            WaitName::Block => Waiting::Block,
            WaitName::Channel => Waiting::Channel,
            WaitName::Memory => Waiting::Memory,
        };
        plan.target_sleeps = self.target_sleeps;
        plan.reads = self.reads;
        plan
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

    #[test]
    fn a_limit_is_a_number_that_is_not_negative() {
        assert_eq!(limit("0.5"), Ok(0.5));
        for wrong in ["-1", "NaN", "inf", "", "fast"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }
}
