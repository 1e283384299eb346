//! Pings, and ICMP reports about connections.

use super::*;

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
    let mut bytes = vec![0; echo.buffer_len()];
    let mut icmp = Icmpv6Packet::new_unchecked(&mut bytes[..]);
    echo.emit(
        &source,
        &destination,
        &mut icmp,
        &ChecksumCapabilities::default(),
    );
    let request = packet_with("2001:db8::2", "2001:db8::1", IpProtocol::Icmpv6, &bytes);
    send(&wire, EtherType::Ipv6, &request);
    let data = next(&wire, |_, bytes| {
        let ip = Ipv6Packet::new_checked(bytes).ok()?;
        let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
        let caps = ChecksumCapabilities::default();
        match Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &caps).ok()? {
            Icmpv6Repr::EchoReply { data, .. } => Some(data.to_vec()),
            _ => None,
        }
    });
    assert_eq!(data, b"six");
}

/// Makes an ICMP error that quotes an IPv4 packet.
pub(super) fn about_v4(quoted: &[u8], reason: Icmpv4DstUnreachable, mtu: u16) -> Vec<u8> {
    let ip = Ipv4Packet::new_checked(quoted).unwrap();
    let message = Icmpv4Repr::DstUnreachable {
        reason,
        header: Ipv4Repr::parse(&ip, &ChecksumCapabilities::default()).unwrap(),
        data: &ip.payload()[..8],
    };
    let mut bytes = vec![0; message.buffer_len()];
    let mut icmp = Icmpv4Packet::new_unchecked(&mut bytes[..]);
    message.emit(&mut icmp, &ChecksumCapabilities::default());
    bytes[6..8].copy_from_slice(&mtu.to_be_bytes());
    Icmpv4Packet::new_unchecked(&mut bytes[..]).fill_checksum();
    packet_with("192.0.2.254", "192.0.2.1", IpProtocol::Icmp, &bytes)
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
    let mut bytes = vec![0; message.buffer_len()];
    let mut icmp = Icmpv6Packet::new_unchecked(&mut bytes[..]);
    let caps = ChecksumCapabilities::default();
    message.emit(&ip.dst_addr(), &ip.src_addr(), &mut icmp, &caps);
    let report = packet_with("2001:db8::2", "2001:db8::1", IpProtocol::Icmpv6, &bytes);
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
    // A sequence number that is not in flight.
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
    // The host processes frames in the order of arrival, so the answer to the ping shows that all
    // reports were processed.
    send(&wire, EtherType::Ipv4, &ping_v4(b"done"));
    assert_eq!(pong_v4(&wire), b"done");
    assert_eq!(mailbox.path_mtu.load(Ordering::Acquire), 1300);
    assert_eq!(host.counters().strange_reports, 3);
}
