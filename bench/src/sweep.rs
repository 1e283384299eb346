//! Measures other programs and uwarp alternately, with messages from 8 B to 1 MiB.

use std::io;

use crate::Options;
use crate::distance::Processors;
use crate::ours::{self, Metric};
use crate::peers::{Peers, Test};
use crate::progress;
use crate::sample::Sample;
use crate::stats::{Ratios, Spread};

/// Lengths of a message in bytes.
pub(crate) const SIZES: [usize; 6] = [8, 64, 512, 4 << 10, 64 << 10, 1 << 20];

/// A test of uwarp, and tests of other programs that it is compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    pub(crate) test: &'static [&'static str],
    pub(crate) metric: Metric,
    pub(crate) peers: &'static [Test],
    pub(crate) sizes: &'static [usize],
    /// False to measure uwarp without CRC. Other programs have no CRC, but the targets require
    /// uwarp's, so figures without it are only reported.
    pub(crate) crc: bool,
}

/// Lengths of a message at which a CRC matters.
const LARGE: [usize; 2] = [64 << 10, 1 << 20];

/// All comparisons of tests.
pub(crate) const PAIRS: [Pair; 9] = [
    pair(
        "Write",
        &["write_bw"],
        Metric::Bandwidth,
        &[Test::UcxPut, Test::UcxPutTuned],
    ),
    pair(
        "Read",
        &["read_bw"],
        Metric::Bandwidth,
        &[Test::UcxGet, Test::UcxGetTuned],
    ),
    pair(
        "Send",
        &["send_bw"],
        Metric::Bandwidth,
        &[Test::UcxTag, Test::UcxTagTuned, Test::QperfBandwidth],
    ),
    pair(
        "Send latency, polling",
        &["send_lat"],
        Metric::Latency,
        &[Test::UcxTagLatency, Test::Pingpong],
    ),
    pair(
        "Send latency, waiting",
        &["send_lat", "-e"],
        Metric::Latency,
        &[Test::QperfLatency],
    ),
    Pair {
        sizes: &[8],
        ..pair(
            "Write latency, polling",
            &["write_lat"],
            Metric::Latency,
            &[Test::UcxTagLatency, Test::Pingpong],
        )
    },
    without_crc(
        "Read, CRC off",
        &["read_bw"],
        Metric::Bandwidth,
        &[Test::UcxGetTuned],
    ),
    without_crc(
        "Send, CRC off",
        &["send_bw"],
        Metric::Bandwidth,
        &[Test::UcxTagTuned],
    ),
    without_crc(
        "Send latency, polling, CRC off",
        &["send_lat"],
        Metric::Latency,
        &[Test::UcxTagLatency, Test::Pingpong],
    ),
];

const fn pair(
    name: &'static str,
    test: &'static [&'static str],
    metric: Metric,
    peers: &'static [Test],
) -> Pair {
    Pair {
        name,
        test,
        metric,
        peers,
        sizes: &SIZES,
        crc: true,
    }
}

const fn without_crc(
    name: &'static str,
    test: &'static [&'static str],
    metric: Metric,
    peers: &'static [Test],
) -> Pair {
    Pair {
        sizes: &LARGE,
        crc: false,
        ..pair(name, test, metric, peers)
    }
}

/// Values of a comparison for one size, from all rounds.
pub(crate) struct Cell {
    pub(crate) pair: Pair,
    pub(crate) size: usize,
    pub(crate) ours: Vec<Sample>,
    pub(crate) theirs: Vec<(Test, Vec<Sample>)>,
}

impl Cell {
    /// Returns the ratio in favor of uwarp. Above 1, uwarp is faster, for bandwidths and for
    /// latencies.
    pub(crate) fn ahead(&self, test: Test) -> Option<Spread> {
        let (_, theirs) = self.theirs.iter().find(|(of, _)| *of == test)?;
        let ratios = match self.pair.metric {
            Metric::Latency => Ratios::of(theirs, &self.ours),
            _ => Ratios::of(&self.ours, theirs),
        };
        ratios.spread()
    }
}

/// Results of all comparisons.
pub(crate) struct Swept {
    pub(crate) cells: Vec<Cell>,
    /// Values of iperf3 with writes of 64 KiB and of 1 MiB.
    pub(crate) iperf: Vec<(usize, Vec<f64>)>,
    /// Reasons for missing values, one for each test.
    pub(crate) failures: Vec<(Test, String)>,
}

impl Swept {
    fn note(&mut self, test: Test, size: usize, error: &io::Error) {
        if !self.failures.iter().any(|(failed, _)| *failed == test) {
            let why = match error.kind() {
                io::ErrorKind::NotFound => error.to_string(),
                _ => format!("at {size} B: {error}"),
            };
            progress::tell(format_args!("{}: {why}", test.name()));
            self.failures.push((test, why));
        }
    }

