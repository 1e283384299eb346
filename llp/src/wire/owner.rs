//! Whether the kernel believes that an address of ours is its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::error::AttachError;
use super::sys;

/// Refuses addresses that the kernel has too. It would answer packets for them before or beside us:
/// to a TCP segment of a connection that it does not know, with a reset.
pub(super) fn refuse_addresses_of_the_kernel(
    addresses: &[(IpAddr, u8)],
) -> Result<(), AttachError> {
    // Without the list the second way still finds most of them, with less to say.
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

/// Whether the kernel would reach the address from that same address: then a route of type `local`
/// makes it the kernel's, without any interface having it. Nothing is sent. (A successful `bind`
/// would say less: it also works with net.ipv4.ip_nonlocal_bind, and where there is no route at all.)
fn talks_to_itself(addr: IpAddr) -> bool {
    let any: IpAddr = if addr.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Port 9 is the one to discard what comes.
        socket.connect((addr, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == addr)
}
