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
    fn a_network_without_interfaces_has_entries_with_index_0() {
        let mut user_space = network(&[("192.0.2.1", 0), ("2001:db8::1", 0)]);
        user_space.interfaces.clear();
        let table = iwarp(MAC, &user_space);
        assert!(table.iter().all(|entry| entry.interface == 0));
        assert_eq!(table.len(), 3);
        assert_eq!(shown(&iwarp(MAC, &network(&[]))), due(&[("200:0:7::", 0)]));
    }
}
