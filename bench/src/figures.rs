//! The figures that are measured.

use std::time::Duration;

use crate::bound;
use crate::ours::Metric;
use crate::raw::{Kind, Work};

/// A figure that is measured in each round.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// Table that shows the figure.
    pub(crate) section: Section,
    pub(crate) name: &'static str,
    /// Raw figure by which this figure is divided.
    pub(crate) base: Option<Base>,
    pub(crate) of: Of,
    /// True if each process is pinned to one processor. A process with a second thread besides the
    /// spinning one is not pinned, because both threads would share that processor.
    pub(crate) pinned: bool,
}

/// Tables of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Section {
    Bandwidth,
    CrcOff,
    Sleeping,
    Latency,
    Rate,
}

impl Section {
    pub(crate) const ALL: [(Section, &'static str); 5] = [
        (Section::Bandwidth, "Bandwidth, CRC on, both sides poll"),
        (Section::CrcOff, "Bandwidth, CRC off, both sides poll"),
        (
            Section::Sleeping,
            "Bandwidth, CRC on, both sides sleep while there is nothing to do (the target of a Write or a Read is not in a call of ours)",
        ),
        (Section::Latency, "Latency, CRC on"),
        (Section::Rate, "Message rate, CRC on"),
    ];
}

/// Raw figure by which others are divided.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Base {
    /// The figure with this name.
    Of(&'static str),
    /// The best of all raw writes in each round.
    BestWrites,
    /// The best raw TCP measurement with this work in each round.
    BestWith(Work),
}

impl Base {
    /// Returns the names of the raw figures from which the best is taken.
    pub(crate) fn names(self) -> Vec<&'static str> {
        match self {
            Base::Of(name) => vec![name],
            Base::BestWrites => {
                let spinning = RAW_SPINNING.map(|(name, _)| name);
                [RAW_64K, RAW_256K, RAW_1M]
                    .into_iter()
                    .chain(spinning)
                    .collect()
            }
            Base::BestWith(work) => bound::rows(work).iter().map(|row| row.name).collect(),
        }
    }

    /// Returns the name in tables.
    pub(crate) fn told(self) -> &'static str {
        match self {
            Base::Of(name) => name,
            Base::BestWrites => "the best raw writes of any size, blocking or spinning",
            Base::BestWith(work) => bound::best_of(work),
        }
    }
}

/// Method of a measurement.
#[derive(Clone, Debug)]
pub(crate) enum Of {
    /// Raw writes of this size, with both sides blocking. Its value is bytes per second.
    Writes(usize),
    /// Raw writes of this size, with both sides spinning. Its value is bytes per second.
    SpinningWrites(usize),
    /// A raw stream in messages of this size, with work on its bytes at both ends. Its value is
    /// bytes per second.
    Working(Kind, usize),
    /// Raw writes of this size. Its value is writes per second.
    WriteRate(usize),
    /// A raw ping-pong with messages of this size. Its value is seconds one way.
    PingPong(Kind, usize),
    /// A raw ping-pong with messages of this size. Its value is seconds there and back.
    RoundTrip(Kind, usize),
    /// `uwarp perf` with these arguments.
    Ours {
        args: &'static [&'static str],
        metric: Metric,
        crc: bool,
    },
    /// `uwarp perf` with these arguments and the CRC. The system's congestion control is BBR, and
    /// uwarp does not set another one.
    UnderBbr {
        args: &'static [&'static str],
        metric: Metric,
    },
}

impl Figure {
    pub(crate) fn is_raw(&self) -> bool {
        !matches!(self.of, Of::Ours { .. } | Of::UnderBbr { .. })
    }

    /// Returns the unit in tables, and the number of measured units in it.
    pub(crate) fn unit(&self) -> (&'static str, f64) {
        match self.of {
            Of::Writes(_) | Of::SpinningWrites(_) | Of::Working(..) => ("GB/s", 1e9),
            Of::WriteRate(_) => ("M/s", 1e6),
            Of::PingPong(..) | Of::RoundTrip(..) => ("us", 1e-6),
            Of::Ours { metric, .. } | Of::UnderBbr { metric, .. } => match metric {
                Metric::Bandwidth => ("GB/s", 1e9),
                Metric::Rate => ("M/s", 1e6),
                Metric::Latency => ("us", 1e-6),
            },
        }
    }

