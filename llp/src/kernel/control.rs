//! Congestion control of connections within a host.
//!
//! Many systems choose BBR, which paces its packets by an estimate of the bandwidth. Within a host
//! no bytes are lost for lack of bandwidth, and the pacing costs throughput ([`WITHIN_A_HOST`] has
//! the figures). If the system's congestion control is not loss-based, a connection within this
//! host therefore gets `reno`, which every user may set.
//!
//! Whether the peer is on this host is known only when the connection is established. It is then
//! too late to replace BBR, because its pacing stays switched on. So a socket starts with `reno`,
//! and a connection to another host gets the system's control back before it sends its first byte:
//!
//! ```text
//!   begin: reno ──── connected ───► settle ──► this host: reno
//!                                     └──────► another host: the system's
//! ```
//!
//! A socket that a program hands over (`KernelNetwork::adopt`) was connected by the program, so BBR
//! has already started. It gets `reno` and remains paced, at the rate that the kernel derives from
//! reno's window. No option that a program may set turns pacing off. At a round trip of 20 ms,
//! Linux 6.18 spread 14 KB from such a socket over 2.6 ms. From a socket that had started with
//! `reno`, it sent them at once.
//!
//! Another network namespace counts as another host here, even one that is connected by a veth pair
//! or a bridge. Its address does not show that it is on the same machine, and a short round trip is
//! no proof.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

use super::loopback_window::is_same_host;
use super::reserved::source_for;
use crate::policy::{Heuristic, WITHIN_A_HOST, is_on};

/// Congestion controls that send until a packet is lost or marked, by the kernel's names.
const LOSS_BASED: [&[u8]; 11] = [
    b"bic",
    b"cubic",
    b"dctcp",
    b"highspeed",
    b"htcp",
    b"hybla",
    b"illinois",
    b"reno",
    b"scalable",
    b"westwood",
    b"yeah",
];
/// Size of a name including its NUL: TCP_CA_NAME_MAX of Linux.
const NAME: usize = 16;

/// Name of the congestion control to restore if the peer is on another host. All zeros if there is
/// nothing to restore.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    system: [u8; NAME],
}

impl Control {
    /// Gives an unconnected socket `reno`, unless the system's congestion control is loss-based.
    /// Returns the control to restore.
    pub(super) fn begin(socket: &Socket) -> Self {
        if !is_on(Heuristic::RenoWithinHost) {
            return Self::default();
        }
        let begun = name(socket).and_then(|system| {
            if LOSS_BASED.contains(&trimmed(&system)) {
                return Ok(Self::default());
            }
            socket.set_tcp_congestion(WITHIN_A_HOST)?;
            Ok(Self { system })
        });
        begun.unwrap_or_else(|error| {
            // The connection works with the system's control too, perhaps more slowly.
            tracing::debug!(%error, "the congestion control stays as it is");
            Self::default()
        })
    }

    /// Restores the system's control if the peer is on another host. It has to be called before
    /// anything is sent. Only the first call has an effect.
    #[inline]
    pub(super) fn settle(&mut self, socket: &Socket, local: SocketAddr, peer: SocketAddr) {
        if self.system[0] != 0 {
            let system = std::mem::take(self).system;
            if !is_within_host(local, peer) {
                restore(socket, trimmed(&system));
            }
        }
    }
}

/// Returns true if both addresses belong to this host.
pub(super) fn is_within_host(local: SocketAddr, peer: SocketAddr) -> bool {
    // For a packet to one of its own addresses, the kernel uses the same address as the source.
    is_same_host(local, peer) || source_for(peer).is_ok_and(|source| source == peer.ip())
}

#[cold]
fn restore(socket: &Socket, system: &[u8]) {
    if let Err(error) = socket.set_tcp_congestion(system) {
        tracing::debug!(%error, "the system's congestion control cannot be set");
    }
}

/// Returns the name of the socket's congestion control, padded with zeros.
fn name(socket: &Socket) -> io::Result<[u8; NAME]> {
    let mut name = [0; NAME];
    let found = socket.tcp_congestion()?;
    for (to, from) in name.iter_mut().zip(found) {
        *to = from;
    }
    Ok(name)
}

