//! Parses and writes messages of ARP (RFC 826) and of the corresponding part of IPv6 neighbour
//! discovery (RFC 4861).
//!
//! A question is an ARP request or a neighbour solicitation. An answer is an ARP reply or a
//! neighbour advertisement. An own address is an address of this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, IpProtocol,
    Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use super::frame::{self, ALL_NODES, BROADCAST, EtherType, Mac};
use super::neighbours::Ask;
use crate::smol::Packet;
use crate::wire::HEADER;

/// Hop limit of neighbour discovery. A packet with this value was not forwarded, so it is from this
/// link (RFC 4861 section 3.1).
const MAX_HOP_LIMIT: u8 = 255;

/// Content of an ARP or neighbour discovery message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// IP and MAC address of the sender. `None` in a probe, which asks whether an address is in
    /// use.
    pub(super) sender: Option<(IpAddr, Mac)>,
    /// Address that the question asks for, or that the answer describes.
    pub(super) target: IpAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Question,
    Answer {
        /// True if the answer replaces a MAC address that is already known.
        overrides: bool,
        /// True if the answer claims to respond to a question. An announcement does not.
        solicited: bool,
    },
}

/// Parses an ARP message.
pub(super) fn parse_arp(packet: &[u8]) -> Option<Message> {
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(packet).ok()?).ok()?
    else {
        return None;
    };
    let kind = match operation {
        ArpOperation::Request => Kind::Question,
        ArpOperation::Reply => Kind::Answer {
            overrides: true,
            solicited: true,
        },
        ArpOperation::Unknown(_) => return None,
    };
    let sender = (!source_protocol_addr.is_unspecified())
        .then_some((IpAddr::V4(source_protocol_addr), source_hardware_addr.0));
    Some(Message {
        kind,
        sender,
        target: IpAddr::V4(target_protocol_addr),
    })
}

/// Parses a neighbour solicitation or advertisement from a complete IPv6 packet.
pub(super) fn parse_ndp(packet: &[u8]) -> Option<Message> {
    let ip = Ipv6Packet::new_checked(packet).ok()?;
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
    let right = ip.next_header() == IpProtocol::Icmpv6 && ip.hop_limit() == MAX_HOP_LIMIT;
    if !right || icmp.msg_code() != 0 || !icmp.msg_type().is_ndisc() {
        return None;
    }
    if !icmp.verify_checksum(&ip.src_addr(), &ip.dst_addr()) {
        return None;
    }
    let mac =
        |option: Option<RawHardwareAddress>| -> Option<Mac> { option?.as_bytes().try_into().ok() };
    match NdiscRepr::parse(&icmp).ok()? {
        NdiscRepr::NeighborSolicit {
            target_addr,
            lladdr,
        } if !target_addr.is_multicast() => {
            let source = ip.src_addr();
            let sender = mac(lladdr)
                .filter(|_| !source.is_unspecified())
                .map(|mac| (IpAddr::V6(source), mac));
            Some(Message {
                kind: Kind::Question,
                sender,
                target: IpAddr::V6(target_addr),
            })
        }
        NdiscRepr::NeighborAdvert {
            flags,
            target_addr,
            lladdr,
        } if !target_addr.is_multicast() => {
            let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
            // An answer to a multicast group must not claim to be solicited (RFC 4861 section
            // 7.1.2).
            if solicited && ip.dst_addr().is_multicast() {
                return None;
            }
            let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
            Some(Message {
                kind: Kind::Answer {
                    overrides,
                    solicited,
                },
                sender: Some((IpAddr::V6(target_addr), mac(lladdr)?)),
                target: IpAddr::V6(target_addr),
            })
        }
        _ => None,
    }
}

