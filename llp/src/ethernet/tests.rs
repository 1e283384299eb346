//! A host on an Ethernet, seen from the bare other end of its cable.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable, Icmpv6Packet, Icmpv6Repr,
    IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber,
};

use super::arp::{self, Kind};
use super::frame::{self, BROADCAST, EtherType, Mac};
use super::neighbours::{Ask, Timing};
use super::*;
use crate::smol::{Clock, FlowKey, Packet, Segment};
use crate::wire::{HEADER, MemoryWire, Received, Wire};
use crate::{Llp, LlpError, Network, NetworkEvent, NetworkWatcher, Piece, Recv};

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const PEER: Mac = [2, 0, 0, 0, 0, 2];
/// After so long without any progress a test is taken to hang.
const STALLED: Duration = Duration::from_secs(40);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn settings(last: u8) -> LinkSettings {
    LinkSettings {
        addresses: vec![
            (IpAddr::from([192, 0, 2, last]), 24),
            (ip(&format!("2001:db8::{last}")), 64),
        ],
        gateways: vec![ip("192.0.2.254")],
        ..LinkSettings::default()
    }
}

/// A host and the bare end of its cable.
fn host_and_wire() -> (EthernetNetwork, MemoryWire) {
    let (own, far) = MemoryWire::pair([OWN, PEER], 1500, 4096).unwrap();
    (
        EthernetNetwork::open(Box::new(own), &settings(1)).unwrap(),
        far,
    )
}

/// Waits until a descriptor is readable.
fn readable(fd: BorrowedFd<'_>) {
    readable_one_of(fd, fd);
}

fn readable_one_of(one: BorrowedFd<'_>, other: BorrowedFd<'_>) {
    let mut fds = [one, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let limit = Timespec::try_from(STALLED).unwrap();
    let ready = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
    assert!(
        ready > 0,
        "nothing came for {STALLED:?}: a packet or a wake-up was lost"
    );
}

/// The next frame from the host that `pick` makes something of.
fn next<T>(wire: &MemoryWire, pick: impl Fn(&[u8; HEADER], &[u8]) -> Option<T>) -> T {
    loop {
        let (mut header, mut packet) = ([0; HEADER], Packet::new(0));
        match wire.recv(&mut header, &mut packet).unwrap() {
            Received::Nothing => readable(wire.fd()),
            _ => {
                if let Some(found) = pick(&header, packet.octets()) {
                    return found;
                }
            }
        }
    }
}

fn send(wire: &MemoryWire, kind: EtherType, packet: &[u8]) {
    let header = frame::header(OWN, PEER, kind);
    while !wire.send(&header, packet).unwrap() {
        std::thread::yield_now();
    }
}

/// Tells the host that the bare end has this address, by asking for the host's.
fn introduce(wire: &MemoryWire, addr: &str) {
    let mut packet = Packet::new(0);
    let own = if addr.contains(':') {
        "2001:db8::1"
    } else {
        "192.0.2.1"
    };
    let ask = Ask {
        addr: ip(own),
        to: None,
    };
    let header = arp::write_question(ask, Some(ip(addr)), PEER, &mut packet);
    assert!(wire.send(&header, packet.octets()).unwrap());
    next(wire, |header, octets| {
        let (to, _, kind) = frame::parse(header);
        let message = match kind? {
            EtherType::Arp => arp::parse_arp(octets)?,
            _ => arp::parse_ndp(octets)?,
        };
        let answers = matches!(message.kind, Kind::Answer { .. });
        (to == PEER && answers && message.sender == Some((ip(own), OWN))).then_some(())
    });
}

fn packet_with(source: &str, destination: &str, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let (source, destination): (IpAddress, IpAddress) = (ip(source).into(), ip(destination).into());
    let ip = IpRepr::new(source, destination, protocol, payload.len(), 64);
    let mut octets = vec![0; ip.header_len() + payload.len()];
    ip.emit(&mut octets[..], &ChecksumCapabilities::default());
    octets[ip.header_len()..].copy_from_slice(payload);
    octets
}

fn ping_v4(data: &[u8]) -> Vec<u8> {
    let echo = Icmpv4Repr::EchoRequest {
        ident: 7,
        seq_no: 9,
        data,
    };
    let mut octets = vec![0; echo.buffer_len()];
    let mut packet = Icmpv4Packet::new_unchecked(&mut octets[..]);
    echo.emit(&mut packet, &ChecksumCapabilities::default());
    packet_with("192.0.2.2", "192.0.2.1", IpProtocol::Icmp, &octets)
}

/// The next answer to a ping from 192.0.2.2.
fn pong_v4(wire: &MemoryWire) -> Vec<u8> {
    next(wire, |header, octets| {
        let icmp = Ipv4Packet::new_checked(octets).ok()?;
        let right = frame::parse(header) == (PEER, OWN, Some(EtherType::Ipv4));
        if !right || icmp.next_header() != IpProtocol::Icmp {
            return None;
        }
        assert!(icmp.verify_checksum());
        let icmp = Icmpv4Packet::new_checked(icmp.payload()).ok()?;
        match Icmpv4Repr::parse(&icmp, &ChecksumCapabilities::default()).ok()? {
            Icmpv4Repr::EchoReply {
                ident: 7,
                seq_no: 9,
                data,
            } => Some(data.to_vec()),
            _ => None,
        }
    })
}

#[test]
fn a_ping_is_answered_and_padding_of_the_frame_is_no_part_of_it() {
    let (host, wire) = host_and_wire();
    introduce(&wire, "192.0.2.2");
    let mut request = ping_v4(b"octets");
    request.extend([0xee; 12]);
    send(&wire, EtherType::Ipv4, &request);
    assert_eq!(pong_v4(&wire), b"octets");
    assert_eq!(host.counters().echoes, 1);
}

#[test]
fn a_ping_over_ipv6_is_answered() {
    let (_host, wire) = host_and_wire();
    introduce(&wire, "2001:db8::2");
    let echo = Icmpv6Repr::EchoRequest {
        ident: 1,
        seq_no: 2,
        data: b"six",
    };
    let (source, destination) = (
        "2001:db8::2".parse().unwrap(),
        "2001:db8::1".parse().unwrap(),
    );
    let mut octets = vec![0; echo.buffer_len()];
    let mut icmp = Icmpv6Packet::new_unchecked(&mut octets[..]);
    echo.emit(
        &source,
        &destination,
        &mut icmp,
        &ChecksumCapabilities::default(),
    );
    let request = packet_with("2001:db8::2", "2001:db8::1", IpProtocol::Icmpv6, &octets);
    send(&wire, EtherType::Ipv6, &request);
    let data = next(&wire, |_, octets| {
        let ip = Ipv6Packet::new_checked(octets).ok()?;
        let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
        let caps = ChecksumCapabilities::default();
        match Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &caps).ok()? {
            Icmpv6Repr::EchoReply { data, .. } => Some(data.to_vec()),
            _ => None,
        }
    });
    assert_eq!(data, b"six");
}

