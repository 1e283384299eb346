//! GID table of the port. It is read once, when the process opens its device, because programs keep
//! indices of entries: a table that follows the interfaces would give an index to another address.

use std::net::IpAddr;
use std::sync::Arc;

use uwarp_verbs::Gid;
use uwarp_verbs::llp::NetworkInfo;

/// An entry of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    /// Kernel index of the address's interface, or 0 if the network does not belong to the kernel.
    pub(crate) interface: u32,
}

/// Returns the table of an iWARP device: an entry with the MAC address, as in Linux' drivers, and
/// the addresses of the network. The first entry belongs to the interface of the first address.
pub(crate) fn iwarp(mac: Gid, network: &NetworkInfo) -> Arc<[GidEntry]> {
    let first = GidEntry {
        gid: mac,
        interface: network.interfaces.first().copied().unwrap_or(0),
    };
    let addresses = addresses(network).map(|(addr, interface)| entry(addr, interface));
    [first].into_iter().chain(addresses).collect()
}

/// Returns the table of a RoCE device, which has addresses alone. Programs prefer low indices, so
/// that the addresses that most peers can reach come first: IPv4, IPv6, and then those of one link.
/// The loopback addresses are there only if there are no others, because peers on other machines
/// cannot reach them. `only`: the address of the device, if it has a fixed one.
pub(crate) fn roce(network: &NetworkInfo, only: Option<IpAddr>) -> Arc<[GidEntry]> {
    let mut found: Vec<_> = match only {
        Some(addr) => vec![(addr, interface_of(network, addr))],
        None => addresses(network).collect(),
    };
    // An address of the loopback interface that is not a loopback address comes after those of real
    // interfaces. The sort is stable: the order of the interfaces is kept.
    let is_of_loopback = |interface: u32| {
        let mut all = addresses(network);
        all.any(|(addr, its)| addr.is_loopback() && its == interface)
    };
    found.sort_by_key(|(addr, interface)| (reach(*addr), is_of_loopback(*interface)));
    if found.iter().any(|(addr, _)| !addr.is_loopback()) {
        found.retain(|(addr, _)| !addr.is_loopback());
    }
    let entries = found.into_iter();
    entries
        .map(|(addr, interface)| entry(addr, interface))
        .collect()
}

/// Place of an address in the order of a RoCE device's table.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    V4,
    V6,
    Link,
    Loopback,
}

fn reach(addr: IpAddr) -> Reach {
    match addr {
        _ if addr.is_loopback() => Reach::Loopback,
        IpAddr::V4(v4) if v4.is_link_local() => Reach::Link,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Reach::Link,
        IpAddr::V4(_) => Reach::V4,
        IpAddr::V6(_) => Reach::V6,
    }
}

/// Returns the interface of an address. An address such as 127.0.0.2 is not listed, and belongs to
/// the interface of the other loopback addresses.
fn interface_of(network: &NetworkInfo, addr: IpAddr) -> u32 {
    let are_loopback = |other: &IpAddr| addr.is_loopback() && other.is_loopback();
    let own = addresses(network).find(|(other, _)| *other == addr);
    let own = own.or_else(|| addresses(network).find(|(other, _)| are_loopback(other)));
    own.map_or(0, |(_, interface)| interface)
}

/// Returns the addresses of a network, with their interfaces.
fn addresses(network: &NetworkInfo) -> impl Iterator<Item = (IpAddr, u32)> {
    // A network of another kind than the kernel's TCP has no interfaces.
    let interfaces = network.interfaces.iter().copied();
    let interfaces = interfaces.chain(std::iter::repeat(0));
    network.addresses.iter().copied().zip(interfaces)
}

