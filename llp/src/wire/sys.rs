//! System calls of the wires that need `unsafe`: ioctls on interfaces, and the socket calls of
//! `packet(7)` that have no safe wrapper.
#![expect(
    unsafe_code,
    reason = "the one place of this module where raw system calls are made"
)]

use std::ffi::{CStr, c_int, c_short, c_ulong};
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::error::InterfaceName;

/// Instruction of a socket filter.
pub(super) use libc::sock_filter as Instruction;

/// Returns the errno of the call that just failed.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn checked(result: c_int) -> Result<(), Errno> {
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

/// Returns a zeroed `ifreq` with the interface name set.
fn request(name: &InterfaceName) -> libc::ifreq {
    // SAFETY: an `ifreq` is an array and a union of integers and pointers; zero is valid for all of
    // them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // A name has at most 15 bytes, so a NUL remains.
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_str().bytes()) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
    request
}

/// Performs an ioctl of `netdevice(7)` or of `tun` that reads and writes an `ifreq`.
fn interface_ioctl(fd: impl AsFd, number: c_ulong, request: &mut libc::ifreq) -> Result<(), Errno> {
    // SAFETY: every ioctl that this module requests takes a pointer to an `ifreq`. `request` is an
    // `ifreq` that lives during the call. The descriptor is open.
    checked(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number as _, &raw mut *request) })
}

/// Feature of a TAP device (`linux/if_tun.h`): this side accepts frames with partial checksums.
const TUN_F_CSUM: c_ulong = 1;
/// This side accepts uncut TCP segments over IPv4.
const TUN_F_TSO4: c_ulong = 2;
/// This side accepts uncut TCP segments over IPv6.
const TUN_F_TSO6: c_ulong = 4;

/// Attaches an open `/dev/net/tun` to the TAP device with this name, or creates the device. With
/// `offload`, asks for a virtio-net header before every frame in both directions. Returns true if
/// there is such a header.
pub(super) fn attach_tap(
    tun: impl AsFd,
    name: &InterfaceName,
    offload: bool,
) -> Result<bool, Errno> {
    let plain = libc::IFF_TAP | libc::IFF_NO_PI;
    let attach = |flags: c_int| {
        let mut request = request(name);
        request.ifr_ifru.ifru_flags = flags as c_short;
        interface_ioctl(&tun, libc::TUNSETIFF as c_ulong, &mut request)
    };
    let offload = match attach(if offload {
        plain | libc::IFF_VNET_HDR
    } else {
        plain
    }) {
        // The kernel does not support the header, or the interface is of another kind. In the
        // latter case this second attempt fails too.
        Err(Errno::INVAL) if offload => attach(plain).map(|()| false)?,
        other => other.map(|()| offload)?,
    };
    if offload {
        // A persistent device keeps the header length that its previous user set, so it is set
        // again.
        let mut bytes: c_int = VNET_HEADER;
        // SAFETY: TUNSETVNETHDRSZ takes a pointer to an `int`, which lives during the call. The
        // descriptor is open.
        checked(unsafe {
            libc::ioctl(
                tun.as_fd().as_raw_fd(),
                libc::TUNSETVNETHDRSZ as _,
                &raw mut bytes,
            )
        })?;
        if set_features(&tun, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6).is_ok() {
            return Ok(true);
        }
    }
    // A persistent device also keeps the features that its previous user set. Without this call, it
    // could deliver frames of 64 KiB without checksums.
    set_features(&tun, 0).map(|()| offload)
}

/// Size of a virtio-net header, as [`attach_tap`] sets it.
const VNET_HEADER: c_int = super::vnet::VNET_HEADER as c_int;

fn set_features(tun: impl AsFd, features: c_ulong) -> Result<(), Errno> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value. The descriptor is open.
    checked(unsafe { libc::ioctl(tun.as_fd().as_raw_fd(), libc::TUNSETOFFLOAD as _, features) })
}

