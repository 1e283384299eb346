//! Pairs of connected processes, which are controlled by lines of text.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout, Stdio};

use clap::ValueEnum;

use super::memory;
use crate::process::{Pinning, Running, Side};

/// Carrier of the connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(super) enum Carrier {
    /// Kernel TCP over the loopback device, in two processes.
    Kernel,
    /// TCP in user space on a link in memory, with both ends in one process.
    Smol,
}

impl Carrier {
    pub(super) const ALL: [Carrier; 2] = [Carrier::Kernel, Carrier::Smol];

    /// Returns the name in tables.
    pub(super) fn told(self) -> &'static str {
        match self {
            Carrier::Kernel => "kernel TCP",
            Carrier::Smol => "smoltcp",
        }
    }
}

/// Role of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Role {
    /// One side of a pair.
    Server,
    /// The other side, which measures.
    Client,
    /// Both sides, over a link in memory.
    Both,
    /// One side of a pair on raw TCP.
    RawServer,
    /// The other side of a pair on raw TCP.
    RawClient,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
            Role::Both => "both",
            Role::RawServer => "raw-server",
            Role::RawClient => "raw-client",
        }
    }
}

/// Parameters with which a pair is started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Shape {
    pub(super) conns: usize,
    pub(super) regions: usize,
    /// Size in bytes of each socket buffer in user space; `None` for the default.
    pub(super) buffer: Option<usize>,
    /// True for raw TCP without uwarp.
    pub(super) raw: bool,
}

impl Shape {
    pub(super) fn of_conns(conns: usize) -> Self {
        Shape {
            conns,
            regions: 1,
            buffer: None,
            raw: false,
        }
    }

    pub(super) fn of_raw(conns: usize) -> Self {
        Shape {
            raw: true,
            ..Self::of_conns(conns)
        }
    }

    pub(super) fn of_regions(regions: usize) -> Self {
        Shape {
            conns: 1,
            regions,
            buffer: None,
            raw: false,
        }
    }
}

/// A process that executes commands.
struct Peer {
    _child: Running,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(
        role: Role,
        shape: Shape,
        congestion: &str,
        addr: Option<SocketAddr>,
    ) -> io::Result<(Self, String)> {
        let side = match role {
            Role::Server | Role::RawServer => Side::Server,
            Role::Client | Role::RawClient | Role::Both => Side::Client,
        };
        let pinning = match role {
            // A process with both sides is not pinned, because each side has its own threads.
            Role::Both => Pinning { processors: None },
            _ => Pinning::usual(),
        };
        let mut command = pinning.command(side, std::env::current_exe()?);
        command.args(["scale", "--role", role.name()]);
        command.args(["--conns", &shape.conns.to_string()]);
        command.args(["--regions", &shape.regions.to_string()]);
        if let Some(buffer) = shape.buffer {
            command.args(["--buffer", &buffer.to_string()]);
        }
        if let Some(addr) = addr {
            command.args(["--addr", &addr.to_string()]);
        }
        command.args(["--congestion", congestion]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a process without pipes"));
        };
        let lines = BufReader::new(stdout).lines();
        let mut peer = Peer {
            _child: Running(child),
            stdin,
            lines,
        };
        let said = peer.hear()?;
        Ok((peer, said))
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdin, "{line}")?;
        self.stdin.flush()
    }

    fn hear(&mut self) -> io::Result<String> {
        let line = self.lines.next().transpose()?;
        line.ok_or_else(|| io::Error::other("a process of the measurement has ended"))
    }

    fn ask(&mut self, line: &str) -> io::Result<f64> {
        self.say(line)?;
        let answer = self.hear()?;
        let number = answer.trim().parse();
        number.map_err(|_| io::Error::other(format!("{line}: {answer}")))
    }
}

/// Two connected sides, in two processes or in one.
pub(super) struct Pair {
    /// `None` if one process has both sides.
    server: Option<Peer>,
    client: Peer,
    /// Kernel memory of one side of a connection in bytes.
    pub(super) kernel: f64,
}

impl Pair {
    pub(super) fn start(carrier: Carrier, shape: Shape, congestion: &str) -> io::Result<Self> {
        let kernel = memory::kernel();
        let (server, addr, role) = match carrier {
            Carrier::Smol => (None, None, Role::Both),
            Carrier::Kernel => {
                let (server, client) = match shape.raw {
                    true => (Role::RawServer, Role::RawClient),
                    false => (Role::Server, Role::Client),
                };
                let (server, addr) = Peer::start(server, shape, congestion, None)?;
                let addr = addr.parse().map_err(|_| io::Error::other(addr))?;
                (Some(server), Some(addr), client)
            }
        };
        let (client, said) = Peer::start(role, shape, congestion, addr)?;
        if said != "ready" {
            return Err(io::Error::other(said));
        }
        Ok(Pair {
            server,
            client,
            kernel: (memory::kernel() - kernel) / (2 * shape.conns) as f64,
        })
    }

    /// Runs a command of the client while the server polls. Returns the client's result.
    pub(super) fn measure(&mut self, ask: &str) -> io::Result<f64> {
        if let Some(server) = &mut self.server {
            server.say("spin")?;
        }
        self.client.ask(ask)
    }

    /// Returns the process memory of one side of a connection in bytes: the client's, then the
    /// server's.
    pub(super) fn memory(&mut self) -> io::Result<[f64; 2]> {
        let client = self.client.ask("memory")?;
        match &mut self.server {
            Some(server) => Ok([client, server.ask("memory")?]),
            // The process has both sides of each connection.
            None => Ok([client / 2.0; 2]),
        }
    }
}
