//! A raw socket on one end of a veth pair, with the kernel or another raw socket at the other end.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::time::Duration;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpProtocol, Ipv4Packet, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, TcpTimestampRepr,
};
use uwarp_testkit::netns::{self, in_namespace, ip};

use super::frames::*;
use crate::LlpError;
use crate::smol::Packet;
use crate::wire::raw::RawWire;
use crate::wire::{AttachError, HEADER, InterfaceName, OpenError, Received, Wire};

const FOREVER: Duration = Duration::from_secs(1 << 30);

fn name(text: &str) -> InterfaceName {
    text.parse().unwrap()
}

/// Creates a veth pair of `veth0` and `veth1`. With `kernel`, the kernel gets an address on
/// `veth1`.
fn veth(kernel: bool) {
    ip("link add veth0 type veth peer name veth1");
    // The kernel's own IPv6 traffic would interfere with the tests.
    for end in ["veth0", "veth1"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1");
    }
    ip("link set veth0 up");
    ip("link set veth1 up");
    netns::wait_up("veth0");
    netns::wait_up("veth1");
    if kernel {
        ip("addr add 192.0.2.2/24 dev veth1");
    }
}

fn open(interface: &str, addr: Ipv4Addr) -> RawWire {
    RawWire::open(name(interface), None, &[(addr.into(), 24)], false).unwrap()
}

#[track_caller]
fn refused(interface: &str, mtu: Option<usize>) -> AttachError {
    let result = RawWire::open(name(interface), mtu, &[(US.into(), 24)], false);
    match result.map(|wire| wire.describe()) {
        Err(OpenError::Attach(why)) => why,
        other => panic!("{other:?}"),
    }
}

