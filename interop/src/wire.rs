//! How the guest and we reach each other.

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

/// Nothing that is awaited takes this long, unless it never comes. (The guest is emulated, and the machine
/// may be busy.)
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The guest's ports that can be reached from our side on every wire.
const GUEST_PORTS: std::ops::Range<u16> = 7174..7190;

/// A version of IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// 192.0.2.0/24.
    V4,
    /// 2001:db8::/64.
    V6,
}

/// One kind of connection between the guest and us. The suites are written against this.
pub trait Wire: Send {
    /// For the names of tests: `kernel_tcp`.
    fn name(&self) -> &'static str;
    /// For the matrix: what our side is, in words.
    fn title(&self) -> &'static str;
    /// The guest's network device. What it needs (sockets, interfaces) exists when this returns.
    ///
    /// # Errors
    /// What the system refused.
    fn net_device(&mut self) -> Result<NetDevice>;
    /// `ADDRESS/PREFIX` of the guest.
    fn guest_addresses(&self) -> Vec<String> {
        vec!["192.0.2.2/24".to_owned(), "2001:db8::2/64".to_owned()]
    }
    /// From now on, the addresses below are of that family; of IPv4 at first.
    fn speak(&mut self, family: Family);
    /// The family that is spoken.
    fn family(&self) -> Family;
    /// The guest's address, as the guest knows it.
    fn guest_ip(&self) -> IpAddr {
        match self.family() {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 2).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2).into(),
        }
    }
    /// Where we reach that port of the guest.
    fn guest_addr(&self, port: u16) -> SocketAddr;
    /// Our address, for listening.
    fn our_ip(&self) -> IpAddr;
    /// Our address, as the guest reaches it.
    fn our_ip_for_guest(&self) -> IpAddr;
    /// A network of ours on this wire, for one device.
    ///
    /// # Errors
    /// What the system refused.
    fn network(&self) -> Result<Arc<dyn Network>>;
    /// A network of the caller's own, whose packets suffer these faults. All others have ended before.
    ///
    /// # Errors
    /// What the system refused; and the wire is one on which there can be no faults.
    fn faulty(&self, faults: FaultSettings) -> Result<EthernetNetwork>;
    /// What follows `--device` of a command that is started next. Networks of ours have ended before.
    ///
    /// # Errors
    /// They do not end.
    fn device_argument(&self) -> Result<String>;
}

/// The kernel's TCP on our side, over QEMU's own network. It ends and begins TCP anew in the
/// middle: boundaries of segments are lost.
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
        // Free ports: the system gives them out, all at once, so that no two are the same.
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

    fn speak(&mut self, family: Family) {
        self.family = family;
    }

    fn family(&self) -> Family {
        self.family
    }

    /// QEMU forwards ports of IPv4 only.
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

/// A guest on a wire, for the tests that share it one after the other.
pub struct Rig {
    /// The guest.
    pub guest: Guest,
    /// The agent in it.
    pub agent: Agent,
    /// What connects us.
    pub wire: Box<dyn Wire>,
    /// What it was booted from.
    pub image: Image,
    next_port: u16,
}

impl Rig {
    /// Boots a guest on that wire.
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

    /// A port of the guest that no recent test has used.
    pub fn guest_port(&mut self) -> u16 {
        self.next_port = (self.next_port + 1) % u16::try_from(GUEST_PORTS.len()).unwrap_or(1);
        GUEST_PORTS.start + self.next_port
    }

    /// A device of ours on the wire.
    ///
    /// # Errors
    /// What the system refused.
    pub fn device(&self, settings: Settings) -> Result<Device> {
        Ok(Device::open(self.wire.network()?, settings)?)
    }
}
