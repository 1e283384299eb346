//! Raw TCP in a well-written program: the performance that an application can reach without RDMA.
//!
//! Client and server are separate processes. They use the same processors and the same congestion
//! control as those of `uwarp perf`.

mod load;

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use crate::process::{self, Pinning, Running, Side};
use crate::rows::Sample;
pub(crate) use load::{connect, prepare, serve};

/// Name of the subcommand of a server process.
const SERVER: &str = "raw-server";
/// Name of the subcommand of a client process.
const CLIENT: &str = "raw-client";

/// Kind of a connection. The first byte of the connection selects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// A stream from the client. The server reads it, and responds after its end. Both sides block.
    Stream,
    /// A stream from the client. Both sides spin on a nonblocking socket.
    SpinningStream,
    /// Messages there and back. Both sides spin on a nonblocking socket.
    Spin,
    /// Messages there and back. Both sides block in the read.
    Block,
    /// Messages there and back. The client spins, and the server blocks like an application that
    /// sleeps until a message arrives.
    SleepingServer,
}

impl Kind {
    fn spins(self, side: Side) -> bool {
        match self {
            Kind::Stream | Kind::Block => false,
            Kind::SpinningStream | Kind::Spin => true,
            Kind::SleepingServer => side == Side::Client,
        }
    }

    /// Returns true if bytes flow in one direction only.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Kind::Stream | Kind::SpinningStream)
    }

    /// Describes a measurement with messages of this size.
    pub(crate) fn how(self, size: usize) -> String {
        match self {
            Kind::Stream => format!("blocking writes of {size} B"),
            Kind::SpinningStream => format!("writes and reads that spin, of {size} B"),
            Kind::Spin => format!("{size} B there and back, both spin"),
            Kind::Block => format!("{size} B there and back, both block"),
            Kind::SleepingServer => format!("{size} B there and back, the server blocks"),
        }
    }
}

/// Load of a client process: the kind, the size of writes or messages, and the time.
#[derive(clap::Args, Clone, Copy, PartialEq, Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    pub(crate) size: usize,
    #[arg(value_parser = process::seconds)]
    pub(crate) time: Duration,
}

impl Load {
    /// Formats the load as arguments of a process.
    pub(crate) fn words(&self) -> [String; 3] {
        let kind = self.kind.to_possible_value();
        [
            kind.map_or_else(String::new, |kind| kind.get_name().to_owned()),
            self.size.to_string(),
            self.time.as_secs_f64().to_string(),
        ]
    }
}

/// A server process, which is killed on drop.
pub(crate) struct Server {
    _running: Running,
    addr: SocketAddr,
    congestion: String,
    pinning: Pinning,
}

impl Server {
    /// Starts a server on the loopback device.
    pub(crate) fn start(congestion: &str, pinning: &Pinning) -> io::Result<Self> {
        let mut command = pinning.command(Side::Server, std::env::current_exe()?);
        let (running, line) = process::start(command.args([SERVER, congestion]))?;
        let addr = line.trim().parse();
        Ok(Server {
            _running: running,
            addr: addr.map_err(|_| io::Error::other("the raw server did not start"))?,
            congestion: congestion.to_owned(),
            pinning: pinning.clone(),
        })
    }

    /// Runs a client. Returns bytes per second for writes of this size, or seconds one way for
    /// messages of this size.
    pub(crate) fn measure(&self, kind: Kind, size: usize, time: Duration) -> io::Result<Sample> {
        let mut command: Command = self.pinning.command(Side::Client, std::env::current_exe()?);
        command
            .args([CLIENT, &self.congestion, &self.addr.to_string()])
            .args(Load { kind, size, time }.words());
        let said = process::output(&mut command, time + Duration::from_secs(20))?;
        sample(&said).ok_or_else(|| process::strange("the raw client", &said))
    }
}

/// Parses the output of a client: the value and the processor time, which is NaN if there is none.
fn sample(said: &str) -> Option<Sample> {
    let (value, cpu) = said.trim().split_once(' ')?;
    let (value, cpu): (f64, f64) = (value.parse().ok()?, cpu.parse().ok()?);
    let cpu = Some(cpu).filter(|cpu| cpu.is_finite());
    (value > 0.0).then_some(Sample { value, cpu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_client_has_a_value_and_processor_time() {
        let (value, cpu) = (5e9, Some(0.25));
        assert_eq!(sample("5e9 0.25\n"), Some(Sample { value, cpu }));
        assert_eq!(sample("5e9 NaN\n"), Some(Sample::of(5e9)));
        assert_eq!(sample("NaN NaN\n"), None);
        assert_eq!(sample("Connection refused\n"), None);
    }
}
