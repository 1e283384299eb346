//! A wire with kernel TCP on both sides. QEMU's TAP device carries one of our addresses, so nothing
//! between the two TCP stacks modifies the segments.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::ethernet::EthernetNetwork;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::FaultSettings;

use crate::failure::{Failure, Result};
use crate::guest::NetDevice;
use crate::namespace;
use crate::wire::{Family, Wire};

const NAME: &str = "uwhost";
// These addresses differ from those of the other wires, because uwarp's own TCP refuses an address
// that the kernel has.
const OURS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 129);
const GUEST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 130);

/// Our host on the guest's wire, with the TCP of this process's network namespace
/// ([`enter_namespace`](crate::enter_namespace)). It receives the guest's own segments, FINs and
/// resets, which QEMU's user network does not pass on. It can serve one guest after another.
pub struct HostTap(());

impl HostTap {
    /// Creates the device.
    ///
    /// # Errors
    /// Names the step that the system refused.
    pub fn new() -> Result<HostTap> {
        namespace::run(&["ip", "tuntap", "add", "dev", NAME, "mode", "tap"])?;
        let tap = HostTap(());
        let address = format!("{OURS}/25");
        namespace::run(&["ip", "address", "add", &address, "dev", NAME])?;
        namespace::run(&["ip", "link", "set", "dev", NAME, "up"])?;
        Ok(tap)
    }

    /// Returns the network device for the guest.
    #[must_use]
    pub fn net_device(&self) -> NetDevice {
        let ifname = NAME.to_owned();
        NetDevice::Tap { ifname }
    }

    /// Returns the guest's addresses as `ADDRESS/PREFIX`.
    #[must_use]
    pub fn guest_addresses(&self) -> Vec<String> {
        vec![format!("{GUEST}/25")]
    }

    /// Returns the guest's address.
    #[must_use]
    pub fn guest_ip(&self) -> IpAddr {
        GUEST.into()
    }
}

impl Drop for HostTap {
    fn drop(&mut self) {
        // The end of the namespace removes what is left.
        let _ = namespace::run(&["ip", "link", "del", "dev", NAME]);
    }
}

/// The TAP device as a wire, with IPv4 only. If the guest refuses a connection, our connect fails.
/// With QEMU's user network, our connect would succeed, and QEMU would then close the connection.
#[derive(Default)]
pub struct KernelTap(Option<HostTap>);

impl KernelTap {
    /// Checks whether this machine permits such a wire.
    ///
    /// # Errors
    /// Names the step that the system refused.
    pub fn try_tap() -> Result<()> {
        HostTap::new().map(drop)
    }
}

impl Wire for KernelTap {
    fn name(&self) -> &'static str {
        "kernel_tap"
    }

    fn title(&self) -> &'static str {
        "kernel TCP over TAP"
    }

    fn net_device(&mut self) -> Result<NetDevice> {
        self.0 = None;
        let tap = HostTap::new()?;
        Ok(self.0.insert(tap).net_device())
    }

    fn guest_addresses(&self) -> Vec<String> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, HostTap::guest_addresses)
    }

    fn guest_ip(&self) -> IpAddr {
        GUEST.into()
    }

    /// Does nothing, because the wire has only IPv4.
    fn set_family(&mut self, _: Family) {}

    fn family(&self) -> Family {
        Family::V4
    }

    fn guest_addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.guest_ip(), port)
    }

    fn our_ip(&self) -> IpAddr {
        OURS.into()
    }

    fn our_ip_for_guest(&self) -> IpAddr {
        OURS.into()
    }

    fn network(&self) -> Result<Arc<dyn Network>> {
        Ok(Arc::new(KernelNetwork::default()))
    }

    fn faulty(&self, _: FaultSettings) -> Result<EthernetNetwork> {
        Err(Failure::new("the kernel's TCP has no fault injection"))
    }

    fn device_argument(&self) -> Result<String> {
        Ok("tcp".to_owned())
    }
}
