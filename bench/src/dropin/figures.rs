//! Figures of unmodified programs, and their targets.

use super::mpi::{Fabric, Work};
use super::perftest::{Tool, Way};
use crate::ours::Metric;
use crate::raw::{self, Kind};
use crate::targets::Bound;

/// Tables of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    Bandwidth,
    Latency,
    Mpi,
}

impl Section {
    pub(super) const ALL: [(Section, &'static str); 3] = [
        (
            Section::Bandwidth,
            "Bandwidth of perftest, CRC on, 128 messages outstanding",
        ),
        (Section::Latency, "Latency of perftest, 8 B, CRC on"),
        (
            Section::Mpi,
            "Open MPI over libfabric, two ranks: `verbs` on uwarp (CRC on), and `tcp`",
        ),
    ];
}

/// Method of a measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Of {
    /// A raw ping-pong. Its value is seconds one way.
    Raw { kind: Kind, pinned: bool },
    /// Raw TCP with both ends spinning. They also do this work (such as the CRC) for each message
    /// of this size. Its value is bytes per second.
    Working(raw::Work, usize),
    /// `uwarp perf` with these arguments.
    Perf(&'static [&'static str], Metric),
    /// A client and a server of perftest. Its value is bytes per second, or the median latency in
    /// seconds as perftest defines it.
    Pair {
        tool: Tool,
        way: Way,
        size: usize,
        pinned: bool,
    },
    /// Two pairs of client and server at the same time. They are not pinned, so four spinning
    /// threads share the processors. Its value is the worse of the two medians.
    Crowd(Tool),
    /// A program with two MPI ranks.
    Mpi {
        fabric: Fabric,
        work: Work,
        size: usize,
    },
}

/// A measured figure of the report.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Figure {
    pub(super) section: Section,
    pub(super) name: &'static str,
    pub(super) of: Of,
}

impl Figure {
    /// Returns the unit used in tables, and its size in B/s or seconds.
    pub(super) fn unit(&self) -> (&'static str, f64) {
        let is_bandwidth = match self.of {
            Of::Raw { .. } | Of::Crowd(_) => false,
            Of::Working(..) => true,
            Of::Perf(_, metric) => metric == Metric::Bandwidth,
            Of::Pair { tool, .. } => tool.is_bandwidth(),
            Of::Mpi { work, .. } => matches!(work, Work::Put(_)),
        };
        match is_bandwidth {
            true => ("GB/s", 1e9),
            false => ("us", 1e-6),
        }
    }

    /// Describes how to repeat the measurement.
    pub(super) fn command(&self) -> String {
        let free = |pinned| match pinned {
            true => "",
            false => ", not pinned",
        };
        match self.of {
            Of::Raw { pinned, .. } => format!("8 B there and back, both spin{}", free(pinned)),
            Of::Working(raw::Work { crc, .. }, size) => {
                let crc = if crc { "the CRC at both ends, " } else { "" };
                format!("writes of {size} B, {crc}a copy into place at the receiver, both spin")
            }
            Of::Perf(args, _) => format!("`uwarp perf {}`", args.join(" ")),
            Of::Pair {
                tool,
                way,
                size,
                pinned,
            } => {
                let run = match way.persona() {
                    [] => String::new(),
                    options => format!("`uwarp run {}`, ", options.join(" ")),
                };
                let setting = match way.setting() {
                    None => String::new(),
                    Some((name, value)) => format!("`{name}={value}`, "),
                };
                let (name, options) = (tool.name(), way.options().join(" "));
                format!("{run}{setting}`{name} {options} -s {size}`{}", free(pinned))
            }
            Of::Crowd(tool) => format!("`{} -R -F -s 8`, twice at once, not pinned", tool.name()),
            Of::Mpi { fabric, work, size } => {
                let (name, provider) = (work.name(), fabric.provider());
                let options = match fabric.options() {
                    [] => String::new(),
                    options => format!(", `uwarp run {}`", options.join(" ")),
                };
                let variable = match fabric.variable() {
                    None => String::new(),
                    Some((name, value)) => format!(", `{name}={value}`"),
                };
                let windows = match work {
                    Work::PingPong => String::new(),
                    Work::Put(outstanding) => format!(", {outstanding} between two flushes"),
                };
                format!("`mpi {name} {size}`{windows}, provider `{provider}`{options}{variable}")
            }
        }
    }
}

