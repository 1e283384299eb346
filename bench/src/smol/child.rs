//! Child processes of this command, and their arguments.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::json;
use smoltcp::socket::tcp::CongestionControl;
use smoltcp::wire::EthernetAddress;

use super::bare::{self, Bare, Tuning};
use super::cable::Cable;
use super::card::Card;
use super::{memory, sys};
use crate::process::{Pinning, Side};
use crate::raw::{self, Load};

/// First argument of a bare client.
const CLIENT: &str = "bare-client";
/// First argument of a bare server.
const SERVER: &str = "bare-server";
/// First argument of a process with an in-memory link.
const MEMORY: &str = "memory-link";
/// Port of a bare server.
const PORT: u16 = 7175;

/// Device that carries the frames of a stack in user space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(super) enum Wire {
    /// A TAP device.
    Tap,
    /// An AF_PACKET socket on one end of a veth pair.
    Raw,
}

impl Wire {
    pub(super) fn name(self) -> &'static str {
        match self {
            Wire::Tap => "tap",
            Wire::Raw => "raw",
        }
    }
}

/// A card for one bare smoltcp, and its settings.
#[derive(Parser, Clone, PartialEq, Debug)]
pub(super) struct CardOptions {
    #[arg(long)]
    pub(super) wire: Wire,
    /// The interface.
    #[arg(long)]
    pub(super) name: String,
    #[arg(long)]
    pub(super) offload: bool,
    #[arg(long)]
    pub(super) mtu: u16,
    /// Addresses of the stack.
    #[arg(long)]
    pub(super) addr: Ipv4Addr,
    #[arg(long, value_parser = mac)]
    pub(super) mac: EthernetAddress,
    /// Size in bytes of each buffer.
    #[arg(long)]
    pub(super) buffer: usize,
}

fn mac(text: &str) -> Result<EthernetAddress, String> {
    text.parse()
        .map_err(|()| format!("{text}: not an Ethernet address"))
}

impl CardOptions {
    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = ["--wire", self.wire.name(), "--name", &self.name]
            .map(str::to_owned)
            .into();
        for (name, value) in [
            ("--mtu", self.mtu.to_string()),
            ("--addr", self.addr.to_string()),
            ("--mac", self.mac.to_string()),
            ("--buffer", self.buffer.to_string()),
        ] {
            words.extend([name.to_owned(), value]);
        }
        words.extend(self.offload.then(|| "--offload".to_owned()));
        words
    }

    fn open(&self) -> io::Result<Bare<Card>> {
        let descriptor = match self.wire {
            Wire::Tap => sys::open_tap(&self.name, self.offload)?,
            Wire::Raw => sys::open_packet(&self.name, self.offload)?,
        };
        let card = Card::new(descriptor, self.offload, self.mtu)?;
        let tuning = Tuning {
            buffer: self.buffer,
            congestion: CongestionControl::Reno,
        };
        Ok(Bare::new(card, self.addr, self.mac, tuning))
    }

    /// Creates a client for a raw server on kernel TCP.
    pub(super) fn client(
        &self,
        pinning: &Pinning,
        to: SocketAddrV4,
        load: Load,
    ) -> io::Result<Command> {
        let mut command = pinning.command(Side::Client, std::env::current_exe()?);
        command.arg(CLIENT).args(self.words());
        command.arg("--to").arg(to.to_string());
        command.arg("--").args(load.words());
        Ok(command)
    }

    /// Creates a server for one raw client on kernel TCP.
    pub(super) fn server(&self, pinning: &Pinning) -> io::Result<Command> {
        let mut command = pinning.command(Side::Server, std::env::current_exe()?);
        command.arg(SERVER).args(self.words());
        Ok(command)
    }
}

#[derive(Parser)]
struct ClientOptions {
    #[command(flatten)]
    card: CardOptions,
    #[arg(long)]
    to: SocketAddrV4,
    #[arg(last = true)]
    load: Vec<String>,
}

#[derive(Parser)]
struct ServerOptions {
    #[command(flatten)]
    card: CardOptions,
}

/// Program that sends over an in-memory link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Who {
    Bare,
    Ours,
}

/// Congestion control, with the names of `--device`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Congestion {
    None,
    Reno,
    Cubic,
}

impl Congestion {
    pub(super) fn name(self) -> &'static str {
        match self {
            Congestion::None => "none",
            Congestion::Reno => "reno",
            Congestion::Cubic => "cubic",
        }
    }

    fn tuning(self, buffer: usize) -> Tuning {
        let congestion = match self {
            Congestion::None => CongestionControl::None,
            Congestion::Reno => CongestionControl::Reno,
            Congestion::Cubic => CongestionControl::Cubic,
        };
        Tuning { buffer, congestion }
    }
}