fn entry(addr: IpAddr, interface: u32) -> GidEntry {
    let bytes = match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    GidEntry {
        gid: Gid(bytes),
        interface,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(addresses: &[(&str, u32)]) -> NetworkInfo {
        NetworkInfo {
            addresses: addresses
                .iter()
                .map(|(addr, _)| addr.parse().unwrap())
                .collect(),
            interfaces: addresses.iter().map(|(_, interface)| *interface).collect(),
            mtu: 1500,
            mac: None,
        }
    }

    fn shown(table: &[GidEntry]) -> Vec<(String, u32)> {
        let shown = table.iter();
        shown
            .map(|entry| (entry.gid.to_string(), entry.interface))
            .collect()
    }

    fn due(entries: &[(&str, u32)]) -> Vec<(String, u32)> {
        let due = entries.iter();
        due.map(|(gid, interface)| ((*gid).to_owned(), *interface))
            .collect()
    }

    const MAC: Gid = Gid([2, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

    #[test]
    fn an_iwarp_device_has_the_mac_address_and_then_all_addresses_in_their_order() {
        let table = iwarp(
            MAC,
            &network(&[("192.0.2.1", 3), ("2001:db8::1", 4), ("127.0.0.1", 1)]),
        );
        let expected = due(&[
            ("200:0:7::", 3),
            ("::ffff:192.0.2.1", 3),
            ("2001:db8::1", 4),
            ("::ffff:127.0.0.1", 1),
        ]);
        assert_eq!(shown(&table), expected);
    }

    #[test]
    fn a_roce_device_has_ipv4_first_then_ipv6_then_link_local_and_no_loopback() {
        let listed = network(&[
            ("192.0.2.9", 1),
            ("169.254.1.1", 2),
            ("192.0.2.1", 2),
            ("2001:db8::1", 2),
            ("fe80::1", 2),
            ("192.0.2.5", 3),
            ("fe80::2", 3),
            ("fd00::1", 3),
            ("127.0.0.1", 1),
            ("::1", 1),
        ]);
        let expected = due(&[
            ("::ffff:192.0.2.1", 2),
            ("::ffff:192.0.2.5", 3),
            ("::ffff:192.0.2.9", 1),
            ("2001:db8::1", 2),
            ("fd00::1", 3),
            ("::ffff:169.254.1.1", 2),
            ("fe80::1", 2),
            ("fe80::2", 3),
        ]);
        assert_eq!(shown(&roce(&listed, None)), expected);
    }

    #[test]
    fn a_roce_device_has_loopback_addresses_where_there_are_no_others() {
        let listed = network(&[("127.0.0.1", 1), ("::1", 1)]);
        let expected = due(&[("::ffff:127.0.0.1", 1), ("::1", 1)]);
        assert_eq!(shown(&roce(&listed, None)), expected);
        assert_eq!(shown(&roce(&network(&[]), None)), []);
    }

    #[test]
    fn a_roce_device_with_a_fixed_address_has_no_other() {
        let listed = network(&[
            ("192.0.2.1", 2),
            ("2001:db8::1", 2),
            ("127.0.0.1", 1),
            ("::1", 1),
        ]);
        for (only, gid, interface) in [
            ("127.0.0.1", "::ffff:127.0.0.1", 1),
            ("127.0.0.2", "::ffff:127.0.0.2", 1),
            ("::1", "::1", 1),
            ("2001:db8::1", "2001:db8::1", 2),
            ("192.0.2.77", "::ffff:192.0.2.77", 0),
        ] {
            let table = roce(&listed, Some(only.parse().unwrap()));
            assert_eq!(shown(&table), due(&[(gid, interface)]), "{only}");
        }
    }

    #[test]
    fn a_network_without_interfaces_has_entries_with_index_0() {
        let mut user_space = network(&[("192.0.2.1", 0), ("2001:db8::1", 0)]);
        user_space.interfaces.clear();
        let table = iwarp(MAC, &user_space);
        assert!(table.iter().all(|entry| entry.interface == 0));
        assert_eq!(table.len(), 3);
        assert_eq!(shown(&iwarp(MAC, &network(&[]))), due(&[("200:0:7::", 0)]));
    }
}
