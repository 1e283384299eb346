//! Processes that are connected, and what they know of each other: lines there and back.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout, Stdio};

use clap::ValueEnum;

use super::memory;
use crate::process::{Pinning, Running, Side};

/// What carries the connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(super) enum Carrier {
    /// The kernel's TCP over the loopback device: two processes.
    Kernel,
    /// TCP in user space on a link in memory: both ends in one process.
    Smol,
}

impl Carrier {
    pub(super) const ALL: [Carrier; 2] = [Carrier::Kernel, Carrier::Smol];

    /// As tables call it.
    pub(super) fn told(self) -> &'static str {
        match self {
            Carrier::Kernel => "kernel TCP",
            Carrier::Smol => "smoltcp",
        }
    }
}

/// What a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Role {
    /// One side of a pair.
    Server,
    /// The other one, which measures.
    Client,
    /// Both, over a link in memory.
    Both,
    /// One side of a pair of raw TCP.
    RawServer,
    /// The other one.
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

/// What a pair is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Shape {
    pub(super) conns: usize,
    pub(super) regions: usize,
    /// Bytes of each socket buffer of a connection in user space; without it, what is usual.
    pub(super) buffer: Option<usize>,
    /// Whether it is of raw TCP, without us.
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

/// A process.
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
            // It has the threads of both sides.
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

/// Two sides that are connected.
pub(super) struct Pair {
    /// `None` where one process is both.
    server: Option<Peer>,
    client: Peer,
    /// Bytes of the kernel's own for one side of a connection.
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

    /// The server polls while the client does what it is asked.
    pub(super) fn measure(&mut self, ask: &str) -> io::Result<f64> {
        if let Some(server) = &mut self.server {
            server.say("spin")?;
        }
        self.client.ask(ask)
    }

    /// Bytes of the processes' own for one side of a connection: of the client, and of the server.
    pub(super) fn memory(&mut self) -> io::Result<[f64; 2]> {
        let client = self.client.ask("memory")?;
        match &mut self.server {
            Some(server) => Ok([client, server.ask("memory")?]),
            // It has both sides of each.
            None => Ok([client / 2.0; 2]),
        }
    }
}