/// Returns true if the interface is up.
pub(super) fn is_up(control: impl AsFd, name: &InterfaceName) -> Result<bool, Errno> {
    let mut request = request(name);
    interface_ioctl(control, libc::SIOCGIFFLAGS as c_ulong, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled in this member; any bits are valid for it.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(c_int::from(flags) & libc::IFF_UP != 0)
}

/// Brings the interface up.
pub(super) fn bring_up(control: impl AsFd, name: &InterfaceName) -> Result<(), Errno> {
    let mut request = request(name);
    interface_ioctl(&control, libc::SIOCGIFFLAGS as c_ulong, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled in this member; any bits are valid for it.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as c_short;
    interface_ioctl(control, libc::SIOCSIFFLAGS as c_ulong, &mut request)
}

/// Returns the MTU of the interface in bytes.
pub(super) fn mtu(control: impl AsFd, name: &InterfaceName) -> Result<usize, Errno> {
    let mut request = request(name);
    interface_ioctl(control, libc::SIOCGIFMTU as c_ulong, &mut request)?;
    // SAFETY: SIOCGIFMTU has filled in this member; any bits are valid for it.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| Errno::INVAL)
}

/// Sets the MTU of the interface.
pub(super) fn set_mtu(control: impl AsFd, name: &InterfaceName, mtu: usize) -> Result<(), Errno> {
    let mut request = request(name);
    request.ifr_ifru.ifru_mtu = c_int::try_from(mtu).map_err(|_| Errno::INVAL)?;
    interface_ioctl(control, libc::SIOCSIFMTU as c_ulong, &mut request)
}

/// Returns the MAC address of the interface; `None` if it is not an Ethernet.
pub(super) fn ethernet_address(
    control: impl AsFd,
    name: &InterfaceName,
) -> Result<Option<[u8; 6]>, Errno> {
    let mut request = request(name);
    interface_ioctl(control, libc::SIOCGIFHWADDR as c_ulong, &mut request)?;
    // SAFETY: SIOCGIFHWADDR has filled in this member; any bits are valid for it.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let [a, b, c, d, e, f, ..] = address.sa_data.map(|byte| byte.to_ne_bytes()[0]);
    Ok((address.sa_family == libc::ARPHRD_ETHER).then_some([a, b, c, d, e, f]))
}

/// Sets a socket option with an integer value.
fn set_option(socket: impl AsFd, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    // SAFETY: the address and the size are those of one `int`, which the callers' options take.
    checked(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    })
}

/// Enables a virtio-net header before every frame of an AF_PACKET socket.
pub(super) fn use_vnet_header(socket: impl AsFd) -> Result<(), Errno> {
    set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
}

/// Attaches a filter: the socket then receives only frames that the program accepts.
pub(super) fn attach_filter(socket: impl AsFd, program: &[Instruction]) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        // The kernel only reads the program.
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the address and the size are those of a `sock_fprog` whose `len` instructions live
    // during the call. The kernel copies and checks them.
    checked(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    })
}

/// Returns an AF_PACKET address with all other fields zero.
fn empty_packet_address() -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Binds an AF_PACKET socket to an interface, for frames of every type.
pub(super) fn bind_to_interface(socket: impl AsFd, index: u32) -> Result<(), Errno> {
    let mut address = empty_packet_address();
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = c_int::try_from(index).map_err(|_| Errno::NODEV)?;
    // SAFETY: the address and the size are those of a `sockaddr_ll`, which AF_PACKET takes.
    checked(unsafe {
        libc::bind(
            socket.as_fd().as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })
}

/// Enables the reception of all multicast frames of an interface, as long as the socket is open.
pub(super) fn take_all_multicast(socket: impl AsFd, index: u32) -> Result<(), Errno> {
    let membership = libc::packet_mreq {
        mr_ifindex: c_int::try_from(index).map_err(|_| Errno::NODEV)?,
        mr_type: libc::PACKET_MR_ALLMULTI as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the address and the size are those of a `packet_mreq`, which this option takes.
    checked(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const membership).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    })
}

