//! Format of a datagram, and the Global Route Header that its receiver gets.
//!
//! ```text
//!   "uwUD"  version  flags  class  0  source QP  destination QP  Q_Key  immediate
//!     4        1       1      1    1      4            4           4        4
//!   source  destination  payload
//!     16        16
//! ```
//!
//! `class` is the traffic class of the sender's address handle. Numbers are big-endian. Source and
//! destination are IPv6 addresses, or IPv4 addresses mapped to them, as GIDs are.

use std::net::{IpAddr, Ipv6Addr};

use crate::hello::mapped;

const MAGIC: [u8; 4] = *b"uwUD";
const VERSION: u8 = 1;
/// Flag: the datagram has Immediate Data.
const IMMEDIATE: u8 = 1;
/// Flag: the sender asks for a solicited event.
const SOLICITED: u8 = 2;
/// Number of bytes before the payload.
pub const HEADER: usize = 56;
/// Number of bytes of a Global Route Header, which precedes the payload in a receive.
pub const GRH: usize = 40;
/// Largest payload in bytes: the largest MTU of InfiniBand.
pub const MAX_PAYLOAD: usize = 4096;
/// Protocol number of UDP (RFC 768).
const UDP: u8 = 17;
/// Number of bytes of an IPv4 header (RFC 791), and of a UDP header.
const IPV4: usize = 20;
const UDP_HEADER: usize = 8;
/// Hop limit that the Global Route Header reports. The sockets do not tell it.
const HOPS: u8 = 64;

/// Header of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Number of the QP that sends it.
    pub source: u32,
    /// Number of the QP that it is for.
    pub destination: u32,
    /// Q_Key, which must be that of the QP.
    pub qkey: u32,
    /// Immediate Data, in the order of the wire.
    pub immediate: Option<[u8; 4]>,
    /// The sender asks for a solicited event.
    pub solicited: bool,
    /// Traffic class in the Global Route Header.
    pub traffic_class: u8,
    /// Address that it is sent from.
    pub from: IpAddr,
    /// Address that it is sent to.
    pub to: IpAddr,
}

impl Header {
    /// Returns the bytes before the payload.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER] {
        let flag = |set, flag| if set { flag } else { 0 };
        let flags = flag(self.immediate.is_some(), IMMEDIATE) | flag(self.solicited, SOLICITED);
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..7].copy_from_slice(&[VERSION, flags, self.traffic_class]);
        bytes[8..12].copy_from_slice(&self.source.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.destination.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.immediate.unwrap_or_default());
        bytes[24..40].copy_from_slice(&mapped(self.from).octets());
        bytes[40..].copy_from_slice(&mapped(self.to).octets());
        bytes
    }

    /// Reads the header of a datagram. Returns it with the payload, or `None` if this is no
    /// datagram of a QP, or one of another version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Header, &[u8])> {
        let (head, rest) = bytes.split_first_chunk()?;
        let (&[version, flags, traffic_class, _], rest) = rest.split_first_chunk()?;
        if *head != MAGIC || version != VERSION {
            return None;
        }
        let (source, rest) = rest.split_first_chunk()?;
        let (destination, rest) = rest.split_first_chunk()?;
        let (qkey, rest) = rest.split_first_chunk()?;
        let (immediate, rest) = rest.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk::<16>()?;
        let (to, payload) = rest.split_first_chunk::<16>()?;
        let address = |bytes: &[u8; 16]| IpAddr::V6(Ipv6Addr::from(*bytes)).to_canonical();
        let header = Header {
            source: u32::from_be_bytes(*source),
            destination: u32::from_be_bytes(*destination),
            qkey: u32::from_be_bytes(*qkey),
            immediate: (flags & IMMEDIATE != 0).then_some(*immediate),
            solicited: flags & SOLICITED != 0,
            traffic_class,
            from: address(from),
            to: address(to),
        };
        (payload.len() <= MAX_PAYLOAD).then_some((header, payload))
    }

    /// Returns the Global Route Header of a datagram with `payload` bytes. For IPv4 it is the IPv4
    /// header, in bytes 20 to 39, as RoCE v2 adapters have it. Programs find the address of the
    /// sender there, and tell the family from the checksum.
    #[must_use]
    pub fn grh(&self, payload: usize) -> [u8; GRH] {
        let mut grh = [0; GRH];
        let len = UDP_HEADER + HEADER + payload;
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                // Version 4, five words.
                grh[20..22].copy_from_slice(&[0x45, self.traffic_class]);
                grh[22..24].copy_from_slice(&length(IPV4 + len));
                (grh[28], grh[29]) = (HOPS, UDP);
                grh[32..36].copy_from_slice(&from.octets());
                grh[36..].copy_from_slice(&to.octets());
                let checksum = checksum(&grh[20..]);
                grh[30..32].copy_from_slice(&checksum);
            }
            (from, to) => {
                // The traffic class is between the version and the flow label.
                let class = self.traffic_class;
                grh[..2].copy_from_slice(&[0x60 | class >> 4, class << 4]);
                grh[4..6].copy_from_slice(&length(len));
                (grh[6], grh[7]) = (UDP, HOPS);
                grh[8..24].copy_from_slice(&mapped(from).octets());
                grh[24..].copy_from_slice(&mapped(to).octets());
            }
        }
        grh
    }

    /// Returns true if the datagram came by IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        !(self.from.is_ipv4() && self.to.is_ipv4())
    }
}

