//! TCP by the kernel: the default, which needs no privilege.
//!
//! Sockets are non-blocking, with `TCP_NODELAY` set because the engine batches by itself. Buffer
//! sizes are left to the kernel's auto-tuning, but the bytes that it cannot send yet are bounded
//! (`MAX_UNSENT`). The receive window of connections within a host may be bounded too
//! (`loopback_window.rs`). An IPv6 listener may accept IPv4 connections; they are
//! reported with their IPv4 addresses.

mod connection;
mod control;
mod datagrams;
mod info;
mod listener;
mod loopback_window;
mod reserved;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use uwarp_capture::{Capture, Interface, LinkType};

use crate::policy::{Heuristic, MAX_UNSENT, is_on};
use crate::{
    BoundPort, Captured, DatagramSocket, Llp, LlpError, LlpListener, Network, NetworkInfo,
};
use connection::KernelConnection;
use control::Control;
use datagrams::KernelDatagrams;
use listener::KernelListener;
use reserved::KernelPort;
use uwarp_engine::setters;

/// Settings for every connection of a [`KernelNetwork`]. A field that is `None` keeps the system's
/// default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelSettings {
    /// Congestion control, by the kernel's name (`reno`, `cubic`, `bbr` ...), as in TCP_CONGESTION
    /// of `tcp(7)`. With `None` the system's default applies (`net.ipv4.tcp_congestion_control`),
    /// with one exception. If that default is not loss-based (for example BBR), connections within
    /// this host use `reno`, because the default would cost throughput there.
    pub congestion: Option<String>,
    /// Time without traffic after which the kernel probes the peer, and the interval of further
    /// probes. A connection to a dead peer ends with [`LlpError::TimedOut`].
    pub keepalive: Option<Duration>,
    /// Time that sent bytes may stay unacknowledged before the connection ends with
    /// [`LlpError::TimedOut`]: TCP_USER_TIMEOUT of `tcp(7)`.
    pub user_timeout: Option<Duration>,
}

setters! { KernelSettings {
    congestion: Option<String>,
    keepalive: Option<Duration>,
    user_timeout: Option<Duration>,
} }

impl KernelSettings {
    /// Sets the options of one socket. Accepted sockets inherit them from their listener.
    fn apply(&self, socket: &Socket) -> Result<(), LlpError> {
        socket
            .set_tcp_nodelay(true)
            .map_err(option_error("set TCP_NODELAY"))?;
        if is_on(Heuristic::UnsentBound) {
            // A kernel without this option only holds more.
            let _ = socket.set_tcp_notsent_lowat(MAX_UNSENT);
        }
        if let Some(name) = &self.congestion {
            let op = "set the congestion control (see net.ipv4.tcp_available_congestion_control)";
            socket
                .set_tcp_congestion(name.as_bytes())
                .map_err(option_error(op))?;
        }
        if let Some(every) = self.keepalive {
            let keepalive = TcpKeepalive::new().with_time(every).with_interval(every);
            socket
                .set_tcp_keepalive(&keepalive)
                .map_err(option_error("set the keep-alive"))?;
        }
        if self.user_timeout.is_some() {
            let op = "set the user timeout of TCP";
            socket
                .set_tcp_user_timeout(self.user_timeout)
                .map_err(option_error(op))?;
        }
        Ok(())
    }
}

