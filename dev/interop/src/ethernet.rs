//! Wires for uwarp's own TCP. They carry Ethernet frames between the guest and us.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use uwarp_verbs::llp::ethernet::{EthernetNetwork, LinkSettings};
use uwarp_verbs::llp::smol::FaultSettings;
use uwarp_verbs::llp::{InterfaceName, Network, OpenError};

use crate::failure::{Failure, Result};
use crate::guest::NetDevice;
use crate::namespace;
use crate::tempdir::TempDir;
use crate::wire::{Family, PATIENCE, Wire};

const OUR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OUR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// MAC address of every host of ours. The guest caches it, so a host that replaces another must
/// have the same address.
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
/// Options that follow the attachment in the value of `--device`.
const OUR_KEYS: &str = "ip=192.0.2.1/24,ip=2001:db8::1/64,mac=02:00:00:00:02:01";

/// Function that attaches a network to the wire.
type Open = dyn Fn(&LinkSettings) -> std::result::Result<EthernetNetwork, OpenError> + Send;

/// Our host on a wire, which the tests on the wire share. It is closed while a `uwarp` command uses
/// the attachment.
struct Host {
    open: Box<Open>,
    /// Returns true if no host of ours is attached.
    vacant: Box<dyn Fn() -> Result<bool> + Send>,
    now: Mutex<Option<EthernetNetwork>>,
}

