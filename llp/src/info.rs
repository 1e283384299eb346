//! Description of a network: its addresses, interfaces and MTU.

use std::net::IpAddr;

/// Result of [`Network::info`](crate::Network::info).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInfo {
    /// Addresses that connections can use, in a stable order; those of the loopback interface come
    /// last. At most [`NetworkInfo::MOST`].
    pub addresses: Vec<IpAddr>,
    /// Numbers of the interfaces of these addresses in the kernel (`if_nametoindex`), in the same
    /// order. Empty if the network does not belong to the kernel.
    pub interfaces: Vec<u32>,
    /// Size in bytes of the largest IP packet, on the interface of the first address.
    pub mtu: usize,
    /// MAC address of that interface, if it has one.
    pub mac: Option<[u8; 6]>,
}

impl NetworkInfo {
    /// Largest number of addresses that are reported.
    pub const MOST: usize = 64;
}