/// Returns a function that converts the error of the call `op`, which concerns no address.
fn option_error(op: &'static str) -> impl FnOnce(std::io::Error) -> LlpError {
    move |error| {
        LlpError::from_local_errno(op, Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
    }
}

/// The kernel's TCP as a [`Network`].
#[derive(Clone, Default)]
pub struct KernelNetwork {
    settings: KernelSettings,
    interface: Option<Interface>,
}

impl KernelNetwork {
    /// Creates a network with these settings. Every connection is recorded in `capture`, if there
    /// is one.
    #[must_use]
    pub fn new(settings: KernelSettings, capture: Option<&Capture>) -> Self {
        let interface = capture.map(|capture| capture.interface("kernel-tcp", LinkType::RawIp));
        Self {
            settings,
            interface,
        }
    }

    /// Takes over a connection that a program made itself, to continue it in RDMA mode (RFC 5044
    /// section 7.1 lets the ULP use the connection before RDMA mode). Bytes that the program has
    /// already read are not available here.
    ///
    /// Within this host the connection gets the congestion control of this network
    /// ([`KernelSettings::congestion`]). If the connection used BBR before, TCP continues to pace
    /// its packets. A program avoids that by setting `reno` before it connects. If the peer is on
    /// this host, the library may replace a bound that the program set on TCP's window
    /// (TCP_WINDOW_CLAMP). It replaces a bound on unsent bytes (TCP_NOTSENT_LOWAT).
    ///
    /// # Errors
    /// Errors if the stream is not connected, or if a socket option cannot be set.
    pub fn adopt(&self, stream: std::net::TcpStream) -> Result<Box<dyn Llp>, LlpError> {
        let socket = Socket::from(stream);
        let peer = socket
            .peer_addr()
            .map_err(option_error("take over a TCP connection"))?
            .as_socket()
            .ok_or(LlpError::Misuse {
                op: "take over this socket",
                why: "it is neither IPv4 nor IPv6",
            })?;
        socket
            .set_nonblocking(true)
            .map_err(option_error("make a socket non-blocking"))?;
        self.settings.apply(&socket)?;
        let local = connection::local_addr(&socket, peer)?;
        if control::is_within_host(local, peer) {
            // If the control was BBR, its pacing stays on (see `control.rs`), but no longer follows
            // BBR's estimate.
            self.control(&socket);
        }
        let connection = KernelConnection::standing(socket, local, peer, Control::default());
        Ok(match &self.interface {
            None => Box::new(connection),
            Some(interface) => Box::new(Captured::accepted(connection, interface.clone())),
        })
    }

    fn connect_with(&self, socket: Socket, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        // A later bind of the same port must not fail because of this connection or its TIME-WAIT.
        reuse_address(&socket, to)?;
        let control = self.control(&socket);
        let connection = KernelConnection::connect(socket, to, control)?;
        Ok(match &self.interface {
            None => Box::new(connection),
            Some(interface) => Box::new(Captured::connecting(connection, interface.clone())),
        })
    }

    /// Connects a socket to its own address. TCP does this by a simultaneous open (RFC 9293 section
    /// 3.5), which the kernel mostly completes before the call returns.
    fn connect_to_itself(
        &self,
        socket: Socket,
        local: SocketAddr,
    ) -> Result<Box<dyn Llp>, LlpError> {
        let failed = |error| LlpError::from_io("connect a socket to itself", local, error);
        let control = self.control(&socket);
        match socket.connect(&local.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                return Err(failed(error));
            }
            _ => {}
        }
        let mut open = [PollFd::new(&socket, PollFlags::OUT)];
        let _ = poll(
            &mut open,
            Some(&Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            }),
        );
        socket.peer_addr().map_err(failed)?;
        let connection = KernelConnection::standing(socket, local, local, control);
        Ok(match &self.interface {
            None => Box::new(connection),
            Some(interface) => Box::new(Captured::accepted(connection, interface.clone())),
        })
    }

    fn listen_with(
        &self,
        socket: Socket,
        addr: SocketAddr,
        backlog: u32,
    ) -> Result<Box<dyn LlpListener>, LlpError> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        let control = self.control(&socket);
        socket
            .listen(backlog)
            .map_err(|error| LlpError::from_io("listen on this address", addr, error))?;
        Ok(Box::new(KernelListener::new(
            socket,
            self.interface.clone(),
            control,
        )?))
    }

    /// Prepares the congestion control of an unconnected socket (see `control.rs`), unless the
    /// settings name one. Returns the control to restore.
    fn control(&self, socket: &Socket) -> Control {
        match self.settings.congestion {
            None => Control::begin(socket),
            Some(_) => Control::default(),
        }
    }

    fn socket(&self, addr: SocketAddr) -> Result<Socket, LlpError> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))
            .map_err(option_error("open a TCP socket"))?;
        socket
            .set_nonblocking(true)
            .map_err(option_error("make a socket non-blocking"))?;
        self.settings.apply(&socket)?;
        Ok(socket)
    }
}

/// Sets SO_REUSEADDR. Another socket with this option can then bind the port while connections,
/// including those in TIME-WAIT, still use it.
fn reuse_address(socket: &Socket, addr: SocketAddr) -> Result<(), LlpError> {
    socket
        .set_reuse_address(true)
        .map_err(|error| LlpError::from_io("set SO_REUSEADDR", addr, error))
}

/// Binds a socket to an address that is unused, or used only by connections.
///
/// Two sockets with SO_REUSEADDR can both be bound to a port, as long as neither listens. So the
/// first attempt does not set the option. The second attempt is for a port that has connections. It
/// clears the option after the bind, so that no other socket can bind the port.
fn bind_alone(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    match socket.bind(&addr.into()) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && addr.port() != 0 => {
            socket.set_reuse_address(true)?;
            socket.bind(&addr.into())?;
            socket.set_reuse_address(false)
        }
        result => result,
    }
}

fn take_both_families(socket: &Socket, addr: SocketAddr, both: bool) -> Result<(), LlpError> {
    if addr.is_ipv4() {
        return Ok(());
    }
    socket
        .set_only_v6(!both)
        .map_err(|error| LlpError::from_io("say whether an IPv6 socket takes IPv4", addr, error))
}

impl Network for KernelNetwork {
    fn connect(&self, local: Option<SocketAddr>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        let socket = self.socket(to)?;
        if let Some(local) = local {
            LlpError::check_families(local, to)?;
            bind_alone(&socket, local)
                .map_err(|error| LlpError::from_io("bind to a local address", local, error))?;
        }
        self.connect_with(socket, to)
    }

    fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError> {
        let socket = self.socket(addr)?;
        reuse_address(&socket, addr)?;
        take_both_families(&socket, addr, true)?;
        socket
            .bind(&addr.into())
            .map_err(|error| LlpError::from_io("listen on this address", addr, error))?;
        self.listen_with(socket, addr, backlog)
    }

    fn source_for(&self, to: SocketAddr) -> Result<IpAddr, LlpError> {
        reserved::source_for(to)
    }

    fn reserve(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError> {
        Ok(Box::new(KernelPort::take(self.clone(), addr, true)?))
    }

    fn reserve_one_family(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError> {
        Ok(Box::new(KernelPort::take(self.clone(), addr, false)?))
    }

    fn datagrams(&self, addr: SocketAddr) -> Result<Box<dyn DatagramSocket>, LlpError> {
        Ok(Box::new(KernelDatagrams::bind(addr)?))
    }

    fn info(&self) -> NetworkInfo {
        info::info()
    }

    fn describe(&self) -> String {
        match &self.settings.congestion {
            None => "kernel TCP".to_owned(),
            Some(name) => format!("kernel TCP, {name}"),
        }
    }
}
