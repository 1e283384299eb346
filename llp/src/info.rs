//! What a network is made of, for whoever describes it.

use std::net::IpAddr;

/// What [`Network::info`](crate::Network::info) tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInfo {
    /// Addresses that connections come from and go to, in a stable order; those of the loopback interface
    /// last. At most [`NetworkInfo::MOST`].
    pub addresses: Vec<IpAddr>,
    /// Numbers by which the kernel knows the interfaces of these addresses (`if_nametoindex`), in the same order. Empty where
    /// the network is none of the kernel's.
    pub interfaces: Vec<u32>,
    /// Octets of the largest IP packet, on the interface of the first address.
    pub mtu: usize,
    /// The MAC address of that interface, if it has one.
    pub mac: Option<[u8; 6]>,
}

impl NetworkInfo {
    /// So many addresses are told at most.
    pub const MOST: usize = 64;
}
