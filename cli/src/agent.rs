//! `uwarp agent`: options, addresses and shutdown of the agent. The crate `uwarp-agent` does the
//! rest.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use clap::Args;
use uwarp_agent::{Agent, ServeError, random_token, serve};
use uwarp_verbs::Device;
use uwarp_verbs::environment::TOKEN;
use uwarp_verbs::llp::LlpError;

use crate::address::{Host, PortOrAddress};
use crate::common::{self, Common, memory_size};
use crate::device::DeviceOption;
use crate::explain;
use crate::failure::{Failure, Report};
use crate::output::remark;
use crate::signals::catch_end_signals;

/// Interval between checks for a shortage of resources or a failure of the network.
const LOOK: Duration = Duration::from_millis(100);

/// Options of `uwarp agent`.
#[derive(Args, Debug)]
#[command(
    after_help = "docs/agent.md in the repository describes the protocol. Controllers can do everything \
    that the agent can. They need the token, which is printed at the start unless --token or \
    UWARP_TOKEN sets it.\n\n\
    Example:\n  \
    uwarp agent -a 127.0.0.1 -p 7174"
)]
pub(crate) struct Options {
    /// Port for RDMA connections that no controller asks for; they are served as by rping -s. 0
    /// takes a free port
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7174)]
    port: u16,
    /// Port for controllers, on the kernel's TCP; it is on loopback, unless ADDRESS is given. 0 or
    /// -p 0 selects a free port [default: PORT + 1]
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    control: Option<PortOrAddress>,
    /// Token that controllers have to send [default: a random one, which is printed]
    #[arg(
        long,
        value_name = "TOKEN",
        env = TOKEN,
        hide_env_values = true
    )]
    token: Option<String>,
    /// Accept controllers without a token. Every user of this host can then use the agent; other
    /// hosts cannot
    #[arg(long, conflicts_with = "token")]
    no_token: bool,
    /// Memory of all controllers together: regions, queues, and output that they do not read; K, M
    /// or G after the number stand for KiB, MiB, GiB
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = memory_size)]
    max_memory: u64,
    /// Address to listen on [default: the device's address, or all]
    #[arg(short = 'a', value_name = "ADDRESS")]
    address: Option<Host>,
    #[command(flatten)]
    device: DeviceOption,
    #[command(flatten)]
    common: Common,
}

/// Serves until SIGINT or SIGTERM, or until the agent reports a fault.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let control = options.control_addr()?;
    // Signals must be caught before a socket file exists, because an uncaught signal would leave
    // the file in place.
    let end = catch_end_signals()
        .map_err(|error| Failure::because(format!("signals cannot be handled: {error}")))?;
    let recording = options.common.capture()?;
    let device = options
        .device
        .open(options.common.settings(), recording.as_ref())?;
    let (token, is_new) = options.token()?;
    let agent = options.start(&device, control, token.clone())?;
    let output = options.common.output();
    if let Some(addr) = agent.rdma_addr() {
        output.line(format_args!("uwarp agent: RDMA on {addr}"))?;
    }
    if let Some(token) = token.filter(|_| is_new) {
        output.line(format_args!("uwarp agent: token {token}"))?;
    }
    let control = agent.control_addr();
    output.line(format_args!("uwarp agent: control on {control}"))?;
    let result = loop {
        match end.recv_timeout(LOOK) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(shortage) = agent.take_shortage() {
            remark(None, format_args!("uwarp agent: {shortage}"));
        }
        if let Some(fault) = agent.fault() {
            break Err(Failure::because(fault.to_string()));
        }
    };
    agent.stop();
    // Closing the connections adds their last frames to the capture.
    drop(device);
    common::finish(result, recording.as_ref())
}

impl Options {
    /// Returns the address that serves RDMA.
    fn rdma_addr(&self) -> Result<SocketAddr, Failure> {
        match &self.address {
            Some(host) => host.resolve(self.port, None),
            None => Ok(SocketAddr::new(self.device.listen_ip(), self.port)),
        }
    }

    /// Returns the token for controllers, and whether it was created here.
    fn token(&self) -> Result<(Option<String>, bool), Failure> {
        match &self.token {
            _ if self.no_token => Ok((None, false)),
            Some(token) if token.is_empty() => {
                let report = Report::new("the token is empty");
                Err(Failure::Usage(report.advice(
                    "give a token, or use --no-token, or neither for a random one",
                )))
            }
            Some(token) => Ok((Some(token.clone()), false)),
            None => match random_token() {
                Ok(token) => Ok((Some(token), true)),
                Err(error) => {
                    let report = Report::new(format!("no token can be created: {error}"));
                    Err(report.fault("this system").advice("use --token").into())
                }
            },
        }
    }

    /// Returns the address that serves controllers. Without an address in `--control` it is an
    /// address of loopback: that of `-a`, or 127.0.0.1.
    fn control_addr(&self) -> Result<SocketAddr, Failure> {
        let mut addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        if !self.device.is_user_space() {
            let rdma = self.rdma_addr()?;
            if rdma.ip().is_loopback() {
                addr = rdma;
            }
        }
        let port = match (&self.control, self.port) {
            (Some(PortOrAddress::Address(given)), _) => return given.listen(),
            (Some(PortOrAddress::Port(port)), _) => *port,
            (None, 0) => 0,
            (None, port) => port.checked_add(1).ok_or_else(|| {
                let report = Report::new(format!("there is no port after {port} for controllers"));
                Failure::Usage(report.advice("use --control with another port"))
            })?,
        };
        addr.set_port(port);
        Ok(addr)
    }

    fn start(
        &self,
        device: &Device,
        control: SocketAddr,
        token: Option<String>,
    ) -> Result<Agent, Failure> {
        let listener = TcpListener::bind(control).map_err(|error| {
            let error = LlpError::from_io("listen on this address", control, error);
            explain::listen_for_controllers(error, control)
        })?;
        let rdma = self.rdma_addr()?;
        let mut options = uwarp_agent::Options::default();
        options.rdma = Some(rdma);
        options.listen_ip = rdma.ip();
        options.source_ip = self.device.source().map(|addr| addr.ip());
        options.token = token;
        options.max_memory = self.max_memory;
        serve(device, listener, options).map_err(|error| match error {
            ServeError::Rdma(error) => explain::listen(&error, rdma).into(),
            ServeError::Unprotected(addr) => Failure::Usage(
                Report::new(format!("other hosts can reach the control address {addr}"))
                    .expected("a token")
                    .advice("leave out --no-token, or give --control a port without an address"),
            ),
            other => Failure::because(other.to_string()),
        })
    }
}
