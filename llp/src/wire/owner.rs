//! Detects that the kernel considers an own address as its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::error::AttachError;
use super::sys;

/// Returns an error for addresses that the kernel has as well. It would answer packets for them
/// too: a TCP segment of a connection that it does not know gets a reset.
pub(super) fn refuse_addresses_of_the_kernel(
    addresses: &[(IpAddr, u8)],
) -> Result<(), AttachError> {
    // Without the list, the second check still finds most of them, with a less specific error.
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

/// Returns true if the kernel would use the address itself as the source of packets to it. Then a
/// route of type `local` makes it the kernel's, even if no interface has it. Nothing is sent. (A
/// successful `bind` would prove less: it also works with net.ipv4.ip_nonlocal_bind, and without
/// any route.)
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
