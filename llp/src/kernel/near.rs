//! The receive buffer of connections between processes of one host.
//!
//! Left to itself, the kernel lets it grow to many megabytes. Over the loopback device that makes large messages slower: a sender
//! that always finds room also does the peer's part of TCP in its own calls, and the octets have left the caches when they are
//! read. With a window of a few segments the sender mostly finds it closed, what it has copied leaves as the receiver makes room, on the
//! receiver's processor, and the same memory is used again. From 300,000 to 500,000 octets were about as fast, 200,000 slower for some loads.
//!
//! To another host a window that small would bound the throughput, so there the kernel chooses.
//!
//! It does most where it is set before the connection stands: on loopback addresses. Elsewhere it is known only then that the peer is near.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use socket2::Socket;

use crate::raw;

/// Octets asked for. The kernel doubles it, for what it keeps beside the octets.
const RECEIVE_BUFFER: usize = 400_000;

/// Of a socket that is to connect to, or to listen at this address.
pub(super) fn before_connection(socket: &Socket, addr: IpAddr) {
    if addr.to_canonical().is_loopback() {
        bound_buffer(socket);
    }
}

/// Of a connection between these addresses.
pub(super) fn of_connection(socket: &Socket, local: SocketAddr, peer: SocketAddr) {
    if is_near(local, peer) {
        bound_buffer(socket);
    }
}

/// Gives the socket that buffer, if the kernel allows for it (net.core.rmem_max).
fn bound_buffer(socket: &Socket) {
    // What the kernel allows is asked for once: under a flood of connections each system call counts.
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    if ALLOWED.get() == Some(&false) {
        return;
    }
    let bounded = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    let allowed = *ALLOWED.get_or_init(|| {
        let given = bounded.and_then(|()| socket.recv_buffer_size());
        given.is_ok_and(|octets| octets >= 2 * RECEIVE_BUFFER)
    });
    if !allowed {
        // Less is too small for some loads: the kernel chooses again, where it is new enough for that.
        let chooses = raw::unlock_buffers(socket);
        tracing::debug!(
            ?chooses,
            "net.core.rmem_max is too small for a receive buffer of our choice"
        );
    }
}

/// Whether octets between these addresses stay on this host.
fn is_near(local: SocketAddr, peer: SocketAddr) -> bool {
    local.ip() == peer.ip() || (local.ip().is_loopback() && peer.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_connection_within_the_host_are_bounded_where_the_kernel_allows_it() {
        let network = crate::kernel::KernelNetwork::default();
        let mut listener =
            crate::Network::listen(&network, "127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let client = crate::Network::connect(&network, None, listener.local_addr()).unwrap();
        let server = loop {
            if let Some(server) = listener.try_accept().unwrap() {
                break server;
            }
        };
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let allowed = socket2::SockRef::from(&other);
        allowed.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
        let wanted = allowed.recv_buffer_size().unwrap();
        if wanted < 2 * RECEIVE_BUFFER {
            eprintln!(
                "not looked at: net.core.rmem_max allows for {} octets",
                wanted / 2
            );
            return;
        }
        for end in [client, server] {
            let size = socket2::SockRef::from(&end.fd())
                .recv_buffer_size()
                .unwrap();
            assert_eq!(size, wanted);
        }
    }

    #[test]
    fn the_host_itself_is_near_by_any_of_its_addresses() {
        let near = |local: &str, peer: &str| {
            is_near(
                SocketAddr::new(local.parse().unwrap(), 1),
                SocketAddr::new(peer.parse().unwrap(), 2),
            )
        };
        assert!(near("127.0.0.1", "127.0.0.1"));
        assert!(near("127.0.0.1", "127.0.0.2"));
        assert!(near("::1", "::1"));
        assert!(near("192.0.2.1", "192.0.2.1"));
        assert!(!near("192.0.2.1", "192.0.2.2"));
        assert!(!near("2001:db8::1", "2001:db8::2"));
    }
}
