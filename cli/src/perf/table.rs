//! The output of perftest.

use std::fmt::Write;
use std::net::SocketAddr;

use uwarp_perf::{Event, Figures, Plan, Row, Test, Until, Waiting};
use uwarp_verbs::Device;

use crate::failure::Failure;
use crate::output::Output;

pub(super) const RULE: &str =
    "---------------------------------------------------------------------------------------";

/// perftest's MB.
const MEBI: f64 = (1 << 20) as f64;

/// How figures are shown.
pub(super) struct Table {
    /// Gbit/s in place of MB/s.
    pub(super) gigabits: bool,
}

impl Table {
    /// A line for what happens.
    pub(super) fn tell(
        &self,
        output: Output,
        event: &Event<'_>,
        device: &Device,
    ) -> Result<(), Failure> {
        match event {
            Event::Begins { peer, plan } => output.line(self.head(plan, *peer, device)),
            Event::Row(row) => output.line(self.row(row)),
            _ => Ok(()),
        }
    }

    /// What is measured, and the heads of the columns.
    fn head(&self, plan: &Plan, peer: SocketAddr, device: &Device) -> String {
        let what = match plan.test {
            Test::WriteBandwidth => "RDMA_Write Bandwidth Test",
            Test::ReadBandwidth => "RDMA_Read Bandwidth Test",
            Test::SendBandwidth => "Send Bandwidth Test",
            Test::WriteLatency => "RDMA_Write Latency Test",
            Test::ReadLatency => "RDMA_Read Latency Test",
            Test::SendLatency => "Send Latency Test",
        };
        let both = if plan.bidirectional {
            "Bidirectional "
        } else {
            ""
        };
        let crc = if device.settings().crc {
            "ON"
        } else {
            "as the peer wants"
        };
        let waiting = match plan.waiting {
            Waiting::Poll => "polling",
            Waiting::Block => "blocked in the wait call",
            Waiting::Channel => "blocked on a completion channel",
            Waiting::Memory => "looking at the buffer",
        };
        let target = if plan.target_sleeps {
            ", the target sleeps"
        } else {
            ""
        };
        let until = match plan.until {
            Until::Iterations => {
                format!("{} messages, {} before them", plan.iterations, plan.warm_up)
            }
            Until::Seconds(seconds) => format!("{seconds} s, {} messages before", plan.warm_up),
        };
        let mut out = format!("{RULE}\n                    {both}{what}\n");
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
        let _ = writeln!(out, " {:<15} : {waiting}{target}", "Waiting");
        let _ = writeln!(out, " {:<15} : {until}", "Of each size");
        let unit = if self.gigabits {
            "[Gb/sec]"
        } else {
            "[MB/sec]"
        };
        let heads = if plan.test.is_latency() {
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]".to_owned()
        } else {
            format!(
                " #bytes     #iterations    BW peak{unit}    BW average{unit}   MsgRate[Mpps]   CPU[s/GB]"
            )
        };
        let _ = write!(out, "{RULE}\n{heads}");
        out
    }

    /// What came out for one size.
    fn row(&self, row: &Row) -> String {
        match &row.figures {
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
            Figures::Bandwidth(mine) => {
                // As perftest: both directions are one number.
                let (mut peak, mut average, mut rate) = (mine.peak, mine.average, mine.rate);
                let mut messages = row.messages;
                if let Some(opposite) = &row.opposite
                    && let Figures::Bandwidth(its) = &opposite.figures
                {
                    peak += its.peak;
                    average += its.average;
                    rate += its.rate;
                    messages += opposite.messages;
                }
                let scale = if self.gigabits { 1e9 / 8.0 } else { MEBI };
                let cpu = row.cpu_per_gb().map_or("-".to_owned(), |(this, that)| {
                    format!("{this:.3} + {that:.3}")
                });
                format!(
                    " {:<7}    {:<10}     {:<12.2}       {:<12.2}         {:<10.6}      {cpu}",
                    row.size,
                    messages,
                    peak / scale,
                    average / scale,
                    rate / 1e6
                )
            }
        }
    }
}
