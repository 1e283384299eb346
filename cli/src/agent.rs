//! `uwarp agent`: options, addresses and shutdown of the agent. The crate `uwarp-agent` does the
//! rest.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use clap::Args;
use uwarp_agent::{Agent, ServeError, serve};
use uwarp_verbs::Device;
use uwarp_verbs::llp::LlpError;

use crate::address::Host;
use crate::common::{self, Common};
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
    after_help = "docs/agent.md in the repository describes the protocol. Anyone who reaches the control port can do \
    everything that the agent can: use it in test networks only, or with -a 127.0.0.1.\n\n\
    Example:\n  \
    uwarp agent -a 127.0.0.1 -p 7174"
)]
pub(crate) struct Options {
    /// Port for RDMA connections that no controller asks for; they are served as by rping -s. 0
    /// takes a free port
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7174)]
    port: u16,
    /// Port for controllers, on the kernel's TCP. 0 or -p 0 selects a free port [default:
    /// PORT + 1]
    #[arg(long, value_name = "PORT")]
    control: Option<u16>,
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
    let agent = options.start(&device, control)?;
    let output = options.common.output();
    if let Some(addr) = agent.rdma_addr() {
        output.line(format_args!("uwarp agent: RDMA on {addr}"))?;
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

    /// Returns the address that serves controllers. For a device with its own TCP/IP it is
    /// 127.0.0.1, because the kernel, which serves the controllers, does not have the device's
    /// address.
    fn control_addr(&self) -> Result<SocketAddr, Failure> {
        let mut addr = if self.device.is_user_space() {
            SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0)
        } else {
            self.rdma_addr()?
        };
        let port = match (self.control, self.port) {
            (Some(port), _) => port,
            (None, 0) => 0,
            (None, port) => port.checked_add(1).ok_or_else(|| {
                let report = Report::new(format!("there is no port after {port} for controllers"));
                Failure::Usage(report.advice("use --control with another port"))
            })?,
        };
        // `set_port` keeps the zone of a link-local address.
        addr.set_port(port);
        Ok(addr)
    }

    fn start(&self, device: &Device, control: SocketAddr) -> Result<Agent, Failure> {
        let listener = TcpListener::bind(control).map_err(|error| {
            let error = LlpError::from_io("listen on this address", control, error);
            explain::listen_for_controllers(error, control)
        })?;
        let rdma = self.rdma_addr()?;
        let mut options = uwarp_agent::Options::default();
        options.rdma = Some(rdma);
        options.listen_ip = rdma.ip();
        options.source_ip = self.device.source().map(|addr| addr.ip());
        serve(device, listener, options).map_err(|error| match error {
            ServeError::Rdma(error) => explain::listen(&error, rdma).into(),
            other => Failure::because(other.to_string()),
        })
    }
}
