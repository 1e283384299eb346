//! Section 6.4.3.1 in simulated time: how long a peer waits while others hold all the memory that
//! they may.
#![allow(
    clippy::disallowed_methods,
    reason = "the simulated time begins at the time of the machine"
)]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use uwarp_verbs::llp::smol::{Carrier, Clock, ManualClock, MemoryNetwork, MemorySettings};
use uwarp_verbs::llp::{Llp, Network, Piece, Recv, SendHints};
use uwarp_verbs::{
    AcceptOptions, Access, Cq, Device, Limits, Listener, MemoryRegion, Pd, PeerLimits, Progress,
    Qp, QpCaps, QpState, RecvWr, Settings, TimeSource,
};

use crate::wire::{CRC, Fpdus, REPLY, REQUEST, SEND, Untagged, startup};

/// Step of the simulated time, and the time that a packet takes.
const STEP: Duration = Duration::from_millis(1);

/// Bytes of each FPDU that an attacker sends, of 60,000.
const BEGUN: usize = 30_000;
/// Limit of the memory that one peer may use for unfinished FPDUs. The device's limit is twice as
/// much.
const EACH: u64 = 68 * 1024 + 2 * BEGUN as u64;

/// Packets that are under way, to the peers (0) or to the device (1).
type Packets = Arc<Mutex<[VecDeque<Vec<u8>>; 2]>>;

struct Cable {
    packets: Packets,
    to: usize,
}

impl Carrier for Cable {
    fn carry(&self, packet: &[u8]) {
        self.packets.lock()[self.to].push_back(packet.to_vec());
    }

    fn reaches(&self, _: IpAddr) -> bool {
        true
    }
}

/// Connection of a peer, which has bytes to send.
struct Peer {
    stream: Box<dyn Llp>,
    fpdus: Fpdus,
    unsent: Vec<u8>,
    received: Vec<u8>,
}

impl Peer {
    fn drive(&mut self) {
        self.stream.clear_readiness();
        self.stream.drive();
        if !self.unsent.is_empty() {
            let pieces = [Piece::from(&self.unsent[..])];
            let sent = self.stream.try_send(&pieces, SendHints::NONE).unwrap_or(0);
            self.unsent.drain(..sent);
        }
        let mut bytes = [0; 4096];
        while let Ok(Recv::Data(count)) = self.stream.try_recv(&mut bytes) {
            self.received.extend_from_slice(&bytes[..count]);
        }
        self.stream.drive();
    }
}

/// A device, whose program and time this test drives, and a host with several addresses.
struct World {
    clock: Arc<ManualClock>,
    packets: Packets,
    /// Host of the peers, and that of the device.
    hosts: [MemoryNetwork; 2],
    device: Device,
    pd: Pd,
    cq: Cq,
    listener: Listener,
    buffer: MemoryRegion,
    peers: Vec<Peer>,
    qps: Vec<Qp>,
}

impl World {
    fn new() -> World {
        let clock = Arc::new(ManualClock::new());
        let given: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let packets = Packets::default();
        let host = |number: usize, addrs: Vec<IpAddr>| {
            let cable = Cable {
                packets: Arc::clone(&packets),
                to: 1 - number,
            };
            let link = MemorySettings::default()
                .addresses([addrs, Vec::new()])
                .clock(Arc::clone(&given))
                .seed(Some(1));
            MemoryNetwork::host(&link, Arc::new(cable)).unwrap()
        };
        let peers = (11..=13).map(|number| [192, 0, 2, number].into()).collect();
        let hosts = [host(0, peers), host(1, vec![[192, 0, 2, 2].into()])];
        let limits = Limits::default()
            .max_receive_memory(2 * EACH)
            .per_peer(PeerLimits::default().max_receive_memory(EACH));
        let settings = Settings::default()
            .limits(limits)
            .progress(Progress::Manual)
            .clock(TimeSource::Given(given))
            .wake_up(None)
            .seed(Some(1));
        let device = Device::open(Arc::new(hosts[1].clone()), settings).unwrap();
        let pd = device.alloc_pd().unwrap();
        let buffer = pd.register(vec![0; 60_000], Access::LOCAL_WRITE).unwrap();
        World {
            listener: device.listen("192.0.2.2:7174".parse().unwrap()).unwrap(),
            cq: device.create_cq(64).unwrap(),
            clock,
            packets,
            hosts,
            device,
            pd,
            buffer,
            peers: Vec::new(),
            qps: Vec::new(),
        }
    }

