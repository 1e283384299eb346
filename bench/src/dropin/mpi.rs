//! Two ranks of Open MPI over libfabric, with its provider `verbs` on uwarp or with its provider
//! `tcp`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::namespace;
use crate::ours::Uwarp;
use crate::peers::strange;
use crate::process;

const SOURCE: &str = include_str!("../../c/mpi.c");
/// Shell script that creates an Ethernet device with an address in this network namespace, because
/// `ofi_rxm` does not use the loopback device.
const ETHERNET: &str = "set -e
ip link show uwm0 >/dev/null 2>&1 && exit 0
ip link add uwm0 type veth peer name uwm1
ip addr add 192.0.2.1/24 dev uwm0
ip link set uwm0 up
ip link set uwm1 up";

/// Provider of libfabric that transports the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fabric {
    Tcp,
    /// The provider `verbs` on uwarp, with the CRC.
    Verbs,
    /// The provider `verbs` on uwarp without the CRC, because the provider `tcp` has none either.
    VerbsNoCrc,
    /// The provider `tcp`, with large messages written by the sender. By default `ofi_rxm` lets the
    /// receiver read them.
    TcpByWrites,
    /// The provider `verbs` on uwarp, with large messages written by the sender.
    VerbsByWrites,
}

/// Environment variable that makes `ofi_rxm` use Writes.
const BY_WRITES: (&str, &str) = ("FI_OFI_RXM_USE_RNDV_WRITE", "1");

impl Fabric {
    pub(super) fn provider(self) -> &'static str {
        match self {
            Fabric::Tcp | Fabric::TcpByWrites => "tcp;ofi_rxm",
            Fabric::Verbs | Fabric::VerbsNoCrc | Fabric::VerbsByWrites => "verbs;ofi_rxm",
        }
    }

    /// Returns the options of `uwarp run`.
    pub(super) fn options(self) -> &'static [&'static str] {
        match self {
            Fabric::VerbsNoCrc => &["--crc", "off"],
            Fabric::Tcp | Fabric::Verbs | Fabric::TcpByWrites | Fabric::VerbsByWrites => &[],
        }
    }

    /// Returns the environment variable to set, if there is one.
    pub(super) fn variable(self) -> Option<(&'static str, &'static str)> {
        match self {
            Fabric::TcpByWrites | Fabric::VerbsByWrites => Some(BY_WRITES),
            Fabric::Tcp | Fabric::Verbs | Fabric::VerbsNoCrc => None,
        }
    }
}

/// Work of the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A ping-pong. Its value is seconds one way.
    PingPong,
    /// Puts from one side, with this many between two flushes. Its value is bytes per second.
    Put(u32),
}

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Work::PingPong => "pingpong",
            Work::Put(_) => "put",
        }
    }

    /// Returns the number of puts before a flush.
    pub(super) fn outstanding(self) -> u32 {
        match self {
            Work::PingPong => 1,
            Work::Put(outstanding) => outstanding,
        }
    }
}

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
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

    pub(super) fn measure(
        &mut self,
        fabric: Fabric,
        work: Work,
        size: usize,
        time: Duration,
    ) -> io::Result<f64> {
        let directory = self.compiled()?;
        let mut command = self.command(fabric, &directory);
        command
            .arg(directory.join("mpi"))
            .args([work.name(), &size.to_string()])
            .arg(time.as_secs_f64().to_string())
            .args(self.processors())
            .arg(work.outstanding().to_string());
        let said = process::both_outputs(&mut command, Duration::from_secs(40))?;
        parse(&said).ok_or_else(|| strange("mpi", &said))
    }

    /// Returns the processors of the two ranks.
    fn processors(&self) -> [String; 2] {
        match self.uwarp.pinning.processors {
            Some((first, second)) => [first.to_string(), second.to_string()],
            None => ["none", "none"].map(str::to_owned),
        }
    }

    fn command(&self, fabric: Fabric, directory: &Path) -> Command {
        let mut command = match fabric {
            Fabric::Tcp | Fabric::TcpByWrites => Command::new("mpirun"),
            Fabric::Verbs | Fabric::VerbsNoCrc | Fabric::VerbsByWrites => {
                let mut command = Command::new(&self.uwarp.path);
                command.arg("run").args(fabric.options());
                command.args(["--", "mpirun"]);
                command
            }
        };
        command
            .envs(fabric.variable())
            .env("TMPDIR", directory)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .args(["-n", "2", "--oversubscribe", "--bind-to", "none"])
            .args(["--timeout", "30", "--mca", "plm", "isolated"])
            .args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"])
            .args(["--mca", "btl", "self", "--mca", "osc", "pt2pt"])
            .args(["--mca", "mtl_ofi_provider_include", fabric.provider()]);
        command
    }

    /// Returns the directory of the compiled program.
    fn compiled(&mut self) -> io::Result<PathBuf> {
        if let Some(scratch) = &self.compiled {
            return Ok(scratch.0.clone());
        }
        for (program, package) in [("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev")] {
            if !process::installed(program) {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("{program} is not installed (Debian: {package}; --install-peers)"),
                ));
            }
        }
        if !namespace::is_own() {
            return Err(io::Error::other(
                "libfabric wants an Ethernet with an address, which is made in a network namespace alone, and none can be had",
            ));
        }
        let within = Duration::from_secs(60);
        process::output(Command::new("sh").args(["-c", ETHERNET]), within)?;
        let name = format!("uwarp-bench-{}", std::process::id());
        let scratch = Scratch(std::env::temp_dir().join(name));
        std::fs::create_dir(&scratch.0)?;
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
    fn its_number_is_found_among_what_libraries_say() {
        assert_eq!(parse("warning: old\nmedian 2.5e-05\n"), Some(2.5e-5));
        assert_eq!(parse("PML cm cannot be selected\n"), None);
    }
}
