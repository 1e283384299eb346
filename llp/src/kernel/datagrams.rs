//! UDP sockets of the kernel.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recvfrom};
use socket2::{Domain, MsgHdr, Protocol, SockAddr, SockRef, Socket, Type};

use super::connection::local_addr;
use super::{option_error, take_both_families};
use crate::policy::DATAGRAM_BUFFER;
use crate::{DatagramSocket, LlpError};

/// Number of bytes of `cmsghdr`: a length of the size of a pointer, a level and a type.
const CMSGHDR: usize = size_of::<usize>() + 8;
/// Room for the larger of the two control messages below, with its padding.
const CONTROL: usize = CMSGHDR + 24;

/// A UDP socket. One that is bound to `::` also has the IPv4 addresses.
pub(super) struct KernelDatagrams {
    socket: UdpSocket,
    local: SocketAddr,
}

impl KernelDatagrams {
    /// Binds a socket to `addr`.
    pub(super) fn bind(addr: SocketAddr) -> Result<Self, LlpError> {
        let domain = Domain::for_address(addr);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))
            .map_err(option_error("open a UDP socket"))?;
        socket
            .set_nonblocking(true)
            .map_err(option_error("make a socket non-blocking"))?;
        take_both_families(&socket, addr, true)?;
        socket
            .bind(&addr.into())
            .map_err(|error| LlpError::from_io("take this address", addr, error))?;
        // A smaller buffer only loses datagrams earlier.
        let _ = socket.set_recv_buffer_size(DATAGRAM_BUFFER);
        let local = local_addr(&socket, addr)?;
        Ok(Self {
            socket: socket.into(),
            local,
        })
    }

    /// Returns `to` in the family of the socket.
    fn destination(&self, to: SocketAddr) -> SockAddr {
        match to {
            SocketAddr::V4(v4) if self.local.is_ipv6() => {
                let mapped = v4.ip().to_ipv6_mapped();
                SocketAddrV6::new(mapped, v4.port(), 0, 0).into()
            }
            to => to.into(),
        }
    }

    /// Writes the control message that sets the source address of a datagram (IP_PKTINFO of
    /// `ip(7)`, IPV6_PKTINFO of `ipv6(7)`). Returns its length.
    fn control(&self, from: IpAddr, out: &mut [u8; CONTROL]) -> usize {
        // Both messages fit into the array.
        let mut data = [0; 20];
        let (level, kind, len) = match (from, self.local.is_ipv6()) {
            (IpAddr::V4(v4), false) => {
                // The index of the interface, the source address, and an unused field.
                data[4..8].copy_from_slice(&v4.octets());
                (libc::IPPROTO_IP, libc::IP_PKTINFO, 12)
            }
            (from, _) => {
                let v6 = match from {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                // The source address and the index of the interface.
                data[..16].copy_from_slice(&v6.octets());
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20)
            }
        };
        let parts = [
            &(CMSGHDR + len).to_ne_bytes()[..],
            &level.to_ne_bytes(),
            &kind.to_ne_bytes(),
            &data[..len],
        ];
        let mut at = 0;
        for part in parts {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        at.next_multiple_of(size_of::<usize>())
    }
}

impl DatagramSocket for KernelDatagrams {
    fn try_send(&self, bytes: &[u8], from: IpAddr, to: SocketAddr) -> Result<bool, LlpError> {
        LlpError::check_families(SocketAddr::new(from, 0), to)?;
        let mut control = [0; CONTROL];
        let len = self.control(from, &mut control);
        let to_socket = self.destination(to);
        let buffers = [IoSlice::new(bytes)];
        let message = MsgHdr::new()
            .with_addr(&to_socket)
            .with_buffers(&buffers)
            .with_control(&control[..len]);
        match SockRef::from(&self.socket).sendmsg(&message, libc::MSG_NOSIGNAL) {
            Ok(_) => Ok(true),
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => Err(LlpError::from_io("send a datagram", to, error)),
        }
    }

    fn try_recv(&self, buf: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, LlpError> {
        // The kernel is called without the C library, whose `recvfrom` is a point at which a thread
        // of a C program can be cancelled.
        let received = recvfrom(&self.socket, buf, RecvFlags::empty());
        match received {
            Ok((len, _, Some(from))) => Ok(SocketAddr::try_from(from).ok().map(|from| (len, from))),
            Ok((_, _, None)) | Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(LlpError::from_errno(
                "receive a datagram",
                self.local,
                errno,
            )),
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns true if the system has no room for a datagram now.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn at(addr: &str) -> KernelDatagrams {
        KernelDatagrams::bind(addr.parse().unwrap()).unwrap()
    }

    /// Waits for the next datagram.
    fn next(socket: &KernelDatagrams, buf: &mut [u8]) -> (usize, SocketAddr) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = socket.try_recv(buf).unwrap() {
                return found;
            }
            assert!(Instant::now() < until, "no datagram");
        }
    }

    #[test]
    fn a_socket_for_all_addresses_sends_from_the_one_that_is_named() {
        let all = at("[::]:0");
        let port = all.local_addr().port();
        for (from, other) in [
            ("127.0.0.1", "127.0.0.1:0"),
            ("127.0.0.7", "127.0.0.1:0"),
            ("::1", "[::1]:0"),
        ] {
            let from: IpAddr = from.parse().unwrap();
            let other = at(other);
            assert!(all.try_send(b"there", from, other.local_addr()).unwrap());
            let mut buf = [0; 8];
            let (len, source) = next(&other, &mut buf);
            assert_eq!(&buf[..len], b"there");
            assert_eq!(source, SocketAddr::new(from, port));
            // And back, from a socket at one address.
            let back = other.local_addr().ip();
            assert!(other.try_send(b"and back", back, source).unwrap());
            let (len, source) = next(&all, &mut buf);
            assert_eq!(&buf[..len], b"and back");
            assert_eq!(source.ip().to_canonical(), back);
        }
    }

    #[test]
    fn an_address_of_another_host_or_family_is_no_source() {
        let all = at("[::]:0");
        let to = "127.0.0.1:9".parse().unwrap();
        for from in ["192.0.2.77", "::1"] {
            all.try_send(b"", from.parse().unwrap(), to).unwrap_err();
        }
    }

    #[test]
    fn a_port_is_bound_once_and_an_empty_socket_has_nothing() {
        let one = at("127.0.0.1:0");
        assert!(one.try_recv(&mut [0; 8]).unwrap().is_none());
        let error = KernelDatagrams::bind(one.local_addr()).err().unwrap();
        assert!(matches!(error, LlpError::AddressInUse { .. }), "{error}");
    }
}
