//! System calls for the descriptors of a TAP device or of an AF_PACKET socket. This file has all
//! `unsafe` code of the benchmark.
#![expect(
    unsafe_code,
    reason = "the one place of this program where raw system calls are made"
)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use libc::{c_int, c_short, c_uint, c_ulong};

/// Offloads of checksums, and of TCP segmentation over IPv4 and IPv6 (`<linux/if_tun.h>`).
const OFFLOADS: c_ulong = 0x01 | 0x02 | 0x04;
/// Command to switch checksums on sending on or off (`<linux/ethtool.h>`).
const SET_TRANSMIT_CHECKSUM: u32 = 0x17;
/// Command to switch TCP segmentation on or off (`<linux/ethtool.h>`).
const SET_SEGMENTATION: u32 = 0x1f;
/// Command to switch generic segmentation on or off (`<linux/ethtool.h>`).
const SET_GENERIC_SEGMENTATION: u32 = 0x24;

fn checked(result: c_int) -> io::Result<c_int> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns a zeroed `ifreq` with the interface name set.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an `ifreq` is an array and a union of integers and pointers; zero is valid for all of
    // them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::other(format!("{name}: too long a name")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

/// Opens an existing TAP device. With `offload`, all offloads are on and each frame has a
/// virtio-net header before it.
pub(super) fn open_tap(name: &str, offload: bool) -> io::Result<OwnedFd> {
    let mut open = OpenOptions::new();
    open.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let tun = open.open("/dev/net/tun")?;
    let mut request = request(name)?;
    let header = if offload { libc::IFF_VNET_HDR } else { 0 };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | header) as c_short;
    // SAFETY: TUNSETIFF takes a pointer to an `ifreq`, and this one lives during the call. The
    // descriptor is open.
    checked(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    let offloads = if offload { OFFLOADS } else { 0 };
    // SAFETY: TUNSETOFFLOAD takes its argument by value. The descriptor is open.
    checked(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD as _, offloads) })?;
    Ok(tun.into())
}

/// Opens a socket that receives every frame of an interface and sends frames on it. With `offload`,
/// each frame has a virtio-net header before it.
pub(super) fn open_packet(name: &str, offload: bool) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes three integers. The new descriptor has no other owner.
    let socket = unsafe {
        let socket = checked(libc::socket(libc::AF_PACKET, kind, 0))?;
        OwnedFd::from_raw_fd(socket)
    };
    let set = |option: c_int, value: c_int| {
        // SAFETY: the address and the size are those of one `int`, which these options take. The
        // descriptor is open.
        checked(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                (&raw const value).cast(),
                size_of::<c_int>() as libc::socklen_t,
            )
        })
    };
    set(libc::PACKET_VNET_HDR, c_int::from(offload))?;
    set(libc::PACKET_IGNORE_OUTGOING, 1)?;
    let mut request = request(name)?;
    // SAFETY: SIOCGIFINDEX takes a pointer to an `ifreq`, and fills in the member that is read.
    let index = unsafe {
        checked(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGIFINDEX as _,
            &raw mut request,
        ))?;
        request.ifr_ifru.ifru_ifindex
    };
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the address and the size are those of a `sockaddr_ll`, which AF_PACKET takes. The
    // descriptor is open.
    checked(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })?;
    Ok(socket)
}

/// The `struct ethtool_value` of the kernel.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Selects who computes checksums and segments frames of a kernel interface: its device if `on`,
/// otherwise the kernel.
pub(super) fn set_offloads(name: &str, on: bool) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let commands = [
        SET_TRANSMIT_CHECKSUM,
        SET_SEGMENTATION,
        SET_GENERIC_SEGMENTATION,
    ];
    for command in commands {
        let mut value = EthtoolValue {
            command,
            data: u32::from(on),
        };
        let mut request = request(name)?;
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: SIOCETHTOOL takes an `ifreq` that points to a structure selected by its first
        // word: all of these commands take an `ethtool_value`. Both live during the call.
        checked(unsafe {
            libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request)
        })?;
    }
    Ok(())
}

const _: () = assert!(size_of::<EthtoolValue>() == 2 * size_of::<c_uint>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_exist_is_an_error() {
        assert!(request("a-name-that-is-too-long").is_err());
        assert!(set_offloads("uwarp-no-such", true).is_err());
    }
}
