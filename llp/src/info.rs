//! Description of a network: its addresses, interfaces and MTU.

use std::net::IpAddr;

/// Result of [`Network::info`](crate::Network::info).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInfo {
    /// Addresses that connections can use, at most [`NetworkInfo::MOST`]. Their order is stable,
    /// with the addresses of the loopback interface last.
    pub addresses: Vec<IpAddr>,
    /// Kernel index (`if_nametoindex`) of each address's interface, in the order of `addresses`.
    /// Empty if the network does not use the kernel's TCP.
    pub interfaces: Vec<u32>,
    /// MTU of the first address's interface: the size of the largest IP packet in bytes.
    pub mtu: usize,
    /// MAC address of the first address's interface, if it has one.
    pub mac: Option<[u8; 6]>,
}

impl NetworkInfo {
    /// Largest number of addresses that are reported.
    pub const MOST: usize = 64;
}