#[test]
fn our_addresses_are_probed_and_announced() {
    let (_host, wire) = host_and_wire();
    let mut probed = Vec::new();
    let mut announced = Vec::new();
    // 192.0.2.1, 2001:db8::1 and the link-local address.
    while probed.len() < 3 || announced.len() < 3 {
        let message = next(&wire, |_, octets| {
            arp::parse_arp(octets).or_else(|| arp::parse_ndp(octets))
        });
        match message.sender {
            None => probed.push(message.target),
            Some((addr, mac)) => {
                assert_eq!(mac, OWN);
                announced.push(addr);
            }
        }
    }
    let all = ["192.0.2.1", "2001:db8::1", "fe80::ff:fe00:1"].map(ip);
    assert_eq!((&probed[..], &announced[..]), (&all[..], &all[..]));
}

/// Begins a connection and gives its SYN, as the bare end got it.
fn syn(host: &EthernetNetwork, wire: &MemoryWire, to: &str) -> (Box<dyn Llp>, Vec<u8>) {
    let client = host.connect(None, to.parse().unwrap()).unwrap();
    let syn = next(wire, |_, octets| {
        Segment::parse(octets)?.syn.then(|| octets.to_vec())
    });
    (client, syn)
}

fn key_of(llp: &dyn Llp) -> FlowKey {
    FlowKey {
        local: llp.local_addr(),
        remote: llp.peer_addr(),
    }
}

fn failure(client: &mut dyn Llp) -> LlpError {
    loop {
        client.clear_readiness();
        client.drive();
        match client.connect_progress() {
            Ok(stands) => assert!(!stands),
            Err(error) => return error,
        }
        readable(client.fd());
    }
}

