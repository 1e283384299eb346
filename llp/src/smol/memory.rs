//! Two hosts in one process, connected by an in-memory link.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use uwarp_capture::{Capture, Direction, Interface, LinkType};

use super::clock::{Clock, SystemClock};
use super::connection::{SmolConnection, local_for};
use super::fault::{FaultCounts, FaultInjector, FaultSettings, FaultyLink};
use super::mailbox::Mailbox;
use super::packet::{Packet, Pool};
use super::reserved::SmolPort;
use super::settings::{Congestion, MIN_IPV6_MTU, StackSettings};
use super::stack::{Link, Route, Stack};
use crate::{BoundPort, Llp, LlpError, LlpListener, Network, NetworkInfo};
use uwarp_engine::setters;

/// Settings of a pair of in-memory hosts. Both hosts use the same settings.
#[derive(Clone)]
#[non_exhaustive]
pub struct MemorySettings {
    /// Largest IP packet in bytes, 576 to 65535; 1500 by default. Below 1280 the hosts have no IPv6
    /// addresses, because IPv6 requires an MTU of at least 1280.
    pub mtu: usize,
    /// Size in bytes of each connection's receive buffer, which is the largest window that it
    /// offers; 256 KiB by default. Its pages use memory only after they were written, if the
    /// allocator provides zeroed pages. (With a few thousand connections or more, glibc may take a
    /// buffer from the heap, and then clears up to half of it.)
    pub receive_buffer: usize,
    /// Size in bytes of each connection's send buffer, which holds bytes until the peer has
    /// acknowledged them; 256 KiB by default.
    pub send_buffer: usize,
    /// Number of packets that may wait for one connection, 256 by default. At this number, its peer
    /// holds packets back. Packets well beyond this number are dropped.
    pub inbox: usize,
    /// Congestion control; none by default.
    pub congestion: Congestion,
    /// Retransmits lost bytes as soon as repeated acknowledgements or an overdue acknowledgement
    /// indicate the loss. Otherwise smoltcp retransmits them, mostly after a timer of one second.
    /// Off by default: if a busy processor delays one end by two milliseconds, segments are sent
    /// twice.
    pub early_recovery: bool,
    /// Computes and verifies checksums. Off by default, because the in-memory link damages nothing.
    /// Checksums are always on with a capture, so that its readers see valid packets, and if
    /// [`FaultSettings::corrupt`] is set.
    pub checksums: bool,
    /// Time that an acknowledgement waits for data to be sent with it. With `None`, the default, it
    /// does not wait. With congestion control, waiting slows down the start of a transfer. With
    /// `early_recovery` the peer is assumed to wait equally long; if it waits longer, the last
    /// segments are sent twice.
    pub ack_delay: Option<Duration>,
    /// Time after which an incomplete handshake fails with [`LlpError::TimedOut`]; 60 s by default.
    pub connect_timeout: Duration,
    /// Addresses of the first and of the second host. The default is 192.0.2.1 and 2001:db8::1 for
    /// the first, 192.0.2.2 and 2001:db8::2 for the second. The first address of a family is the
    /// source of connections.
    pub addresses: [Vec<IpAddr>; 2],
    /// Capture that records every packet on the link once, as raw IP. Packets from the first host
    /// are recorded as outbound, those from the second host as inbound. Packets are recorded after
    /// faults were applied.
    pub capture: Option<Capture>,
    /// Faults of packets on the link; none by default. Each direction derives its own random
    /// numbers from the seed. Packets that a host sends to itself do not use the link.
    pub faults: Option<FaultSettings>,
    /// Clock for TCP's timers; the system's clock by default.
    pub clock: Arc<dyn Clock>,
    /// Seed for initial sequence numbers and local ports, **only for simulation**, because it makes
    /// them predictable. Each host derives its own numbers from it. `None`, the default, uses the
    /// random numbers of the system.
    pub seed: Option<u64>,
}

