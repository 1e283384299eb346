//! Figures of TCP in user space, and their targets.

use super::child::{Congestion, Who, Wire};
use crate::ours::Metric;
use crate::raw::Kind;
use crate::targets::Bound;

/// Tables of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    Memory,
    Loss,
    Tap,
    Raw,
    Latency,
}

impl Section {
    pub(super) const ALL: [(Section, &'static str); 5] = [
        (
            Section::Memory,
            "A link in memory: 64 KiB Writes, CRC on, beside a byte stream; TCP's checksums on",
        ),
        (
            Section::Loss,
            "The same link, MTU 1500, one thread, losing packets at random",
        ),
        (Section::Tap, "A TAP device, MTU 1500"),
        (Section::Raw, "A raw socket on a veth pair, MTU 1500"),
        (Section::Latency, "8 B on a TAP device, both sides poll"),
    ];
}

/// Direction of the bytes on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// The stack in user space sends.
    Out,
    /// Kernel TCP sends.
    In,
}

/// Program that is measured on a device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Work {
    /// A bare smoltcp, with a stream or a ping-pong. The number is the size of writes or messages.
    Bare(Kind, usize),
    /// `uwarp perf` with these arguments.
    Ours(&'static [&'static str], Metric),
}

/// Method of a measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Of {
    /// Raw TCP over the loopback device, with writes of this size.
    Loopback(Kind, usize),
    /// An in-memory link with both ends in one process.
    Memory {
        who: Who,
        mtu: usize,
        threads: usize,
        loss: f64,
        /// Congestion control; `None` for the default.
        congestion: Option<Congestion>,
    },
    /// A device, with kernel TCP at its other side.
    Device {
        wire: Wire,
        offload: bool,
        direction: Direction,
        work: Work,
    },
}

/// A measured figure of the report.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Figure {
    pub(super) section: Section,
    pub(super) name: String,
    pub(super) of: Of,
}

impl Figure {
    /// Returns the unit in tables, and the number of measured units in it.
    pub(super) fn unit(&self) -> (&'static str, f64) {
        match self.section {
            Section::Latency => ("us", 1e-6),
            _ => ("GB/s", 1e9),
        }
    }

    /// Describes how to repeat the measurement.
    pub(super) fn command(&self) -> String {
        match self.of {
            Of::Loopback(kind, size) => {
                let how = match kind {
                    Kind::SpinningStream => "both spin",
                    _ => "both block",
                };
                format!("writes of {} KiB, {how}", size >> 10)
            }
            Of::Memory { .. } => String::new(),
            Of::Device { work, .. } => match work {
                Work::Bare(kind, size) if kind.is_stream() => {
                    format!("writes of {} KiB, both spin", size >> 10)
                }
                Work::Bare(_, size) => format!("{size} B there and back"),
                Work::Ours(args, _) => format!("`{}`", args.join(" ")),
            },
        }
    }
}

/// A target: the ratio of a figure to other figures.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Goal {
    pub(super) name: String,
    /// Figures by which the value is divided. Only the figure with the best median is used.
    pub(super) with: Vec<String>,
    pub(super) bound: Bound,
}

const WRITES_64K: &[&str] = &["write_bw", "-s64K", "-t16"];
/// The client sends, so it gets the option for several segments per FPDU.
const WRITES_64K_OVER_SEGMENTS: &[&str] = &["write_bw", "-s64K", "-t16", "--fpdu-segments=506"];
const WRITES_1M_OVER_SEGMENTS: &[&str] = &[
    "write_bw",
    "-s1M",
    "-t16",
    "--warm-up=50",
    "--fpdu-segments=506",
];
const WRITES_1M: &[&str] = &["write_bw", "-s1M", "-t16", "--warm-up=50"];
/// Number of bytes that a bare stream writes at a time.
const CHUNK: usize = 256 << 10;