/// An ICMP message about an IPv4 packet.
fn about_v4(quoted: &[u8], reason: Icmpv4DstUnreachable, mtu: u16) -> Vec<u8> {
    let ip = Ipv4Packet::new_checked(quoted).unwrap();
    let message = Icmpv4Repr::DstUnreachable {
        reason,
        header: Ipv4Repr::parse(&ip, &ChecksumCapabilities::default()).unwrap(),
        data: &ip.payload()[..8],
    };
    let mut octets = vec![0; message.buffer_len()];
    let mut icmp = Icmpv4Packet::new_unchecked(&mut octets[..]);
    message.emit(&mut icmp, &ChecksumCapabilities::default());
    octets[6..8].copy_from_slice(&mtu.to_be_bytes());
    Icmpv4Packet::new_unchecked(&mut octets[..]).fill_checksum();
    packet_with("192.0.2.254", "192.0.2.1", IpProtocol::Icmp, &octets)
}

#[test]
fn what_a_host_or_router_reports_ends_a_handshake() {
    let (host, wire) = host_and_wire();
    introduce(&wire, "192.0.2.2");
    introduce(&wire, "2001:db8::2");
    let reports = [
        (Icmpv4DstUnreachable::PortUnreachable, true),
        (Icmpv4DstUnreachable::CommProhibited, false),
    ];
    for (reason, refused) in reports {
        let (mut client, quoted) = syn(&host, &wire, "192.0.2.2:7");
        send(&wire, EtherType::Ipv4, &about_v4(&quoted, reason, 0));
        let addr = client.peer_addr();
        let expected = if refused {
            LlpError::Refused { addr }
        } else {
            LlpError::Unreachable { addr }
        };
        assert_eq!(failure(&mut *client), expected);
    }

    let (mut client, quoted) = syn(&host, &wire, "[2001:db8::2]:7");
    let ip = Ipv6Packet::new_checked(&quoted[..]).unwrap();
    let message = Icmpv6Repr::DstUnreachable {
        reason: Icmpv6DstUnreachable::AdminProhibit,
        header: Ipv6Repr::parse(&ip).unwrap(),
        data: ip.payload(),
    };
    let mut octets = vec![0; message.buffer_len()];
    let mut icmp = Icmpv6Packet::new_unchecked(&mut octets[..]);
    let caps = ChecksumCapabilities::default();
    message.emit(&ip.dst_addr(), &ip.src_addr(), &mut icmp, &caps);
    let report = packet_with("2001:db8::2", "2001:db8::1", IpProtocol::Icmpv6, &octets);
    send(&wire, EtherType::Ipv6, &report);
    let addr = client.peer_addr();
    assert_eq!(failure(&mut *client), LlpError::Unreachable { addr });
}

#[test]
fn the_mtu_of_a_path_is_believed_within_bounds_and_for_what_is_under_way() {
    let (host, wire) = host_and_wire();
    introduce(&wire, "192.0.2.2");
    let (client, quoted) = syn(&host, &wire, "192.0.2.2:7");
    let mailbox = host.stack.connection(&key_of(&*client)).unwrap();
    let too_big = |quoted: &[u8], mtu| about_v4(quoted, Icmpv4DstUnreachable::FragRequired, mtu);
    let mut other = quoted.clone();
    // The sequence number: nothing of that is under way.
    other[24] ^= 0x80;
    for report in [
        too_big(&other, 1400),
        too_big(&quoted, 575),
        too_big(&quoted, 1500),
        too_big(&quoted, 1300),
        too_big(&quoted, 1400),
    ] {
        send(&wire, EtherType::Ipv4, &report);
    }
    // Frames are handled in order: what is behind them tells that they were.
    send(&wire, EtherType::Ipv4, &ping_v4(b"done"));
    assert_eq!(pong_v4(&wire), b"done");
    assert_eq!(mailbox.path_mtu.load(Ordering::Acquire), 1300);
    assert_eq!(host.counters().strange_reports, 3);
}

struct Teller(parking_lot::Mutex<mpsc::Sender<NetworkEvent>>);

impl NetworkWatcher for Teller {
    fn network_event(&self, event: NetworkEvent) {
        self.0.lock().send(event).unwrap();
    }
}