/// A target for a figure.
pub(super) struct Goal {
    pub(super) name: &'static str,
    /// Name of the figure by which the value is divided. If `None`, the target applies to the value
    /// itself, in the unit of its table.
    pub(super) with: Option<&'static str>,
    pub(super) bound: Bound,
}

const RAW: &str = "raw ping-pong, both spin";
const RAW_FREE: &str = "raw ping-pong, both spin, not pinned";

/// Bandwidths of `uwarp perf`, each with the bandwidth of the corresponding perftest program.
const BANDWIDTHS: [(&str, Of, &str, Of); 6] = [
    (
        "`uwarp perf write_bw`, 64 KiB",
        Of::Perf(&["write_bw", "-s64K", "-t128"], Metric::Bandwidth),
        "`ib_write_bw`, 64 KiB",
        pair(Tool::WriteBw, 64 << 10),
    ),
    (
        "`uwarp perf read_bw`, 64 KiB",
        Of::Perf(&["read_bw", "-s64K", "-t128", "-o128"], Metric::Bandwidth),
        "`ib_read_bw`, 64 KiB",
        pair(Tool::ReadBw, 64 << 10),
    ),
    (
        "`uwarp perf send_bw`, 64 KiB",
        Of::Perf(&["send_bw", "-s64K", "-t128", "-r512"], Metric::Bandwidth),
        "`ib_send_bw`, 64 KiB",
        pair(Tool::SendBw, 64 << 10),
    ),
    (
        "`uwarp perf write_bw`, 1 MiB",
        Of::Perf(
            &["write_bw", "-s1M", "-t128", "--warm-up=50"],
            Metric::Bandwidth,
        ),
        "`ib_write_bw`, 1 MiB",
        pair(Tool::WriteBw, 1 << 20),
    ),
    (
        "`uwarp perf read_bw`, 1 MiB",
        Of::Perf(
            &["read_bw", "-s1M", "-t128", "-o128", "--warm-up=50"],
            Metric::Bandwidth,
        ),
        "`ib_read_bw`, 1 MiB",
        pair(Tool::ReadBw, 1 << 20),
    ),
    (
        "`uwarp perf send_bw`, 1 MiB",
        Of::Perf(
            &["send_bw", "-s1M", "-t128", "-r512", "--warm-up=50"],
            Metric::Bandwidth,
        ),
        "`ib_send_bw`, 1 MiB",
        pair(Tool::SendBw, 1 << 20),
    ),
];

/// Latencies of `uwarp perf`, each with the latency of the corresponding perftest program.
const LATENCIES: [(&str, Of, &str, Of); 2] = [
    (
        "`uwarp perf send_lat`",
        Of::Perf(&["send_lat", "-s8"], Metric::Latency),
        "`ib_send_lat`",
        pair(Tool::SendLat, 8),
    ),
    (
        "`uwarp perf read_lat` (both ways)",
        Of::Perf(&["read_lat", "-s8"], Metric::Latency),
        "`ib_read_lat` (both ways)",
        pair(Tool::ReadLat, 8),
    ),
];

const WRITE_LAT: &str = "`ib_write_lat`, not pinned";
const WRITE_LAT_PINNED: &str = "`ib_write_lat`, all threads of a side on one processor";
/// Name of a figure, its way, the same program with librdmacm, and the bound of the ratio.
type ByNumber = (&'static str, Way, &'static str, Tool, usize, Bound);
/// Bandwidths of programs that connect by the numbers of their queue pairs.
const BY_NUMBER: [ByNumber; 4] = [
    (
        "`ib_write_bw` by numbers, 64 KiB",
        Way::Numbers,
        BANDWIDTHS[0].2,
        Tool::WriteBw,
        64 << 10,
        Bound::AtLeast(0.95),
    ),
    (
        "`ib_write_bw` by numbers, complete when placed, 64 KiB",
        Way::NumbersPlaced,
        BANDWIDTHS[0].2,
        Tool::WriteBw,
        64 << 10,
        Bound::AtLeast(0.9),
    ),
    (
        "`ib_read_bw` by numbers, 64 KiB",
        Way::NumbersPlaced,
        BANDWIDTHS[1].2,
        Tool::ReadBw,
        64 << 10,
        Bound::AtLeast(0.95),
    ),
    (
        "`ib_send_bw` by numbers, 64 KiB",
        Way::NumbersPlaced,
        BANDWIDTHS[2].2,
        Tool::SendBw,
        64 << 10,
        Bound::AtLeast(0.95),
    ),
];
const WRITE_LAT_BY_NUMBER: &str = "`ib_write_lat` by numbers, complete when placed, not pinned";
const CROWDS: [(&str, Tool); 2] = [
    (
        "`ib_write_lat`, two pairs, four spinning threads",
        Tool::WriteLat,
    ),
    (
        "`ib_send_lat`, two pairs, four spinning threads",
        Tool::SendLat,
    ),
];