impl Host {
    fn network(&self) -> Result<EthernetNetwork> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = &*now {
            return Ok(network.clone());
        }
        self.wait_vacant()?;
        let network = (self.open)(&settings(None))?;
        Ok(now.insert(network).clone())
    }

    /// Creates a host with faults for the caller only. First closes the shared host.
    fn faulty(&self, faults: FaultSettings) -> Result<EthernetNetwork> {
        self.vacate()?;
        Ok((self.open)(&settings(Some(faults)))?)
    }

    /// Closes the shared host, and waits until its last connection has ended.
    fn vacate(&self) -> Result<()> {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.wait_vacant()
    }

    fn wait_vacant(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !(self.vacant)()? {
            if Instant::now() > deadline {
                return Err(Failure::new(
                    "a connection of an earlier test keeps our host on the wire",
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn settings(faults: Option<FaultSettings>) -> LinkSettings {
    LinkSettings::default()
        .addresses(vec![(OUR_V4.into(), 24), (OUR_V6.into(), 64)])
        .faults(faults)
}

/// A wire of Ethernet frames. Our host is at one end, the guest at the other.
pub struct EthernetWire {
    kind: Kind,
    family: Family,
    place: Option<Place>,
}

#[derive(Clone, Copy)]
enum Kind {
    UnixDatagrams,
    Tap,
}

/// Attachments of both ends of the wire, created with the guest.
struct Place {
    host: Host,
    /// Attachment of our host, the first part of the value for `--device`.
    device: String,
    _keep: Keep,
}

/// Resources that must live as long as the attachments.
#[expect(dead_code, reason = "held for their Drop")]
enum Keep {
    Dir(TempDir),
    Bridge(Bridge),
}

impl EthernetWire {
    fn of(kind: Kind) -> EthernetWire {
        EthernetWire {
            kind,
            family: Family::V4,
            place: None,
        }
    }

    /// Creates a wire of frames in Unix datagrams, between our `unix:` device and QEMU's `-netdev
    /// dgram`. It needs no privileges.
    #[must_use]
    pub fn unix_datagrams() -> EthernetWire {
        EthernetWire::of(Kind::UnixDatagrams)
    }

    /// Creates a wire of two TAP devices, ours and QEMU's, joined by a kernel bridge. It needs a
    /// network namespace of our own ([`enter_namespace`](crate::enter_namespace)).
    #[must_use]
    pub fn tap() -> EthernetWire {
        EthernetWire::of(Kind::Tap)
    }

    /// Checks whether this machine permits a TAP wire.
    ///
    /// # Errors
    /// Names the step that the system refused.
    pub fn try_tap() -> Result<()> {
        let bridge = Bridge::new()?;
        EthernetNetwork::tap(interface(&bridge.ours)?, Some(OUR_MAC), &settings(None))?;
        Ok(())
    }

    fn place(&self) -> Result<&Place> {
        self.place
            .as_ref()
            .ok_or_else(|| Failure::new("there is no guest on the wire yet"))
    }
}

fn unix_datagrams() -> Result<(Place, NetDevice)> {
    let dir = TempDir::new()?;
    let (ours, theirs) = (dir.path().join("uwarp"), dir.path().join("guest"));
    let device = format!("unix:{},{}", ours.display(), theirs.display());
    let socket = ours.clone();
    let net = NetDevice::UnixDatagrams {
        local: theirs.clone(),
        remote: ours.clone(),
    };
    let host = Host {
        open: Box::new(move |settings| {
            EthernetNetwork::unix(&ours, &theirs, Some(OUR_MAC), settings)
        }),
        // The socket file may remain after its process ends, so a connection attempt decides.
        vacant: Box::new(move || match UnixDatagram::unbound()?.connect(&socket) {
            Ok(()) => Ok(false),
            Err(error) if is_unattached(&error) => Ok(true),
            Err(error) => Err(error.into()),
        }),
        now: Mutex::new(None),
    };
    let place = Place {
        host,
        device,
        _keep: Keep::Dir(dir),
    };
    Ok((place, net))
}

fn is_unattached(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn interface(name: &str) -> Result<InterfaceName> {
    name.parse().map_err(|why: &str| Failure::new(why))
}

fn tap() -> Result<(Place, NetDevice)> {
    let bridge = Bridge::new()?;
    let name = interface(&bridge.ours)?;
    let ours = bridge.ours.clone();
    let net = NetDevice::Tap {
        ifname: bridge.theirs.clone(),
    };
    let device = format!("tap:{ours}");
    let host = Host {
        open: Box::new(move |settings| EthernetNetwork::tap(name, Some(OUR_MAC), settings)),
        // The interface has a carrier (LOWER_UP) while a program is attached to it.
        vacant: Box::new(move || {
            let link = namespace::run(&["ip", "-o", "link", "show", "dev", &ours])?;
            Ok(!link.contains("LOWER_UP"))
        }),
        now: Mutex::new(None),
    };
    let place = Place {
        host,
        device,
        _keep: Keep::Bridge(bridge),
    };
    Ok((place, net))
}

impl Wire for EthernetWire {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::UnixDatagrams => "unix_datagrams",
            Kind::Tap => "tap",
        }
    }

    fn title(&self) -> &'static str {
        match self.kind {
            Kind::UnixDatagrams => "smoltcp over Unix datagrams",
            Kind::Tap => "smoltcp over TAP",
        }
    }

    fn net_device(&mut self) -> Result<NetDevice> {
        let (place, net) = match self.kind {
            Kind::UnixDatagrams => unix_datagrams()?,
            Kind::Tap => tap()?,
        };
        self.place = Some(place);
        Ok(net)
    }

    fn set_family(&mut self, family: Family) {
        self.family = family;
    }

    fn family(&self) -> Family {
        self.family
    }

    fn guest_addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.guest_ip(), port)
    }

    fn our_ip(&self) -> IpAddr {
        match self.family {
            Family::V4 => OUR_V4.into(),
            Family::V6 => OUR_V6.into(),
        }
    }

    fn our_ip_for_guest(&self) -> IpAddr {
        self.our_ip()
    }

    fn network(&self) -> Result<Arc<dyn Network>> {
        Ok(Arc::new(self.place()?.host.network()?))
    }

    fn faulty(&self, faults: FaultSettings) -> Result<EthernetNetwork> {
        self.place()?.host.faulty(faults)
    }

    fn device_argument(&self) -> Result<String> {
        let place = self.place()?;
        place.host.vacate()?;
        Ok(format!("{},{OUR_KEYS}", place.device))
    }
}

/// Two TAP devices joined by a bridge.
struct Bridge {
    name: String,
    ours: String,
    theirs: String,
}

impl Bridge {
    fn new() -> Result<Bridge> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let [name, ours, theirs] = ["br", "us", "vm"].map(|kind| format!("uw{kind}{number}"));
        namespace::run(&["ip", "link", "add", &name, "type", "bridge"])?;
        let bridge = Bridge { name, ours, theirs };
        for tap in [&bridge.ours, &bridge.theirs] {
            namespace::run(&["ip", "tuntap", "add", "dev", tap, "mode", "tap"])?;
            namespace::run(&["ip", "link", "set", "dev", tap, "master", &bridge.name])?;
        }
        for name in [&bridge.name, &bridge.ours, &bridge.theirs] {
            // No addresses, because the bridge only forwards frames.
            namespace::run(&["ip", "link", "set", "dev", name, "addrgenmode", "none"])?;
            namespace::run(&["ip", "link", "set", "dev", name, "up"])?;
        }
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        for name in [&self.ours, &self.theirs, &self.name] {
            // The end of the namespace removes what is left.
            let _ = namespace::run(&["ip", "link", "del", "dev", name]);
        }
    }
}
