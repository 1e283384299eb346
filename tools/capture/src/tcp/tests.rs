use std::time::Duration;

use super::*;
use crate::capture::tests::memory_capture;
use crate::{Direction, Flow, LinkType};

/// Returns an IPv4 packet with a synthesized segment that contains "hello".
fn ipv4() -> Vec<u8> {
    let (memory, capture) = memory_capture();
    let interface = capture.interface("tcp", LinkType::RawIp);
    let (local, peer) = ("192.0.2.1:1", "192.0.2.2:2");
    let mut flow = Flow::new(
        interface,
        local.parse().unwrap(),
        peer.parse().unwrap(),
        1460,
    );
    flow.sent(b"hello");
    memory.packets().remove(0).data
}

fn packet(link: u16, data: Vec<u8>) -> Packet {
    Packet {
        timestamp: Duration::ZERO,
        interface: 0,
        link,
        direction: Direction::Unknown,
        original_len: data.len(),
        comments: Vec::new(),
        data,
    }
}

#[test]
fn every_link_type_gives_the_same_segment() {
    let ip = ipv4();
    let framed = |header: &[u8]| [header, &ip].concat();
    let ethernet = framed(&[2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 8, 0]);
    let vlan = framed(&[2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 0x81, 0, 0, 5, 8, 0]);
    let cooked = framed(&[0, 0, 0, 1, 0, 6, 4, 4, 4, 4, 4, 4, 0, 0, 8, 0]);
    let cooked2 = framed(&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 4, 4, 4, 4, 4, 4, 0, 0]);
    let all = [
        (101, ip.clone()),
        (228, ip.clone()),
        (1, ethernet),
        (1, vlan),
        (113, cooked),
        (276, cooked2),
    ];
    for (link, data) in all {
        let packet = packet(link, data);
        let segment = packet.tcp().unwrap_or_else(|| panic!("link type {link}"));
        assert_eq!(segment.source, "192.0.2.1:1".parse().unwrap());
        assert_eq!(segment.destination, "192.0.2.2:2".parse().unwrap());
        assert_eq!(segment.payload, b"hello");
        assert!(segment.checksum_is_right());
    }
}

#[test]
fn ethernet_padding_is_not_data() {
    let mut frame = [&[0; 12][..], &[8, 0], &ipv4()].concat();
    frame.resize(80, 0xEE);
    assert_eq!(packet(1, frame).tcp().unwrap().payload, b"hello");
}

#[test]
fn a_flipped_byte_makes_the_checksum_wrong() {
    let mut data = ipv4();
    *data.last_mut().unwrap() ^= 1;
    assert!(!packet(101, data).tcp().unwrap().checksum_is_right());
}

#[test]
fn a_checksum_of_zero_may_be_written_as_all_ones() {
    let mut data = ipv4();
    let sum = u16::from_be_bytes([data[36], data[37]]);
    // Two bytes of the payload are changed so that the sum becomes zero.
    let word = u16::from_be_bytes([data[40], data[41]]);
    let (word, over) = word.overflowing_add(sum);
    let word = word + u16::from(over);
    data[40..42].copy_from_slice(&word.to_be_bytes());
    for written in [0u16, 0xffff] {
        data[36..38].copy_from_slice(&written.to_be_bytes());
        let packet = packet(101, data.clone());
        assert!(packet.tcp().unwrap().checksum_is_right(), "{written:#x}");
    }
    data[36..38].copy_from_slice(&1u16.to_be_bytes());
    assert!(!packet(101, data).tcp().unwrap().checksum_is_right());
}

#[test]
fn other_protocols_other_links_and_stumps_are_no_segment() {
    let ip = ipv4();
    let mut udp = ip.clone();
    udp[9] = 17;
    assert!(packet(101, udp).tcp().is_none());
    assert!(packet(147, ip.clone()).tcp().is_none());
    for len in 0..40 {
        for link in [1, 101, 113, 276] {
            assert!(packet(link, ip[..len].to_vec()).tcp().is_none());
        }
    }
}
