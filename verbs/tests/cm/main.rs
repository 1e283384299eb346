//! The connection manager: ids, events on a channel, listeners, and streams that the program
//! connected.

mod addresses;
mod channel;
#[path = "../common/mod.rs"]
mod common;
mod disconnect;
mod events;
mod failures;
mod listen;
mod listener;
mod many;
mod order;
mod streams;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{LIMIT, Setup, Side, Wire, both_ways, until};
use rustix::io::Errno;
use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    AcceptOptions, CmError, CmEvent, CmEventKind, CmId, CmState, CmWaitError, ConnectOptions,
    Device, EventChannel, IbvQpState, Qp, QpCaps, QpModify, QpState, RecvWr, RejectOptions,
    Settings, StartupError,
};

/// A device with all objects that a program needs.
struct Host {
    side: Side,
    channel: EventChannel,
}

impl Host {
    fn new(network: Arc<dyn Network>, settings: Settings) -> Host {
        let device = Device::open(network, settings).unwrap();
        Host {
            side: Side::new(device, QpCaps::default(), 64),
            channel: EventChannel::new().unwrap(),
        }
    }

    fn kernel() -> Host {
        Host::new(Arc::new(KernelNetwork::default()), Settings::default())
    }

    fn id(&self, context: u64) -> CmId {
        self.channel.create_id(&self.side.device, context)
    }

    /// Waits for the next event, which must be of this kind.
    #[track_caller]
    fn next(&self, kind: CmEventKind) -> CmEvent {
        next(&self.channel, kind)
    }

    /// Returns an id that listens at `addr`.
    fn listening(&self, addr: SocketAddr, backlog: u32) -> CmId {
        let id = self.id(LISTENER);
        id.bind_addr(addr).unwrap();
        id.listen(backlog).unwrap();
        id
    }

    /// Returns an id whose address and route are resolved, so that it can connect.
    #[track_caller]
    fn resolved(&self, to: SocketAddr) -> CmId {
        let id = self.id(INITIATOR);
        id.resolve_addr(None, to).unwrap();
        drop(self.next(CmEventKind::AddrResolved));
        id.resolve_route().unwrap();
        drop(self.next(CmEventKind::RouteResolved));
        id
    }

    #[track_caller]
    fn nothing_waits(&self) {
        assert!(self.channel.try_get_event().is_none());
    }
}

const LISTENER: u64 = 0x115;
const INITIATOR: u64 = 0x1217;

#[track_caller]
fn next(channel: &EventChannel, kind: CmEventKind) -> CmEvent {
    let event = channel.get_event(Some(LIMIT)).unwrap();
    assert_eq!(event.kind(), kind, "{event:?}");
    event
}

fn status(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

/// Returns pairs of hosts, each with a listening address of the second host: over kernel TCP and
/// over the memory link, IPv4 and IPv6.
fn hosts() -> Vec<(Host, Host, SocketAddr)> {
    hosts_with(&Settings::default())
}

fn hosts_with(settings: &Settings) -> Vec<(Host, Host, SocketAddr)> {
    let host = |network| Host::new(network, settings.clone());
    let mut hosts = Vec::new();
    for (kernel, memory) in [
        ("127.0.0.1:0", "192.0.2.2:0"),
        ("[::1]:0", "[2001:db8::2]:0"),
    ] {
        let net = || -> Arc<dyn Network> { Arc::new(KernelNetwork::default()) };
        hosts.push((host(net()), host(net()), kernel.parse().unwrap()));
        let (a, b) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
        hosts.push((
            host(Arc::new(a)),
            host(Arc::new(b)),
            memory.parse().unwrap(),
        ));
    }
    hosts
}

/// Connects the QPs of both hosts. Returns the two ids.
#[track_caller]
fn connected(a: &Host, b: &Host, at: SocketAddr) -> (CmId, CmId) {
    let listener = b.listening(at, 0);
    let ours = a.resolved(listener.local_addr().unwrap());
    ours.connect(&a.side.qp, &ConnectOptions::default())
        .unwrap();
    let theirs = b.next(CmEventKind::ConnectRequest).id().clone();
    theirs
        .accept(&b.side.qp, &AcceptOptions::default())
        .unwrap();
    drop(b.next(CmEventKind::Established));
    drop(a.next(CmEventKind::Established));
    (ours, theirs)
}
