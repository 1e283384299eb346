//! Sending over a path with a smaller MTU than the link's, and over a link whose queue other
//! connections fill.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use smoltcp::wire::Ipv4Packet;

use super::*;
use crate::smol::Mailbox;
use crate::smol::clock::ManualClock;
use crate::smol::connection::local_for;
use crate::smol::listener::SmolListener;
use crate::smol::packet::{Packet, Pool};
use crate::smol::reserved::SmolPort;
use crate::smol::segment::Segment;
use crate::smol::settings::{Congestion, StackSettings};
use crate::smol::stack::{Link, Route, Stack};
use crate::{Llp, LlpListener, Recv};

/// Number of packets that always stay in the queue of a shared link.
const IN_QUEUE: usize = 4;

/// A link that drops packets larger than `limit`, and records all packets in `sent`.
struct Narrow {
    /// True to simulate another connection that shares the queue. The queue then always keeps the
    /// last [`IN_QUEUE`] packets, so that some bytes are always in flight.
    shared: Arc<AtomicBool>,
    /// True if the next query of a shared queue reports that it is full. Each query changes the
    /// value.
    full: AtomicBool,
    queue: Mutex<VecDeque<Packet>>,
    peer: Arc<OnceLock<Weak<Stack>>>,
    limit: Arc<AtomicUsize>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Link for Narrow {
    fn send(&self, packet: Packet, _route: &mut Route) {
        self.sent.lock().push(packet.bytes().to_vec());
        let packet = if self.shared.load(Ordering::Relaxed) {
            let mut queue = self.queue.lock();
            queue.push_back(packet);
            if queue.len() <= IN_QUEUE {
                return;
            }
            queue.pop_front().unwrap()
        } else {
            packet
        };
        if packet.bytes().len() <= self.limit.load(Ordering::Relaxed) {
            let peer = self.peer.get().and_then(Weak::upgrade).unwrap();
            peer.receive(packet, &mut Route::default());
        }
    }

    fn reaches(&self, _addr: IpAddr) -> bool {
        true
    }

    fn next_hop(&self, _to: IpAddr) -> Option<IpAddr> {
        None
    }

    fn source_for(&self, _to: IpAddr) -> Option<IpAddr> {
        None
    }

    fn subscribe_if_full(&self, _route: &Route, _sender: &Arc<Mailbox>) -> bool {
        self.shared.load(Ordering::Relaxed) && self.full.fetch_not(Ordering::Relaxed)
    }

    fn poll(&self, _stack: &Stack) {}

    fn close(&self) {}

    fn describe(&self) -> String {
        "narrow".to_owned()
    }
}

pub(crate) struct Scene {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) client: SmolConnection,
    pub(crate) server: Box<dyn Llp>,
    pub(crate) limit: Arc<AtomicUsize>,
    shared: Arc<AtomicBool>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    _stacks: [Arc<Stack>; 2],
}

impl Scene {
    pub(crate) fn new(v6: bool) -> Self {
        Self::with(v6, Congestion::None)
    }

    pub(crate) fn with(v6: bool, congestion: Congestion) -> Self {
        let (limit, sent) = (
            Arc::new(AtomicUsize::new(usize::MAX)),
            Arc::<Mutex<Vec<Vec<u8>>>>::default(),
        );
        let shared = Arc::new(AtomicBool::new(false));
        let clock = Arc::new(ManualClock::new());
        let host = |number: u16| {
            let peer = Arc::new(OnceLock::new());
            let link = Narrow {
                shared: if number == 1 {
                    Arc::clone(&shared)
                } else {
                    Arc::default()
                },
                full: AtomicBool::new(false),
                queue: Mutex::default(),
                peer: Arc::clone(&peer),
                limit: Arc::clone(&limit),
                sent: if number == 1 {
                    Arc::clone(&sent)
                } else {
                    Arc::default()
                },
            };
            let addr: IpAddr = if v6 {
                format!("2001:db8::{number}").parse().unwrap()
            } else {
                format!("192.0.2.{number}").parse().unwrap()
            };
            let settings = StackSettings {
                mtu: 1500,
                receive_buffer: 256 << 10,
                send_buffer: 256 << 10,
                inbox: 256,
                inbox_bytes: usize::MAX,
                congestion,
                early_recovery: true,
                checksums: true,
                bursts: false,
                ack_delay: None,
                peer_ack_delay: Duration::ZERO,
                connect_timeout: Duration::from_secs(60),
                keepalive: None,
                seed: None,
            };
            let stack = Stack::new(
                vec![addr],
                Box::new(link),
                Arc::new(Pool::new(1500)),
                Arc::<ManualClock>::clone(&clock),
                settings,
            );
            (Arc::new(stack), peer, SocketAddr::new(addr, 7174))
        };
        let (first, peer_of_first, _) = host(1);
        let (second, peer_of_second, at) = host(2);
        peer_of_first.set(Arc::downgrade(&second)).unwrap();
        peer_of_second.set(Arc::downgrade(&first)).unwrap();
        let port = SmolPort::take(&second, at).unwrap();
        let mut listener = SmolListener::new(port, 1).unwrap();
        let local = local_for(&first, None, at).unwrap();
        let mut client = SmolConnection::connect(&first, local, at).unwrap();
        let server = loop {
            client.drive();
            if let Some(server) = listener.try_accept().unwrap() {
                break server;
            }
        };
        assert_eq!(client.connect_progress(), Ok(true));
        sent.lock().clear();
        Self {
            clock,
            client,
            server,
            limit,
            shared,
            sent,
            _stacks: [first, second],
        }
    }

