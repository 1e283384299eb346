//! `uwarp rping`: the RDMA ping-pong of rdmacm-utils' rping, with its protocol, flags and output.
//!
//! ```text
//!   client                                             server
//!     | Send: where the ping data is (16 bytes) ------> |
//!     | <------------------- RDMA Read of the ping data  |
//!     | <-------------------------- Send: go ahead (16)  |
//!     | Send: where the echo goes (16 bytes) ---------> |
//!     | <------------------- RDMA Write of the echo      |
//!     | <-------------------------- Send: go ahead (16)  |
//!     |          ... again, until the count is reached   |
//! ```

mod client;
mod data;
mod server;
mod session;

use std::net::SocketAddr;

use clap::{ArgGroup, Args};

use crate::address::Host;
use crate::common::{self, Common};
use crate::device::{DeviceOption, check_network};
use crate::failure::Failure;
use crate::output::Output;

/// Limits of the ping data's size, as in Debian's rping: room for the label, and less than 64 KiB.
const SIZES: std::ops::RangeInclusive<u32> = 23..=65_535;

/// Options of `uwarp rping`, the same as those of rping.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("role").required(true).args(["server", "client"]))]
#[command(after_help = "Example, in two terminals:\n  \
    uwarp rping -s -a 127.0.0.1 -p 7174 -v\n  \
    uwarp rping -c -a 127.0.0.1 -p 7174 -C 10 -S 4096 -v -V")]
pub(crate) struct Options {
    /// Run as the server
    #[arg(short = 's')]
    server: bool,
    /// Run as the client
    #[arg(short = 'c', requires = "address")]
    client: bool,
    /// Server: address to listen on (default: the device's address, or all; ::0 for IPv6). Client:
    /// address of the server
    #[arg(short = 'a', value_name = "ADDRESS")]
    address: Option<Host>,
    /// Port of the server; with 0 a server takes a free one (-d prints it)
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7174)]
    port: u16,
    /// Pings until the client ends; 0 continues until it is stopped. A server follows its clients
    #[arg(short = 'C', value_name = "COUNT", default_value_t = 0)]
    count: u32,
    /// Bytes of ping data, 23 to 65535. A server accepts any size
    #[arg(short = 'S', value_name = "SIZE", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(i64::from(*SIZES.start())..=i64::from(*SIZES.end())))]
    size: u32,
    /// Display the ping data
    #[arg(short = 'v')]
    verbose: bool,
    /// Validate the ping data (client)
    #[arg(short = 'V')]
    validate: bool,
    /// Display every step
    #[arg(short = 'd')]
    debug: bool,
    /// Persistent server: serves many clients, one after the other or at once, until it is stopped
    #[arg(short = 'P', conflicts_with = "client")]
    persistent: bool,
    /// Clients that a persistent server serves at once; further ones are rejected
    #[arg(long, value_name = "N", default_value_t = 256, requires = "persistent",
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_clients: u32,
    /// Time that a client of a persistent server may take for each step of a ping, before it is
    /// disconnected; 0 for any time. If all places are taken, a client that pauses for longer
    /// between two pings gives way to a new one
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        requires = "persistent"
    )]
    silence: u32,
    /// Address of this machine to connect from (client)
    #[arg(short = 'I', value_name = "ADDRESS", conflicts_with = "server")]
    source: Option<Host>,
    /// Accepted for compatibility: the program always creates its own QP
    #[arg(short = 'q')]
    own_qp: bool,
    #[command(flatten)]
    device: DeviceOption,
    #[command(flatten)]
    common: Common,
}

/// Output settings of both roles.
#[derive(Clone, Copy, Debug)]
struct Printer {
    output: Output,
    verbose: bool,
    debug: bool,
}

impl Printer {
    /// Prints a line if `-d` is given.
    fn debug(&self, text: impl std::fmt::Display) -> Result<(), Failure> {
        if self.debug {
            self.output.line(text)
        } else {
            Ok(())
        }
    }
}

/// Runs the client or the server until it is done.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let recording = options.common.capture()?;
    let settings = options.common.settings();
    let device = options.device.open(settings, recording.as_ref())?;
    let printer = Printer {
        output: options.common.output(),
        verbose: options.verbose,
        debug: options.debug,
    };
    let result = if options.server {
        server::run(options, &device, printer)
    } else {
        client::run(options, &device, printer)
    };
    // The network may have caused the failure, for example by an address conflict, so its events
    // are printed.
    if result.is_err() {
        let _ = check_network(&device);
    }
    // Closing the connections adds their last frames to the capture.
    drop(device);
    common::finish(result, recording.as_ref())
}

impl Options {
    /// Returns the address on which a server listens.
    fn listen_addr(&self) -> Result<SocketAddr, Failure> {
        match &self.address {
            Some(host) => host.resolve(self.port, None),
            None => Ok(SocketAddr::new(self.device.listen_ip(), self.port)),
        }
    }

    /// Returns the source address of a client, if there is one, and the address of the server.
    fn ends(&self) -> Result<(Option<SocketAddr>, SocketAddr), Failure> {
        let asked = self.source.as_ref().map(Host::local).transpose()?;
        let from = asked.or_else(|| self.device.source());
        let to = match &self.address {
            Some(host) => host.server(self.port, from.map(|from| from.ip()))?,
            // Unreachable: clap requires this option of a client.
            None => {
                return Err(Failure::because(
                    "a client needs the address of its server (-a)",
                ));
            }
        };
        Ok((from, to))
    }
}
