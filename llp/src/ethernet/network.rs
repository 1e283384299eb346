//! [`EthernetNetwork`]: a host with TCP in user space on an Ethernet.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use uwarp_capture::LinkType;

use super::addresses::Addresses;
use super::counters::LinkCounters;
use super::link::{EthernetLink, Parts, Shared};
use super::neighbours::{MAX_NEIGHBOURS, Neighbours, Timing};
use super::outqueue::OutQueue;
use super::settings::LinkSettings;
use crate::smol::{
    FaultCounts, FaultInjector, FaultyLink, Link, Pool, SmolConnection, SmolPort, Stack,
    SystemClock, User, local_for,
};
use crate::wire::{MemoryWire, Wire};
use crate::{BoundPort, Llp, LlpError, LlpListener, Network, NetworkInfo, NetworkWatcher};

/// Number of frames that may wait for the wire. At this number, connections hold further packets
/// back.
const OUT_QUEUE: usize = 256;
/// Maximum size of the usual buffers in bytes, even if the MTU is larger. A pure acknowledgement
/// should not occupy a buffer for the longest packet.
const USUAL: usize = 2048;
/// Number of frames that an in-memory cable holds in each direction.
const CABLE: usize = 256;
/// Maximum MTU of an in-memory cable.
const CABLE_MTU: usize = 65535;

/// Value for the outgoing direction in [`FaultInjector::new`].
const OUTBOUND: u64 = 0;
/// Value for the incoming direction in [`FaultInjector::new`].
const INBOUND: u64 = 1;

/// Party that receives the frames of a link and runs its timers.
#[derive(Clone, Copy)]
pub(super) enum Runs {
    /// A thread of the link, with the system's clock.
    Thread,
    /// The carrier of the link's frames, with the clock in the settings.
    ExternalLink,
}

/// A host with TCP in user space on an Ethernet. Clones share the host.
///
/// The link is closed and its thread ends when the last clone, connection and listener is dropped.
#[derive(Clone)]
pub struct EthernetNetwork {
    pub(super) stack: User,
    pub(super) shared: Arc<Shared>,
    /// Injector for outgoing packets, if there are faults.
    outbound: Option<Arc<FaultInjector>>,
}

impl EthernetNetwork {
    /// Attaches a host to `wire`.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] if a setting is out of range, the wire's error if it has failed, and
    /// errors for a lack of descriptors or threads.
    pub(crate) fn open(wire: Box<dyn Wire>, settings: &LinkSettings) -> Result<Self, LlpError> {
        Self::open_with(wire, settings, Timing::default())
    }

    pub(super) fn open_with(
        wire: Box<dyn Wire>,
        settings: &LinkSettings,
        timing: Timing,
    ) -> Result<Self, LlpError> {
        Self::make(wire, settings, timing, Runs::Thread)
    }

    pub(super) fn make(
        wire: Box<dyn Wire>,
        settings: &LinkSettings,
        timing: Timing,
        runs: Runs,
    ) -> Result<Self, LlpError> {
        let stack_settings = settings.stack(wire.mtu(), wire.offloads())?;
        let mtu = stack_settings.mtu;
        let addresses = Addresses::new(settings, wire.mac(), mtu)?;
        let own = addresses.all().collect();
        let tap = (settings.capture.as_ref())
            .map(|capture| capture.interface(&wire.describe(), LinkType::Ethernet));
        let pool = Arc::new(Pool::new(mtu.min(USUAL)));
        let faults = |direction| {
            let inject = |faults| Arc::new(FaultInjector::new(faults, direction));
            settings.faults.map(inject)
        };
        let shared = Shared::new(Parts {
            wire,
            addresses,
            pool: Arc::clone(&pool),
            tap,
            mtu,
            faults: faults(INBOUND),
            neighbours: Neighbours::new(timing, MAX_NEIGHBOURS),
            out: OutQueue::new(OUT_QUEUE),
            clock: match runs {
                Runs::Thread => Arc::new(SystemClock),
                Runs::ExternalLink => Arc::clone(&settings.clock),
            },
        })?;
        let link = match runs {
            Runs::Thread => EthernetLink::start(&shared)?,
            Runs::ExternalLink => EthernetLink::without_thread(&shared),
        };
        let outbound = faults(OUTBOUND);
        let link: Box<dyn Link> = match outbound.clone() {
            None => Box::new(link),
            Some(injector) => Box::new(FaultyLink {
                inner: link,
                injector,
                pool: Arc::clone(&pool),
            }),
        };
        let clock = Arc::clone(&settings.clock);
        let stack = Stack::new(own, link, pool, clock, stack_settings);
        let stack = Arc::new(stack);
        shared.set_stack(&stack);
        shared.probe();
        let this = Self {
            stack: User::of(&stack),
            shared,
            outbound,
        };
        match this.fault() {
            Some(error) => Err(error),
            None => Ok(this),
        }
    }