    /// Describes how to repeat the measurement.
    pub(crate) fn command(&self) -> String {
        match &self.of {
            Of::Writes(size) | Of::WriteRate(size) => format!("blocking writes of {size} B"),
            Of::SpinningWrites(size) => format!("writes and reads that spin, of {size} B"),
            Of::Working(kind, size) => bound::how(*kind, *size),
            Of::PingPong(kind, size) | Of::RoundTrip(kind, size) => {
                let how = match kind {
                    Kind::Spin => "both spin",
                    Kind::SleepingServer => "the client spins, the server blocks",
                    _ => "both block",
                };
                format!("{size} B there and back, {how}")
            }
            Of::Ours { args, crc, .. } => {
                let crc = if *crc { "" } else { " --crc off" };
                let free = if self.pinned { "" } else { ", not pinned" };
                format!("`{}{crc}`{free}", args.join(" "))
            }
            Of::UnderBbr { args, .. } => format!("`{}`, the system has BBR", args.join(" ")),
        }
    }

    fn free(self) -> Self {
        Figure {
            pinned: false,
            ..self
        }
    }

    /// Returns the time of the measurement. Latencies need fewer messages. Bandwidths need time for
    /// the windows to grow.
    pub(crate) fn time(&self, usual: Duration) -> Duration {
        match self.of {
            Of::PingPong(..) | Of::RoundTrip(..) => usual / 2,
            Of::Ours {
                metric: Metric::Latency,
                ..
            }
            | Of::UnderBbr {
                metric: Metric::Latency,
                ..
            } => usual / 2,
            _ => usual,
        }
    }
}

pub(crate) const RAW_64K: &str = "raw writes of 64 KiB";
pub(crate) const RAW_256K: &str = "raw writes of 256 KiB";
pub(crate) const RAW_1M: &str = "raw writes of 1 MiB";
pub(crate) const RAW_SPINNING: [(&str, usize); 3] = [
    ("raw writes of 64 KiB, both spin", 64 << 10),
    ("raw writes of 256 KiB, both spin", 256 << 10),
    ("raw writes of 1 MiB, both spin", 1 << 20),
];
pub(crate) const MEMORY_ALONE: &str = "8 B Write, one poll, then memory alone";
pub(crate) const READ_BOTH_SLEEP: &str = "8 B Read, both sleep (both ways)";
pub(crate) const WRITE_BOTH_SLEEP: &str = "8 B Write until placed, both sleep (both ways)";
pub(crate) const MEMORY_ALONE_PINNED: &str =
    "8 B Write, one poll, then memory alone, all threads of a side on one processor";
pub(crate) const RAW_SPIN_FREE: &str = "raw ping-pong, both spin, not pinned";
pub(crate) const RAW_SPIN: &str = "raw ping-pong, both spin";
pub(crate) const RAW_SPIN_BOTH_WAYS: &str = "raw request and response, both spin";
pub(crate) const RAW_BLOCK: &str = "raw ping-pong, both block";
pub(crate) const RAW_BLOCK_BOTH_WAYS: &str = "raw request and response, both block";
pub(crate) const RAW_SLEEPING: &str = "raw request and response, the server blocks";
pub(crate) const RAW_RATE_8: &str = "raw writes of 8 B";
pub(crate) const RAW_RATE_64: &str = "raw writes of 64 B";

const BEST: Option<Base> = Some(Base::BestWrites);
const WRITES: Option<Base> = Some(Base::Of(RAW_64K));
const SPIN: Option<Base> = Some(Base::Of(RAW_SPIN));
const BLOCK: Option<Base> = Some(Base::Of(RAW_BLOCK));
const ROUND: Option<Base> = Some(Base::Of(RAW_SPIN_BOTH_WAYS));
const BLOCK_BOTH_WAYS: Option<Base> = Some(Base::Of(RAW_BLOCK_BOTH_WAYS));
const SLEEPING: Option<Base> = Some(Base::Of(RAW_SLEEPING));
const RATE_8: Option<Base> = Some(Base::Of(RAW_RATE_8));
const RATE_64: Option<Base> = Some(Base::Of(RAW_RATE_64));

type Args = &'static [&'static str];

/// Returns all figures in the order of a round. A raw figure and those that are divided by it are
/// neighbours.
pub(crate) fn all() -> Vec<Figure> {
    let mut all = Vec::new();
    bandwidth(&mut all);
    latency(&mut all);
    rate(&mut all);
    all
}