/// A link in memory with both ends.
#[derive(Parser, Clone, Copy, PartialEq, Debug)]
pub(super) struct MemoryOptions {
    #[arg(long)]
    pub(super) who: Who,
    #[arg(long)]
    pub(super) mtu: usize,
    #[arg(long)]
    pub(super) threads: usize,
    #[arg(long, default_value_t = 0.0)]
    pub(super) loss: f64,
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Size in bytes of each buffer of a bare socket.
    #[arg(long)]
    pub(super) buffer: usize,
    /// Congestion control. `None` for the default.
    #[arg(long)]
    pub(super) congestion: Option<Congestion>,
    #[arg(long)]
    pub(super) seconds: f64,
}

impl MemoryOptions {
    /// Creates the command for the process that measures the link. The process is pinned to one
    /// processor if both ends are in one thread.
    pub(super) fn command(&self, pinning: &Pinning) -> io::Result<Command> {
        let everywhere = Pinning { processors: None };
        let pinning = if self.threads == 1 {
            pinning
        } else {
            &everywhere
        };
        let mut command = pinning.command(Side::Client, std::env::current_exe()?);
        command.arg(MEMORY).args(self.words());
        Ok(command)
    }

    fn words(&self) -> Vec<String> {
        let who = match self.who {
            Who::Bare => "bare",
            Who::Ours => "ours",
        };
        let mut words = Vec::new();
        for (name, value) in [
            ("--who", who.to_owned()),
            ("--mtu", self.mtu.to_string()),
            ("--threads", self.threads.to_string()),
            ("--loss", self.loss.to_string()),
            ("--seed", self.seed.to_string()),
            ("--buffer", self.buffer.to_string()),
            ("--seconds", self.seconds.to_string()),
        ] {
            words.extend([name.to_owned(), value]);
        }
        if let Some(congestion) = self.congestion {
            words.extend(["--congestion".to_owned(), congestion.name().to_owned()]);
        }
        words
    }

    fn run(&self) -> io::Result<()> {
        let cable = Cable {
            mtu: self.mtu,
            loss: self.loss,
            seed: self.seed,
        };
        let tuning = self.congestion.map(|name| name.tuning(self.buffer));
        let time = Duration::try_from_secs_f64(self.seconds)
            .map_err(|_| raw::invalid("seconds of a link in memory"))?;
        let value = match self.who {
            Who::Bare => {
                let usual = Congestion::None.tuning(self.buffer);
                memory::bare(cable, tuning.unwrap_or(usual), self.threads, time)?
            }
            Who::Ours => memory::ours(cable, tuning, self.threads, time)?,
        };
        println!("{}", json!({ "value": value }));
        Ok(())
    }
}

/// Runs a child process if the arguments of this program request one.
pub(super) fn is_wanted(args: &[String]) -> Option<io::Result<()>> {
    let rest = args.get(1..)?;
    match rest.first()?.as_str() {
        CLIENT => {
            let ClientOptions { card, to, load } = ClientOptions::parse_from(rest);
            let load = Load::parse(&load).ok_or_else(|| raw::invalid("load of a bare client"));
            Some(load.and_then(|load| bare::client(card.open()?, to, load)))
        }
        SERVER => {
            let ServerOptions { card } = ServerOptions::parse_from(rest);
            let at = SocketAddrV4::new(card.addr, PORT);
            Some(card.open().and_then(|bare| bare::server(bare, at)))
        }
        MEMORY => Some(MemoryOptions::parse_from(rest).run()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_what_it_understands() {
        for (wire, offload) in [(Wire::Tap, true), (Wire::Raw, false)] {
            let card = CardOptions {
                wire,
                name: "uw0".to_owned(),
                offload,
                mtu: 1500,
                addr: Ipv4Addr::new(192, 0, 2, 2),
                mac: EthernetAddress([2, 0, 0, 0, 0, 2]),
                buffer: 1 << 18,
            };
            let words = [SERVER.to_owned()].into_iter().chain(card.words());
            assert_eq!(ServerOptions::parse_from(words).card, card);
        }
        for congestion in [None, Some(Congestion::Cubic)] {
            let link = MemoryOptions {
                who: Who::Ours,
                mtu: 9000,
                threads: 2,
                loss: 0.001,
                seed: 3,
                buffer: 1 << 16,
                congestion,
                seconds: 0.25,
            };
            let words = [MEMORY.to_owned()].into_iter().chain(link.words());
            assert_eq!(MemoryOptions::parse_from(words), link);
        }
    }
}
