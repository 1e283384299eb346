//! The agent as a whole: it accepts controllers, serves the RDMA port, and stops.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, TcpKeepalive};
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{Device, DeviceError};

use crate::budget::Budget;
use crate::clients::{Clients, Limits};
use crate::controller::Controller;
use crate::hub::Hub;
use crate::json::Line;
use crate::refusal::Refusal;
use crate::rping;
use crate::session::{Common, Session};
use crate::workers::Workers;

/// Maximum number of controllers at a time.
const MAX_CONTROLLERS: usize = 64;
/// Memory in bytes that a controller may need without a command: lines that are being read, and
/// output.
const SESSION: usize = 256 << 10;
/// Default of [`Options::max_memory`].
pub(crate) const DEFAULT_MEMORY: u64 = 1 << 30;
/// Time without traffic after which TCP checks whether the host of a controller is alive.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Pause after the operating system refused to accept a controller, for example because no
/// descriptor was free.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Options of [`serve`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Address for RDMA connections that belong to no controller. Their clients are served as by
    /// `rping -s`. Port 0 selects a free port. Default: no such address.
    pub rdma: Option<SocketAddr>,
    /// Limits for the clients of `rdma`.
    pub rdma_limits: Limits,
    /// Default address for listeners of controllers. Default: all addresses.
    pub listen_ip: IpAddr,
    /// Default source address for connections of controllers. Default: the network chooses.
    pub source_ip: Option<IpAddr>,
    /// Token that each controller has to send with its first command. Without a token, controllers
    /// can connect over loopback only. Default: no token.
    pub token: Option<String>,
    /// Maximum memory of all controllers together in bytes: regions, queues of work requests and of
    /// completions (estimated), and output beyond 1 MiB of each controller. Default: 1 GiB.
    pub max_memory: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            rdma: None,
            rdma_limits: Limits::default(),
            listen_ip: Ipv4Addr::UNSPECIFIED.into(),
            source_ip: None,
            token: None,
            max_memory: DEFAULT_MEMORY,
        }
    }
}

/// Reason why an agent cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The device could not listen for RDMA connections.
    #[error(transparent)]
    Rdma(#[from] DeviceError),
    /// Other hosts can reach the control address, and there is no token.
    #[error("other hosts can reach the control address {0}, so controllers need a token")]
    Unprotected(SocketAddr),
    /// The operating system refused a descriptor or a thread, or the control socket cannot be used.
    #[error("the agent cannot start: {0}")]
    System(#[from] io::Error),
}

/// A running agent. It ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Agent {
    hub: HubHandle,
    control: SocketAddr,
    rdma: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
    workers: Arc<Workers>,
}

struct HubHandle(Arc<Hub>);

impl std::fmt::Debug for HubHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hub({} controllers)", self.0.controllers())
    }
}

/// Starts an agent on `device`. Controllers connect to `control`, which must be an address of
/// loopback if [`Options::token`] is not set. The agent takes the asynchronous
/// events of the device, so nothing else may poll them.
///
/// # Errors
/// Returns a [`ServeError`] if the agent cannot start.
pub fn serve(device: &Device, control: TcpListener, options: Options) -> Result<Agent, ServeError> {
    control.set_nonblocking(true)?;
    let control_addr = control.local_addr()?;
    if options.token.is_none() && !control_addr.ip().to_canonical().is_loopback() {
        return Err(ServeError::Unprotected(control_addr));
    }
    let hub = Arc::new(Hub::new()?);
    let rdma = options.rdma.map(|addr| device.listen(addr)).transpose()?;
    let rdma_addr = rdma.as_ref().map(uwarp_verbs::Listener::local_addr);
    // Shared, so that each of the two kinds of clients can use the threads that the other one left.
    let workers = Arc::new(Workers::new("uwarp-agent-client"));
    let mut agent = Agent {
        hub: HubHandle(Arc::clone(&hub)),
        control: control_addr,
        rdma: rdma_addr,
        threads: Vec::new(),
        workers: Arc::clone(&workers),
    };
    if let Some(listener) = rdma {
        let clients = Clients::new(options.rdma_limits);
        let server = rping::start(device, listener, clients, &workers, &hub)?;
        agent.threads.push(server);
    }
    let common = Arc::new(Common {
        device: device.clone(),
        listen_ip: options.listen_ip,
        source_ip: options.source_ip,
        rdma_port: rdma_addr.map(|addr| addr.port()),
        token: options.token,
        memory: Budget::new(options.max_memory),
    });
    let acceptor = Acceptor {
        control,
        common,
        hub,
        workers,
    };
    let named = thread::Builder::new().name("uwarp-agent".to_owned());
    agent.threads.push(named.spawn(move || acceptor.run())?);
    Ok(agent)
}

