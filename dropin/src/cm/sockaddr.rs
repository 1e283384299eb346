//! Conversion between socket addresses of C and `SocketAddr`.
#![expect(unsafe_code, reason = "the first field of a `sockaddr` says its type")]

use core::ffi::c_int;
use core::mem;
use core::ptr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// Reads an address of the program.
///
/// # Errors
/// `EINVAL` for NULL and for a family other than IPv4 and IPv6, as in librdmacm.
///
/// # Safety
/// `addr` is NULL or has the type for its address family.
pub(super) unsafe fn read(addr: *const sockaddr) -> Result<SocketAddr, c_int> {
    if addr.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller. (No alignment is assumed: programs keep addresses in byte
    // buffers.)
    unsafe {
        match c_int::from(ptr::read_unaligned(&raw const (*addr).sa_family)) {
            libc::AF_INET => {
                let addr: sockaddr_in = ptr::read_unaligned(addr.cast());
                let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(addr.sin_port)).into())
            }
            libc::AF_INET6 => {
                let addr: sockaddr_in6 = ptr::read_unaligned(addr.cast());
                let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
                let port = u16::from_be(addr.sin6_port);
                let (flow, scope) = (u32::from_be(addr.sin6_flowinfo), addr.sin6_scope_id);
                Ok(SocketAddrV6::new(ip, port, flow, scope).into())
            }
            _ => Err(libc::EINVAL),
        }
    }
}

/// Converts an address to its C structure. Returns the structure, and its length in bytes.
pub(super) fn write(addr: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let at = &raw mut storage;
    let len = match addr {
        SocketAddr::V4(addr) => {
            // SAFETY: all bytes may be zero: the structure has only numbers.
            let mut out: sockaddr_in = unsafe { mem::zeroed() };
            out.sin_family = libc::AF_INET as _;
            out.sin_port = addr.port().to_be();
            out.sin_addr.s_addr = u32::from(*addr.ip()).to_be();
            // SAFETY: the storage has size and alignment for every address.
            unsafe { at.cast::<sockaddr_in>().write(out) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(addr) => {
            // SAFETY: all bytes may be zero: the structure has only numbers.
            let mut out: sockaddr_in6 = unsafe { mem::zeroed() };
            out.sin6_family = libc::AF_INET6 as _;
            out.sin6_port = addr.port().to_be();
            out.sin6_addr.s6_addr = addr.ip().octets();
            out.sin6_flowinfo = addr.flowinfo().to_be();
            out.sin6_scope_id = addr.scope_id();
            // SAFETY: as above.
            unsafe { at.cast::<sockaddr_in6>().write(out) };
            size_of::<sockaddr_in6>()
        }
    };
    // The length is at most 28.
    (storage, len as socklen_t)
}

/// Converts an address that the program passes to the one that TCP uses: adds `offset` to the port.
/// The addition wraps around, so that the program can name every port that TCP may choose. Port 0,
/// which lets TCP choose, is not changed.
///
/// # Errors
/// `EADDRNOTAVAIL` if the result would be port 0.
pub(super) fn into_tcp(addr: SocketAddr, offset: u16) -> Result<SocketAddr, c_int> {
    let mut addr = addr;
    if addr.port() != 0 {
        match addr.port().wrapping_add(offset) {
            0 => return Err(libc::EADDRNOTAVAIL),
            port => addr.set_port(port),
        }
    }
    Ok(addr)
}

/// Reverses [`into_tcp`]: subtracts `offset` from the port. Two ports are not changed: 0, and
/// `offset`, because the result would be port 0.
pub(super) fn from_tcp(addr: SocketAddr, offset: u16) -> SocketAddr {
    let mut addr = addr;
    match addr.port().wrapping_sub(offset) {
        0 => {}
        port if addr.port() != 0 => addr.set_port(port),
        _ => {}
    }
    addr
}

/// Converts an IPv4-mapped IPv6 address to IPv4, because no socket here serves both families.
pub(super) fn unmapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V6(ip) => ip
            .to_ipv4_mapped()
            .map_or(addr, |ip| (ip, addr.port()).into()),
        IpAddr::V4(_) => addr,
    }
}

/// Returns the address to connect to: for an unspecified address, the loopback address of the same
/// family. IPv4-mapped addresses become IPv4.
pub(super) fn destination(addr: SocketAddr) -> SocketAddr {
    let mut addr = unmapped(addr);
    match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    addr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        for text in ["192.0.2.1:7174", "[2001:db8::1]:1", "[fe80::1%3]:65535"] {
            let addr: SocketAddr = text.parse().unwrap();
            let (storage, len) = write(addr);
            // SAFETY: the address was just written.
            let read = unsafe { read((&raw const storage).cast()) };
            assert_eq!(read, Ok(addr));
            assert_eq!(len, if addr.is_ipv4() { 16 } else { 28 });
        }
    }

    #[test]
    fn ports_are_offset_in_tcp_and_not_for_the_program() {
        let addr = |port| SocketAddr::from(([192, 0, 2, 1], port));
        assert_eq!(into_tcp(addr(3260), 20000), Ok(addr(23260)));
        assert_eq!(from_tcp(addr(23260), 20000), addr(3260));
        assert_eq!(into_tcp(addr(0), 20000), Ok(addr(0)));
        assert_eq!(into_tcp(addr(45536), 20000), Err(libc::EADDRNOTAVAIL));
        assert_eq!(into_tcp(addr(7), 0), Ok(addr(7)));
    }

    #[test]
    fn a_port_that_tcp_has_chosen_is_one_that_the_peer_can_name() {
        let addr = |port| SocketAddr::from(([192, 0, 2, 1], port));
        for port in [1, 1000, 19_999, 20_001, 65_535] {
            let named = from_tcp(addr(port), 20000);
            assert_eq!(into_tcp(named, 20000), Ok(addr(port)));
        }
        assert_eq!(from_tcp(addr(0), 20000), addr(0));
    }

    #[test]
    fn another_family_is_invalid() {
        // SAFETY: all bytes may be zero: the structure has only numbers.
        let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
        storage.ss_family = libc::AF_UNIX as _;
        // SAFETY: the first pointer is that of a local variable, and the second is NULL.
        unsafe {
            assert_eq!(read((&raw const storage).cast()), Err(libc::EINVAL));
            assert_eq!(read(ptr::null()), Err(libc::EINVAL));
        }
    }

    #[test]
    fn an_unspecified_destination_is_this_machine() {
        let to = |text: &str| destination(text.parse().unwrap()).to_string();
        assert_eq!(to("0.0.0.0:5"), "127.0.0.1:5");
        assert_eq!(to("[::]:5"), "[::1]:5");
        assert_eq!(to("[::ffff:192.0.2.1]:5"), "192.0.2.1:5");
        assert_eq!(to("[fe80::1%3]:5"), "[fe80::1%3]:5");
    }
}
