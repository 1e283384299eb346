//! smoltcp over an Ethernet: two hosts at the ends of an in-memory cable.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use common::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use uwarp_capture::{Capture, LinkType, Reader};
use uwarp_llp::ethernet::{Cable, EthernetNetwork, LinkSettings};
use uwarp_llp::smol::{Clock, ManualClock, SystemClock};
use uwarp_llp::{Llp, LlpError, Network, NetworkEvent, NetworkWatcher, Piece, Recv, SendHints};

/// The clock does not advance, so that TCP's timers never fire. A transfer then ends only if no
/// packet and no wake-up is lost.
fn host(number: u8) -> LinkSettings {
    let v4: IpAddr = [192, 0, 2, number].into();
    let v6: IpAddr = format!("2001:db8::{number}").parse().unwrap();
    LinkSettings::default()
        .addresses(vec![(v4, 24), (v6, 64)])
        .clock(Arc::new(ManualClock::new()))
}

fn cable() -> (EthernetNetwork, EthernetNetwork, Cable) {
    EthernetNetwork::cable(&host(1), &host(2)).unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const SECOND: [&str; 2] = ["192.0.2.2:0", "[2001:db8::2]:0"];

#[test]
fn random_data_crosses_over_ipv4_and_ipv6() {
    for to in SECOND {
        let (a, b, _) = cable();
        random_data_crosses_in_random_pieces(&a, &b, at(to), 600_000);
    }
}

#[test]
fn random_data_crosses_at_every_mtu() {
    for mtu in [576, 9000, 65535] {
        let settings = |number| {
            host(number)
                .addresses(vec![([192, 0, 2, number].into(), 24)])
                .mtu(Some(mtu))
        };
        let (a, b, _) = EthernetNetwork::cable(&settings(1), &settings(2)).unwrap();
        random_data_crosses_in_random_pieces(&a, &b, at(SECOND[0]), 300_000);
    }
}

#[test]
fn two_threads_send_8_mib_both_ways_at_once() {
    let (a, b, _) = cable();
    both_directions_at_once_from_two_threads(&a, &b, at(SECOND[0]), 8 << 20);
}

#[test]
fn what_holds_for_any_network() {
    for to in SECOND {
        let (a, b, _) = cable();
        an_abort_is_a_reset_at_the_peer(&a, &b, at(to));
        a_fin_comes_after_all_bytes_and_leaves_the_other_direction_open(&a, &b, at(to));
        flushed_waits_for_the_peers_acknowledgement(&a, &b, at(to));
        let mut nobody = at(to);
        nobody.set_port(9);
        nobody_listens_is_refused(&a, nobody);
    }
}

#[test]
fn a_host_reaches_itself_and_the_link_local_address_of_the_other() {
    let (a, b, _) = cable();
    random_data_crosses_in_random_pieces(&a, &a, at("192.0.2.1:0"), 50_000);
    // The MAC address of the second host is 02:00:00:00:00:02. The scope of the address is ignored.
    random_data_crosses_in_random_pieces(&a, &b, at("[fe80::ff:fe00:2%7]:0"), 50_000);
}

#[test]
fn sixty_four_connections_at_once_come_through_one_listener() {
    for to in SECOND {
        let (a, b, _) = cable();
        let (mut clients, mut servers) = connected_at_once(&a, &b, at(to), 64);
        // Every server is the peer of exactly one client.
        let mut ports: Vec<_> = servers.iter().map(Llp::peer_addr).collect();
        ports.sort();
        let mut own: Vec<_> = clients.iter().map(Llp::local_addr).collect();
        own.sort();
        assert_eq!(ports, own);
        for (number, client) in clients.iter_mut().enumerate() {
            let bytes = [u8::try_from(number).unwrap(); 100];
            assert_eq!(
                client.try_send(&[Piece::from(&bytes[..])], SendHints::NONE),
                Ok(100)
            );
        }
        for server in &mut servers {
            let number = clients
                .iter()
                .position(|client| client.local_addr() == server.peer_addr())
                .unwrap();
            let mut bytes = [0; 200];
            loop {
                server.clear_readiness();
                server.drive();
                match server.try_recv(&mut bytes).unwrap() {
                    Recv::Data(count) => {
                        assert_eq!(bytes[..count], [u8::try_from(number).unwrap(); 100]);
                        break;
                    }
                    _ => wait(&[Wait::connection(&**server, false)]),
                }
            }
        }
    }
}

#[test]
fn several_listeners_have_a_stack_of_their_own_ports() {
    let (a, b, _) = cable();
    let (mut one, mut other) = (
        b.listen(at(SECOND[0]), 4).unwrap(),
        b.listen(at(SECOND[1]), 4).unwrap(),
    );
    for listener in [&mut one, &mut other] {
        let mut client = a.connect(None, listener.local_addr()).unwrap();
        let server = accept_and_connect(&mut **listener, &mut *client);
        assert_eq!(server.local_addr(), client.peer_addr());
    }
}

#[test]
fn addresses_without_a_way_are_unreachable_at_once() {
    let (a, _b, _) = cable();
    for to in ["198.51.100.1:7", "[2001:db8:1::1]:7", "192.0.2.255:7"] {
        let error = a.connect(None, at(to)).err();
        assert_eq!(error, Some(LlpError::Unreachable { addr: at(to) }));
    }
    let bad = a.connect(Some(at("192.0.2.77:0")), at("192.0.2.2:7")).err();
    let addr = at("192.0.2.77:0");
    assert_eq!(bad, Some(LlpError::AddressUnavailable { addr }));
}

#[test]
fn a_neighbour_that_nobody_is_has_no_route() {
    let running = host(1).clock(Arc::new(SystemClock));
    let (a, _b, _) = EthernetNetwork::cable(&running, &host(2)).unwrap();
    let nobody = ["192.0.2.99:7", "[2001:db8::99]:7"];
    let clients = nobody.map(|to| (to, a.connect(None, at(to)).unwrap()));
    for (to, mut client) in clients {
        let error = failed_attempt(&mut *client);
        assert_eq!(error, LlpError::Unreachable { addr: at(to) });
        assert!(error.to_string().contains("no route"), "{error}");
    }
}

struct Teller(Mutex<mpsc::Sender<NetworkEvent>>);

impl NetworkWatcher for Teller {
    fn network_event(&self, event: NetworkEvent) {
        self.0.lock().unwrap().send(event).unwrap();
    }
}

fn watched(network: &dyn Network) -> (Arc<Teller>, mpsc::Receiver<NetworkEvent>) {
    let (sender, receiver) = mpsc::channel();
    let teller = Arc::new(Teller(Mutex::new(sender)));
    let watcher: Arc<dyn NetworkWatcher> = Arc::<Teller>::clone(&teller);
    let watcher: Weak<dyn NetworkWatcher> = Arc::downgrade(&watcher);
    network.watch(watcher);
    (teller, receiver)
}

#[test]
fn when_the_link_fails_everything_on_it_ends_with_the_reason() {
    let (a, b, cable) = cable();
    let (_teller, events) = watched(&a);
    let mut idle = b.listen(at("0.0.0.0:0"), 4).unwrap();
    let (mut client, mut server) = connected(&a, &b, at(SECOND[0]));
    let mut opening = a.connect(None, at("192.0.2.99:7")).unwrap();
    client.clear_readiness();
    idle.clear_readiness();
    cable.unplug();

    let down = loop {
        client.clear_readiness();
        match client.try_recv(&mut [0; 4]) {
            Ok(Recv::WouldBlock) => wait(&[Wait::connection(&*client, false)]),
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(down, LlpError::LinkDown { .. }), "{down}");
    assert!(down.to_string().contains("unplugged"), "{down}");
    assert_eq!(
        client.try_send(&[Piece::from(b"x")], SendHints::NONE),
        Err(down)
    );
    assert_eq!(failed_attempt(&mut *opening), down);
    assert_eq!(events.recv(), Ok(NetworkEvent::Down(down)));
    assert_eq!(a.fault(), Some(down));
    assert_eq!(a.connect(None, at("192.0.2.2:7")).err(), Some(down));
    assert_eq!(a.listen(at("192.0.2.1:7"), 1).err(), Some(down));
    // The other host notices the failure too.
    while b.fault().is_none() {
        wait(&[Wait::listener(&*idle)]);
        idle.clear_readiness();
    }
    assert_eq!(idle.try_accept().err(), Some(down));
    assert_eq!(server.try_recv(&mut [0; 4]).err(), Some(down));
    drop((a, client, opening));
    // No further event was reported.
    assert!(events.try_recv().is_err());
    let (_teller, late) = watched(&b);
    assert_eq!(late.recv(), Ok(NetworkEvent::Down(down)));
}

#[test]
fn two_hosts_with_one_address_are_told_of_it() {
    let first = host(1);
    let (a, b, _) = EthernetNetwork::cable(&first, &first).unwrap();
    for network in [&a, &b] {
        let (_teller, events) = watched(network);
        let Ok(NetworkEvent::AddressConflict(error)) = events.recv() else {
            panic!("the event is no address conflict");
        };
        assert!(matches!(error, LlpError::DuplicateAddress { .. }));
        assert!(error.to_string().contains("02:00:00:00:00:0"), "{error}");
        assert_eq!(network.fault(), None, "it works on");
    }
}

#[test]
fn a_capture_has_whole_frames_of_both_directions() {
    let path = std::env::temp_dir().join(format!("uwarp-ethernet-{}.pcapng", std::process::id()));
    let capture = Capture::create(&path).unwrap();
    let first = host(1).capture(Some(capture));
    let (a, b, _) = EthernetNetwork::cable(&first, &host(2)).unwrap();
    random_data_crosses_in_random_pieces(&a, &b, at(SECOND[0]), 10_000);
    drop((a, b));
    let reader = Reader::open(&path);
    std::fs::remove_file(&path).unwrap();
    let mut reader = reader.unwrap();
    let (mut arp, mut from, mut to) = (0, 0, 0);
    while let Some(packet) = reader.next_packet().unwrap() {
        arp += usize::from(packet.data.get(12..14) == Some(&[8, 6]));
        if let Some(segment) = packet.tcp() {
            assert!(segment.checksum_is_right());
            from += usize::from(segment.source.ip() == host(1).addresses[0].0);
            to += usize::from(segment.destination.ip() == host(1).addresses[0].0);
        }
    }
    assert_eq!(reader.interfaces()[0].link, LinkType::Ethernet.code());
    assert!(arp >= 2 && from > 10 && to > 10, "{arp} {from} {to}");
}

#[test]
fn settings_that_cannot_work_are_refused_in_words() {
    let refused = |settings: LinkSettings| {
        let error = EthernetNetwork::cable(&settings, &host(2)).err().unwrap();
        error.to_string()
    };
    let none = LinkSettings::default();
    assert!(refused(none).contains("no address"));
    let small = host(1).mtu(Some(1279));
    assert!(refused(small).contains("1280"));
    let inbox = host(1).inbox(0);
    assert!(refused(inbox).starts_with("cannot open the Ethernet link"));
}

#[test]
fn describe_names_the_wire_and_its_mtu() {
    let (a, _b, _) = cable();
    assert_eq!(a.describe(), "smoltcp over a cable in memory, MTU 1500");
}

fn readable(llp: &dyn Llp) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(llp.fd(), PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

/// Interval of the keep-alive.
const EVERY: Duration = Duration::from_secs(15);
/// Step of the clock. It is shorter than the maximum silence of a peer, 150 s. After a step, 10 s
/// of the 150 s are left. That is less than `EVERY`, so the client's next deadline is the end of
/// the 150 s and not the next probe.
const SILENCE: Duration = Duration::from_secs(140);

#[test]
fn a_keep_alive_tells_a_peer_that_is_silent_from_one_that_is_gone() {
    for to in SECOND {
        let clock = Arc::new(ManualClock::new());
        let asking = host(1)
            .keepalive(Some(EVERY))
            .clock(Arc::<ManualClock>::clone(&clock));
        // Both hosts use the same clock, because a peer answers only one probe per second of its
        // own clock.
        let answering = host(2).clock(Arc::<ManualClock>::clone(&clock));
        let (a, b, _) = EthernetNetwork::cable(&asking, &answering).unwrap();
        let (mut client, mut server) = connected(&a, &b, at(to));
        // Returns true while the answer to a probe is missing. After an answer, the next deadline
        // is that of the next probe.
        let waits = |client: &dyn Llp| {
            let next = clock.now() + EVERY;
            client.deadline().is_some_and(|at| at < next)
        };
        let mut asked = 0;
        for _ in 0..180 {
            clock.advance(SILENCE);
            client.clear_readiness();
            client.drive();
            asked += u32::from(waits(&*client));
            while waits(&*client) {
                wait(&[
                    Wait::connection(&*server, false),
                    Wait::connection(&*client, false),
                ]);
                server.clear_readiness();
                server.drive();
                // The client is driven only after a signal, to check that no wake-up is lost.
                if readable(&*client) {
                    client.clear_readiness();
                    client.drive();
                }
            }
            assert_eq!(client.try_recv(&mut [0; 9]), Ok(Recv::WouldBlock));
        }
        // The first probe is sent during the handshake. Sometimes its answer is not processed until
        // the clock has made its next step. The interval then starts again at that step, so no
        // probe is sent in it.
        assert!(asked >= 179, "{asked}");
        // The server is not driven any more, so it looks dead to its peer.
        let gone = LlpError::TimedOut {
            addr: server.local_addr(),
        };
        let error = (0..180).find_map(|_| {
            clock.advance(Duration::from_secs(20));
            client.drive();
            client.try_recv(&mut [0; 9]).err()
        });
        assert_eq!(error, Some(gone));
    }
}
