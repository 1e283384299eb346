//! Measures one figure after another, and starts the programs for each.

use std::io;
use std::time::Duration;

use super::figures::Of;
use super::mpi::Mpi;
use super::perftest::Perftest;
use crate::ours::{self, Metric, Uwarp};
use crate::process::Pinning;
use crate::raw::{self, Kind};
use crate::sample::Sample;

/// Servers that run during all rounds, and state of the programs.
pub(super) struct Lab {
    time: Duration,
    perf: ours::Server,
    raw: raw::Server,
    /// A raw server that may run on any processor.
    raw_free: raw::Server,
    perftest: Perftest,
    mpi: Mpi,
}

impl Lab {
    pub(super) fn new(uwarp: Uwarp, time: Duration) -> io::Result<Self> {
        let congestion = uwarp.congestion.clone();
        let server = |pinning: &Pinning| raw::Server::start(congestion.as_deref(), pinning);
        Ok(Lab {
            time,
            perf: ours::Server::start(&uwarp, true)?,
            raw: server(&uwarp.pinning)?,
            raw_free: server(&Pinning { processors: None })?,
            perftest: Perftest::new(&uwarp),
            mpi: Mpi::new(&uwarp),
        })
    }

    pub(super) fn measure(&mut self, of: &Of) -> io::Result<Sample> {
        // Latencies need fewer messages. Bandwidths need time for the windows to grow.
        let (time, short) = (self.time, self.time / 2);
        let value = match of {
            Of::Raw { kind, pinned } => {
                let server = match pinned {
                    true => &self.raw,
                    false => &self.raw_free,
                };
                return server.measure(*kind, 8, short);
            }
            Of::Working(work, size) => {
                return self.raw.measure(Kind::working(*work, true), *size, time);
            }
            Of::Perf(args, Metric::Latency) => {
                return self.perf.measure(args, Metric::Latency, short);
            }
            Of::Perf(args, metric) => return self.perf.measure(args, *metric, time),
            Of::Pair {
                tool,
                way,
                size,
                pinned,
            } => {
                let time = if tool.is_bandwidth() { time } else { short };
                self.perftest.measure((*tool, *way), *size, *pinned, time)?
            }
            Of::Crowd(tool) => self.perftest.crowd(*tool, short)?,
            Of::Mpi { fabric, work, size } => self.mpi.measure(*fabric, *work, *size, short)?,
        };
        Ok(Sample::of(value))
    }
}