setters! { MemorySettings {
    mtu: usize,
    receive_buffer: usize,
    send_buffer: usize,
    inbox: usize,
    congestion: Congestion,
    early_recovery: bool,
    checksums: bool,
    ack_delay: Option<Duration>,
    connect_timeout: Duration,
    addresses: [Vec<IpAddr>; 2],
    capture: Option<Capture>,
    faults: Option<FaultSettings>,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
} }

impl Default for MemorySettings {
    fn default() -> Self {
        let host = |number: u8| {
            vec![
                IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)),
                IpAddr::V6(Ipv6Addr::new(
                    0x2001,
                    0xdb8,
                    0,
                    0,
                    0,
                    0,
                    0,
                    u16::from(number),
                )),
            ]
        };
        Self {
            mtu: 1500,
            receive_buffer: 256 << 10,
            send_buffer: 256 << 10,
            inbox: 256,
            congestion: Congestion::default(),
            early_recovery: false,
            checksums: false,
            ack_delay: None,
            connect_timeout: Duration::from_secs(60),
            addresses: [host(1), host(2)],
            capture: None,
            faults: None,
            clock: Arc::new(SystemClock),
            seed: None,
        }
    }
}

impl fmt::Debug for MemorySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySettings")
            .field("mtu", &self.mtu)
            .field("receive_buffer", &self.receive_buffer)
            .field("send_buffer", &self.send_buffer)
            .field("congestion", &self.congestion)
            .field("addresses", &self.addresses)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl MemorySettings {
    /// Returns the stack settings of the first (0) or second (1) host.
    pub(super) fn stack(&self, host: u64) -> Result<StackSettings, LlpError> {
        let corrupts = self.faults.is_some_and(|faults| faults.corrupt > 0.0);
        let settings = StackSettings {
            mtu: self.mtu,
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
            inbox: self.inbox,
            // Both ends are in this process, and all buffers have the same size.
            inbox_bytes: usize::MAX,
            congestion: self.congestion,
            early_recovery: self.early_recovery,
            checksums: self.checksums || self.capture.is_some() || corrupts,
            bursts: false,
            ack_delay: self.ack_delay,
            // The peer has the same settings.
            peer_ack_delay: self.ack_delay.unwrap_or_default(),
            connect_timeout: self.connect_timeout,
            // Both ends are in this process.
            keepalive: None,
            seed: self
                .seed
                .map(|seed| seed.wrapping_mul(2).wrapping_add(host)),
        };
        settings.check("make an in-memory network")?;
        if let Some(faults) = &self.faults {
            faults.check("make an in-memory network")?;
        }
        Ok(settings)
    }

    pub(super) fn addresses_of(&self, host: &[IpAddr]) -> Result<Vec<IpAddr>, LlpError> {
        let usable = |addr: &IpAddr| match addr {
            IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
            IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast()),
        };
        if !host.iter().all(usable) {
            let why = "an address of a host must be that of a single host";
            return Err(LlpError::Misuse {
                op: "make an in-memory network",
                why,
            });
        }
        let fits = |addr: &&IpAddr| addr.is_ipv4() || self.mtu >= MIN_IPV6_MTU;
        Ok(host.iter().filter(fits).copied().collect())
    }
}

/// An in-memory host: one of a pair ([`Self::pair`]), or one whose packets a
/// [`Carrier`](super::Carrier) carries ([`Self::host`]). Clones share the host.
#[derive(Clone)]
pub struct MemoryNetwork {
    stack: Arc<Stack>,
    faults: Option<Arc<FaultInjector>>,
}

impl MemoryNetwork {
    pub(super) fn of(stack: Stack) -> Self {
        Self {
            stack: Arc::new(stack),
            faults: None,
        }
    }

