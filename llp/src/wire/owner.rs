//! Detects addresses of this host that the kernel also uses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::error::AttachError;
use super::sys;

/// Returns an error if the kernel has one of the addresses too. The kernel would answer packets to
/// such an address, and would reset TCP connections that it does not know.
pub(super) fn refuse_addresses_of_the_kernel(
    addresses: &[(IpAddr, u8)],
) -> Result<(), AttachError> {
    // If the list is unavailable, `talks_to_itself` still finds most of these addresses, with a
    // less specific error.
    let known = sys::kernel_addresses().unwrap_or_default();
    for &(addr, _) in addresses {
        if let Some(found) = known.iter().find(|known| known.addr == addr) {
            return Err(AttachError::KernelOwns {
                addr,
                prefix: found.prefix,
                name: found.name,
            });
        }
        if talks_to_itself(addr) {
            return Err(AttachError::KernelRoutes { addr });
        }
    }
    Ok(())
}

/// Returns true if the kernel would use `addr` as the source of packets to `addr`. If so, a route
/// of type `local` covers `addr`, and the kernel takes packets for it as its own, even if no
/// interface has it. The check sends nothing. (A successful `bind` would not prove this: it also
/// succeeds with net.ipv4.ip_nonlocal_bind.)
fn talks_to_itself(addr: IpAddr) -> bool {
    let any: IpAddr = if addr.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Port 9 is the discard port.
        socket.connect((addr, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == addr)
}