in_namespace! {
    not_emulated: "PACKET_VNET_HDR of packet sockets";

    fn frames_pass_and_partial_checksums_are_completed() {
        veth(true);
        let wire = open("veth0", US);
        assert_eq!((wire.describe().as_str(), wire.mtu()), ("raw socket on veth0", 1500));
        let socket = UdpSocket::bind((KERNEL, 5000)).unwrap();
        socket.send_to(b"to us", (US, 6000)).unwrap();
        let kernel = answer_arp(&wire);
        // The kernel leaves the UDP checksum to the device, and a veth does not compute it. `udp`
        // verifies that the wire has completed it.
        let (port, data) = receive(&wire, |frame| {
            assert_eq!(frame.received, Received::Frame);
            frame.udp()
        });
        assert_eq!((port, data.as_slice()), (6000, &b"to us"[..]));
        let packet = udp(US, KERNEL, 5000, b"to the kernel");
        assert!(wire.send(&header(kernel, wire.mac(), IPV4), &packet).unwrap());
        let mut bytes = [0; 100];
        let len = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"to the kernel");
    }

    fn frames_of_segmentation_offload_come_whole_and_with_a_checksum() {
        veth(true);
        let wire = open("veth0", US);
        // The test performs the handshake by hand, while the kernel connects.
        let connecting = std::thread::spawn(|| TcpStream::connect((US, 7174)).unwrap());
        let kernel = answer_arp(&wire);
        let syn = receive(&wire, |frame| segment(&frame));
        assert_eq!(syn.control, TcpControl::Syn);
        let answer = TcpRepr {
            src_port: 7174,
            dst_port: syn.source_port,
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(0),
            ack_number: Some(syn.sequence + 1),
            window_len: 65535,
            window_scale: Some(0),
            max_seg_size: Some(1460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None::<TcpTimestampRepr>,
            payload: &[],
        };
        let mut bytes = vec![0; answer.buffer_len()];
        answer.emit(
            &mut TcpPacket::new_unchecked(&mut bytes),
            &US.into(),
            &KERNEL.into(),
            &ChecksumCapabilities::default(),
        );
        let packet = ipv4(US, KERNEL, IpProtocol::Tcp, &bytes);
        assert!(wire.send(&header(kernel, wire.mac(), IPV4), &packet).unwrap());
        let mut stream = connecting.join().unwrap();
        let sent: Vec<u8> = (0..14_600).map(|at| (at % 251) as u8).collect();
        stream.write_all(&sent).unwrap();
        // The initial congestion window is ten segments, which the kernel sends as one packet.
        let first = syn.sequence + 1;
        let (mut got, mut largest) = (vec![0; sent.len()], 0);
        let mut have = 0;
        receive(&wire, |frame| {
            largest = largest.max(frame.packet.len());
            let segment = segment(&frame)?;
            if segment.payload.is_empty() {
                return None;
            }
            let at = segment.sequence - first;
            // The bytes are not acknowledged, so the kernel retransmits them. Each byte counts
            // once.
            if at == have {
                got[at..at + segment.payload.len()].copy_from_slice(&segment.payload);
                have += segment.payload.len();
            }
            (have == sent.len()).then_some(())
        });
        assert!(got == sent, "other bytes arrived");
        assert!(largest > 1500, "no packet above the MTU, the largest has {largest} bytes");
    }

    fn only_frames_that_are_ours_come_through_the_filter() {
        veth(false);
        let (wire, peer) = (open("veth0", US), open("veth1", KERNEL));
        let send = |to: [u8; 6], kind: u16, packet: &[u8]| {
            assert!(peer.send(&header(to, peer.mac(), kind), packet).unwrap());
        };
        let other = Ipv4Addr::new(192, 0, 2, 77);
        send(wire.mac(), 0x88cc, &[0; 46]);
        send(wire.mac(), IPV4, &udp(KERNEL, other, 1, b"another address"));
        send([2, 9, 9, 9, 9, 9], IPV4, &udp(KERNEL, US, 2, b"another station"));
        // A VLAN tag: 0x8100, the VLAN number, then the type.
        let tagged = [&[0, 5, 8, 0][..], &udp(KERNEL, US, 3, b"another VLAN")].concat();
        send(wire.mac(), 0x8100, &tagged);
        let v6 = |to: u8| {
            let mut packet = [0; 60];
            packet[0] = 0x60;
            packet[24] = to;
            packet
        };
        send(wire.mac(), 0x86dd, &v6(0x20));
        send(wire.mac(), IPV4, &udp(KERNEL, US, 4, b"ours"));
        send([0xff; 6], ARP, &[0; 46]);
        send([0x33, 0x33, 0, 0, 0, 1], 0x86dd, &v6(0xff));
        let mut kinds = Vec::new();
        receive(&wire, |frame| {
            assert_eq!(frame.received, Received::Frame);
            kinds.push((frame.kind(), frame.udp().map(|(port, _)| port)));
            (kinds.len() == 3).then_some(())
        });
        assert_eq!(kinds, [(IPV4, Some(4)), (ARP, None), (0x86dd, None)]);
        assert!(next(&wire, &mut Packet::new(1500)).unwrap().is_none());
    }

    fn a_filter_knows_every_address_of_either_family() {
        veth(false);
        let v6 = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 7, last]);
        let ours = [(US.into(), 24), (Ipv4Addr::new(192, 0, 2, 9).into(), 24), (v6(1), 64), (v6(0x102), 64)];
        let wire = RawWire::open(name("veth0"), None, &ours, false).unwrap();
        let peer = open("veth1", KERNEL);
        for to in [v6(2), v6(1), v6(0x101), v6(0x102)] {
            let IpAddr::V6(to) = to else { unreachable!() };
            let mut packet = [0; 60];
            packet[0] = 0x60;
            packet[24..40].copy_from_slice(&to.octets());
            assert!(peer.send(&header(wire.mac(), peer.mac(), 0x86dd), &packet).unwrap());
        }
        // The link also has a link-local address, which is derived from the MAC address.
        let mac = wire.mac();
        let mut packet = [0; 60];
        packet[0] = 0x60;
        packet[24..32].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        packet[32..40].copy_from_slice(&[
            mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5],
        ]);
        assert!(peer.send(&header(wire.mac(), peer.mac(), 0x86dd), &packet).unwrap());
        for last in [8, 9] {
            let packet = udp(KERNEL, Ipv4Addr::new(192, 0, 2, last), u16::from(last), b"");
            assert!(peer.send(&header(wire.mac(), peer.mac(), IPV4), &packet).unwrap());
        }
        let mut came = Vec::new();
        receive(&wire, |frame| {
            came.push(if frame.kind() == IPV4 { frame.packet[19].into() } else {
                u16::from_be_bytes([frame.packet[38], frame.packet[39]])
            });
            (came.len() == 4).then_some(())
        });
        let ours = u16::from_be_bytes([mac[4], mac[5]]);
        assert_eq!(came, [1, 0x102, ours, 9]);
    }

    fn what_the_kernel_sends_on_our_interface_is_told_apart_and_what_we_send_is_not_heard() {
        veth(false);
        let wire = open("veth0", US);
        assert!(wire.send(&header([0xff; 6], wire.mac(), ARP), &[0; 46]).unwrap());
        ip("addr add 192.0.2.5/25 dev veth0");
        let socket = UdpSocket::bind((Ipv4Addr::new(192, 0, 2, 5), 0)).unwrap();
        socket.send_to(b"?", (Ipv4Addr::new(192, 0, 2, 9), 6000)).unwrap();
        receive(&wire, |frame| {
            assert_eq!(frame.received, Received::FromOwnKernel);
            assert_eq!(frame.kind(), ARP);
            Some(())
        });
    }

    fn a_frame_above_the_mtu_is_lost_and_the_mtu_is_asked_for_anew() {
        veth(false);
        let (wire, peer) = (open("veth0", US), open("veth1", KERNEL));
        ip("link set veth0 mtu 1000");
        let to_peer = header(peer.mac(), wire.mac(), IPV4);
        assert!(wire.send(&to_peer, &udp(US, KERNEL, 1, &[0; 1400])).unwrap());
        assert_eq!(wire.mtu(), 1000);
        assert!(wire.has_problem(), "frames that are too long now would be lost forever");
        assert!(!wire.check().unwrap() && !wire.has_problem());
        assert!(wire.send(&to_peer, &udp(US, KERNEL, 2, &[0; 972])).unwrap());
        assert_eq!(receive(&peer, |frame| frame.udp()).0, 2);
    }

    fn a_full_queue_says_so_and_takes_frames_again() {
        veth(false);
        let (wire, peer) = (open("veth0", US), open("veth1", KERNEL));
        // The interface sends one packet at a time, and its queue holds a hundred.
        ip("link set veth0 txqueuelen 100");
        if !tc("qdisc replace dev veth0 root tbf rate 8kbit burst 1600 limit 20000") {
            return netns::skip("a_full_queue_says_so", "tc has no tbf here");
        }
        let to_peer = header(peer.mac(), wire.mac(), IPV4);
        let packet = udp(US, KERNEL, 1, &[0; 1400]);
        let taken = (0..1_000_000).take_while(|_| wire.send(&to_peer, &packet).unwrap()).count();
        assert!((1..1_000_000).contains(&taken), "{taken}");
        assert!(tc("qdisc del dev veth0 root"));
        assert!(wire.send(&to_peer, &packet).unwrap());
    }

    fn a_deleted_interface_is_an_error_of_both_directions() {
        veth(false);
        let wire = open("veth0", US);
        // Deleting one end of a pair deletes the other.
        ip("link del veth1");
        wait_readable(&wire);
        let error = receive_error(&wire);
        assert!(matches!(error, LlpError::LinkDown { .. }), "{error:?}");
        assert!(error.to_string().contains("was deleted"), "{error}");
        let error = wire.send(&[0xff; HEADER], &[0; 46]).unwrap_err();
        assert!(matches!(error, LlpError::LinkDown { .. }), "{error:?}");
    }

    fn an_interface_that_is_deleted_while_it_is_down_is_an_error_when_it_is_looked_at() {
        veth(false);
        let wire = open("veth0", US);
        assert!(!wire.has_problem());
        ip("link set veth0 down");
        wait_readable(&wire);
        assert!(next(&wire, &mut Packet::new(1500)).unwrap().is_none());
        assert!(wire.has_problem() && wire.check().unwrap(), "it is still down");
        // The kernel does not report this deletion to the socket.
        ip("link del veth0");
        let error = wire.check().unwrap_err();
        assert!(error.to_string().contains("was deleted"), "{error}");
    }

    fn an_outage_is_over_when_the_interface_is_seen_up_without_a_frame_of_ours() {
        veth(false);
        let mut wire = open("veth0", US);
        let blink = |wire: &RawWire| {
            ip("link set veth0 down");
            wait_readable(wire);
            assert!(next(wire, &mut Packet::new(1500)).unwrap().is_none());
            ip("link set veth0 up");
        };
        wire.interface_mut().set_patience(Duration::from_millis(300));
        blink(&wire);
        assert!(!wire.check().unwrap());
        // If the check had not ended the first outage, both outages would count as one that lasted
        // too long.
        std::thread::sleep(Duration::from_millis(301));
        blink(&wire);
    }

    fn frames_are_lost_while_the_interface_is_down_and_pass_when_it_is_up_again() {
        veth(false);
        let (mut wire, peer) = (open("veth0", US), open("veth1", KERNEL));
        wire.interface_mut().set_patience(FOREVER);
        ip("link set veth0 down");
        wait_readable(&wire);
        let mut packet = Packet::new(1500);
        assert!(next(&wire, &mut packet).unwrap().is_none(), "this is no error of the wire");
        let to_peer = header(peer.mac(), wire.mac(), IPV4);
        assert!(wire.send(&to_peer, &udp(US, KERNEL, 1, b"lost")).unwrap());
        ip("link set veth0 up");
        netns::wait_up("veth0");
        netns::wait_up("veth1");
        assert!(wire.send(&to_peer, &udp(US, KERNEL, 2, b"arrives")).unwrap());
        assert_eq!(receive(&peer, |frame| frame.udp()).0, 2);
        let to_us = header(wire.mac(), peer.mac(), IPV4);
        assert!(peer.send(&to_us, &udp(KERNEL, US, 3, b"back")).unwrap());
        assert_eq!(receive(&wire, |frame| frame.udp()).0, 3);
    }

    fn an_interface_that_stays_down_is_an_error_that_says_what_to_do() {
        veth(false);
        let mut wire = open("veth0", US);
        wire.interface_mut().set_patience(Duration::ZERO);
        ip("link set veth0 down");
        let error = receive_error(&wire);
        assert!(error.to_string().contains("ip link set INTERFACE up"), "{error}");
    }

    fn interfaces_that_cannot_be_used_are_refused() {
        assert_eq!(refused("veth0", None), AttachError::NoInterface { name: name("veth0") });
        assert_eq!(refused("lo", None), AttachError::NotEthernet { name: name("lo") });
        veth(false);
        let mtu = AttachError::Mtu { name: name("veth0"), has: 1500, wanted: 9000 };
        assert_eq!(refused("veth0", Some(9000)), mtu);
        ip("addr add 192.0.2.1/24 dev veth0");
        let owned = AttachError::KernelOwns { addr: US.into(), prefix: 24, name: name("veth0") };
        assert_eq!(refused("veth0", None), owned);
        ip("addr del 192.0.2.1/24 dev veth0");
        ip("link set veth0 down");
        open("veth0", US);
        assert!(ip("link show veth0").contains(",UP"));
    }
}

/// Runs `tc`. Returns true if it succeeded.
fn tc(arguments: &str) -> bool {
    let ran = std::process::Command::new("tc")
        .args(arguments.split_whitespace())
        .output();
    ran.is_ok_and(|output| output.status.success())
}

/// Fields of a TCP segment that the tests use.
struct Segment {
    source_port: u16,
    control: TcpControl,
    sequence: TcpSeqNumber,
    payload: Vec<u8>,
}

/// Parses the TCP segment in a frame, after verifying its checksums.
fn segment(frame: &Frame) -> Option<Segment> {
    if frame.kind() != IPV4 {
        return None;
    }
    let ip = Ipv4Packet::new_checked(&frame.packet).unwrap();
    assert!(ip.verify_checksum());
    if ip.next_header() != IpProtocol::Tcp {
        return None;
    }
    let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
    let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
    assert!(
        tcp.verify_checksum(&from, &to),
        "the checksum is not complete"
    );
    let repr = TcpRepr::parse(&tcp, &from, &to, &ChecksumCapabilities::default()).unwrap();
    Some(Segment {
        source_port: repr.src_port,
        control: repr.control,
        sequence: repr.seq_number,
        payload: repr.payload.to_vec(),
    })
}
