//! Local addresses that are reserved by binding a socket, to connect or listen later.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use socket2::Socket;

use super::connection::local_addr;
use super::{KernelNetwork, bind_alone, reuse_address, take_both_families};
use crate::{BoundPort, Llp, LlpError, LlpListener};

/// Port for a route lookup if the destination has none. Nothing is sent to it.
const DISCARD: u16 = 9;

/// A socket that is bound to a local address and is neither connected nor listening.
pub(super) struct KernelPort {
    network: KernelNetwork,
    socket: Socket,
    local: SocketAddr,
}

impl KernelPort {
    /// Binds a socket to `addr`. With `both`, the IPv6 wildcard address also covers IPv4 addresses.
    pub(super) fn take(
        network: KernelNetwork,
        addr: SocketAddr,
        both: bool,
    ) -> Result<Self, LlpError> {
        let failed = |error| LlpError::from_io("take this address", addr, error);
        let socket = network.socket(addr)?;
        take_both_families(&socket, addr, both)?;
        bind_alone(&socket, addr).map_err(failed)?;
        let local = local_addr(&socket, addr)?;
        Ok(Self {
            network,
            socket,
            local,
        })
    }
}

impl BoundPort for KernelPort {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn connect(self: Box<Self>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        LlpError::check_families(self.local, to)?;
        self.network.connect_with(self.socket, to)
    }

    fn connect_to_itself(self: Box<Self>) -> Result<Box<dyn Llp>, LlpError> {
        self.network.connect_to_itself(self.socket, self.local)
    }

    fn listen(self: Box<Self>, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError> {
        // Accepted sockets inherit the option, so that the port can be bound again during their
        // TIME-WAIT.
        reuse_address(&self.socket, self.local)?;
        self.network.listen_with(self.socket, self.local, backlog)
    }
}

/// Returns the local address that the kernel uses for packets to `to`. Finds it by connecting a
/// datagram socket, which sends no packets.
pub(super) fn source_for(to: SocketAddr) -> Result<IpAddr, LlpError> {
    let failed = |error| LlpError::from_io("find a way to this address", to, error);
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut to = to;
    if to.port() == 0 {
        to.set_port(DISCARD);
    }
    let probe = UdpSocket::bind((any, 0)).map_err(failed)?;
    probe.connect(to).map_err(|error| match error.kind() {
        // No local address can reach `to`, for example because this machine has no IPv6.
        io::ErrorKind::AddrNotAvailable => LlpError::Unreachable { addr: to },
        _ => failed(error),
    })?;
    Ok(probe.local_addr().map_err(failed)?.ip())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_port_that_only_old_connections_have_is_taken_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let _old = (
            TcpStream::connect(addr).unwrap(),
            listener.accept().unwrap(),
        );
        drop(listener);
        let take = || KernelPort::take(KernelNetwork::default(), addr, true);
        let first = Box::new(take().unwrap());
        take().err().unwrap();
        let _listens = first.listen(1).unwrap();
        take().err().unwrap();
    }
}
