//! `uwarp agent`: the application under test. All of it is in the library; here are its ports and its end.

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
use crate::output::notice;
use crate::signals::asked_to_end;

/// How often it looks whether the network has failed.
const LOOK: Duration = Duration::from_millis(100);

/// Options of `uwarp agent`.
#[derive(Args, Debug)]
#[command(
    after_help = "docs/agent.md in the repository has the protocol. Who reaches the control port can do everything the \
    agent can: it is for test networks, or for -a 127.0.0.1.\n\n\
    Example:\n  \
    uwarp agent -a 127.0.0.1 -p 7174"
)]
pub(crate) struct Options {
    /// Port for RDMA connections that belong to no controller: they are served as by rping -s. 0 takes a free one
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7174)]
    port: u16,
    /// Port for controllers, always of the kernel's TCP. 0 takes a free one, and so does -p 0 [default: PORT + 1]
    #[arg(long, value_name = "PORT")]
    control: Option<u16>,
    /// Address to listen on (by default that of the device, else all)
    #[arg(short = 'a', value_name = "ADDRESS")]
    address: Option<Host>,
    #[command(flatten)]
    device: DeviceOption,
    #[command(flatten)]
    common: Common,
}

/// Serves until it is asked to end.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let control = options.control_addr()?;
    // Before there is a socket file that a signal would leave behind.
    let end = asked_to_end()
        .map_err(|error| Failure::because(format!("signals cannot be taken: {error}")))?;
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
        if let Some(short) = agent.take_short() {
            notice(format_args!("uwarp agent: {short}"));
        }
        if let Some(fault) = agent.fault() {
            break Err(Failure::because(fault.to_string()));
        }
    };
    agent.stop();
    // Its connections say their last words before the capture is judged.
    drop(device);
    common::finish(result, recording.as_ref())
}

impl Options {
    /// Where RDMA is served.
    fn rdma_addr(&self) -> Result<SocketAddr, Failure> {
        match &self.address {
            Some(host) => host.resolve(self.port, None),
            None => Ok(SocketAddr::new(self.device.listen_ip(), self.port)),
        }
    }

    /// Where controllers come. The kernel does not have the address of a TCP/IP of our own.
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
                let report = Report::new(format!("there is no port behind {port} for controllers"));
                Failure::Usage(report.advice("--control with another port"))
            })?,
        };
        // The address keeps its zone.
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