/// Number of puts between two flushes, as in the OSU benchmarks.
const OSU: Work = Work::Put(64);
/// A smaller number of puts between two flushes, which shows the cost of a flush.
const FEWER: Work = Work::Put(16);
/// MPI measurements: the work, the length, and the names over TCP and over verbs.
const RANKS: [(Work, usize, &str, &str); 6] = [
    (
        Work::PingPong,
        8,
        "ping-pong of 8 B, tcp",
        "ping-pong of 8 B, verbs",
    ),
    (
        Work::PingPong,
        4 << 10,
        "ping-pong of 4 KiB, tcp",
        "ping-pong of 4 KiB, verbs",
    ),
    (
        Work::PingPong,
        64 << 10,
        "ping-pong of 64 KiB, tcp",
        "ping-pong of 64 KiB, verbs",
    ),
    (
        Work::PingPong,
        1 << 20,
        "ping-pong of 1 MiB, tcp",
        "ping-pong of 1 MiB, verbs",
    ),
    (
        FEWER,
        1 << 20,
        "`MPI_Put` of 1 MiB, 16 at a time, tcp",
        "`MPI_Put` of 1 MiB, 16 at a time, verbs",
    ),
    (
        OSU,
        1 << 20,
        "`MPI_Put` of 1 MiB, 64 at a time, tcp",
        "`MPI_Put` of 1 MiB, 64 at a time, verbs",
    ),
];
/// The last measurement of `RANKS`, repeated without the CRC.
const WITHOUT_CRC: (Work, usize, &str, &str) = (
    OSU,
    1 << 20,
    "`MPI_Put` of 1 MiB, 64 at a time, tcp",
    "`MPI_Put` of 1 MiB, 64 at a time, verbs, CRC off",
);
/// Upper bounds for programs: raw TCP with the placement that iWARP requires, with and without the
/// CRC.
const BOUNDS: [(&str, raw::Work); 2] = [
    (
        "raw TCP with CRC and placement, 1 MiB",
        raw::Work::of(false, true),
    ),
    ("raw TCP with placement, 1 MiB", raw::Work::of(false, false)),
];
/// The last measurement of `RANKS`, with `ofi_rxm` set to transfer large messages by Writes of the
/// sender, not by Reads of the receiver: the work, the length, and the names over TCP and over
/// verbs.
const BY_WRITES: (Work, usize, &str, &str) = (
    OSU,
    1 << 20,
    "`MPI_Put` of 1 MiB by Writes, tcp",
    "`MPI_Put` of 1 MiB by Writes, verbs",
);

const fn pair(tool: Tool, size: usize) -> Of {
    Of::Pair {
        tool,
        way: Way::Cm,
        size,
        pinned: true,
    }
}

