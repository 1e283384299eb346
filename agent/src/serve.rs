//! The agent as a whole: who takes new controllers, the RDMA port, the end.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, TcpKeepalive};
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{Device, DeviceError};

use crate::controller::Controller;
use crate::hub::Hub;
use crate::json::Line;
use crate::refusal::Refusal;
use crate::rping;
use crate::session::{Common, Session};

/// Controllers at once.
const MAX_CONTROLLERS: usize = 64;
/// How long a controller's machine may be silent before it is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How long no new controller is taken when the system has refused one, for want of descriptors.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// How to serve.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Where to listen for RDMA connections that belong to no controller: who comes is served as by `rping -s`. Port 0
    /// takes a free one. Default: nowhere.
    pub rdma: Option<SocketAddr>,
    /// Where the listeners of controllers listen unless they are told. Default: at all addresses.
    pub listen_ip: IpAddr,
    /// Where the connections of controllers come from unless they are told. Default: the network chooses.
    pub source_ip: Option<IpAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            rdma: None,
            listen_ip: Ipv4Addr::UNSPECIFIED.into(),
            source_ip: None,
        }
    }
}

/// Why an agent could not begin to serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The device could not listen for RDMA connections.
    #[error(transparent)]
    Rdma(#[from] DeviceError),
    /// The system refused a descriptor or a thread, or the control socket is no good.
    #[error("the agent cannot begin to serve: {0}")]
    System(#[from] io::Error),
}

/// An agent that serves until it is stopped or dropped.
#[derive(Debug)]
pub struct Agent {
    hub: HubHandle,
    control: SocketAddr,
    rdma: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

struct HubHandle(Arc<Hub>);

impl std::fmt::Debug for HubHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hub({} controllers)", self.0.controllers())
    }
}

/// Serves controllers that connect to `control`, with the device's RDMA. The agent takes the asynchronous events of the
/// device: nobody else gets them.
///
/// # Errors
/// [`ServeError`], when something is in the way from the beginning.
pub fn serve(device: &Device, control: TcpListener, options: Options) -> Result<Agent, ServeError> {
    control.set_nonblocking(true)?;
    let control_addr = control.local_addr()?;
    let hub = Arc::new(Hub::new()?);
    let rdma = options.rdma.map(|addr| device.listen(addr)).transpose()?;
    let rdma_addr = rdma.as_ref().map(uwarp_verbs::Listener::local_addr);
    let mut agent = Agent {
        hub: HubHandle(Arc::clone(&hub)),
        control: control_addr,
        rdma: rdma_addr,
        threads: Vec::new(),
    };
    if let Some(listener) = rdma {
        agent.threads.push(rping::start(device, listener, &hub)?);
    }
    let common = Arc::new(Common {
        device: device.clone(),
        listen_ip: options.listen_ip,
        source_ip: options.source_ip,
        rdma_port: rdma_addr.map(|addr| addr.port()),
    });
    let reception = Reception {
        control,
        common,
        hub,
        sessions: Vec::new(),
    };
    let named = thread::Builder::new().name("uwarp-agent".to_owned());
    agent.threads.push(named.spawn(move || reception.run())?);
    Ok(agent)
}

impl Agent {
    /// Where controllers connect.
    #[must_use]
    pub fn control_addr(&self) -> SocketAddr {
        self.control
    }

    /// Where RDMA connections that belong to no controller are served.
    #[must_use]
    pub fn rdma_addr(&self) -> Option<SocketAddr> {
        self.rdma
    }

    /// How many controllers there are now.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.hub.0.controllers()
    }

    /// Why the network of the device has failed, if it has: no connection can be made any more.
    #[must_use]
    pub fn fault(&self) -> Option<LlpError> {
        self.hub.0.fault()
    }

    /// What a listener was short of when it could not take connections, descriptors as a rule. Told once; it is said again
    /// if it is still so a minute later.
    #[must_use]
    pub fn take_short(&self) -> Option<LlpError> {
        self.hub.0.take_short()
    }

    /// Ends everything, and waits until it has ended: at most a few seconds. A drop does the same.
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
    }
}

/// The thread that takes new controllers, and the events of the device.
struct Reception {
    control: TcpListener,
    common: Arc<Common>,
    hub: Arc<Hub>,
    sessions: Vec<JoinHandle<()>>,
}

impl Reception {
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
                    tracing::error!(%error, "the agent cannot wait any more, and takes no more controllers");
                    break;
                }
            }
            while let Some(event) = self.common.device.poll_event() {
                self.hub.tell(&event);
            }
            self.sessions.retain(|session| !session.is_finished());
            paused = !self.take_controllers();
        }
        // Also when this thread alone has failed: the others go on until the agent is stopped.
        for session in self.sessions {
            let _ = session.join();
        }
    }

    /// False when the system has refused one that is there.
    fn take_controllers(&mut self) -> bool {
        loop {
            let error = match self.control.accept() {
                Ok((stream, peer)) => match self.admit(stream) {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::warn!(%peer, %error, "a controller was turned away");
                        continue;
                    }
                },
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::WouldBlock => return true,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => {
                    tracing::warn!(%error, "a controller cannot be taken now");
                    return false;
                }
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream) -> io::Result<()> {
        if self.hub.controllers() >= MAX_CONTROLLERS {
            let mut line = Line::new();
            line.flag("ok", false);
            let why = format!("the agent has {MAX_CONTROLLERS} controllers, and serves no more");
            Refusal::agent(why).write(&mut line);
            // A new connection has room for it.
            stream.set_nonblocking(true)?;
            return stream.write_all(line.finish().as_bytes());
        }
        stream.set_nodelay(true)?;
        let alive = TcpKeepalive::new().with_time(KEEPALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&alive.with_interval(KEEPALIVE))?;
        let membership = self.hub.join()?;
        let session = Session::new(Arc::clone(&self.common), membership)?;
        let controller = Controller::new(stream, session)?;
        let named = thread::Builder::new().name("uwarp-controller".to_owned());
        self.sessions.push(named.spawn(move || controller.run())?);
        Ok(())
    }
}
