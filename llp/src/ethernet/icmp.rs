//! ICMP and ICMPv6: answers echo requests, and parses errors that routers and hosts report about
//! connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::wire::{
    Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, Ipv4Packet, Ipv6Packet,
};

use crate::smol::FlowKey;

/// TTL or hop limit of answers.
const HOP_LIMIT: u8 = 64;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP: u8 = 6;

/// Error that a router or host reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// IP packets longer than this number of bytes do not pass the path.
    TooBig(usize),
    /// There is no route to the host, or the path does not permit the packet.
    Unreachable,
    /// The host exists and refuses the packet.
    Refused,
}

/// Identification of the segment that caused a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quote {
    pub(super) key: FlowKey,
    pub(super) seq: u32,
}

/// Turns an ICMP echo request into its answer in place. Returns false if the packet is not an echo
/// request.
pub(super) fn answer_echo_v4(packet: &mut [u8]) -> bool {
    let Ok(mut ip) = Ipv4Packet::new_checked(packet) else {
        return false;
    };
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    // Packets with IP options are not answered, because the answer would have to reverse a source
    // route.
    if usize::from(ip.header_len()) != IPV4_HEADER {
        return false;
    }
    {
        let Ok(mut icmp) = Icmpv4Packet::new_checked(ip.payload_mut()) else {
            return false;
        };
        let request = icmp.msg_type() == Icmpv4Message::EchoRequest && icmp.msg_code() == 0;
        if !request || !icmp.verify_checksum() {
            return false;
        }
        icmp.set_msg_type(Icmpv4Message::EchoReply);
        icmp.fill_checksum();
    }
    ip.set_src_addr(destination);
    ip.set_dst_addr(source);
    ip.set_hop_limit(HOP_LIMIT);
    ip.fill_checksum();
    true
}

/// Does the same as [`answer_echo_v4`], for ICMPv6.
pub(super) fn answer_echo_v6(packet: &mut [u8]) -> bool {
    let Ok(mut ip) = Ipv6Packet::new_checked(packet) else {
        return false;
    };
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    {
        let Ok(mut icmp) = Icmpv6Packet::new_checked(ip.payload_mut()) else {
            return false;
        };
        let request = icmp.msg_type() == Icmpv6Message::EchoRequest && icmp.msg_code() == 0;
        if !request || !icmp.verify_checksum(&source, &destination) {
            return false;
        }
        icmp.set_msg_type(Icmpv6Message::EchoReply);
        icmp.fill_checksum(&destination, &source);
    }
    ip.set_src_addr(destination);
    ip.set_dst_addr(source);
    ip.set_hop_limit(HOP_LIMIT);
    true
}

/// Parses an ICMP message that reports an error about a TCP segment of this host.
pub(super) fn report_v4(message: &[u8]) -> Option<(Report, Quote)> {
    let icmp = Icmpv4Packet::new_checked(message).ok()?;
    if icmp.msg_type() != Icmpv4Message::DstUnreachable || !icmp.verify_checksum() {
        return None;
    }
    let report = match icmp.msg_code() {
        0 | 1 | 5..=13 => Report::Unreachable,
        2 | 3 => Report::Refused,
        4 => Report::TooBig(usize::from(word(message, 6)?)),
        _ => return None,
    };
    Some((report, quote_v4(message.get(8..)?)?))
}

/// Does the same as [`report_v4`], for ICMPv6.
pub(super) fn report_v6(
    message: &[u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
) -> Option<(Report, Quote)> {
    let icmp = Icmpv6Packet::new_checked(message).ok()?;
    if !icmp.verify_checksum(&source, &destination) {
        return None;
    }
    let report = match (icmp.msg_type(), icmp.msg_code()) {
        (Icmpv6Message::DstUnreachable, 4) => Report::Refused,
        (Icmpv6Message::DstUnreachable, _) => Report::Unreachable,
        (Icmpv6Message::PktTooBig, _) => {
            Report::TooBig(usize::try_from(double_word(message, 4)?).unwrap_or(usize::MAX))
        }
        _ => return None,
    };
    Some((report, quote_v6(message.get(8..)?)?))
}

/// Parses the beginning of an IPv4 packet of this host, as an ICMP error quotes it. Its end may be
/// missing.
fn quote_v4(packet: &[u8]) -> Option<Quote> {
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    let fragment = word(packet, 6)? & 0x1fff;
    if first >> 4 != 4 || header < IPV4_HEADER || *packet.get(9)? != TCP || fragment != 0 {
        return None;
    }
    let addr = |at: usize| Some(IpAddr::V4(Ipv4Addr::from_bits(double_word(packet, at)?)));
    quote((addr(12)?, addr(16)?), packet.get(header..)?)
}

/// Does the same as [`quote_v4`], for IPv6. Extension headers are not parsed, because this host
/// never sends them.
fn quote_v6(packet: &[u8]) -> Option<Quote> {
    if packet.first()? >> 4 != 6 || *packet.get(6)? != TCP {
        return None;
    }
    let addr = |at: usize| {
        let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(bytes)))
    };
    quote((addr(8)?, addr(24)?), packet.get(IPV6_HEADER..)?)
}

fn quote((source, destination): (IpAddr, IpAddr), tcp: &[u8]) -> Option<Quote> {
    Some(Quote {
        key: FlowKey {
            local: SocketAddr::new(source, word(tcp, 0)?),
            remote: SocketAddr::new(destination, word(tcp, 2)?),
        },
        seq: double_word(tcp, 4)?,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let two: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_be_bytes(two))
}

fn double_word(bytes: &[u8], at: usize) -> Option<u32> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_be_bytes(four))
}

/// Returns the sequence number after an outgoing TCP segment. The IP packet must have no options.
pub(super) fn end_of_segment(packet: &[u8]) -> Option<u32> {
    let at = match packet.first()? >> 4 {
        4 => IPV4_HEADER,
        _ => IPV6_HEADER,
    };
    let seq = double_word(packet, at + 4)?;
    let header = at + usize::from(packet.get(at + 12)? >> 4) * 4;
    let flags = *packet.get(at + 13)?;
    let payload = u32::try_from(packet.len().checked_sub(header)?).ok()?;
    let (syn, fin) = (u32::from(flags >> 1 & 1), u32::from(flags & 1));
    Some(seq.wrapping_add(payload).wrapping_add(syn + fin))
}