/// Raw TCP over the loopback device: name, kind (both sides spin or block), and size of a write.
const LOOPBACK: [(&str, Kind, usize); 6] = [
    ("writes of 64 KiB", Kind::Stream, 64 << 10),
    ("writes of 256 KiB", Kind::Stream, 256 << 10),
    ("writes of 1 MiB", Kind::Stream, 1 << 20),
    (
        "writes of 64 KiB, both spin",
        Kind::SpinningStream,
        64 << 10,
    ),
    (
        "writes of 256 KiB, both spin",
        Kind::SpinningStream,
        256 << 10,
    ),
    ("writes of 1 MiB, both spin", Kind::SpinningStream, 1 << 20),
];
const LOSSES: [(f64, &str); 2] = [(0.001, "0.1 %"), (0.01, "1 %")];
const CONGESTIONS: [Congestion; 3] = [Congestion::None, Congestion::Reno, Congestion::Cubic];
const THREADS: [(usize, &str); 2] = [(1, "both ends in one thread"), (2, "a thread for each end")];

/// All figures and their targets.
#[derive(Default)]
pub(super) struct All {
    pub(super) figures: Vec<Figure>,
    pub(super) goals: Vec<Goal>,
}

impl All {
    fn figure(&mut self, section: Section, name: &str, of: Of) -> String {
        let name = name.to_owned();
        self.figures.push(Figure {
            section,
            name: name.clone(),
            of,
        });
        name
    }

    fn goal(&mut self, name: &str, with: &str, bound: Bound) {
        self.best_of(name, &[with.to_owned()], bound);
    }

    fn best_of(&mut self, name: &str, with: &[String], bound: Bound) {
        self.goals.push(Goal {
            name: name.to_owned(),
            with: with.to_vec(),
            bound,
        });
    }
}

/// Returns all figures in the order of a round. Figures that are compared are neighbours.
pub(super) fn all() -> All {
    let mut all = All::default();
    memory(&mut all);
    loss(&mut all);
    for (wire, section) in [(Wire::Tap, Section::Tap), (Wire::Raw, Section::Raw)] {
        device(&mut all, wire, section);
    }
    latency(&mut all);
    all
}

fn memory(all: &mut All) {
    for mtu in [1500, 9000] {
        for (threads, told) in THREADS {
            let mut of = |who, name| {
                let of = Of::Memory {
                    who,
                    mtu,
                    threads,
                    loss: 0.0,
                    congestion: None,
                };
                let name = format!("{name}, MTU {mtu}, {told}");
                all.figure(Section::Memory, &name, of)
            };
            let bare = of(Who::Bare, "bare smoltcp");
            let ours = of(Who::Ours, "64 KiB Write");
            all.goal(&ours, &bare, Bound::AtLeast(0.75));
        }
    }
}

fn loss(all: &mut All) {
    for (loss, told) in LOSSES {
        let mut of = |who, congestion, name: &str| {
            let of = Of::Memory {
                who,
                mtu: 1500,
                threads: 1,
                loss,
                congestion,
            };
            let name = format!("{name}, {told} lost");
            all.figure(Section::Loss, &name, of)
        };
        let bare = CONGESTIONS.map(|congestion| {
            let name = format!("bare smoltcp, congestion control {}", congestion.name());
            of(Who::Bare, Some(congestion), &name)
        });
        let usual = of(
            Who::Ours,
            None,
            "64 KiB Write, no congestion control, early recovery",
        );
        let reno = of(
            Who::Ours,
            Some(Congestion::Reno),
            "64 KiB Write, reno, early recovery",
        );
        for ours in [usual, reno] {
            all.best_of(&ours, &bare, Bound::AtLeast(0.9));
        }
    }
}

