//! Options that several commands have.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::namespace;
use crate::perf::Uwarp;
use crate::process::{self, Pinning};
use crate::report::Output;
use crate::rows::Unit;

/// Options.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Common {
    /// The command to measure
    #[arg(long, default_value = "target/release/uwarp")]
    uwarp: PathBuf,
    /// Rounds; each measures everything once, by turns
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Seconds for each figure of a round; latencies take half
    #[arg(long, default_value = "0.4", value_parser = process::seconds)]
    seconds: Duration,
    /// Congestion control of all connections: the machine's default may pace
    #[arg(long, value_name = "NAME", default_value = "reno")]
    pub(crate) congestion: String,
    /// Measure in the machine's network, not in a network namespace in which all programs have the
    /// same congestion control
    #[arg(long)]
    here: bool,
    /// Do not pin clients and servers to a processor each
    #[arg(long)]
    no_pinning: bool,
    /// Install the programs that are missing (Debian, as root)
    #[arg(long)]
    install_peers: bool,
    /// More options for every `uwarp perf`, at both sides
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    with: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Measure only rows with this in their names, and those they are compared with
    #[arg(value_name = "FILTER", conflicts_with = "write")]
    pub(crate) only: Vec<String>,
}

impl Common {
    pub(crate) fn pinning(&self) -> Pinning {
        match self.no_pinning {
            true => Pinning::ANY,
            false => Pinning::usual(),
        }
    }

    pub(crate) fn uwarp(&self) -> Uwarp {
        Uwarp {
            path: self.uwarp.clone(),
            congestion: self.congestion.clone(),
            pinning: self.pinning(),
            with: self.with.clone(),
        }
    }

    /// Describes the conditions of the rounds, for the report.
    pub(crate) fn conditions(&self) -> String {
        let is_pinned = self.pinning().processors.is_some();
        let (time, control) = (self.seconds, &self.congestion);
        format!(" of {time:?} with `{control}`, pinned: {is_pinned},")
    }

    /// Returns the time of a measurement. Latencies need fewer messages. Bandwidths need time for
    /// the windows to grow.
    pub(crate) fn time(&self, unit: Unit) -> Duration {
        match unit {
            Unit::Latency => self.seconds / 2,
            _ => self.seconds,
        }
    }

    /// Installs missing programs if requested, and enters a network namespace. Each element of
    /// `programs` is a program and its Debian package.
    pub(crate) fn prepare(&self, programs: &[(&str, &str)]) -> io::Result<()> {
        if self.install_peers && !namespace::is_own() {
            process::install(programs)?;
        }
        match self.here {
            true => Ok(()),
            false => namespace::enter(&self.congestion),
        }
    }
}