/// Returns a length for an IP header. A datagram is always shorter than 64 KiB.
fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}

/// Returns the checksum of an IPv4 header (RFC 791 section 3.1) whose checksum is 0.
fn checksum(header: &[u8]) -> [u8; 2] {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    // At most 16 bits are left after two folds.
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(from: &str, to: &str) -> Header {
        Header {
            source: 0x00AB_CD01,
            destination: 0x0012_3402,
            qkey: 0x1111_1111,
            immediate: None,
            solicited: false,
            traffic_class: 0,
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for (from, to) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
            for immediate in [None, Some([1, 2, 3, 4]), Some([0; 4])] {
                for solicited in [false, true] {
                    let header = Header {
                        immediate,
                        solicited,
                        traffic_class: 0xA5,
                        ..header(from, to)
                    };
                    let bytes = [&header.to_bytes()[..], b"payload"].concat();
                    assert_eq!(Header::parse(&bytes), Some((header, &b"payload"[..])));
                }
            }
        }
    }

    #[test]
    fn the_bytes_of_a_header_are_those_of_the_documentation() {
        let bytes = header("192.0.2.1", "192.0.2.2").to_bytes();
        assert_eq!(bytes[..8], *b"uwUD\x01\0\0\0");
        assert_eq!(
            bytes[8..24],
            [
                0, 0xAB, 0xCD, 1, 0, 0x12, 0x34, 2, 0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0
            ]
        );
        assert_eq!(bytes[34..40], [0xFF, 0xFF, 192, 0, 2, 1]);
        assert_eq!(bytes[50..], [0xFF, 0xFF, 192, 0, 2, 2]);
    }

    #[test]
    fn what_is_short_or_too_long_or_of_something_else_is_none() {
        let bytes = header("192.0.2.1", "192.0.2.2").to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Header::parse(&bytes[..len]), None, "{len}");
        }
        for at in [0, 3, 4] {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Header::parse(&other), None, "{at}");
        }
        let longest = [&bytes[..], &[7; MAX_PAYLOAD]].concat();
        assert_eq!(Header::parse(&longest).unwrap().1.len(), MAX_PAYLOAD);
        let longer = [&longest[..], &[7]].concat();
        assert_eq!(Header::parse(&longer), None);
    }

    #[test]
    fn the_route_header_of_ipv4_is_its_header_with_a_checksum() {
        let grh = header("192.0.2.1", "192.0.2.2").grh(100);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20..22], [0x45, 0]);
        assert_eq!(grh[22..24], [0, 184]);
        assert_eq!(grh[28..30], [64, 17]);
        assert_eq!(grh[32..], [192, 0, 2, 1, 192, 0, 2, 2]);
        // With its checksum, the sum of a header is 0.
        assert_eq!(checksum(&grh[20..]), [0, 0]);
        let other = Header {
            traffic_class: 0xA5,
            ..header("192.0.2.1", "192.0.2.2")
        };
        assert_eq!(other.to_bytes()[6], 0xA5);
        let grh = other.grh(100);
        assert_eq!(grh[20..22], [0x45, 0xA5]);
        assert_eq!(checksum(&grh[20..]), [0, 0]);
    }

    #[test]
    fn the_route_header_of_ipv6_is_its_header() {
        let header = header("2001:db8::1", "2001:db8::2");
        assert!(header.is_ipv6());
        let grh = header.grh(100);
        assert_eq!(grh[..8], [0x60, 0, 0, 0, 0, 164, 17, 64]);
        assert_eq!(grh[8..24], mapped(header.from).octets());
        assert_eq!(grh[24..], mapped(header.to).octets());
        let other = Header {
            traffic_class: 0xA5,
            ..header
        };
        assert_eq!(other.grh(100)[..4], [0x6A, 0x50, 0, 0]);
    }
}
