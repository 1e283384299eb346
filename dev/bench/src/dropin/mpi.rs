//! Two ranks of Open MPI over libfabric, with its provider `verbs` on uwarp or with its provider
//! `tcp`.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::namespace;
use crate::perf::Uwarp;
use crate::process::{self, Scratch};
use crate::rows::Sample;

const SOURCE: &str = include_str!("../../c/mpi.c");
/// Shell script that creates an Ethernet device with an address in this network namespace, because
/// `ofi_rxm` does not use the loopback device.
const ETHERNET: &str = "set -e
ip link show uwm0 >/dev/null 2>&1 && exit 0
ip link add uwm0 type veth peer name uwm1
ip addr add 192.0.2.1/24 dev uwm0
ip link set uwm0 up
ip link set uwm1 up";

/// Work of two ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranks {
    /// Provider of libfabric that transports the messages: `tcp`, or `verbs` on uwarp.
    pub(super) provider: &'static str,
    /// Number of puts of one side between two flushes, whose value is bytes per second; 0 for a
    /// ping-pong, whose value is seconds one way.
    pub(super) puts: u32,
    /// Size of a message in bytes.
    pub(super) size: usize,
}

impl Ranks {
    fn test(&self) -> &'static str {
        if self.puts == 0 { "pingpong" } else { "put" }
    }

    /// Returns true if the messages go through uwarp.
    fn is_ours(&self) -> bool {
        self.provider == "verbs"
    }

    /// Returns the arguments of the program. The processors are a word for each rank.
    fn arguments(&self, seconds: &str, processors: [&str; 2]) -> [String; 6] {
        let [first, second] = processors.map(str::to_owned);
        let (test, size) = (self.test().to_owned(), self.size.to_string());
        let puts = self.puts.max(1).to_string();
        [test, size, seconds.to_owned(), first, second, puts]
    }

    /// Describes how to repeat a measurement.
    pub(super) fn how(&self) -> String {
        let run = if self.is_ours() { "uwarp run -- " } else { "" };
        let arguments = self.arguments("SECONDS", ["CPU", "CPU"]).join(" ");
        let provider = self.provider;
        format!("`{run}mpirun -n 2 mpi {arguments}`, provider `{provider};ofi_rxm`")
    }
}

/// Runs the MPI program, which is compiled on first use.
pub(super) struct Mpi {
    uwarp: Uwarp,
    compiled: Option<Scratch>,
}

impl Mpi {
    pub(super) fn new(uwarp: &Uwarp) -> Self {
        Mpi {
            uwarp: uwarp.clone(),
            compiled: None,
        }
    }

    pub(super) fn measure(&mut self, ranks: Ranks, time: Duration) -> io::Result<Sample> {
        let directory = self.compiled()?;
        let processors = match self.uwarp.pinning.processors {
            Some((first, second)) => [first.to_string(), second.to_string()],
            None => ["none", "none"].map(str::to_owned),
        };
        let processors = processors.each_ref().map(String::as_str);
        let mut command = Command::new("mpirun");
        if ranks.is_ours() {
            command = Command::new(&self.uwarp.path);
            command.args(["run", "--", "mpirun"]);
        }
        let provider = format!("{};ofi_rxm", ranks.provider);
        command
            .env("TMPDIR", &directory)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .args(["-n", "2", "--oversubscribe", "--bind-to", "none"])
            .args(["--timeout", "30", "--mca", "plm", "isolated"])
            .args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"])
            .args(["--mca", "btl", "self", "--mca", "osc", "pt2pt"])
            .args(["--mca", "mtl_ofi_provider_include", &provider])
            .arg(directory.join("mpi"))
            .args(ranks.arguments(&time.as_secs_f64().to_string(), processors));
        let (said, noise) = process::outputs(&mut command, Duration::from_secs(40))?;
        let value = parse(&said).ok_or_else(|| process::strange("mpi", &noise))?;
        Ok(Sample::of(value))
    }

    /// Returns the directory of the compiled program. Before that, compiles it and creates the
    /// Ethernet device, if that was not done.
    fn compiled(&mut self) -> io::Result<PathBuf> {
        if let Some(scratch) = &self.compiled {
            return Ok(scratch.0.clone());
        }
        process::require(("mpirun", "openmpi-bin"))?;
        process::require(("mpicc", "libopenmpi-dev"))?;
        if !namespace::is_own() {
            return Err(io::Error::other(
                "libfabric needs an Ethernet device with an address, which is created only in a network namespace of the bench",
            ));
        }
        let within = Duration::from_secs(60);
        process::output(Command::new("sh").args(["-c", ETHERNET]), within)?;
        let scratch = Scratch::new("mpi")?;
        let source = scratch.0.join("mpi.c");
        std::fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("mpicc");
        compiler.args(["-std=gnu11", "-O2", "-o"]);
        compiler.arg(scratch.0.join("mpi")).arg(source);
        process::output(&mut compiler, within)?;
        Ok(self.compiled.insert(scratch).0.clone())
    }
}

/// Parses the number that rank 0 prints, among the output of libraries.
fn parse(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix("median "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_described_in_its_own_words() {
        let of = |provider, puts| Ranks {
            provider,
            puts,
            size: 8,
        };
        let how = of("verbs", 16).how();
        let command = "`uwarp run -- mpirun -n 2 mpi put 8 SECONDS CPU CPU 16`";
        assert_eq!(how, format!("{command}, provider `verbs;ofi_rxm`"));
        assert_ne!(how, of("verbs", 64).how());
        assert!(
            of("tcp", 0)
                .how()
                .starts_with("`mpirun -n 2 mpi pingpong 8 ")
        );
    }

    #[test]
    fn its_number_is_found_among_what_libraries_say() {
        assert_eq!(parse("warning: old\nmedian 2.5e-05\n"), Some(2.5e-5));
        assert_eq!(parse("PML cm cannot be selected\n"), None);
    }
}