    pub(crate) fn set_path_mtu(&self, mtu: usize) {
        self.client.mailbox.path_mtu.store(mtu, Ordering::Relaxed);
    }

    /// Sends FPDUs of EMSS bytes.
    fn send(&mut self, count: usize) {
        let emss = self.client.emss();
        let bytes = vec![7; emss * count];
        let ends: Vec<u64> = (1..=count).map(|number| (number * emss) as u64).collect();
        let pieces = [Piece::from(&bytes)];
        let taken = self.client.try_send(&pieces, SendHints::new(0, &ends));
        assert_eq!(taken, Ok(bytes.len()));
    }

    pub(crate) fn received(&mut self) -> usize {
        let (mut buffer, mut sum) = (vec![0; 64 << 10], 0);
        while let Recv::Data(count) = self.server.try_recv(&mut buffer).unwrap() {
            assert!(buffer[..count].iter().all(|byte| *byte == 7));
            sum += count;
        }
        sum
    }

    /// Takes the packets that the client has sent since the last call.
    pub(crate) fn packets(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.sent.lock())
    }

    /// Takes the packets that the client has sent since the last call. Returns those with data.
    fn data_packets(&self) -> Vec<Vec<u8>> {
        let mut sent = self.packets();
        sent.retain(|packet| Segment::parse(packet).unwrap().payload > 0);
        sent
    }

    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.data_packets().iter().map(Vec::len).collect()
    }
}

#[test]
fn emss_and_segments_follow_the_mtu_of_the_path_down_and_up() {
    for v6 in [false, true] {
        let mut scene = Scene::new(v6);
        let headers = if v6 { 60 } else { 40 };
        for path in [usize::MAX, 1400, 1281, 9000] {
            scene.set_path_mtu(path);
            let mtu = path.min(1500);
            assert_eq!(scene.client.emss(), mtu - headers);
            scene.send(3);
            assert_eq!(scene.lengths(), [mtu; 3]);
            assert_eq!(scene.received(), 3 * (mtu - headers));
        }
    }
}

#[test]
fn larger_segments_that_were_lost_are_sent_again_in_smaller_ones() {
    for v6 in [false, true] {
        let mut scene = Scene::new(v6);
        let emss = scene.client.emss();
        scene.limit.store(1300, Ordering::Relaxed);
        scene.send(5);
        assert_eq!(scene.lengths(), [1500; 5]);
        assert_eq!(scene.received(), 0);
        scene.set_path_mtu(1300);
        scene.clock.advance(Duration::from_secs(2));
        scene.client.drive();
        assert!(scene.lengths().iter().all(|len| *len <= 1300));
        assert_eq!(scene.received(), 5 * emss);
        scene.send(2);
        assert_eq!(scene.lengths(), [1300; 2]);
    }
}

#[test]
fn below_what_every_path_must_take_ipv4_packets_may_be_cut_by_routers() {
    let mut scene = Scene::new(false);
    scene.set_path_mtu(300);
    assert_eq!(scene.client.emss(), 576 - 40);
    scene.send(2);
    let packets = scene.data_packets();
    let ips: Vec<_> = packets
        .iter()
        .map(|packet| Ipv4Packet::new_checked(&packet[..]).unwrap())
        .collect();
    assert_eq!(ips.len(), 2);
    assert!(ips.iter().all(|ip| !ip.dont_frag() && ip.verify_checksum()));
    assert_ne!(ips[0].ident(), ips[1].ident());
    assert_eq!(scene.received(), 2 * 536);

    scene.set_path_mtu(576);
    scene.send(1);
    let packet = &scene.data_packets()[0];
    assert!(Ipv4Packet::new_checked(&packet[..]).unwrap().dont_frag());
}

#[test]
fn ipv6_goes_no_lower_than_1280() {
    let mut scene = Scene::new(true);
    scene.set_path_mtu(600);
    assert_eq!(scene.client.emss(), 1220);
    scene.send(2);
    assert_eq!(scene.lengths(), [1280; 2]);
}

/// The send buffer is a ring of 256 KiB, which is not a multiple of the 1000 bytes of an FPDU.
#[test]
fn a_queue_that_fills_up_once_a_segment_was_begun_does_not_cut_it() {
    const FPDU: usize = 1000;
    const COUNT: usize = 1000;
    for v6 in [false, true] {
        let mut scene = Scene::new(v6);
        scene.shared.store(true, Ordering::Relaxed);
        let bytes = vec![7; FPDU * COUNT];
        let ends: Vec<u64> = (1..=COUNT).map(|number| (number * FPDU) as u64).collect();
        let (mut sent, mut received) = (0, 0);
        while received < (COUNT - IN_QUEUE) * FPDU {
            let pieces = [Piece::from(&bytes[sent..])];
            let hints = SendHints::new(sent as u64, &ends);
            sent += scene.client.try_send(&pieces, hints).unwrap();
            received += scene.received();
        }
        let headers = if v6 { 60 } else { 40 };
        assert_eq!(scene.lengths(), vec![headers + FPDU; COUNT]);
    }
}