fn bandwidth(all: &mut Vec<Figure>) {
    let mut raw = |name, size| all.push(figure(Section::Bandwidth, name, None, Of::Writes(size)));
    raw(RAW_64K, 64 << 10);
    raw(RAW_256K, 256 << 10);
    raw(RAW_1M, 1 << 20);
    for (name, size) in RAW_SPINNING {
        let of = Of::SpinningWrites(size);
        all.push(figure(Section::Bandwidth, name, None, of));
    }
    all.extend(bound::figures());
    let tests: [(&'static str, Option<Base>, Args); 9] = [
        ("64 KiB Write", WRITES, &["write_bw", "-s64K", "-t16"]),
        ("64 KiB Read", WRITES, &["read_bw", "-s64K", "-t16"]),
        ("64 KiB Send", WRITES, &["send_bw", "-s64K", "-t16"]),
        (
            "1 MiB Write",
            BEST,
            &["write_bw", "-s1M", "-t16", "--warm-up=50"],
        ),
        (
            "1 MiB Read",
            BEST,
            &["read_bw", "-s1M", "-t16", "--warm-up=50"],
        ),
        (
            "1 MiB Send",
            BEST,
            &["send_bw", "-s1M", "-t16", "-r64", "--warm-up=50"],
        ),
        ("4 KiB Write", WRITES, &["write_bw", "-s4K", "-t64"]),
        ("4 KiB Read", WRITES, &["read_bw", "-s4K", "-t64", "-o64"]),
        ("4 KiB Send", WRITES, &["send_bw", "-s4K", "-t64"]),
    ];
    for (crc, section) in [(true, Section::Bandwidth), (false, Section::CrcOff)] {
        for (name, base, args) in tests {
            let metric = Metric::Bandwidth;
            all.push(figure(section, name, base, Of::Ours { args, metric, crc }));
        }
    }
    // These messages are sent without a copy, which shows the cost of the copy.
    let in_place: [(&'static str, Option<Base>, Args); 4] = [
        (
            "64 KiB Write, sent in place",
            WRITES,
            &["write_bw", "-s64K", "-t16", "--send-in-place"],
        ),
        (
            "64 KiB Send, sent in place",
            WRITES,
            &["send_bw", "-s64K", "-t16", "--send-in-place"],
        ),
        (
            "1 MiB Write, sent in place",
            BEST,
            &[
                "write_bw",
                "-s1M",
                "-t16",
                "--warm-up=50",
                "--send-in-place",
            ],
        ),
        (
            "1 MiB Send, sent in place",
            BEST,
            &[
                "send_bw",
                "-s1M",
                "-t16",
                "-r64",
                "--warm-up=50",
                "--send-in-place",
            ],
        ),
    ];
    for (name, base, args) in in_place {
        all.push(ours(
            Section::Bandwidth,
            name,
            base,
            args,
            Metric::Bandwidth,
        ));
    }
    all.push(figure(
        Section::Bandwidth,
        "1 MiB Write, the system has BBR",
        BEST,
        Of::UnderBbr {
            args: &["write_bw", "-s1M", "-t16", "--warm-up=50"],
            metric: Metric::Bandwidth,
        },
    ));
    let sleeping: [(&'static str, Option<Base>, Args); 6] = [
        (
            "64 KiB Write",
            WRITES,
            &["write_bw", "-s64K", "-t16", "-e", "--target-sleeps"],
        ),
        (
            "64 KiB Read",
            WRITES,
            &["read_bw", "-s64K", "-t16", "-e", "--target-sleeps"],
        ),
        ("64 KiB Send", WRITES, &["send_bw", "-s64K", "-t16", "-e"]),
        (
            "1 MiB Write",
            BEST,
            &[
                "write_bw",
                "-s1M",
                "-t16",
                "-e",
                "--target-sleeps",
                "--warm-up=50",
            ],
        ),
        (
            "1 MiB Read",
            BEST,
            &[
                "read_bw",
                "-s1M",
                "-t16",
                "-e",
                "--target-sleeps",
                "--warm-up=50",
            ],
        ),
        (
            "1 MiB Send",
            BEST,
            &["send_bw", "-s1M", "-t16", "-r64", "-e", "--warm-up=50"],
        ),
    ];
    for (name, base, args) in sleeping {
        all.push(ours(Section::Sleeping, name, base, args, Metric::Bandwidth));
    }
    // In these figures only the target sleeps, and the client polls.
    let target: [(&'static str, Args); 4] = [
        (
            "64 KiB Write, the target alone sleeps",
            &["write_bw", "-s64K", "-t16", "--target-sleeps"],
        ),
        (
            "64 KiB Read, the target alone sleeps",
            &["read_bw", "-s64K", "-t16", "--target-sleeps"],
        ),
        (
            "1 MiB Write, the target alone sleeps",
            &[
                "write_bw",
                "-s1M",
                "-t16",
                "--target-sleeps",
                "--warm-up=50",
            ],
        ),
        (
            "1 MiB Read, the target alone sleeps",
            &["read_bw", "-s1M", "-t16", "--target-sleeps", "--warm-up=50"],
        ),
    ];
    for (name, args) in target {
        let base = if name.starts_with("64") { WRITES } else { BEST };
        all.push(ours(Section::Sleeping, name, base, args, Metric::Bandwidth));
    }
}

fn latency(all: &mut Vec<Figure>) {
    let mut raw = |name, of| all.push(figure(Section::Latency, name, None, of));
    raw(RAW_SPIN, Of::PingPong(Kind::Spin, 8));
    raw(RAW_SPIN_BOTH_WAYS, Of::RoundTrip(Kind::Spin, 8));
    raw(RAW_BLOCK, Of::PingPong(Kind::Block, 8));
    raw(RAW_BLOCK_BOTH_WAYS, Of::RoundTrip(Kind::Block, 8));
    raw(RAW_SLEEPING, Of::RoundTrip(Kind::SleepingServer, 8));
    let of = Of::PingPong(Kind::Spin, 8);
    all.push(figure(Section::Latency, RAW_SPIN_FREE, None, of).free());
    all.push(
        ours(
            Section::Latency,
            MEMORY_ALONE,
            Some(Base::Of(RAW_SPIN_FREE)),
            &["write_lat", "-s8", "--wait", "memory"],
            Metric::Latency,
        )
        .free(),
    );
    let tests: [(&'static str, Option<Base>, Args); 10] = [
        ("8 B Write, both poll", SPIN, &["write_lat", "-s8"]),
        ("8 B Send, both poll", SPIN, &["send_lat", "-s8"]),
        (
            "8 B Read, both poll (both ways)",
            ROUND,
            &["read_lat", "-s8"],
        ),
        (
            MEMORY_ALONE_PINNED,
            SPIN,
            &["write_lat", "-s8", "--wait", "memory"],
        ),
        (
            "8 B Send, both in the wait call",
            BLOCK,
            &["send_lat", "-s8", "-e"],
        ),
        (
            "8 B Send, both in poll(2) on the channel",
            BLOCK,
            &["send_lat", "-s8", "--wait", "channel"],
        ),
        (
            READ_BOTH_SLEEP,
            BLOCK_BOTH_WAYS,
            &["read_lat", "-s8", "-e", "--target-sleeps"],
        ),
        (
            "8 B Read, the target sleeps (both ways)",
            SLEEPING,
            &["read_lat", "-s8", "--target-sleeps"],
        ),
        (
            "8 B Write until placed, the target sleeps (both ways)",
            SLEEPING,
            &["write_lat", "-s8", "--target-sleeps"],
        ),
        (
            WRITE_BOTH_SLEEP,
            BLOCK_BOTH_WAYS,
            &["write_lat", "-s8", "-e", "--target-sleeps"],
        ),
    ];
    for (name, base, args) in tests {
        all.push(ours(Section::Latency, name, base, args, Metric::Latency));
    }
    all.push(figure(
        Section::Latency,
        "8 B Send, both poll, the system has BBR",
        SPIN,
        Of::UnderBbr {
            args: &["send_lat", "-s8"],
            metric: Metric::Latency,
        },
    ));
}

fn rate(all: &mut Vec<Figure>) {
    all.push(figure(Section::Rate, RAW_RATE_8, None, Of::WriteRate(8)));
    all.push(figure(Section::Rate, RAW_RATE_64, None, Of::WriteRate(64)));
    let tests: [(&'static str, Option<Base>, Args); 6] = [
        (
            "8 B Write, lists of 64",
            RATE_8,
            &["write_bw", "-s8", "-l64"],
        ),
        (
            "64 B Write, lists of 64",
            RATE_64,
            &["write_bw", "-s64", "-l64"],
        ),
        (
            "8 B Write, one a post, 64 outstanding",
            RATE_8,
            &["write_bw", "-s8", "-t64"],
        ),
        (
            "64 B Write, one a post, 64 outstanding",
            RATE_64,
            &["write_bw", "-s64", "-t64"],
        ),
        ("8 B Send, lists of 64", RATE_8, &["send_bw", "-s8", "-l64"]),
        (
            "8 B Send, one a post, 64 outstanding",
            RATE_8,
            &["send_bw", "-s8", "-t64"],
        ),
    ];
    for (name, base, args) in tests {
        all.push(ours(Section::Rate, name, base, args, Metric::Rate));
    }
}

pub(crate) fn figure(section: Section, name: &'static str, base: Option<Base>, of: Of) -> Figure {
    Figure {
        section,
        name,
        base,
        of,
        pinned: true,
    }
}

fn ours(
    section: Section,
    name: &'static str,
    base: Option<Base>,
    args: Args,
    metric: Metric,
) -> Figure {
    let crc = true;
    figure(section, name, base, Of::Ours { args, metric, crc })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_divided_by_is_measured_in_the_same_unit() {
        let all = all();
        for figure in &all {
            let Some(Base::Of(base)) = figure.base else {
                continue;
            };
            let base = all.iter().find(|other| other.name == base).unwrap();
            assert!(base.is_raw());
            assert_eq!(base.unit().0, figure.unit().0, "{}", figure.name);
        }
    }

    #[test]
    fn no_table_has_two_rows_of_one_name() {
        let all = all();
        for (at, figure) in all.iter().enumerate() {
            let same =
                |other: &Figure| other.name == figure.name && other.section == figure.section;
            assert!(!all[..at].iter().any(same), "{}", figure.name);
        }
    }
}
