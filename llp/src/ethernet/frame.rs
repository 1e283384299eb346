//! Ethernet II headers, and the MAC addresses of multicast groups.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::HEADER;

/// A MAC address.
pub(super) type Mac = [u8; 6];

pub(super) const BROADCAST: Mac = [0xff; 6];

/// Group of all IPv6 hosts on the link (RFC 4291 section 2.7.1).
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Supported payload types of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EtherType {
    Ipv4,
    Arp,
    Ipv6,
}

impl EtherType {
    const fn code(self) -> [u8; 2] {
        match self {
            Self::Ipv4 => [0x08, 0x00],
            Self::Arp => [0x08, 0x06],
            Self::Ipv6 => [0x86, 0xdd],
        }
    }

    /// Returns the payload type of IP packets to `addr`.
    pub(super) const fn of(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }
}

/// Returns an Ethernet II header.
pub(super) fn header(destination: Mac, source: Mac, kind: EtherType) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..6].copy_from_slice(&destination);
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&kind.code());
    header
}

/// Returns destination, source and payload type of a frame. The type is `None` if it is
/// unsupported.
pub(super) fn parse(header: &[u8; HEADER]) -> (Mac, Mac, Option<EtherType>) {
    let (mut destination, mut source) = ([0; 6], [0; 6]);
    destination.copy_from_slice(&header[..6]);
    source.copy_from_slice(&header[6..12]);
    let kind = [EtherType::Ipv4, EtherType::Arp, EtherType::Ipv6]
        .into_iter()
        .find(|kind| header[12..] == kind.code());
    (destination, source, kind)
}

/// Returns true if the address belongs to a single station: it is neither a group address nor zero.
pub(super) fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Returns the MAC address of an IPv6 multicast group (RFC 2464 section 7).
pub(super) fn group(addr: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = addr.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Returns the group to which solicitations for `addr` are sent (RFC 4291 section 2.7.1).
pub(super) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    let [high, low] = [0xff00 | u16::from(a), u16::from_be_bytes([b, c])];
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low)
}

/// Returns the link-local address of a station (RFC 4291 appendix A).
pub(super) fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let word = |high, low| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        word(a ^ 2, b),
        word(c, 0xff),
        word(0xfe, d),
        word(e, f),
    )
}

/// Returns true if the address can belong to a single host on a network.
pub(super) fn is_host(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified() || v4.is_multicast() || v4.is_loopback() || is_reserved(v4))
        }
        IpAddr::V6(v6) => {
            let mapped = v6.to_ipv4_mapped().is_some();
            !(v6.is_unspecified() || v6.is_multicast() || v6.is_loopback() || mapped)
        }
    }
}

/// Returns true for 0.0.0.0/8 and 240.0.0.0/4, which includes the limited broadcast address.
fn is_reserved(addr: Ipv4Addr) -> bool {
    let first = addr.octets()[0];
    first >= 240 || first == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let (to, from) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        for kind in [EtherType::Ipv4, EtherType::Arp, EtherType::Ipv6] {
            assert_eq!(parse(&header(to, from, kind)), (to, from, Some(kind)));
        }
        let mut vlan = header(to, from, EtherType::Ipv4);
        vlan[12..].copy_from_slice(&[0x81, 0]);
        assert_eq!(parse(&vlan).2, None);
    }

    #[test]
    fn addresses_derived_as_the_rfcs_show() {
        let addr: Ipv6Addr = "2001:db8::1234:5678".parse().unwrap();
        let node: Ipv6Addr = "ff02::1:ff34:5678".parse().unwrap();
        assert_eq!(solicited_node(addr), node);
        assert_eq!(group(node), [0x33, 0x33, 0xff, 0x34, 0x56, 0x78]);
        let own: Ipv6Addr = "fe80::5054:ff:fe12:3456".parse().unwrap();
        assert_eq!(link_local([0x52, 0x54, 0, 0x12, 0x34, 0x56]), own);
    }
}