impl Agent {
    /// Returns the address for controllers.
    #[must_use]
    pub fn control_addr(&self) -> SocketAddr {
        self.control
    }

    /// Returns the address for RDMA connections that belong to no controller, if there is one.
    #[must_use]
    pub fn rdma_addr(&self) -> Option<SocketAddr> {
        self.rdma
    }

    /// Returns the number of connected controllers.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.hub.0.controllers()
    }

    /// Returns the failure of the network of the device, if it has failed. After that, no
    /// connection can be made.
    #[must_use]
    pub fn fault(&self) -> Option<LlpError> {
        self.hub.0.fault()
    }

    /// Removes and returns the latest shortage: of descriptors or memory for connections, or of
    /// memory for a client or controller, which was refused. A listener reports one that persists
    /// again after a minute.
    #[must_use]
    pub fn take_shortage(&self) -> Option<LlpError> {
        self.hub.0.take_shortage()
    }

    /// Ends all sessions and waits at most a few seconds for their end. Dropping the agent does the
    /// same.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.hub.0.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // Nothing starts another client now.
        self.workers.finish();
    }
}

/// State of the thread that accepts controllers and distributes the events of the device.
struct Acceptor {
    control: TcpListener,
    common: Arc<Common>,
    hub: Arc<Hub>,
    workers: Arc<Workers>,
}

impl Acceptor {
    fn run(mut self) {
        let mut paused = false;
        while !self.hub.is_stopping() {
            let new = if paused {
                PollFlags::empty()
            } else {
                PollFlags::IN
            };
            let mut set = [
                PollFd::new(&self.hub.wake, PollFlags::IN),
                PollFd::new(&self.common.device, PollFlags::IN),
                PollFd::new(&self.control, new),
            ];
            match poll(&mut set, paused.then_some(&PAUSE)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "waiting failed; the agent accepts no more controllers");
                    break;
                }
            }
            while let Some(event) = self.common.device.poll_event() {
                self.hub.publish(&event);
            }
            paused = !self.accept_controllers();
        }
    }

    /// Accepts all waiting controllers. Returns false if the operating system refused one.
    fn accept_controllers(&mut self) -> bool {
        loop {
            let error = match self.control.accept() {
                Ok((stream, peer)) => match self.admit(stream) {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::warn!(%peer, %error, "a controller was refused");
                        continue;
                    }
                },
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::WouldBlock => return true,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => {
                    tracing::warn!(%error, "a controller cannot be accepted now");
                    return false;
                }
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream) -> io::Result<()> {
        if let Err(short) = self.workers.check(&self.common.device, SESSION) {
            self.hub.record_short_memory();
            return refuse(&mut stream, short.for_peer());
        }
        if !self.hub.make_room(MAX_CONTROLLERS) {
            let why = format!("the agent already has {MAX_CONTROLLERS} controllers, the limit");
            return refuse(&mut stream, why);
        }
        stream.set_nodelay(true)?;
        let alive = TcpKeepalive::new().with_time(KEEPALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&alive.with_interval(KEEPALIVE))?;
        let membership = self.hub.join()?;
        let session = Session::new(Arc::clone(&self.common), membership)?;
        let controller = Controller::new(stream, session)?;
        let started = self.workers.run(move || controller.run());
        if started.is_err() {
            self.hub.record_short_memory();
        }
        started
    }
}

/// Tells a new controller why it is refused.
fn refuse(stream: &mut TcpStream, why: String) -> io::Result<()> {
    let mut line = Line::new();
    line.flag("ok", false);
    Refusal::agent(why).write(&mut line);
    // One line always fits into the send buffer of a new connection, so the write does not fail.
    stream.set_nonblocking(true)?;
    stream.write_all(line.finish().as_bytes())
}
