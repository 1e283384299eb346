//! TCP in user space, by smoltcp, over an attachment to an Ethernet.
//!
//! ```text
//!  owner of a connection                                   thread of the link
//!  SmolConnection                                          parked in poll(2)
//!     | transmit          receive: by either ----------------+
//!     v                                |                     |
//!  neighbours (ARP, NDP)               v                     |
//!     |                    frame -> ARP, NDP, ICMP           |
//!     v                          -> Stack: table -> Mailbox  |
//!  OutQueue --------------------> Wire <---------------------+
//! ```
//! Before a thread drives a connection, it receives the frames on the wire, for all connections of
//! the host. While no connection is driven, the thread of the link receives them instead. If a
//! connection was driven within the last 50 us, the link's thread does not touch the wire. It then
//! checks again 50 us later, and after a millisecond in this state only every 200 us. So it takes
//! no processor time from a thread that spins.
//!
//! # Offload
//! On a TAP device or a raw socket, a virtio-net header precedes every frame, unless
//! [`Offload::Off`] is set. With this header, TCP makes packets of nearly 64 KiB without checksums.
//! The kernel cuts them at the MSS of the peer, and completes the checksums. Packets received from
//! the kernel may be long and without checksums, too. The stack verifies the checksum of a received
//! packet, unless the header says that it was verified or never computed.
//!
//! `smol/burst.rs` describes how smoltcp makes such packets, and `smol/align.rs` where the kernel
//! cuts them. A packet longer than [`LinkSettings::mtu`] is kept in a buffer of its size class, so
//! that waiting packets waste little memory. An inbox has a limit in bytes, too.
//!
//! A host made by [`EthernetNetwork::with_carrier`] has no thread. Its owner delivers frames and
//! calls [`EthernetNetwork::turn`].
//!
//! # Addresses
//! [`LinkSettings`] configures all addresses: Router Advertisements are ignored, and there is no
//! DHCP. A host with an IPv6 address also gets the link-local address of its MAC address. The scope
//! of an address is ignored, because the host has only one link. A destination in the network of an
//! own address is a neighbour. All other destinations are reached through the gateway of their
//! family. Without a gateway, they fail at once with
//! [`LlpError::Unreachable`](crate::LlpError::Unreachable).
//!
//! The question for a neighbour's MAC address is sent up to three times, a second apart. If the
//! neighbour does not answer, connection attempts to it or through it fail as unreachable.
//! Established connections continue to retransmit. The cache holds at most 1024 neighbours. It does
//! not evict a neighbour to which packets were sent within the last minute.
//!
//! When a link is opened, it sends probes that ask whether another host has its addresses. It does
//! not wait for an answer, and announces the addresses 100 ms later. If another host claims one of
//! them, at this time or later, the link reports this by
//! [`NetworkEvent::AddressConflict`](crate::NetworkEvent::AddressConflict) and a trace event. The
//! same event reports that the kernel of this machine has one of the addresses. In this case the
//! kernel resets connections that it does not know. A connection that is reset in this way ends
//! with [`LlpError::KernelHasAddress`](crate::LlpError::KernelHasAddress).
//!
//! # Protocols
//! The link supports Ethernet II without VLAN tags, ARP, IPv4, IPv6 and TCP. Fragments of IP
//! packets are dropped and counted, and IPv6 extension headers are not supported. ICMP echo
//! requests are answered, up to 1000 a second. ICMP errors end connection attempts with the error
//! that they report. An ICMP error counts only if it quotes a segment that the connection has in
//! flight. No multicast listener reports are sent, so a switch that snoops for them has to flood
//! unknown groups.
//!
//! # When the wire is full or has failed
//! When the wire accepts no more frames, they wait in a bounded queue, in order, and connections
//! hold further packets back. When the wire fails, the link is down permanently. Every connection
//! ends with [`LlpError::LinkDown`](crate::LlpError::LinkDown), and listeners and new connections
//! return the same error. [`Network::fault`](crate::Network::fault) and
//! [`NetworkEvent::Down`](crate::NetworkEvent::Down) report it as well.

mod addresses;
mod arp;
mod counters;
mod events;
mod external_link;
mod frame;
mod icmp;
mod link;
mod neighbours;
mod network;
mod offload;
mod outqueue;
mod receive;
mod settings;
#[cfg(test)]
mod tests;
mod thread;
mod trouble;

pub use counters::LinkCounters;
pub use external_link::FrameCarrier;
pub use network::{Cable, EthernetNetwork};
pub use settings::{LinkSettings, Offload};