/// Returns the name without the padding.
fn trimmed(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns the name of the socket's current congestion control.
pub(super) fn current(socket: &Socket) -> Option<String> {
    let name = name(socket).ok()?;
    Some(String::from_utf8_lossy(trimmed(&name)).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::{Domain, Type};

    use super::*;
    use crate::kernel::connection::KernelConnection;
    use crate::{Llp, Piece, SendHints};

    /// Returns a congestion control of this kernel that is not loss-based, if it has one.
    fn other() -> Option<String> {
        if std::env::var_os("QEMU_LD_PREFIX").is_some() {
            eprintln!("SKIPPED: QEMU's user emulation passes exactly 4 bytes of the name");
            return None;
        }
        let available = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
        let available = std::fs::read_to_string(available).ok()?;
        let found = available
            .split_whitespace()
            .find(|name| !LOSS_BASED.contains(&name.as_bytes()));
        if found.is_none() {
            eprintln!(
                "SKIPPED: this kernel allows only loss-based congestion control: {available}"
            );
        }
        found.map(str::to_owned)
    }

    fn socket(control: &str) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_tcp_congestion(control.as_bytes()).unwrap();
        socket
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_control_that_is_loss_based_is_left_alone() {
        let reno = socket("reno");
        let mut control = Control::begin(&reno);
        control.settle(&reno, addr("203.0.113.1:1"), addr("203.0.113.77:2"));
        assert_eq!(current(&reno).unwrap(), "reno");
    }

    #[test]
    fn within_a_host_it_is_reno_and_to_another_host_the_systems() {
        let Some(other) = other() else { return };
        for (local, peer, expected) in [
            ("127.0.0.1:1", "127.0.0.1:2", "reno"),
            ("203.0.113.1:1", "203.0.113.1:2", "reno"),
            ("[::1]:1", "[::1]:2", "reno"),
            ("203.0.113.1:1", "203.0.113.77:2", &other),
            ("[2001:db8::1]:1", "[2001:db8:77::2]:2", &other),
        ] {
            let socket = socket(&other);
            let mut control = Control::begin(&socket);
            assert_eq!(current(&socket).unwrap(), "reno");
            control.settle(&socket, addr(local), addr(peer));
            assert_eq!(current(&socket).unwrap(), expected, "{local} to {peer}");
            // Only the first call has an effect: a control that is set later stays.
            socket.set_tcp_congestion(b"reno").unwrap();
            control.settle(&socket, addr(local), addr(peer));
            assert_eq!(current(&socket).unwrap(), "reno");
        }
    }

    /// The connection runs within this host; only the addresses passed to it differ.
    #[test]
    fn a_connection_to_another_host_gets_the_systems_control_back_when_it_sends() {
        let Some(other) = other() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = socket(&other);
        let control = Control::begin(&socket);
        socket
            .connect(&listener.local_addr().unwrap().into())
            .unwrap();
        let (local, peer) = (addr("203.0.113.1:1"), addr("203.0.113.77:2"));
        let mut connection = KernelConnection::standing(socket, local, peer, control);
        assert_eq!(connection.congestion_control().unwrap(), "reno");
        let sent = connection.try_send(&[Piece::from(b"FPDU")], SendHints::NONE);
        assert_eq!(sent.unwrap(), 4);
        assert_eq!(connection.congestion_control().unwrap(), other);
    }

    #[test]
    fn another_address_of_this_host_is_within_it() {
        assert!(is_within_host(addr("203.0.113.1:1"), addr("127.0.0.9:2")));
        if let Some(own) = own_address() {
            assert!(is_within_host(addr("203.0.113.1:1"), own), "{own}");
        }
        assert!(!is_within_host(
            addr("203.0.113.1:1"),
            addr("203.0.113.77:2")
        ));
    }

    /// Returns this host's source address for other hosts, if it has a route.
    fn own_address() -> Option<SocketAddr> {
        let source = source_for(addr("203.0.113.77:9")).ok()?;
        Some(SocketAddr::new(source, 2))
    }

    #[test]
    fn what_is_accepted_has_the_control_of_its_listener() {
        let Some(other) = other() else { return };
        let listener = socket(&other);
        Control::begin(&listener);
        listener.bind(&addr("127.0.0.1:0").into()).unwrap();
        listener.listen(1).unwrap();
        let listener = TcpListener::from(listener);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = Socket::from(listener.accept().unwrap().0);
        assert_eq!(current(&accepted).unwrap(), "reno");
    }
}