/// Returns all figures in the order in which each round measures them. A figure follows the one
/// that it is compared with, directly or within the next four places.
pub(super) fn all() -> Vec<Figure> {
    let mut all = Vec::new();
    let mut add = |section, name, of| all.push(Figure { section, name, of });
    for (name, of, program, by) in BANDWIDTHS {
        add(Section::Bandwidth, name, of);
        add(Section::Bandwidth, program, by);
        for (name, way, _, tool, size, _) in BY_NUMBER.iter().filter(|row| row.2 == program) {
            let (tool, way, size, pinned) = (*tool, *way, *size, true);
            let of = Of::Pair {
                tool,
                way,
                size,
                pinned,
            };
            add(Section::Bandwidth, name, of);
        }
    }
    for (name, of, program, by) in LATENCIES {
        add(Section::Latency, name, of);
        add(Section::Latency, program, by);
    }
    for (raw, name, pinned) in [(RAW_FREE, WRITE_LAT, false), (RAW, WRITE_LAT_PINNED, true)] {
        let kind = Kind::Spin;
        add(Section::Latency, raw, Of::Raw { kind, pinned });
        let of = |way| Of::Pair {
            tool: Tool::WriteLat,
            way,
            size: 8,
            pinned,
        };
        add(Section::Latency, name, of(Way::Cm));
        if !pinned {
            let way = Way::NumbersPlaced;
            add(Section::Latency, WRITE_LAT_BY_NUMBER, of(way));
        }
    }
    for (name, tool) in CROWDS {
        add(Section::Latency, name, Of::Crowd(tool));
    }
    for (work, size, tcp, verbs) in RANKS {
        for (name, fabric) in [(tcp, Fabric::Tcp), (verbs, Fabric::Verbs)] {
            add(Section::Mpi, name, Of::Mpi { fabric, work, size });
        }
    }
    let (work, size, _, name) = WITHOUT_CRC;
    let fabric = Fabric::VerbsNoCrc;
    add(Section::Mpi, name, Of::Mpi { fabric, work, size });
    for (name, work) in BOUNDS {
        add(Section::Mpi, name, Of::Working(work, size));
    }
    let (work, size, tcp, verbs) = BY_WRITES;
    for (name, fabric) in [(tcp, Fabric::TcpByWrites), (verbs, Fabric::VerbsByWrites)] {
        add(Section::Mpi, name, Of::Mpi { fabric, work, size });
    }
    all
}

/// Returns the targets.
pub(super) fn goals() -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut add = |name, with, bound| goals.push(Goal { name, with, bound });
    for (ours, _, program, _) in BANDWIDTHS {
        add(program, Some(ours), Bound::AtLeast(0.9));
    }
    for (name, _, program, _, _, bound) in BY_NUMBER {
        add(name, Some(program), bound);
    }
    for (ours, _, program, _) in LATENCIES {
        add(program, Some(ours), Bound::AtMost(1.2));
    }
    add(WRITE_LAT, Some(RAW_FREE), Bound::AtMost(2.3));
    add(WRITE_LAT_BY_NUMBER, Some(WRITE_LAT), Bound::AtMost(1.3));
    add(WRITE_LAT_PINNED, Some(RAW), Bound::Reported);
    for (name, _) in CROWDS {
        add(name, None, Bound::AtMost(60.0));
    }
    for (work, _, tcp, verbs) in RANKS {
        let bound = match work {
            Work::PingPong => Bound::AtMost(1.5),
            Work::Put(_) => Bound::AtLeast(1.0),
        };
        add(verbs, Some(tcp), bound);
    }
    let (_, _, tcp, without_crc) = WITHOUT_CRC;
    add(without_crc, Some(tcp), Bound::Reported);
    for (name, _) in BOUNDS {
        add(name, Some(tcp), Bound::Reported);
    }
    let (_, _, by_tcp, by_verbs) = BY_WRITES;
    add(by_verbs, Some(by_tcp), Bound::AtLeast(1.0));
    goals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_measured_just_before_and_in_the_same_unit() {
        let all = all();
        let at = |name: &str| all.iter().position(|figure| figure.name == name).unwrap();
        for goal in goals() {
            let place = at(goal.name);
            if let Some(with) = goal.with {
                // Several figures are compared with some, and follow them in the list.
                let most = match with {
                    name if name == WITHOUT_CRC.2 => 4,
                    name if name == BANDWIDTHS[0].2 => 2,
                    _ => 1,
                };
                assert!((1..=most).contains(&(place - at(with))), "{}", goal.name);
                assert_eq!(all[place].unit().0, all[at(with)].unit().0);
            } else {
                assert_eq!(all[place].unit().0, "us");
            }
        }
    }

    #[test]
    fn no_two_rows_have_one_name() {
        let all = all();
        for (at, figure) in all.iter().enumerate() {
            let same = |other: &Figure| other.name == figure.name;
            assert!(!all[..at].iter().any(same), "{}", figure.name);
        }
    }
}
