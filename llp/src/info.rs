//! What a network is made of, for whoever describes it.

use std::net::IpAddr;

/// What [`Network::info`](crate::Network::info) tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInfo {
    /// Addresses that connections come from and go to, in a stable order; those of the loopback interface
    /// last. At most [`NetworkInfo::MOST`].
    pub addresses: Vec<IpAddr>,
    /// Octets of the largest IP packet, on the interface of the first address.
    pub mtu: usize,
    /// The MAC address of that interface, if it has one.
    pub mac: Option<[u8; 6]>,
}

impl NetworkInfo {
    /// So many addresses are told at most.
    pub const MOST: usize = 64;
}
