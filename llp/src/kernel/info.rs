//! Interfaces of this machine.

use std::fs;
use std::net::IpAddr;

use crate::NetworkInfo;

/// MTU reported if the MTU of an interface cannot be read.
const LOOPBACK_MTU: usize = 65536;

/// Returns the addresses of all interfaces that are up, with the loopback interface last. The MTU
/// and the MAC address are those of the first interface.
pub(super) fn info() -> NetworkInfo {
    let mut found: Vec<(bool, u32, String, IpAddr)> = if_addrs::get_if_addrs()
        .unwrap_or_default()
        .into_iter()
        .filter(if_addrs::Interface::is_oper_up)
        .map(|interface| {
            // Index 0 belongs to no interface.
            let index = interface.index.unwrap_or(0);
            let (loopback, addr) = (interface.is_loopback(), interface.ip());
            (loopback, index, interface.name, addr)
        })
        .collect();
    found.sort_by_key(|(loopback, index, _, addr)| (*loopback, *index, addr.is_ipv6(), *addr));
    found.truncate(NetworkInfo::MOST);
    let first = found.first().map(|(_, _, name, _)| name.clone());
    NetworkInfo {
        mtu: first
            .as_deref()
            .and_then(|name| of(name, "mtu")?.parse().ok())
            .unwrap_or(LOOPBACK_MTU),
        mac: first.as_deref().and_then(|name| mac(&of(name, "address")?)),
        interfaces: found.iter().map(|(_, index, _, _)| *index).collect(),
        addresses: found.into_iter().map(|(_, _, _, addr)| addr).collect(),
    }
}

/// Reads an attribute of an interface from sysfs.
fn of(interface: &str, what: &str) -> Option<String> {
    // Linux allows no slash in the name of an interface.
    if interface.contains('/') {
        return None;
    }
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/{what}")).ok()?;
    Some(text.trim().to_owned())
}

/// Parses a MAC address. The all-zero address of the loopback interface gives `None`.
fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    (parts.next().is_none() && bytes != [0; 6]).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_six_bytes_that_are_not_all_zero_are_a_mac_address() {
        assert_eq!(mac("02:00:00:00:00:1f"), Some([2, 0, 0, 0, 0, 0x1f]));
        for none in [
            "00:00:00:00:00:00",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "",
            "x",
        ] {
            assert_eq!(mac(none), None, "{none}");
        }
    }

    #[test]
    fn this_machine_has_the_loopback_address_last() {
        let info = info();
        assert!(info.addresses.last().is_some_and(IpAddr::is_loopback));
        assert!(info.mtu >= 576);
        assert_eq!(info.interfaces.len(), info.addresses.len());
        let loopback = fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
        assert_eq!(
            info.interfaces.last().map(u32::to_string).as_deref(),
            Some(loopback.trim())
        );
    }
}
