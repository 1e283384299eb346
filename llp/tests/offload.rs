//! Segmentation and checksums offloaded to the kernel. The tests check frames on the wire and the
//! contents of captures, in separate network namespaces.

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use common::*;
use uwarp_capture::{Capture, Direction, Packet, Reader};
use uwarp_llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_llp::{DeviceSpec, Network, Piece, SendHints};
use uwarp_testkit::MemoryFile;
use uwarp_testkit::netns::{has_tun, in_namespace, ip};

const V4: [&str; 2] = ["192.0.2.1:0", "192.0.2.2:0"];
const V6: [&str; 2] = ["[2001:db8::1]:0", "[2001:db8::2]:0"];

fn at(addr: &str) -> SocketAddr {
    addr.parse().unwrap()
}

fn open(spec: &str, capture: Option<&Capture>) -> Arc<dyn Network> {
    let spec: DeviceSpec = spec.parse().unwrap();
    spec.open(capture, KernelSettings::default())
        .unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn capture() -> (MemoryFile, Capture) {
    let file = MemoryFile::default();
    let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
    (file, capture)
}

fn packets(file: &MemoryFile) -> Vec<Packet> {
    let mut reader = Reader::new(std::io::Cursor::new(file.bytes())).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        packets.push(packet);
    }
    packets
}

/// Creates a bridge with these interfaces as ports.
fn bridge(ports: [&str; 2]) {
    ip("link add br0 type bridge");
    ip("link set br0 up");
    for port in ports {
        ip(&format!("link set {port} master br0"));
        ip(&format!("link set {port} up"));
    }
}

/// Connects a host on `device`, at one port of a bridge, with a host without offload at the other
/// port. The second host receives every segment as the kernel has cut it. Each segment must begin
/// with an FPDU and fit the MTU.
fn every_segment_begins_with_an_fpdu(device: &str, port: &str) {
    // Congestion control is off, because smoltcp also cuts a burst at the end of a congestion
    // window if acknowledgements are late.
    let ours = open(
        &format!("{device},ip=192.0.2.1/24,ip=2001:db8::1/64,congestion=none"),
        None,
    );
    let (file, capture) = capture();
    let plain = open(
        "tap:plain0,ip=192.0.2.2/24,ip=2001:db8::2/64,offload=off",
        Some(&capture),
    );
    bridge([port, "plain0"]);
    for [_, there] in [V4, V6] {
        let (mut client, mut server) = connected(&*ours, &*plain, at(there));
        let emss = client.emss();
        let key = (client.local_addr(), client.peer_addr());
        let mut random = Random(7);
        let (first, rest) = (random.bytes(100), random.bytes(1 << 20));
        // The first FPDU is acknowledged before others follow, like an MPA request. Full-sized
        // FPDUs follow, then small ones.
        let sent = client.try_send(&[Piece::from(&first)], SendHints::new(0, &[100]));
        assert_eq!(sent.unwrap(), 100);
        while !client.flushed() {
            for end in [&mut client, &mut server] {
                end.clear_readiness();
                end.drive();
            }
            let _ = server.try_recv(&mut [0; 200]).unwrap();
            std::thread::yield_now();
        }
        let mut one = End::new(client, rest, 1).bulk().whole_fpdus();
        let mut ends = vec![];
        let mut last = 0;
        while last < one.to_send.len() as u64 {
            let size = if last < 600_000 {
                emss & !3
            } else {
                4 * (2 + random.below(300))
            };
            last = (last + size as u64).min(one.to_send.len() as u64);
            ends.push(last);
        }
        one.ends = ends.clone();
        ends.iter_mut().for_each(|end| *end += 100);
        ends.insert(0, 100);
        let mut other = End::new(server, Vec::new(), 2).bulk();
        run_both(&mut one, &mut other);
        assert!(other.got == one.to_send, "other bytes arrived");
        drop((one, other));

        let packets = packets(&file);
        let from_us = |packet: &&Packet| {
            let segment = packet.tcp();
            segment.is_some_and(|segment| (segment.source, segment.destination) == key)
        };
        let (mut left, mut aligned) = (0, true);
        let mut start = None;
        for packet in packets.iter().filter(from_us) {
            let segment = packet.tcp().unwrap();
            assert!(segment.checksum_is_right());
            assert!(packet.data.len() <= 1514, "{} bytes", packet.data.len());
            if segment.payload.is_empty() {
                continue;
            }
            let first = *start.get_or_insert(segment.seq);
            let at = u64::from(segment.seq.wrapping_sub(first));
            // After a retransmission, which can happen on a busy machine, segments need not be
            // aligned.
            aligned &= at >= left;
            assert!(
                !aligned || at == 0 || ends.contains(&at),
                "{at} is within an FPDU"
            );
            assert!(at <= left, "bytes before {at} are missing");
            left = left.max(at + segment.payload.len() as u64);
        }
        assert_eq!(Some(&left), ends.last());
    }
}

