use std::collections::HashMap;

use super::*;
use crate::capture::tests::{Memory, memory_capture};
use crate::{LinkType, Packet, TcpSegment};

const LOCAL: &str = "192.0.2.1:40000";
const PEER: &str = "192.0.2.2:7174";

fn flow(local: &str, peer: &str, mss: usize) -> (Memory, Flow) {
    let (memory, capture) = memory_capture();
    let interface = capture.interface("tcp", LinkType::RawIp);
    let flow = Flow::new(
        interface,
        local.parse().unwrap(),
        peer.parse().unwrap(),
        mss,
    );
    (memory, flow)
}

/// Formats a segment: source port, flags in the order S A F R P, and length.
fn line(segment: &TcpSegment<'_>) -> String {
    let flags = [
        (segment.syn, 'S'),
        (segment.ack, 'A'),
        (segment.fin, 'F'),
        (segment.rst, 'R'),
        (segment.psh, 'P'),
    ];
    let flags: String = flags
        .iter()
        .filter(|flag| flag.0)
        .map(|flag| flag.1)
        .collect();
    let port = segment.source.port();
    format!("{port} {flags} {}", segment.payload.len())
}

fn lines(packets: &[Packet]) -> Vec<String> {
    packets.iter().map(|p| line(&p.tcp().unwrap())).collect()
}

/// Checks all sequence numbers of a trace. Returns the bytes that each port sent.
fn follow(packets: &[Packet]) -> HashMap<u16, Vec<u8>> {
    let mut next: HashMap<u16, u32> = HashMap::new();
    let mut streams: HashMap<u16, Vec<u8>> = HashMap::new();
    for packet in packets {
        assert_eq!(packet.original_len, packet.data.len());
        let segment = packet.tcp().unwrap();
        assert!(segment.checksum_is_right());
        let (from, to) = (segment.source.port(), segment.destination.port());
        let expected = *next.entry(from).or_insert(segment.seq);
        assert_eq!(segment.seq, expected);
        if segment.ack {
            assert_eq!(segment.ack_number, next[&to]);
        }
        let len = segment.payload.len() as u32 + u32::from(segment.syn) + u32::from(segment.fin);
        next.insert(from, expected.wrapping_add(len));
        streams
            .entry(from)
            .or_default()
            .extend_from_slice(segment.payload);
    }
    streams
}

#[test]
fn a_connection_looks_like_one_from_handshake_to_fins() {
    let (memory, mut flow) = flow(LOCAL, PEER, 1460);
    flow.opened(true);
    flow.sent(b"GET /");
    flow.received(b"no");
    flow.peer_fin();
    flow.local_fin();
    let packets = memory.packets();
    assert_eq!(
        lines(&packets),
        [
            "40000 S 0",
            "7174 SA 0",
            "40000 A 0",
            "40000 AP 5",
            "7174 AP 2",
            "7174 AF 0",
            "40000 A 0",
            "40000 AF 0",
            "7174 A 0",
        ]
    );
    let streams = follow(&packets);
    assert_eq!(streams[&40000], b"GET /");
    assert_eq!(streams[&7174], b"no");
    assert_eq!(packets[0].tcp().unwrap().mss, Some(1460));
    assert_eq!(packets[1].tcp().unwrap().mss, Some(1460));
    let directions: Vec<_> = packets[..4].iter().map(|p| p.direction).collect();
    let (out, inward) = (Direction::Outbound, Direction::Inbound);
    assert_eq!(directions, [out, inward, out, out]);
}

#[test]
fn an_accepted_connection_begins_with_the_peers_syn() {
    let (memory, mut flow) = flow(LOCAL, PEER, 1460);
    flow.opened(false);
    let expected = ["7174 S 0", "40000 SA 0", "7174 A 0"];
    assert_eq!(lines(&memory.packets()), expected);
}

#[test]
fn data_is_split_at_the_mss_and_acknowledged_before_the_window_fills() {
    let (memory, mut flow) = flow(LOCAL, PEER, 1000);
    flow.opened(true);
    let bytes = uwarp_testkit::filler(0, 200_500);
    flow.sent(&bytes);
    let packets = memory.packets();
    assert_eq!(follow(&packets)[&40000], bytes);
    let mut unacknowledged = 0;
    for packet in &packets[3..] {
        let segment = packet.tcp().unwrap();
        if segment.source.port() == 7174 {
            unacknowledged = 0;
        } else {
            assert!(segment.payload.len() <= 1000);
            unacknowledged += segment.payload.len();
        }
        assert!(unacknowledged < 70_000);
    }
    assert_eq!(lines(&packets).last().unwrap(), "40000 AP 500");
}