/// Writes the question `ask`, from `source`, into `packet`. A question without a source is a probe,
/// which asks whether the address is in use. Returns the frame header.
pub(super) fn write_question(
    ask: Ask,
    source: Option<IpAddr>,
    mac: Mac,
    packet: &mut Packet,
) -> [u8; HEADER] {
    match ask.addr {
        IpAddr::V4(target) => {
            let source = match source {
                Some(IpAddr::V4(source)) => source,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            write_arp(
                ArpOperation::Request,
                (source, mac),
                (target, [0; 6]),
                packet,
            );
            frame::header(ask.to.unwrap_or(BROADCAST), mac, EtherType::Arp)
        }
        IpAddr::V6(target) => {
            let source = match source {
                Some(IpAddr::V6(source)) => source,
                _ => Ipv6Addr::UNSPECIFIED,
            };
            let (destination, to) = match ask.to {
                Some(to) => (target, to),
                None => {
                    let group = frame::solicited_node(target);
                    (group, frame::group(group))
                }
            };
            let lladdr = (!source.is_unspecified()).then(|| RawHardwareAddress::from_bytes(&mac));
            let message = NdiscRepr::NeighborSolicit {
                target_addr: target,
                lladdr,
            };
            write_ndp(message, source, destination, packet);
            frame::header(to, mac, EtherType::Ipv6)
        }
    }
}

/// Writes an answer into `packet`. It says that the own address `own` has the MAC address `mac`.
/// The answer goes to `to`, or to all hosts if `to` is `None`. Returns the frame header.
pub(super) fn write_answer(
    own: IpAddr,
    mac: Mac,
    to: Option<(IpAddr, Mac)>,
    packet: &mut Packet,
) -> [u8; HEADER] {
    match own {
        IpAddr::V4(own) => {
            let header = |to| frame::header(to, mac, EtherType::Arp);
            match to {
                Some((IpAddr::V4(to), to_mac)) => {
                    write_arp(ArpOperation::Reply, (own, mac), (to, to_mac), packet);
                    header(to_mac)
                }
                // An announcement has the form of a request (RFC 5227 section 3).
                _ => {
                    write_arp(ArpOperation::Request, (own, mac), (own, [0; 6]), packet);
                    header(BROADCAST)
                }
            }
        }
        IpAddr::V6(own) => {
            let (destination, to_mac, solicited) = match to {
                Some((IpAddr::V6(to), to_mac)) => (to, to_mac, NdiscNeighborFlags::SOLICITED),
                _ => (
                    ALL_NODES,
                    frame::group(ALL_NODES),
                    NdiscNeighborFlags::empty(),
                ),
            };
            let message = NdiscRepr::NeighborAdvert {
                flags: NdiscNeighborFlags::OVERRIDE | solicited,
                target_addr: own,
                lladdr: Some(RawHardwareAddress::from_bytes(&mac)),
            };
            write_ndp(message, own, destination, packet);
            frame::header(to_mac, mac, EtherType::Ipv6)
        }
    }
}

fn write_arp(
    operation: ArpOperation,
    (source, source_mac): (Ipv4Addr, Mac),
    (target, target_mac): (Ipv4Addr, Mac),
    packet: &mut Packet,
) {
    let message = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(source_mac),
        source_protocol_addr: source,
        target_hardware_addr: EthernetAddress(target_mac),
        target_protocol_addr: target,
    };
    let bytes = packet.resize(message.buffer_len());
    message.emit(&mut ArpPacket::new_unchecked(bytes));
}

fn write_ndp(message: NdiscRepr<'_>, source: Ipv6Addr, destination: Ipv6Addr, packet: &mut Packet) {
    let icmp = Icmpv6Repr::Ndisc(message);
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        hop_limit: MAX_HOP_LIMIT,
    };
    let bytes = packet.resize(ip.buffer_len() + icmp.buffer_len());
    bytes.fill(0);
    ip.emit(&mut Ipv6Packet::new_unchecked(&mut *bytes));
    icmp.emit(
        &source,
        &destination,
        &mut Icmpv6Packet::new_unchecked(&mut bytes[ip.buffer_len()..]),
        &ChecksumCapabilities::default(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    fn read(header: &[u8; HEADER], packet: &Packet) -> (Mac, Message) {
        let (to, _, kind) = frame::parse(header);
        let message = match kind {
            Some(EtherType::Arp) => parse_arp(packet.bytes()),
            _ => parse_ndp(packet.bytes()),
        };
        (to, message.unwrap())
    }

    #[test]
    fn questions_and_answers_are_read_as_they_were_written() {
        for (own, other) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
            let (own, other): (IpAddr, IpAddr) = (own.parse().unwrap(), other.parse().unwrap());
            let mut packet = Packet::new(0);
            let ask = Ask {
                addr: other,
                to: None,
            };
            let header = write_question(ask, Some(own), MAC, &mut packet);
            let (to, message) = read(&header, &packet);
            assert_eq!(to[0] & 1, 1, "it goes to a group");
            let question = Message {
                kind: Kind::Question,
                sender: Some((own, MAC)),
                target: other,
            };
            assert_eq!(message, question);

            let probe = write_question(ask, None, MAC, &mut packet);
            assert_eq!(read(&probe, &packet).1.sender, None);

            let answer = write_answer(own, MAC, Some((other, OTHER)), &mut packet);
            let (to, message) = read(&answer, &packet);
            assert_eq!((to, message.sender), (OTHER, Some((own, MAC))));
            let solicited = Kind::Answer {
                overrides: true,
                solicited: true,
            };
            assert_eq!(message.kind, solicited);

            let announcement = write_answer(own, MAC, None, &mut packet);
            let (to, message) = read(&announcement, &packet);
            assert_eq!((to[0] & 1, message.sender), (1, Some((own, MAC))));
        }
    }

    #[test]
    fn what_a_router_has_forwarded_is_no_neighbour_discovery() {
        let own = IpAddr::V6("2001:db8::1".parse().unwrap());
        let mut packet = Packet::new(0);
        write_answer(own, MAC, None, &mut packet);
        assert!(parse_ndp(packet.bytes()).is_some());
        let mut forwarded = packet.bytes().to_vec();
        forwarded[7] = 254;
        assert!(parse_ndp(&forwarded).is_none());
        let mut damaged = packet.bytes().to_vec();
        damaged[60] ^= 1;
        assert!(parse_ndp(&damaged).is_none());
    }
}