    /// Advances the time by one step. Packets that were sent in the step before arrive.
    fn step(&mut self) {
        self.clock.advance(STEP);
        let arrived = std::mem::take(&mut *self.packets.lock());
        for (host, packets) in self.hosts.iter().zip(arrived) {
            for packet in packets {
                host.deliver(&packet);
            }
        }
        for peer in &mut self.peers {
            peer.drive();
        }
        while let Some(request) = self.listener.poll_request() {
            let caps = QpCaps::default();
            let qp = self.pd.create_qp(&self.cq, &self.cq, caps).unwrap();
            let receive = [self.buffer.sge(0, 60_000)];
            qp.post_recv(&RecvWr::new(1, &receive)).unwrap();
            request.accept(&qp, &AcceptOptions::default()).unwrap();
            self.qps.push(qp);
        }
        for _ in 0..10_000 {
            let due = self.device.progress();
            if due.is_none_or(|due| due > self.clock.now()) {
                return;
            }
        }
        panic!("events keep happening without time passing");
    }

    /// Connects a peer from this address, and returns its index. It is not accepted yet.
    fn connect(&mut self, from: u8) -> usize {
        let local = SocketAddr::from(([192, 0, 2, from], 0));
        let to = self.listener.local_addr();
        self.peers.push(Peer {
            stream: self.hosts[0].connect(Some(local), to).unwrap(),
            fpdus: Fpdus::new(true, false),
            unsent: startup(REQUEST, CRC, 1, b""),
            received: Vec::new(),
        });
        self.peers.len() - 1
    }

    /// Steps until `done` returns a value. Returns it with the time that this took.
    fn until<T>(&mut self, done: impl Fn(&World) -> Option<T>) -> (T, Duration) {
        let start = self.clock.now();
        loop {
            self.step();
            let passed = self.clock.now() - start;
            if let Some(value) = done(self) {
                return (value, passed);
            }
            assert!(passed < Duration::from_secs(60), "it never happens");
        }
    }

    /// Waits for the Reply to a peer, and returns the time that this took.
    fn accepted(&mut self, peer: usize) -> Duration {
        let reply = startup(REPLY, CRC, 1, b"");
        let (is_reply, passed) = self.until(|world| {
            let received = &world.peers[peer].received;
            (received.len() >= reply.len()).then(|| *received == reply)
        });
        assert!(is_reply);
        passed
    }

    /// Lets a peer send the first `len` bytes of a Send of 60,000.
    fn send(&mut self, peer: usize, len: usize) {
        let Peer { fpdus, unsent, .. } = &mut self.peers[peer];
        let fpdu = fpdus.seal(&Untagged::new(SEND, 0, 1, &[0x5a; 60_000]).bytes());
        unsent.extend(&fpdu[..len.min(fpdu.len())]);
    }
}

/// Two peers begin FPDUs, each within its own limit, until the device has no memory left. A third
/// one connects then, and its message is complete after 100 ms.
#[test]
fn s6_4_3_1_third_peer_beside_two_at_their_limits_is_served_within_100_ms() {
    let mut world = World::new();
    for from in [11, 12] {
        for _ in 0..4 {
            let peer = world.connect(from);
            world.accepted(peer);
            world.send(peer, BEGUN);
        }
    }
    let used = |world: &World| world.device.usage().receive_memory;
    world.until(|world| (used(world) + 68 * 1024 > 2 * EACH).then_some(()));
    let third = world.connect(13);
    let started = world.accepted(third);
    world.send(third, usize::MAX);
    let (done, sent) = world.until(|world| world.cq.poll_one());
    assert!(
        done.status.is_success() && done.byte_len == 60_000,
        "{done:?}"
    );
    assert_eq!(done.qp_num, world.qps[third].qp_num());
    let took = started + sent;
    assert!(took <= Duration::from_millis(100), "{took:?}");
    // Nobody has given way for it.
    assert!(world.qps.iter().all(|qp| qp.state() == QpState::Rts));
    assert!(used(&world) + 68 * 1024 > 2 * EACH);
}