    /// Creates two hosts at the ends of an in-memory cable. They use the whole Ethernet
    /// implementation except the hardware. This is for tests and for programs that simulate an
    /// unplugged cable.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] if a setting is out of range, and errors for a lack of descriptors or
    /// threads.
    pub fn cable(
        first: &LinkSettings,
        second: &LinkSettings,
    ) -> Result<(Self, Self, Cable), LlpError> {
        let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let mtu = |settings: &LinkSettings| settings.mtu.unwrap_or(1500);
        let mtu = mtu(first).max(mtu(second)).min(CABLE_MTU);
        let (one, other) = MemoryWire::pair(macs, mtu, CABLE)?;
        let unplug = Box::new(one.plug());
        let first = Self::open(Box::new(one), first)?;
        let second = Self::open(Box::new(other), second)?;
        Ok((first, second, Cable { unplug }))
    }

    /// Returns the counters of the link.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.shared.counters.read()
    }

    /// Returns the number of faults that [`LinkSettings::faults`] caused for outgoing packets and
    /// for received packets. `None` if no faults are configured.
    #[must_use]
    pub fn fault_counts(&self) -> Option<(FaultCounts, FaultCounts)> {
        let inbound = self.shared.faults.as_ref();
        Some((self.outbound.as_ref()?.counts(), inbound?.counts()))
    }
}

impl std::fmt::Debug for EthernetNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EthernetNetwork")
            .field("link", &self.describe())
            .finish_non_exhaustive()
    }
}

/// Removes the scope of a link-local address, because there is only one link.
fn without_scope(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip(), addr.port())
}

impl Network for EthernetNetwork {
    fn connect(&self, local: Option<SocketAddr>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        let to = without_scope(to);
        let local = local_for(&self.stack, local.map(without_scope), to)?;
        Ok(Box::new(SmolConnection::connect(&self.stack, local, to)?))
    }

    fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError> {
        self.reserve(addr)?.listen(backlog)
    }

    fn source_for(&self, to: SocketAddr) -> Result<IpAddr, LlpError> {
        self.stack.source_for(without_scope(to))
    }

    fn reserve(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError> {
        Ok(Box::new(SmolPort::take(&self.stack, without_scope(addr))?))
    }

    fn info(&self) -> NetworkInfo {
        NetworkInfo {
            addresses: self.stack.addresses().to_vec(),
            interfaces: Vec::new(),
            mtu: self.shared.mtu,
            mac: Some(self.shared.mac()),
        }
    }

    fn describe(&self) -> String {
        let link = self.stack.link().describe();
        format!("smoltcp over {link}, MTU {}", self.shared.mtu)
    }

    fn fault(&self) -> Option<LlpError> {
        self.stack.fault()
    }

    fn watch(&self, watcher: Weak<dyn NetworkWatcher>) {
        self.shared.events.watch(&watcher);
    }
}

/// Cable between the two hosts of [`EthernetNetwork::cable`]. Dropping this value does not unplug
/// the cable.
pub struct Cable {
    unplug: Box<dyn Fn() + Send + Sync>,
}

impl Cable {
    /// Unplugs the cable. Both links are then down permanently.
    pub fn unplug(&self) {
        (self.unplug)();
    }
}

impl std::fmt::Debug for Cable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cable").finish_non_exhaustive()
    }
}