in_namespace! {
    fn every_segment_of_a_tap_begins_with_an_fpdu() {
        if has_tun("every_segment_of_a_tap_begins_with_an_fpdu") {
            every_segment_begins_with_an_fpdu("tap:uw0", "uw0");
        }
    }

    fn every_segment_of_a_raw_socket_begins_with_an_fpdu() {
        if !has_tun("every_segment_of_a_raw_socket_begins_with_an_fpdu") {
            return;
        }
        ip("link add veth0 type veth peer name veth1");
        every_segment_begins_with_an_fpdu("raw:veth0", "veth1");
    }

    fn a_capture_has_whole_bursts_with_checksums_in_both_directions() {
        if !has_tun("a_capture_has_whole_bursts") {
            return;
        }
        let (file, capture) = capture();
        let ours = open("tap:uw0,ip=192.0.2.1/24,ip=2001:db8::1/64", Some(&capture));
        ip("addr add 192.0.2.2/24 dev uw0");
        ip("addr add 2001:db8::2/64 dev uw0 nodad");
        let kernel = KernelNetwork::default();
        for there in [V4[1], V6[1]] {
            both_directions_at_once_from_two_threads(&*ours, &kernel, at(there), 2 << 20);
        }
        let mut longest = BTreeMap::new();
        for packet in packets(&file) {
            if let Some(segment) = packet.tcp() {
                assert!(segment.checksum_is_right());
                let way = (packet.direction == Direction::Outbound, segment.source.is_ipv4());
                let longest = longest.entry(way).or_insert(0);
                *longest = segment.payload.len().max(*longest);
            }
        }
        assert_eq!(longest.len(), 4);
        assert!(longest.values().all(|bytes| *bytes > 3000), "{longest:?}");
    }

    fn loss_and_disorder_of_whole_bursts_lose_no_byte() {
        if !has_tun("loss_and_disorder_of_whole_bursts") {
            return;
        }
        let ours = open("tap:uw0,ip=192.0.2.1/24,loss=0.01,reorder=0.02,duplicate=0.01,seed=3", None);
        ip("addr add 192.0.2.2/24 dev uw0");
        let kernel = KernelNetwork::default();
        both_directions_at_once_from_two_threads(&*ours, &kernel, at(V4[1]), 4 << 20);
    }

    fn without_offload_frames_are_plain() {
        if !has_tun("without_offload_frames_are_plain") {
            return;
        }
        for spec in ["tap:uw0,ip=192.0.2.1/24,offload=off", "tap:uw0,ip=192.0.2.1/24,corrupt=0.001"] {
            let (file, capture) = capture();
            let ours = open(spec, Some(&capture));
            ip("addr add 192.0.2.2/24 dev uw0");
            let kernel = KernelNetwork::default();
            both_directions_at_once_from_two_threads(&*ours, &kernel, at(V4[1]), 1 << 20);
            let longest = packets(&file).iter().map(|packet| packet.data.len()).max();
            assert_eq!(longest, Some(1514), "{spec}");
        }
    }

    fn a_device_that_stays_has_the_offload_of_its_user() {
        if !has_tun("a_device_that_stays_has_the_offload_of_its_user") {
            return;
        }
        ip("tuntap add uw0 mode tap");
        ip("addr add 192.0.2.2/24 dev uw0");
        let kernel = KernelNetwork::default();
        for offload in ["auto", "off", "auto"] {
            let ours = open(&format!("tap:uw0,ip=192.0.2.1/24,offload={offload}"), None);
            both_directions_at_once_from_two_threads(&*ours, &kernel, at(V4[1]), 1 << 20);
        }
    }
}
