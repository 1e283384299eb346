//! Addresses of the host, and the choice of next hops and source addresses.

use std::net::{IpAddr, Ipv4Addr};

use super::frame::{self, ALL_NODES, BROADCAST, Mac};
use super::settings::{LinkSettings, misuse};
use crate::LlpError;
use crate::smol::MIN_IPV6_MTU;

/// Prefix length of link-local addresses.
const LINK_LOCAL_PREFIX: u8 = 64;

/// Addresses and routes of a host. They never change.
pub(super) struct Addresses {
    own: Vec<(IpAddr, u8)>,
    gateways: Vec<IpAddr>,
    mac: Mac,
    /// MAC addresses of the host's multicast groups.
    groups: Vec<Mac>,
}

/// Returns true if the first `prefix` bits of both addresses are equal.
fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differ = a.to_bits() ^ b.to_bits();
            differ.leading_zeros() >= u32::from(prefix)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let differ = a.to_bits() ^ b.to_bits();
            differ.leading_zeros() >= u32::from(prefix)
        }
        _ => false,
    }
}

/// Returns true if `addr` is the broadcast address of its network, or the address of the network
/// itself (RFC 1122 section 3.2.1.3).
fn is_network(addr: Ipv4Addr, prefix: u8) -> bool {
    // With a prefix of 31 bits or more, every address is a host address (RFC 3021).
    let Some(host) = u32::MAX.checked_shr(prefix.into()).filter(|_| prefix < 31) else {
        return false;
    };
    let bits = addr.to_bits() & host;
    bits == 0 || bits == host
}

impl Addresses {
    pub(super) fn new(settings: &LinkSettings, mac: Mac, mtu: usize) -> Result<Self, LlpError> {
        if settings.addresses.is_empty() {
            return Err(misuse("no address was given; give one with its prefix"));
        }
        let mut own: Vec<(IpAddr, u8)> = Vec::new();
        for &(addr, prefix) in &settings.addresses {
            let bits = if addr.is_ipv4() { 32 } else { 128 };
            if prefix > bits {
                return Err(misuse(
                    "a prefix has at most 32 bits with IPv4, 128 with IPv6",
                ));
            }
            let network = matches!(addr, IpAddr::V4(v4) if is_network(v4, prefix));
            if !frame::is_host(addr) || network {
                return Err(misuse(
                    "one of the host's own addresses is not that of a single host",
                ));
            }
            if addr.is_ipv6() && mtu < MIN_IPV6_MTU {
                return Err(misuse("IPv6 needs an MTU of at least 1280 bytes"));
            }
            if own.iter().any(|(other, _)| *other == addr) {
                return Err(misuse("an address was given twice"));
            }
            own.push((addr, prefix));
        }
        let link_local = IpAddr::V6(frame::link_local(mac));
        if own.iter().any(|(addr, _)| addr.is_ipv6())
            && !own.iter().any(|(addr, _)| *addr == link_local)
        {
            own.push((link_local, LINK_LOCAL_PREFIX));
        }
        let mut groups = vec![frame::group(ALL_NODES)];
        for (addr, _) in &own {
            if let IpAddr::V6(v6) = addr {
                groups.push(frame::group(frame::solicited_node(*v6)));
            }
        }
        let this = Self {
            own,
            gateways: settings.gateways.clone(),
            mac,
            groups,
        };
        this.check_gateways()?;
        Ok(this)
    }

    fn check_gateways(&self) -> Result<(), LlpError> {
        for (index, gateway) in self.gateways.iter().enumerate() {
            if self.has(*gateway) || !self.is_on_link(*gateway) {
                return Err(misuse(
                    "a gateway is not another host in a network of one of the own addresses",
                ));
            }
            let same = |other: &IpAddr| other.is_ipv4() == gateway.is_ipv4();
            if self.gateways[..index].iter().any(same) {
                return Err(misuse("two gateways of one family were given"));
            }
        }
        Ok(())
    }

