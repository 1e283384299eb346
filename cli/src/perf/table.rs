//! Text output in the format of perftest.

use std::fmt::Write;
use std::net::SocketAddr;

use uwarp_perf::{Atomic, Figures, Plan, Row, Test, Until, Waiting};
use uwarp_verbs::Device;

use super::options::Report;
use super::{both, messages};

pub(super) const RULE: &str =
    "---------------------------------------------------------------------------------------";

/// Number of bytes in perftest's MB.
const MEBI: f64 = (1 << 20) as f64;

/// Returns the number of bytes per second in one unit of the report.
pub(super) fn scale(gigabits: bool) -> f64 {
    if gigabits { 1e9 / 8.0 } else { MEBI }
}

/// Formats results in the units and columns that the options select.
pub(super) struct Table {
    /// True for Gbit/s, false for MB/s.
    gigabits: bool,
    /// True to add a column with the busy time of this machine's processors.
    cpu_util: bool,
}

impl Table {
    pub(super) fn new(report: &Report) -> Self {
        Table {
            gigabits: report.gigabits,
            cpu_util: report.cpu_util,
        }
    }

    /// Returns the name of the unit of bandwidth.
    pub(super) fn unit(&self) -> &'static str {
        if self.gigabits { "Gb/sec" } else { "MB/sec" }
    }

    /// Returns the average bandwidth of both directions together, in the unit of the report.
    pub(super) fn average(&self, row: &Row) -> f64 {
        both(row).map_or(0.0, |both| both.average) / scale(self.gigabits)
    }

    /// Returns the message rate of both directions together, in millions per second.
    #[expect(clippy::unused_self, reason = "as `average`")]
    pub(super) fn rate(&self, row: &Row) -> f64 {
        both(row).map_or(0.0, |both| both.rate) / 1e6
    }

    /// Returns the description of the test and the headings of the columns.
    pub(super) fn head(
        &self,
        plan: &Plan,
        peer: SocketAddr,
        congestion: Option<&str>,
        device: &Device,
    ) -> String {
        let crc = if device.settings().crc {
            "ON"
        } else {
            "if the peer asks"
        };
        let mut out = format!("{RULE}\n                    {}\n", title(plan));
        let mut line = |left: &str, is: String, right: &str, that: String| {
            let _ = writeln!(out, " {left:<15} : {is:<22} {right:<15} : {that}");
        };
        line(
            "Number of qps",
            plan.qps.to_string(),
            "Transport type",
            "IW".into(),
        );
        line("Peer", peer.to_string(), "Device", device.describe());
        line(
            "TX depth",
            plan.tx_depth.to_string(),
            "Post List",
            plan.post_list.to_string(),
        );
        line(
            "CQ Moderation",
            plan.cq_moderation.to_string(),
            "Max inline data",
            format!("{}[B]", plan.inline),
        );
        line(
            "Outstand reads",
            plan.reads.to_string(),
            "CRC32C",
            crc.into(),
        );
        let mut line = |name: &str, is: &str| {
            let _ = writeln!(out, " {name:<15} : {is}");
        };
        if plan.test.is_atomic() {
            let atomic = match plan.atomic {
                Atomic::FetchAdd => "FETCH_AND_ADD",
                Atomic::CompareSwap => "CMP_AND_SWAP",
            };
            line("Atomic type", atomic);
        }
        if plan.test.takes_receives() {
            line("Using SRQ", if plan.srq { "ON" } else { "OFF" });
        }
        line("Congestion", congestion.unwrap_or("unknown"));
        line("Waiting", &waiting(plan));
        line("For each size", &until(plan));
        out.push_str(&self.columns(plan));
        out
    }

    /// Returns the headings of the columns.
    pub(super) fn columns(&self, plan: &Plan) -> String {
        let mut heads = if plan.test.is_latency() {
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]".to_owned()
        } else {
            let unit = self.unit();
            format!(
                " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]   CPU[s/GB]"
            )
        };
        if self.cpu_util {
            heads.push_str("    CPU_Util[%]");
        }
        format!("{RULE}\n{heads}")
    }

    /// Formats the times of single messages as perftest does: in the order of the messages
    /// (`unsorted`), sorted, or both. Returns `None` if neither is selected.
    pub(super) fn samples(&self, row: &Row, unsorted: bool, sorted: bool) -> Option<String> {
        let list = |samples: &[f64]| {
            let mut out = "#, usec".to_owned();
            for (index, sample) in samples.iter().enumerate() {
                let _ = write!(out, "\n{}, {sample:.3}", index + 1);
            }
            out
        };
        let mut lists = Vec::new();
        if unsorted {
            lists.push(list(&row.samples));
        }
        if sorted {
            let mut samples = row.samples.clone();
            samples.sort_by(f64::total_cmp);
            lists.push(list(&samples));
        }
        (!lists.is_empty()).then(|| lists.join("\n"))
    }

    /// Formats the row of results for one size.
    pub(super) fn row(&self, row: &Row) -> String {
        let mut out = match &row.figures {
            Figures::Latency(latency) => format!(
                " {:<7} {:<10}     {:<7.2}        {:<7.2}      {:<7.2}            {:<7.2}        {:<7.2}         {:<7.2}                {:<7.2}",
                row.size,
                row.messages,
                latency.min,
                latency.max,
                latency.p50,
                latency.mean,
                latency.deviation,
                latency.p99,
                latency.p999
            ),
            // As in perftest, one number covers both directions, and a peak that was not measured
            // is 0.
            Figures::Bandwidth(mine) => {
                let sum = both(row).unwrap_or(*mine);
                let cpu = row.cpu_per_gb().map_or("-".to_owned(), |(this, that)| {
                    format!("{this:.3} + {that:.3}")
                });
                let scale = scale(self.gigabits);
                format!(
                    " {:<7}    {:<10}     {:<12.2}       {:<12.2}         {:<10.6}      {cpu}",
                    row.size,
                    messages(row),
                    sum.peak.unwrap_or(0.0) / scale,
                    sum.average / scale,
                    sum.rate / 1e6
                )
            }
        };
        if self.cpu_util {
            let percent = row.machine_cpu.unwrap_or(0.0);
            let _ = write!(out, "     {percent:<3.2}");
        }
        out
    }
}