    pub(super) fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Creates two hosts that reach only each other and themselves.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] if a setting is out of range.
    pub fn pair(settings: &MemorySettings) -> Result<(Self, Self), LlpError> {
        let pool = Arc::new(Pool::new(settings.mtu));
        let tap = settings
            .capture
            .as_ref()
            .map(|c| c.interface("memory", LinkType::RawIp));
        let host = |addresses: &[IpAddr], direction| {
            let peer = Arc::new(OnceLock::new());
            let link = MemoryLink {
                peer: Arc::clone(&peer),
                tap: tap.clone(),
                direction,
            };
            let number = u64::from(direction == Direction::Inbound);
            let faults = settings
                .faults
                .map(|faults| Arc::new(FaultInjector::new(faults, number)));
            let link: Box<dyn Link> = match &faults {
                None => Box::new(link),
                Some(injector) => Box::new(FaultyLink {
                    inner: link,
                    injector: Arc::clone(injector),
                    pool: Arc::clone(&pool),
                }),
            };
            let stack = Stack::new(
                settings.addresses_of(addresses)?,
                link,
                Arc::clone(&pool),
                Arc::clone(&settings.clock),
                settings.stack(number)?,
            );
            Ok::<_, LlpError>((
                Self {
                    stack: Arc::new(stack),
                    faults,
                },
                peer,
            ))
        };
        let [first, second] = &settings.addresses;
        let (first, peer_of_first) = host(first, Direction::Outbound)?;
        let (second, peer_of_second) = host(second, Direction::Inbound)?;
        // Both cells were created above and are empty, so `set` succeeds.
        let _ = peer_of_first.set(Arc::downgrade(&second.stack));
        let _ = peer_of_second.set(Arc::downgrade(&first.stack));
        Ok((first, second))
    }

    /// Returns the number of faults of this host's packets so far, or `None` if the link has no
    /// faults.
    pub fn fault_counts(&self) -> Option<FaultCounts> {
        self.faults.as_ref().map(|injector| injector.counts())
    }
}

impl Network for MemoryNetwork {
    fn connect(&self, local: Option<SocketAddr>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        let local = local_for(&self.stack, local, to)?;
        Ok(Box::new(SmolConnection::connect(&self.stack, local, to)?))
    }

    fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError> {
        self.reserve(addr)?.listen(backlog)
    }

    fn source_for(&self, to: SocketAddr) -> Result<IpAddr, LlpError> {
        self.stack.source_for(to)
    }

    fn reserve(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError> {
        Ok(Box::new(SmolPort::take(&self.stack, addr)?))
    }

    fn info(&self) -> NetworkInfo {
        NetworkInfo {
            addresses: self.stack.addresses().to_vec(),
            interfaces: Vec::new(),
            mtu: self.stack.settings.mtu,
            mac: None,
        }
    }

    fn describe(&self) -> String {
        format!(
            "smoltcp over {}, MTU {}",
            self.stack.link().describe(),
            self.stack.settings.mtu
        )
    }
}

/// One direction of the link.
struct MemoryLink {
    peer: Arc<OnceLock<Weak<Stack>>>,
    tap: Option<Interface>,
    direction: Direction,
}

impl MemoryLink {
    fn peer(&self) -> Option<Arc<Stack>> {
        self.peer.get().and_then(Weak::upgrade)
    }
}

impl Link for MemoryLink {
    fn send(&self, packet: Packet, route: &mut Route) {
        if let Some(tap) = &self.tap {
            tap.packet(self.direction, &[packet.bytes()]);
        }
        let Err(packet) = route.deliver(packet) else {
            return;
        };
        // Packets to a host that was dropped are lost, as if it were switched off.
        if let Some(peer) = self.peer() {
            peer.receive(packet, route);
        }
    }

    fn reaches(&self, addr: IpAddr) -> bool {
        self.peer().is_some_and(|peer| peer.has(addr))
    }

    fn next_hop(&self, _to: IpAddr) -> Option<IpAddr> {
        None
    }

    fn source_for(&self, _to: IpAddr) -> Option<IpAddr> {
        None
    }

    fn subscribe_if_full(&self, _route: &Route, _sender: &Arc<Mailbox>) -> bool {
        // Only the inbox at the other end can be full. The stack finds and checks it by the route.
        false
    }

    fn poll(&self, _stack: &Stack) {
        // The sender delivers each packet to its inbox directly.
    }

    fn close(&self) {}

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}