#[test]
fn resets_end_both_directions() {
    let (memory, mut ours) = flow(LOCAL, PEER, 1460);
    ours.opened(true);
    ours.local_reset();
    ours.sent(b"late");
    ours.received(b"late");
    ours.peer_fin();
    assert_eq!(lines(&memory.packets())[3..], ["40000 AR 0"]);

    let (memory, mut theirs) = flow(LOCAL, PEER, 1460);
    theirs.opened(true);
    theirs.peer_reset();
    theirs.local_fin();
    assert_eq!(lines(&memory.packets())[3..], ["7174 AR 0"]);
}

#[test]
fn ipv6_mapped_ipv4_and_ethernet_interfaces_have_their_headers() {
    let (memory, mut six) = flow("[2001:db8::1]:40000", "[2001:db8::2]:7174", 1440);
    six.opened(true);
    six.sent(&[7; 3000]);
    let packets = memory.packets();
    assert_eq!(packets[0].data[0] >> 4, 6);
    assert_eq!(follow(&packets)[&40000], [7; 3000]);

    let (memory, mut mapped) = flow("[::ffff:192.0.2.1]:40000", "[::ffff:192.0.2.2]:7174", 1440);
    mapped.opened(true);
    assert_eq!(memory.packets()[0].data[0], 0x45);

    let (memory, capture) = memory_capture();
    let ethernet = capture.interface("tap", LinkType::Ethernet);
    let mut framed = Flow::new(
        ethernet,
        LOCAL.parse().unwrap(),
        PEER.parse().unwrap(),
        1460,
    );
    framed.opened(true);
    framed.received(b"x");
    let packets = memory.packets();
    assert_eq!(packets[0].data[6..14], [2, 0, 0, 0, 0, 1, 8, 0]);
    assert_eq!(packets[1].data[6..14], [2, 0, 0, 0, 0, 2, 8, 0]);
    assert_eq!(follow(&packets)[&7174], b"x");
}

#[test]
fn the_largest_mss_makes_packets_that_ip_can_carry() {
    for (local, peer) in [(LOCAL, PEER), ("[::1]:40000", "[::1]:7174")] {
        let (memory, mut flow) = flow(local, peer, usize::MAX);
        flow.opened(true);
        flow.sent(&vec![1; 200_000]);
        assert_eq!(follow(&memory.packets())[&40000].len(), 200_000);
    }
}

#[test]
fn a_connection_with_both_ends_here_is_recorded_once() {
    let (memory, capture) = memory_capture();
    let interface = capture.interface("tcp", LinkType::RawIp);
    let (a, b) = (LOCAL.parse().unwrap(), PEER.parse().unwrap());
    let mut client = Flow::new(interface.clone(), a, b, 1460);
    let mut server = Flow::new(interface.clone(), b, a, 1460);
    client.opened(true);
    server.opened(false);
    client.sent(b"hello");
    server.received(b"hello");
    assert_eq!(memory.packets().len(), 4);
    drop(client);
    drop(server);
    let mut next = Flow::new(interface, b, a, 1460);
    next.opened(false);
    assert_eq!(memory.packets().len(), 7);
}

#[test]
fn connections_between_the_same_addresses_differ_in_their_sequence_numbers() {
    let (memory, capture) = memory_capture();
    let interface = capture.interface("tcp", LinkType::RawIp);
    for _ in 0..2 {
        let mut flow = Flow::new(
            interface.clone(),
            LOCAL.parse().unwrap(),
            PEER.parse().unwrap(),
            1460,
        );
        flow.opened(true);
    }
    let packets = memory.packets();
    let [first, second] = [&packets[0], &packets[3]].map(|p| p.tcp().unwrap().seq);
    assert_ne!(first, second);
    assert!(first < 1 << 24 && second < 1 << 24);
}

#[test]
fn what_waits_for_more_is_recorded_before_a_fin_a_reset_and_at_the_end() {
    let ends: [fn(Flow); 4] = [
        |mut flow| flow.peer_fin(),
        |mut flow| flow.peer_reset(),
        |mut flow| flow.local_reset(),
        drop,
    ];
    for end in ends {
        let (memory, mut flow) = flow(LOCAL, PEER, 1460);
        flow.opened(false);
        flow.received(b"MPA ID Req");
        assert_eq!(memory.packets().len(), 3);
        end(flow);
        assert_eq!(lines(&memory.packets())[3], "7174 AP 10");
    }
}
