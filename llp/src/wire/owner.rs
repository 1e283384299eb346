//! Whether the kernel believes that an address of ours is its own.

use std::fs;
use std::net::{IpAddr, UdpSocket};

use super::error::AttachError;
use super::sys;

/// Refuses addresses that the kernel has too. It would answer packets for them before or beside us:
/// to a TCP segment of a connection that it does not know, with a reset.
pub(super) fn refuse_addresses_of_the_kernel(
    addresses: &[(IpAddr, u8)],
) -> Result<(), AttachError> {
    // Without the list the second way still finds them, with less to say.
    let known = sys::kernel_addresses().unwrap_or_default();
    for &(addr, _) in addresses {
        if let Some(found) = known.iter().find(|known| known.addr == addr) {
            return Err(AttachError::KernelOwns {
                addr,
                prefix: found.prefix,
                name: found.name,
            });
        }
        // A route of type `local` makes an address the kernel's without any interface having it.
        if !binds_anything(addr) && UdpSocket::bind((addr, 0)).is_ok() {
            return Err(AttachError::KernelRoutes { addr });
        }
    }
    Ok(())
}

/// Whether this machine lets programs bind to addresses that it does not have: then a successful
/// bind says nothing. In doubt it does.
fn binds_anything(addr: IpAddr) -> bool {
    let family = if addr.is_ipv4() { "ipv4" } else { "ipv6" };
    fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"))
        .map_or(true, |value| value.trim() != "0")
}