    fn has_failed(&self, test: Test) -> bool {
        self.failures
            .iter()
            .any(|(failed, why)| *failed == test && why.contains("not installed"))
    }
}

/// Returns uwarp's options for a size. The number of outstanding requests is the same as in the
/// other tables.
pub(crate) fn options_of(size: usize) -> [&'static str; 3] {
    match size {
        0..=65_535 => ["-t64", "-o64", "-r256"],
        65_536..=1_048_575 => ["-t16", "-o16", "-r64"],
        _ => ["-t16", "-o16", "--warm-up=50"],
    }
}

/// Measures all rounds.
pub(crate) fn run(options: &Options, processors: &Processors) -> io::Result<Swept> {
    let with_crc = ours::Server::start(&options.ours(), true)?;
    let without = ours::Server::start(&options.ours(), false)?;
    let mut peers = Peers::new(&options.pinning());
    let time = options.time()?;
    let cell = |pair: Pair, size| Cell {
        pair,
        size,
        ours: Vec::new(),
        theirs: pair.peers.iter().map(|test| (*test, Vec::new())).collect(),
    };
    let mut cells: Vec<Cell> = Vec::new();
    for pair in PAIRS {
        cells.extend(pair.sizes.iter().map(|size| cell(pair, *size)));
    }
    let mut swept = Swept {
        cells: Vec::new(),
        iperf: vec![(64 << 10, Vec::new()), (1 << 20, Vec::new())],
        failures: Vec::new(),
    };
    for round in 1..=options.peer_rounds {
        for cell in &mut cells {
            progress::now(format_args!(
                "peers, round {round} of {}: {}, {} B",
                options.peer_rounds, cell.pair.name, cell.size
            ));
            let size = format!("-s{}", cell.size);
            let mut test = cell.pair.test.to_vec();
            test.push(&size);
            if cell.pair.metric != Metric::Latency {
                test.extend(options_of(cell.size));
            }
            let server = if cell.pair.crc { &with_crc } else { &without };
            let ours = processors.sample(|| server.measure(&test, cell.pair.metric, time / 2));
            cell.ours.push(ours.unwrap_or_else(|error| {
                progress::tell(format_args!(
                    "{} of {} B: {error}",
                    cell.pair.name, cell.size
                ));
                Sample::NONE
            }));
            for (test, samples) in &mut cell.theirs {
                if !swept.has_failed(*test) {
                    let mut theirs = || peers.measure(*test, cell.size, time / 2);
                    let measured = processors.sample(|| theirs().map(Sample::of));
                    samples.push(measured.unwrap_or_else(|error| {
                        swept.note(*test, cell.size, &error);
                        Sample::NONE
                    }));
                }
            }
        }
        for at in 0..swept.iperf.len() {
            if !swept.has_failed(Test::Iperf) {
                let size = swept.iperf[at].0;
                match peers.measure(Test::Iperf, size, time / 2) {
                    Ok(value) => swept.iperf[at].1.push(value),
                    Err(error) => swept.note(Test::Iperf, size, &error),
                }
            }
        }
    }
    progress::over();
    swept.cells = cells;
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ahead_is_more_of_a_bandwidth_and_less_of_a_latency() {
        let cell = |pair, ours, theirs| Cell {
            pair,
            size: 8,
            ours: vec![Sample::of(ours)],
            theirs: vec![(pair.peers[0], vec![Sample::of(theirs)])],
        };
        let write = cell(PAIRS[0], 6e9, 2e9);
        assert_eq!(
            write.ahead(Test::UcxPut).map(|ahead| ahead.median),
            Some(3.0)
        );
        let latency = cell(PAIRS[3], 2e-6, 4e-6);
        let ahead = latency.ahead(Test::UcxTagLatency).unwrap();
        assert!((ahead.median - 2.0).abs() < 1e-9);
        assert_eq!(latency.ahead(Test::UcxPut), None);
    }

    #[test]
    fn a_peer_that_fails_is_named_once() {
        let mut swept = Swept {
            cells: Vec::new(),
            iperf: Vec::new(),
            failures: Vec::new(),
        };
        let missing = io::Error::new(io::ErrorKind::NotFound, "qperf is not installed");
        swept.note(Test::QperfBandwidth, 8, &missing);
        swept.note(Test::QperfBandwidth, 64, &missing);
        assert_eq!(swept.failures.len(), 1);
        assert!(swept.has_failed(Test::QperfBandwidth) && !swept.has_failed(Test::UcxPut));
    }
}