/// Returns the title of the test.
fn title(plan: &Plan) -> String {
    let both = if plan.bidirectional {
        "Bidirectional "
    } else {
        ""
    };
    let what = match plan.test {
        Test::WriteBandwidth => "RDMA_Write Bandwidth Test",
        Test::ReadBandwidth => "RDMA_Read Bandwidth Test",
        Test::SendBandwidth => "Send Bandwidth Test",
        Test::WriteLatency => "RDMA_Write Latency Test",
        Test::ReadLatency => "RDMA_Read Latency Test",
        Test::SendLatency => "Send Latency Test",
        Test::WriteImmBandwidth => "RDMA_Write With Immediate Bandwidth Test",
        Test::WriteImmLatency => "RDMA_Write With Immediate Latency Test",
        Test::AtomicBandwidth => "Atomic Bandwidth Test",
        Test::AtomicLatency => "Atomic Latency Test",
    };
    format!("{both}{what}")
}

/// Describes how the two sides wait.
fn waiting(plan: &Plan) -> String {
    let waiting = match plan.waiting {
        Waiting::Poll => "polling",
        Waiting::Block => "blocked in the wait call",
        Waiting::Channel => "blocked on a completion channel",
        Waiting::Memory => "watching the buffer",
    };
    let target = if plan.target_sleeps {
        "; the target sleeps"
    } else {
        ""
    };
    format!("{waiting}{target}")
}

/// Describes the length of a measurement: a number of messages, or a time.
fn until(plan: &Plan) -> String {
    match plan.until {
        Until::Iterations => {
            format!(
                "{} messages after {} for warm-up",
                plan.iterations, plan.warm_up
            )
        }
        Until::Seconds(seconds) => {
            let margin = if plan.margin > 0.0 {
                format!(", excluding {} s at both ends,", plan.margin)
            } else {
                String::new()
            };
            format!(
                "{seconds} s{margin} after {} messages for warm-up",
                plan.warm_up
            )
        }
    }
}
