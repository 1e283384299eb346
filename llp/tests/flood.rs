//! Floods of SYNs from peers that never complete a handshake. Honest peers must be served, and
//! memory must stay bounded.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use common::carried::{Fields, World};
use uwarp_llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_llp::{Llp, LlpListener, Network, Piece, Recv, SendHints};

const SYN: u8 = 2;
const STEP: Duration = Duration::from_millis(10);
/// SYNs of a step: 10,000 a second.
const SYNS: u32 = 100;

/// Returns the address of an attacker: each in a network of its own.
fn attacker(v6: bool, number: u32) -> IpAddr {
    let [_, b, c, d] = number.to_be_bytes();
    if v6 {
        let number = u16::from_be_bytes([c, d]);
        Ipv6Addr::new(0x2001, 0xdb8, 1, number, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(198, 18 + b, c, d).into()
    }
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

struct Flood {
    world: World,
    attackers: u32,
    sent: u32,
}

impl Flood {
    /// Moves the clock by one step, and delivers the SYNs and the packets of the honest hosts.
    fn step(&mut self) {
        self.world.wait(STEP);
        for _ in 0..SYNS {
            self.sent += 1;
            let fields = Fields {
                ports: [(self.sent % 60_000) as u16 + 1, self.world.at.port()],
                seq: self.sent,
                ack: 0,
                flags: SYN,
                window: 1000,
                bytes: 0,
            };
            let from = attacker(self.world.at.is_ipv6(), self.sent % self.attackers);
            let packet = fields.packet(from, self.world.at.ip(), b"");
            self.world.hosts[1].deliver(&packet);
        }
        self.world.carry();
    }

    /// Connects an honest client, and returns both ends and the time that this took.
    fn connect(
        &mut self,
        listener: &mut dyn LlpListener,
    ) -> (Box<dyn Llp>, Box<dyn Llp>, Duration) {
        let mut client = self.world.hosts[0].connect(None, self.world.at).unwrap();
        let mut time = Duration::ZERO;
        let server = loop {
            self.step();
            time += STEP;
            client.drive();
            if let Some(server) = listener.try_accept().unwrap() {
                break server;
            }
            assert!(time < 10 * Duration::from_secs(60), "it never connects");
        };
        assert!(client.connect_progress().unwrap());
        (client, server, time)
    }
}

fn flooded(v6: bool, attackers: u32) {
    let world = World::new(v6);
    let mut listener = world.hosts[1].listen(world.at, 64).unwrap();
    let mut flood = Flood {
        world,
        attackers,
        sent: 0,
    };
    let before = resident();
    for _ in 0..200 {
        flood.step();
        assert!(listener.try_accept().unwrap().is_none());
    }
    let (mut client, mut server, time) = flood.connect(&mut *listener);
    assert!(time < Duration::from_secs(1), "{time:?}");
    assert_eq!(flood.world.hosts[1].connections(), 1);
    // The connection works, and the flood does not end it.
    for _ in 0..20 {
        let sent = client.try_send(&[Piece::from(b"hello")], SendHints::NONE);
        assert_eq!(sent, Ok(5));
        flood.step();
        server.drive();
        let mut bytes = [0; 10];
        assert_eq!(server.try_recv(&mut bytes), Ok(Recv::Data(5)));
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more than before the flood");
    // All handshakes are forgotten, although no SYN arrives any more.
    for _ in 0..70 {
        flood.world.wait(Duration::from_secs(1));
        assert!(listener.try_accept().unwrap().is_none());
        while flood.world.carry() {}
    }
    assert_eq!(listener.deadline(), None);
}

#[test]
fn an_honest_client_connects_within_a_second_during_a_flood_from_one_address() {
    for v6 in [false, true] {
        flooded(v6, 1);
    }
}

#[test]
fn an_honest_client_connects_within_a_second_during_a_flood_from_a_thousand_addresses() {
    for v6 in [false, true] {
        flooded(v6, 1000);
    }
}

/// Both the SYN|ACK and the acknowledgement of it are lost once. The client is silent afterwards.
#[test]
fn a_lost_end_of_a_handshake_is_repeated_although_the_client_is_silent() {
    for lost in [0, 1] {
        let world = World::new(false);
        let mut listener = world.hosts[1].listen(world.at, 8).unwrap();
        let mut client = world.hosts[0].connect(None, world.at).unwrap();
        world.carry();
        if lost == 1 {
            world.carry();
            client.drive();
        }
        world.wire.lock().in_flight.clear();
        let mut seconds = 0;
        while listener.try_accept().unwrap().is_none() {
            assert!(seconds < 3, "packet {lost}");
            let deadline = listener.deadline().expect("a SYN|ACK has to be repeated");
            world.wait(Duration::from_secs(1));
            assert!(deadline <= world.now(), "packet {lost}");
            seconds += 1;
            // Only the listener repeats, because the client is not driven meanwhile.
            assert!(listener.try_accept().unwrap().is_none());
            while world.carry() {
                client.drive();
            }
        }
        assert_eq!(seconds, 1, "packet {lost}");
    }
}

#[test]
fn a_connection_of_the_same_addresses_follows_one_that_the_listening_host_has_closed() {
    let (a, b) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
    let at = "192.0.2.2:7".parse().unwrap();
    let mut listener = b.listen(at, 8).unwrap();
    for round in 0..3 {
        let local = Some("192.0.2.1:1000".parse().unwrap());
        let mut client = a.connect(local, at).unwrap();
        assert!(client.connect_progress().unwrap());
        let mut server = listener.try_accept().unwrap().expect("it is established");
        server.shutdown().unwrap();
        client.shutdown().unwrap();
        while !(client.flushed() && server.flushed()) {
            assert_eq!(
                (client.lost(), server.lost()),
                (None, None),
                "round {round}"
            );
        }
        // The host keeps the addresses for TIME-WAIT.
        drop(server);
        drop(client);
    }
}

/// The backlog counts connections. The data of the one connection waits with its handshake.
#[test]
fn data_that_arrives_before_the_connection_is_accepted_is_not_lost() {
    let (a, b) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
    let at = "192.0.2.2:7".parse().unwrap();
    let mut listener = b.listen(at, 1).unwrap();
    let mut client = a.connect(None, at).unwrap();
    assert!(client.connect_progress().unwrap());
    for _ in 0..10 {
        let sent = client.try_send(&[Piece::from(b"0123456789")], SendHints::NONE);
        assert_eq!(sent, Ok(10));
    }
    let mut server = listener.try_accept().unwrap().expect("it is established");
    let mut bytes = [0; 200];
    assert_eq!(server.try_recv(&mut bytes), Ok(Recv::Data(100)));
}