/// Receives one frame of an AF_PACKET socket into the slices, without blocking. Returns its length,
/// and true if this host sent it.
pub(super) fn receive_frame(
    socket: impl AsFd,
    into: &mut [IoSliceMut<'_>],
) -> Result<(usize, bool), Errno> {
    let mut address = empty_packet_address();
    // SAFETY: all fields of `msghdr` are integers or pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // The standard library guarantees that an `IoSliceMut` has the layout of an `iovec`.
    message.msg_iov = into.as_mut_ptr().cast();
    // The field is a `usize` with glibc, and a `c_int` with musl.
    message.msg_iovlen = into.len() as _;
    // SAFETY: `message` holds an address and iovecs with their correct sizes. This function borrows
    // the memory of the iovecs exclusively, and the kernel writes only within it. The descriptor is
    // open.
    let received = unsafe {
        libc::recvmsg(
            socket.as_fd().as_raw_fd(),
            &raw mut message,
            libc::MSG_DONTWAIT,
        )
    };
    let bytes = usize::try_from(received).map_err(|_| last_errno())?;
    Ok((bytes, address.sll_pkttype == libc::PACKET_OUTGOING))
}

/// An address that the kernel has on an interface, with its network prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelAddress {
    pub(super) name: InterfaceName,
    pub(super) addr: IpAddr,
    pub(super) prefix: u8,
}

/// Returns all addresses that the kernel has on interfaces of this network namespace.
pub(super) fn kernel_addresses() -> Result<Vec<KernelAddress>, Errno> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `getifaddrs` writes one pointer to the given address.
    checked(unsafe { libc::getifaddrs(&raw mut first) })?;
    let mut found = Vec::new();
    let mut next: *const libc::ifaddrs = first;
    // SAFETY: `getifaddrs` created the list. Each `ifa_next` is null or points to the next entry,
    // which is valid until `freeifaddrs`.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: by the contract of `getifaddrs`, the name is a string with a NUL, and address and
        // mask are null or socket addresses of the size that their family has.
        let known = unsafe {
            let name = CStr::from_ptr(entry.ifa_name).to_str().ok();
            name.and_then(|name| name.parse().ok())
                .zip(ip_at(entry.ifa_addr))
                .zip(ip_at(entry.ifa_netmask))
        };
        if let Some(((name, addr), mask)) = known {
            found.push(KernelAddress {
                name,
                addr,
                prefix: ones(mask),
            });
        }
    }
    // SAFETY: `getifaddrs` wrote `first`. It is freed once, and no reference into the list is left.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Returns the IP address in a socket address; `None` for another family.
///
/// # Safety
/// `at` is null or points to a socket address of the size that its family has.
unsafe fn ip_at(at: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees that `at` is null or valid, and every socket address begins
    // with its family. Reads are unaligned because only the alignment of `sockaddr` is guaranteed.
    unsafe {
        if at.is_null() {
            return None;
        }
        match c_int::from((*at).sa_family) {
            libc::AF_INET => {
                let address = at.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = at.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// Returns the prefix length of a network mask.
fn ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    u8::try_from(ones).unwrap_or(128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_addresses_of_the_kernel_are_found_with_their_prefix() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let all = kernel_addresses().unwrap();
        let found = all.iter().find(|found| found.addr == loopback);
        let has_it = std::net::UdpSocket::bind((loopback, 0)).is_ok();
        let expected = has_it.then_some(("lo", 8));
        assert_eq!(
            found.map(|found| (found.name.as_str(), found.prefix)),
            expected
        );
    }

    #[test]
    fn a_prefix_is_counted_from_its_mask() {
        assert_eq!(ones(IpAddr::from([255, 255, 255, 0])), 24);
        assert_eq!(
            ones(IpAddr::from([0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0])),
            64
        );
        assert_eq!(ones(IpAddr::from([0, 0, 0, 0])), 0);
    }
}