fn device(all: &mut All, wire: Wire, section: Section) {
    let raw = LOOPBACK.map(|(name, kind, size)| {
        let name = format!("raw TCP over loopback before the {}, {name}", wire.told());
        all.figure(section, &name, Of::Loopback(kind, size))
    });
    let mut plain = Vec::new();
    for (offload, how) in [(false, "plain frames"), (true, "offloads")] {
        for (direction, told) in [(Direction::Out, "out"), (Direction::In, "in")] {
            let mut of = |work, name: &str| {
                let of = Of::Device {
                    wire,
                    offload,
                    direction,
                    work,
                };
                let name = format!("{name}, {}, {how}, {told}", wire.told());
                all.figure(section, &name, of)
            };
            let bare = of(Work::Bare(Kind::SpinningStream, CHUNK), "bare smoltcp");
            let ours = of(Work::Ours(WRITES_64K, Metric::Bandwidth), "64 KiB Write");
            if !offload {
                all.goal(&ours, &bare, Bound::Reported);
                plain.push(ours);
                continue;
            }
            let large = of(Work::Ours(WRITES_1M, Metric::Bandwidth), "1 MiB Write");
            let over = of(
                Work::Ours(WRITES_64K_OVER_SEGMENTS, Metric::Bandwidth),
                "64 KiB Write, FPDUs over segments",
            );
            let large_over = of(
                Work::Ours(WRITES_1M_OVER_SEGMENTS, Metric::Bandwidth),
                "1 MiB Write, FPDUs over segments",
            );
            let before = &plain[usize::from(direction == Direction::In)];
            let least = match direction {
                Direction::Out => Bound::AtLeast(0.6),
                Direction::In => Bound::AtLeast(1.0),
            };
            let times = match wire {
                Wire::Tap => Bound::AtLeast(10.0),
                Wire::Raw => Bound::Reported,
            };
            // The targets do not require FPDUs aligned to segments, so they apply to the figures
            // with FPDUs over several segments.
            for (ours, large, is_judged) in [(&ours, &large, false), (&over, &large_over, true)] {
                let bound = |bound| if is_judged { bound } else { Bound::Reported };
                for ours in [ours, large] {
                    all.goal(ours, &bare, bound(Bound::AtLeast(0.8)));
                }
                all.goal(ours, &raw[0], bound(least));
                all.best_of(large, &raw, bound(least));
                all.goal(ours, before, bound(times));
            }
        }
    }
}

fn latency(all: &mut All) {
    let mut of = |work, name: &str| {
        let of = Of::Device {
            wire: Wire::Tap,
            offload: true,
            direction: Direction::Out,
            work,
        };
        all.figure(Section::Latency, name, of)
    };
    let bare = of(Work::Bare(Kind::Spin, 8), "bare smoltcp, TAP, 8 B");
    let write = of(
        Work::Ours(&["write_lat", "-s8"], Metric::Latency),
        "8 B Write, TAP",
    );
    let send = of(
        Work::Ours(&["send_lat", "-s8"], Metric::Latency),
        "8 B Send, TAP",
    );
    for ours in [write, send] {
        all.goal(&ours, &bare, Bound::AtMost(1.15));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_is_of_figures_that_are_measured_and_in_one_unit() {
        let All { figures, goals } = all();
        let find = |name: &String| figures.iter().find(|figure| figure.name == *name).unwrap();
        for goal in &goals {
            let unit = find(&goal.name).unit();
            for with in &goal.with {
                assert_eq!(find(with).unit(), unit, "{goal:?}");
            }
        }
        // Number of targets in this order: in-memory link, loss, devices out and in, latency.
        let bounds = |bound| goals.iter().filter(|goal| goal.bound == bound).count();
        assert_eq!(bounds(Bound::AtLeast(0.75)), 4);
        assert_eq!(bounds(Bound::AtLeast(0.9)), 4);
        assert_eq!(bounds(Bound::AtLeast(0.8)), 8);
        assert_eq!(bounds(Bound::AtLeast(0.6)), 4);
        assert_eq!(bounds(Bound::AtLeast(1.0)), 4);
        assert_eq!(bounds(Bound::AtLeast(10.0)), 2);
        assert_eq!(bounds(Bound::AtMost(1.15)), 2);
    }

    #[test]
    fn no_two_figures_have_one_name() {
        let figures = all().figures;
        for (at, figure) in figures.iter().enumerate() {
            assert!(!figures[..at].iter().any(|other| other.name == figure.name));
        }
    }
}
