//! TCP of the operating system.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket,
};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use uwarp_llp::LlpError;

use super::wait::wait_for;
use super::{Got, Listener, Network, Stream};

/// Time limit for a send. A target that accepts no bytes for this long is stuck.
const SEND: Duration = Duration::from_secs(10);

/// TCP of the operating system as the network of the suite.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTcp {
    /// Local address to connect from. `None` leaves the choice to the route.
    pub source: Option<IpAddr>,
}

impl Network for KernelTcp {
    fn connect(
        &self,
        to: SocketAddr,
        mss: Option<u16>,
        timeout: Duration,
    ) -> io::Result<Box<dyn Stream>> {
        let socket = socket(to, mss)?;
        if let Some(source) = self.source {
            let source = SocketAddr::new(source, 0);
            LlpError::check_families(source, to).map_err(io::Error::other)?;
            let bound = socket.bind(&source.into());
            bound.map_err(|error| in_words("connect from this address", source, error))?;
        }
        let connected = socket.connect_timeout(&to.into(), timeout);
        connected.map_err(|error| in_words("connect", to, error))?;
        Ok(Box::new(Connection::new(socket.into())?))
    }

    fn own_ip(&self) -> IpAddr {
        self.source.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    fn listen(
        &self,
        at: Option<SocketAddr>,
        peer: Option<SocketAddr>,
        mss: Option<u16>,
    ) -> io::Result<Box<dyn Listener>> {
        let source = self.source.map(|source| SocketAddr::new(source, 0));
        let at = match (at.or(source), peer) {
            (Some(at), _) => at,
            (None, Some(peer)) => facing(peer)?,
            (None, None) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        };
        let socket = socket(at, mss)?;
        socket.set_reuse_address(true)?;
        let bound = socket.bind(&at.into()).and_then(|()| socket.listen(16));
        bound.map_err(|error| in_words("listen on this address", at, error))?;
        let listener: TcpListener = socket.into();
        listener.set_nonblocking(true)?;
        Ok(Box::new(Listening(listener)))
    }
}

/// Describes the error of a socket call in words, and keeps its kind.
pub(crate) fn in_words(op: &'static str, addr: SocketAddr, error: io::Error) -> io::Error {
    let kind = error.kind();
    // An error without an error number is a timeout of the suite itself.
    if error.raw_os_error().is_none() {
        return error;
    }
    io::Error::new(kind, LlpError::from_io(op, addr, error))
}

fn socket(addr: SocketAddr, mss: Option<u16>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(mss) = mss {
        socket.set_tcp_mss(u32::from(mss))?;
    }
    Ok(socket)
}

/// Returns the address that this host uses to reach `peer`.
fn facing(peer: SocketAddr) -> io::Result<SocketAddr> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a UDP socket sends nothing. It only looks up the route.
    let socket = UdpSocket::bind(any)?;
    let connected = socket.connect(peer);
    connected.map_err(|error| in_words("find a way to this address", peer, error))?;
    // `local_addr` keeps the zone of a link-local address.
    let mut local = socket.local_addr()?;
    local.set_port(0);
    Ok(local)
}

struct Listening(TcpListener);

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.0
            .local_addr()
            .unwrap_or_else(|_| (Ipv4Addr::UNSPECIFIED, 0).into())
    }

    fn accept(&mut self, timeout: Duration) -> io::Result<Option<Box<dyn Stream>>> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.0.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(Some(Box::new(Connection::new(stream)?)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait_for(&self.0, false, left)?;
        }
    }
}

struct Connection {
    stream: TcpStream,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SEND))?;
        Ok(Connection {
            local: stream.local_addr()?,
            peer: stream.peer_addr()?,
            stream,
        })
    }
}

impl Stream for Connection {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<Got> {
        let timeout = timeout.max(Duration::from_micros(1));
        self.stream.set_read_timeout(Some(timeout))?;
        loop {
            return match self.stream.read(bytes) {
                Ok(0) => Ok(Got::Fin),
                Ok(count) => Ok(Got::Bytes(count)),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(Got::Nothing),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ok(Got::Reset),
                    ErrorKind::Interrupted => continue,
                    _ => Err(error),
                },
            };
        }
    }

    fn fin(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn reset(&mut self) {
        // Ignores errors: a connection that is already lost counts as reset.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        let _ = rustix::net::connect_unspec(&self.stream);
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn mss(&self) -> Option<usize> {
        let mss = SockRef::from(&self.stream).tcp_mss().ok()?;
        usize::try_from(mss).ok()
    }

    fn unacknowledged(&self) -> Option<usize> {
        super::queued::queued(self.local, self.peer)
    }
}