    /// Returns all addresses of the host, including a link-local address if the host has IPv6.
    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.own.iter().map(|(addr, _)| *addr)
    }

    /// Returns the MAC address of the host.
    pub(super) fn mac(&self) -> Mac {
        self.mac
    }

    /// Returns true if the host has this address.
    pub(super) fn has(&self, addr: IpAddr) -> bool {
        self.all().any(|own| own == addr)
    }

    /// Returns true if frames to this MAC address are for the host.
    pub(super) fn takes(&self, destination: Mac) -> bool {
        destination == self.mac || destination == BROADCAST || self.groups.contains(&destination)
    }

    /// Returns true if this address can belong to a neighbour, which is a host in the network of
    /// one of the own addresses.
    pub(super) fn is_on_link(&self, addr: IpAddr) -> bool {
        let on_link = |(own, prefix): &(IpAddr, u8)| {
            let network = matches!(addr, IpAddr::V4(v4) if is_network(v4, *prefix));
            same_network(*own, addr, *prefix) && !network
        };
        frame::is_host(addr) && self.own.iter().any(on_link)
    }

    /// Returns the neighbour to which packets for `to` are sent: the destination itself or a
    /// gateway. `None` if there is no route.
    pub(super) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        if self.is_on_link(to) {
            return Some(to);
        }
        let link_local = matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local());
        // Here `to` is not a neighbour. If it is in the network of an own address, it is the
        // address of this network or its broadcast address.
        let ours = |(own, prefix): &(IpAddr, u8)| *prefix > 0 && same_network(*own, to, *prefix);
        if !frame::is_host(to) || link_local || self.own.iter().any(ours) {
            return None;
        }
        let fits = |gateway: &&IpAddr| gateway.is_ipv4() == to.is_ipv4();
        self.gateways.iter().find(fits).copied()
    }

    /// Returns the source address for packets to `to`. This is the own address whose network
    /// contains `to`; of several, the one with the longest prefix. If there is none, it is the
    /// first own address of the family.
    pub(super) fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        if self.has(to) {
            return Some(to);
        }
        let same_net = |(own, prefix): &&(IpAddr, u8)| same_network(*own, to, *prefix);
        let fits = |(own, _): &&(IpAddr, u8)| own.is_ipv4() == to.is_ipv4();
        let longest = self
            .own
            .iter()
            .filter(same_net)
            .max_by_key(|(_, prefix)| *prefix);
        longest
            .or_else(|| self.own.iter().find(fits))
            .map(|(own, _)| *own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];

    fn settings(addresses: &[(&str, u8)], gateways: &[&str]) -> LinkSettings {
        LinkSettings {
            addresses: (addresses.iter())
                .map(|(addr, prefix)| (addr.parse().unwrap(), *prefix))
                .collect(),
            gateways: gateways.iter().map(|addr| addr.parse().unwrap()).collect(),
            ..LinkSettings::default()
        }
    }

    fn why(addresses: &[(&str, u8)], gateways: &[&str]) -> String {
        let made = Addresses::new(&settings(addresses, gateways), MAC, 1500);
        made.err().unwrap().to_string()
    }

    #[test]
    fn a_packet_goes_to_its_neighbour_else_to_the_gateway_else_nowhere() {
        let own = [("192.0.2.1", 25), ("2001:db8::1", 64)];
        let all = Addresses::new(&settings(&own, &["192.0.2.100"]), MAC, 1500).unwrap();
        let hop = |to: &str| {
            all.next_hop(to.parse().unwrap())
                .map(|hop| hop.to_string())
                .unwrap_or_default()
        };
        assert_eq!(hop("192.0.2.2"), "192.0.2.2");
        assert_eq!(hop("192.0.2.129"), "192.0.2.100");
        assert_eq!(hop("2001:db8::77"), "2001:db8::77");
        assert_eq!(hop("fe80::77"), "fe80::77");
        let nowhere = [
            "2001:db8:1::1",
            "192.0.2.127",
            "192.0.2.0",
            "255.255.255.255",
            "224.0.0.1",
            "0.0.0.0",
            "127.0.0.1",
            "ff02::1",
            "::",
        ];
        for to in nowhere {
            assert_eq!(hop(to), "", "{to}");
        }
    }

    #[test]
    fn the_source_is_the_address_in_the_network_of_the_destination() {
        let own = [("192.0.2.1", 25), ("192.0.2.129", 25), ("2001:db8::1", 64)];
        let all = Addresses::new(&settings(&own, &["192.0.2.100"]), MAC, 1500).unwrap();
        let source = |to: &str| all.source_for(to.parse().unwrap()).unwrap().to_string();
        assert_eq!(source("192.0.2.200"), "192.0.2.129");
        assert_eq!(source("198.51.100.1"), "192.0.2.1");
        assert_eq!(source("2001:db8::9"), "2001:db8::1");
        assert_eq!(source("fe80::9"), "fe80::ff:fe00:1");
    }

    #[test]
    fn settings_that_cannot_work_are_refused_in_words() {
        assert!(why(&[], &[]).contains("no address"));
        assert!(why(&[("192.0.2.1", 33)], &[]).contains("32 bits"));
        assert!(why(&[("192.0.2.255", 24)], &[]).contains("single host"));
        assert!(why(&[("ff02::1", 64)], &[]).contains("single host"));
        assert!(why(&[("192.0.2.1", 24), ("192.0.2.1", 16)], &[]).contains("twice"));
        assert!(why(&[("192.0.2.1", 24)], &["198.51.100.1"]).contains("gateway"));
        let two = ["192.0.2.3", "192.0.2.4"];
        assert!(why(&[("192.0.2.1", 24)], &two).contains("two gateways"));
        let small = Addresses::new(&settings(&[("2001:db8::1", 64)], &[]), MAC, 1279);
        assert!(small.err().unwrap().to_string().contains("1280"));
    }
}