/// Somebody who is told, to be held for as long as that matters, and what it was told.
fn watched(network: &dyn Network) -> (Arc<dyn NetworkWatcher>, mpsc::Receiver<NetworkEvent>) {
    let (sender, receiver) = mpsc::channel();
    let teller: Arc<dyn NetworkWatcher> = Arc::new(Teller(parking_lot::Mutex::new(sender)));
    network.watch(Arc::downgrade(&teller));
    (teller, receiver)
}

#[test]
fn a_reset_by_the_kernel_of_this_host_is_told_as_what_it_is() {
    let (host, wire) = host_and_wire();
    let (_teller, events) = watched(&host);
    introduce(&wire, "192.0.2.2");
    let (mut client, _) = syn(&host, &wire, "192.0.2.2:7");
    let reset = TcpRepr {
        src_port: client.local_addr().port(),
        dst_port: 7,
        control: TcpControl::Rst,
        seq_number: TcpSeqNumber(1),
        ack_number: None,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let mut octets = vec![0; reset.buffer_len()];
    let (source, destination) = (ip("192.0.2.1").into(), ip("192.0.2.2").into());
    reset.emit(
        &mut TcpPacket::new_unchecked(&mut octets[..]),
        &source,
        &destination,
        &ChecksumCapabilities::default(),
    );
    let packet = packet_with("192.0.2.1", "192.0.2.2", IpProtocol::Tcp, &octets);
    let header = frame::header(PEER, OWN, EtherType::Ipv4);
    wire.send_as_kernel(&header, &packet);
    wire.send_as_kernel(&header, &packet);
    let error = failure(&mut *client);
    let addr = ip("192.0.2.1");
    assert_eq!(error, LlpError::KernelHasAddress { addr });
    assert!(error.to_string().contains("ip addr del 192.0.2.1"));
    assert_eq!(events.recv(), Ok(NetworkEvent::AddressConflict(error)));
    send(&wire, EtherType::Ipv4, &ping_v4(b"done"));
    assert_eq!(pong_v4(&wire), b"done");
    assert!(events.try_recv().is_err(), "told once");
    assert_eq!(host.fault(), None);
}

#[test]
fn a_flood_of_made_up_neighbours_pushes_out_none_that_we_talk_to() {
    let (own, wire) = MemoryWire::pair([OWN, PEER], 1500, 4096).unwrap();
    // The bare end answers no questions: none may become due meanwhile.
    let timing = Timing {
        retry: Duration::from_secs(3600),
        ..Timing::default()
    };
    let host = EthernetNetwork::open_with(Box::new(own), &settings(1), timing).unwrap();
    introduce(&wire, "192.0.2.2");
    send(&wire, EtherType::Ipv4, &ping_v4(b"one"));
    assert_eq!(pong_v4(&wire), b"one");
    let mut packet = Packet::new(0);
    for number in 0..5_000u32 {
        let ask = Ask {
            addr: ip("2001:db8::1"),
            to: None,
        };
        let made_up = ip(&format!(
            "2001:db8::{:x}:{:x}",
            number >> 8,
            number & 0xff | 0x100
        ));
        arp::write_question(ask, Some(made_up), [2, 9, 9, 9, 9, 9], &mut packet);
        send(&wire, EtherType::Ipv6, packet.octets());
        if number % 64 == 0 {
            // What comes back is of no interest, but must not fill the cable.
            while !matches!(
                wire.recv(&mut [0; HEADER], &mut Packet::new(0)).unwrap(),
                Received::Nothing
            ) {}
        }
    }
    send(&wire, EtherType::Ipv4, &ping_v4(b"two"));
    // An answer, and no question to everybody who that is.
    let asked = next(&wire, |header, octets| {
        let question = arp::parse_arp(octets).is_some_and(|message| {
            message.target == ip("192.0.2.2") && frame::parse(header).0 == BROADCAST
        });
        if question {
            return Some(true);
        }
        octets.ends_with(b"two").then_some(false)
    });
    assert!(!asked);
    assert_eq!(host.counters().unsent, 0);
}

#[test]
fn fragments_and_damaged_packets_are_counted() {
    let (host, wire) = host_and_wire();
    introduce(&wire, "192.0.2.2");
    let mut fragment = ping_v4(b"part");
    let mut ip = Ipv4Packet::new_unchecked(&mut fragment[..]);
    ip.set_more_frags(true);
    ip.fill_checksum();
    send(&wire, EtherType::Ipv4, &fragment);
    let mut damaged = ping_v4(b"whole");
    damaged[10] ^= 1;
    send(&wire, EtherType::Ipv4, &damaged);
    send(&wire, EtherType::Ipv4, &ping_v4(b"whole"));
    assert_eq!(pong_v4(&wire), b"whole");
    let counters = host.counters();
    assert_eq!((counters.fragments, counters.malformed), (1, 1));
}

/// TCP's time stands still, so that a lost packet is never made up for.
struct Frozen(Instant);

impl Clock for Frozen {
    fn now(&self) -> Instant {
        self.0
    }
}

/// Drives both ends until all octets have crossed; waits on nothing but their descriptors.
fn transfer(client: &mut dyn Llp, server: &mut dyn Llp, octets: &[u8]) -> Vec<u8> {
    let (mut sent, mut got) = (0, Vec::new());
    let mut buffer = [0; 5000];
    while got.len() < octets.len() {
        client.clear_readiness();
        client.drive();
        let taken = client.try_send(&[Piece::from(&octets[sent..])]).unwrap();
        sent += taken;
        server.clear_readiness();
        server.drive();
        let mut progress = taken > 0;
        while let Recv::Data(count) = server.try_recv(&mut buffer).unwrap() {
            got.extend_from_slice(&buffer[..count]);
            progress = true;
        }
        if !progress {
            readable_one_of(client.fd(), server.fd());
        }
    }
    got
}

#[test]
fn a_wire_that_is_always_full_loses_nothing() {
    for capacity in [1, 3] {
        let (one, other) = MemoryWire::pair([OWN, PEER], 600, capacity).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(Frozen(Instant::now()));
        let open = |wire, last| {
            let settings = LinkSettings {
                addresses: vec![(IpAddr::from([192, 0, 2, last]), 24)],
                gateways: Vec::new(),
                clock: Arc::clone(&clock),
                congestion: crate::smol::Congestion::None,
                inbox: 4096,
                ..settings(last)
            };
            EthernetNetwork::open(Box::new(wire), &settings).unwrap()
        };
        let (a, b) = (open(one, 1), open(other, 2));
        let mut listener = b.listen("192.0.2.2:0".parse().unwrap(), 4).unwrap();
        let mut client = a.connect(None, listener.local_addr()).unwrap();
        let mut server = None;
        loop {
            client.clear_readiness();
            listener.clear_readiness();
            let stands = client.connect_progress().unwrap();
            server = server.or(listener.try_accept().unwrap());
            if stands && server.is_some() {
                break;
            }
            readable_one_of(client.fd(), listener.fd());
        }
        let octets: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
        let got = transfer(&mut *client, &mut *server.unwrap(), &octets);
        assert!(got == octets);
        assert_eq!((a.counters().unsent, b.counters().unsent), (0, 0));
    }
}

#[test]
fn connections_fail_when_their_gateway_is_silent_and_not_those_by_another_way() {
    let (own, far) = MemoryWire::pair([OWN, PEER], 1500, 4096).unwrap();
    let timing = Timing {
        retry: Duration::from_millis(20),
        ..Timing::default()
    };
    let host = EthernetNetwork::open_with(Box::new(own), &settings(1), timing).unwrap();
    introduce(&far, "192.0.2.2");
    let (mut near, _) = syn(&host, &far, "192.0.2.2:7");
    let mut beyond = host
        .connect(None, "198.51.100.7:7".parse().unwrap())
        .unwrap();
    let addr: SocketAddr = "198.51.100.7:7".parse().unwrap();
    assert_eq!(failure(&mut *beyond), LlpError::Unreachable { addr });
    assert_eq!(near.connect_progress(), Ok(false));
}

/// Tells when the wire was closed.
struct Closing(MemoryWire, mpsc::Sender<()>);

impl Wire for Closing {
    fn send(&self, header: &[u8; HEADER], packet: &[u8]) -> Result<bool, LlpError> {
        self.0.send(header, packet)
    }
    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError> {
        self.0.recv(header, packet)
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
    fn mac(&self) -> Mac {
        self.0.mac()
    }
    fn mtu(&self) -> usize {
        self.0.mtu()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

#[test]
fn the_last_owner_closes_the_wire_and_ends_its_thread() {
    let (own, far) = MemoryWire::pair([OWN, PEER], 1500, 4096).unwrap();
    let (sender, closed) = mpsc::channel();
    let host = EthernetNetwork::open(Box::new(Closing(own, sender)), &settings(1)).unwrap();
    introduce(&far, "192.0.2.2");
    let listener = host.listen("192.0.2.1:0".parse().unwrap(), 1).unwrap();
    let (client, _) = syn(&host, &far, "192.0.2.2:7");
    drop((host, listener));
    // The connection still has its link.
    send(&far, EtherType::Ipv4, &ping_v4(b"still there"));
    assert_eq!(pong_v4(&far), b"still there");
    assert_eq!(closed.try_recv(), Err(mpsc::TryRecvError::Empty));
    drop(client);
    // Only the thread shares the wire with the stack: when it is closed, the thread is over.
    assert_eq!(closed.recv_timeout(STALLED), Ok(()));
}

/// Packets that get past the first checks, to be damaged.
fn samples() -> Vec<(EtherType, Vec<u8>)> {
    let mut packet = Packet::new(0);
    let mut samples = vec![(EtherType::Ipv4, ping_v4(b"sample"))];
    for addr in ["192.0.2.1", "2001:db8::1"] {
        let ask = Ask {
            addr: ip(addr),
            to: None,
        };
        let other = if addr.contains(':') {
            "2001:db8::7"
        } else {
            "192.0.2.7"
        };
        for header in [
            arp::write_question(ask, Some(ip(other)), PEER, &mut packet),
            arp::write_answer(ip(other), PEER, Some((ip(addr), OWN)), &mut packet),
        ] {
            let kind = frame::parse(&header).2.unwrap();
            samples.push((kind, packet.octets().to_vec()));
        }
    }
    let syn = packet_with("192.0.2.7", "192.0.2.1", IpProtocol::Tcp, &[0; 20]);
    samples.push((
        EtherType::Ipv4,
        about_v4(&syn, Icmpv4DstUnreachable::FragRequired, 1400),
    ));
    samples.push((EtherType::Ipv4, syn));
    let tcp = packet_with("2001:db8::7", "2001:db8::1", IpProtocol::Tcp, &[0x50; 40]);
    samples.push((EtherType::Ipv6, tcp));
    let fragment = packet_with("2001:db8::7", "2001:db8::1", IpProtocol::Ipv6Frag, &[0; 40]);
    samples.push((EtherType::Ipv6, fragment));
    samples
}

#[derive(Debug, Clone)]
struct Damage {
    sample: prop::sample::Index,
    flips: Vec<(prop::sample::Index, u8)>,
    cut: Option<prop::sample::Index>,
    to: Mac,
}

fn damage() -> impl Strategy<Value = Damage> {
    let to = prop_oneof![
        Just(OWN),
        Just(BROADCAST),
        Just(frame::group(frame::ALL_NODES))
    ];
    (
        any::<prop::sample::Index>(),
        prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..6),
        any::<Option<prop::sample::Index>>(),
        to,
    )
        .prop_map(|(sample, flips, cut, to)| Damage {
            sample,
            flips,
            cut,
            to,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_whatever_it_holds_stops_a_host(
        damaged in prop::collection::vec(damage(), 1..40),
        random in prop::collection::vec((any::<[u8; HEADER]>(), prop::collection::vec(any::<u8>(), 0..120)), 1..20),
    ) {
        let (host, wire) = host_and_wire();
        let samples = samples();
        let _listener = host.listen("0.0.0.0:0".parse().unwrap(), 4).unwrap();
        for Damage { sample, flips, cut, to } in damaged {
            let (kind, mut octets) = sample.get(&samples).clone();
            for (at, octet) in flips {
                *at.get_mut(&mut octets) ^= octet;
            }
            if let Some(cut) = cut {
                octets.truncate(cut.index(octets.len() + 1));
            }
            wire.send(&frame::header(to, PEER, kind), &octets).unwrap();
            wire.send_as_kernel(&frame::header(to, PEER, kind), &octets);
        }
        for (mut header, octets) in random {
            header[..6].copy_from_slice(&OWN);
            wire.send(&header, &octets).unwrap();
        }
        introduce(&wire, "192.0.2.2");
        send(&wire, EtherType::Ipv4, &ping_v4(b"alive"));
        prop_assert_eq!(pong_v4(&wire), b"alive");
    }
}
