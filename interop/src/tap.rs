//! The kernel's TCP on both sides, with nothing between: a TAP device of QEMU's, and an address of ours on it.

use std::net::{IpAddr, Ipv4Addr};

use crate::failure::Result;
use crate::guest::NetDevice;
use crate::namespace;

const NAME: &str = "uwhost";
const OURS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Our host on the guest's wire, by the TCP of the network namespace of this process
/// ([`enter_namespace`](crate::enter_namespace)). Segments, their sizes, FIN and reset are the guest's own, which QEMU's
/// user network does not pass on. It stays from guest to guest.
pub struct HostTap(());

impl HostTap {
    /// Makes the device.
    ///
    /// # Errors
    /// What the system refused.
    pub fn new() -> Result<HostTap> {
        namespace::run(&["ip", "tuntap", "add", "dev", NAME, "mode", "tap"])?;
        let tap = HostTap(());
        let address = format!("{OURS}/24");
        namespace::run(&["ip", "address", "add", &address, "dev", NAME])?;
        namespace::run(&["ip", "link", "set", "dev", NAME, "up"])?;
        Ok(tap)
    }

    /// The guest's end.
    #[must_use]
    pub fn net_device(&self) -> NetDevice {
        let ifname = NAME.to_owned();
        NetDevice::Tap { ifname }
    }

    /// What the guest is to be told: `ADDRESS/PREFIX`.
    #[must_use]
    pub fn guest_addresses(&self) -> Vec<String> {
        vec![format!("{GUEST}/24")]
    }

    /// The guest's address.
    #[must_use]
    pub fn guest_ip(&self) -> IpAddr {
        GUEST.into()
    }
}

impl Drop for HostTap {
    fn drop(&mut self) {
        // What is left goes with the namespace.
        let _ = namespace::run(&["ip", "link", "del", "dev", NAME]);
    }
}
