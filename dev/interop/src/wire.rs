//! Wires between the guest and us, and a guest on a wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::ethernet::EthernetNetwork;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::FaultSettings;
use uwarp_verbs::{Device, Settings};

use crate::agent::Agent;
use crate::failure::{Failure, Result};
use crate::guest::image::Image;
use crate::guest::{Guest, NetDevice};

/// Time limit for any expected event. The guest is emulated, and the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Ports of the guest that are reachable from here on every wire.
const GUEST_PORTS: std::ops::Range<u16> = 7174..7190;

/// Version of IP, with the network that it uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// 192.0.2.0/24.
    V4,
    /// 2001:db8::/64.
    V6,
}

/// A kind of connection between the guest and us. The test suites use this trait.
pub trait Wire: Send {
    /// Returns the wire's name for test names, such as `kernel_tcp`.
    fn name(&self) -> &'static str;
    /// Returns the title of our side for the matrix.
    fn title(&self) -> &'static str;
    /// Sets up the wire, and returns the guest's network device.
    ///
    /// # Errors
    /// Names the step that the system refused.
    fn net_device(&mut self) -> Result<NetDevice>;
    /// Returns the guest's addresses as `ADDRESS/PREFIX`.
    fn guest_addresses(&self) -> Vec<String> {
        vec!["192.0.2.2/24".to_owned(), "2001:db8::2/64".to_owned()]
    }
    /// Selects the family of the addresses below. The default is IPv4.
    fn set_family(&mut self, family: Family);
    /// Returns the selected family.
    fn family(&self) -> Family;
    /// Returns the guest's address, as seen from the guest.
    fn guest_ip(&self) -> IpAddr {
        match self.family() {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 2).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2).into(),
        }
    }
    /// Returns the address at which this port of the guest is reachable from here.
    fn guest_addr(&self, port: u16) -> SocketAddr;
    /// Returns our local address, to which listeners bind.
    fn our_ip(&self) -> IpAddr;
    /// Returns the address at which the guest reaches us.
    fn our_ip_for_guest(&self) -> IpAddr;
    /// Creates a network on this wire for one device.
    ///
    /// # Errors
    /// Names the step that the system refused.
    fn network(&self) -> Result<Arc<dyn Network>>;
    /// Ends all other networks on this wire. Then creates a network whose packets suffer these
    /// faults.
    ///
    /// # Errors
    /// Names the step that the system refused, or says that this wire has no fault injection.
    fn faulty(&self, faults: FaultSettings) -> Result<EthernetNetwork>;
    /// Ends our networks on this wire, and returns the value of `--device` for a `uwarp` command.
    ///
    /// # Errors
    /// The networks do not end in time.
    fn device_argument(&self) -> Result<String>;
}

/// Kernel TCP on our side, over QEMU's user network. QEMU terminates TCP in between, so segment
/// boundaries are lost.
#[derive(Debug)]
pub struct KernelTcp {
    forward: Vec<(u16, u16)>,
    family: Family,
}

impl Default for KernelTcp {
    fn default() -> Self {
        KernelTcp {
            forward: Vec::new(),
            family: Family::V4,
        }
    }
}

impl Wire for KernelTcp {
    fn name(&self) -> &'static str {
        "kernel_tcp"
    }

    fn title(&self) -> &'static str {
        "kernel TCP"
    }

    fn net_device(&mut self) -> Result<NetDevice> {
        // The system assigns free ports. All sockets are bound at the same time, so that the ports
        // differ.
        let listeners = GUEST_PORTS
            .map(|port| Ok((TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, port)))
            .collect::<Result<Vec<_>>>()?;
        self.forward = listeners
            .iter()
            .map(|(listener, port)| Ok((listener.local_addr()?.port(), *port)))
            .collect::<Result<Vec<_>>>()?;
        Ok(NetDevice::User {
            forward: self.forward.clone(),
        })
    }

    fn set_family(&mut self, family: Family) {
        self.family = family;
    }

    fn family(&self) -> Family {
        self.family
    }

    /// Returns the forwarded port on 127.0.0.1, even for IPv6, because QEMU forwards only IPv4
    /// ports.
    fn guest_addr(&self, port: u16) -> SocketAddr {
        let forwarded = self.forward.iter().find(|(_, theirs)| *theirs == port);
        let ours = forwarded.map_or(0, |(ours, _)| *ours);
        SocketAddr::from((Ipv4Addr::LOCALHOST, ours))
    }

    fn our_ip(&self) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::LOCALHOST.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    fn our_ip_for_guest(&self) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        }
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

/// A guest on a wire, which tests use one after another.
pub struct Rig {
    /// The guest.
    pub guest: Guest,
    /// The agent in the guest.
    pub agent: Agent,
    /// Wire between the guest and us.
    pub wire: Box<dyn Wire>,
    /// Image of the guest.
    pub image: Image,
    next_port: u16,
}

impl Rig {
    /// Boots a guest on this wire.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn boot(image: &Image, mut wire: Box<dyn Wire>) -> Result<Rig> {
        let net = wire.net_device()?;
        let booted = Guest::boot(image, &net, &wire.guest_addresses(), None);
        let (guest, agent) = booted
            .map_err(|failure| failure.during(format!("booting the guest on {}", wire.title())))?;
        Ok(Rig {
            guest,
            agent,
            wire,
            image: image.clone(),
            next_port: 0,
        })
    }

    /// Returns the next port of the guest. A port is reused only after all others.
    pub fn guest_port(&mut self) -> u16 {
        self.next_port = (self.next_port + 1) % u16::try_from(GUEST_PORTS.len()).unwrap_or(1);
        GUEST_PORTS.start + self.next_port
    }

    /// Opens a device on the wire.
    ///
    /// # Errors
    /// Names the step that the system refused.
    pub fn device(&self, settings: Settings) -> Result<Device> {
        Ok(Device::open(self.wire.network()?, settings)?)
    }
}
