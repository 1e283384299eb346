//! TCP in user space, by smoltcp, over an attachment to an Ethernet.
//!
//! ```text
//!  owner of a connection                                   thread of the link
//!  SmolConnection                                          parked in poll(2)
//!     | transmit          take in: by either ----------------+
//!     v                                |                     |
//!  neighbours (ARP, NDP)               v                     |
//!     |                    frame -> ARP, NDP, ICMP           |
//!     v                          -> Stack: table -> Mailbox  |
//!  OutQueue --------------------> Wire <---------------------+
//! ```
//! The driver of a connection first takes in the frames on the wire, for all connections of the
//! host. The thread of the link does so while no connection is driven. If a connection was driven
//! within the last 50 us, the thread does not touch the wire. It checks again 50 us later (200 us
//! after a millisecond in this state), and so takes no processor from a thread that spins.
//!
//! # Offload
//! On a wire of TAP or a raw socket, a virtio-net header precedes every frame, unless
//! [`Offload::Off`] is set. Then TCP makes packets of nearly 64 KiB without checksums. The kernel
//! cuts them at the MSS of the peer, and completes the checksums. Packets from the kernel may be
//! long and without checksums as well. A checksum of theirs is verified here unless the header says
//! that it was verified, or that it was never computed.
//!
//! `smol/burst.rs` describes how smoltcp is made to send such packets, and `smol/align.rs` where
//! the kernel cuts them. A packet longer than [`LinkSettings::mtu`] is kept in a buffer of its size
//! class, so waiting packets waste little memory. An inbox is bounded in bytes, too.
//!
//! A host made by [`EthernetNetwork::with_carrier`] has no thread. Its carrier delivers its frames
//! and calls [`EthernetNetwork::turn`].
//!
//! # Addresses
//! Everything is configured by [`LinkSettings`]: Router Advertisements are ignored, and there is no
//! DHCP. A host with an IPv6 address also gets the link-local address of its MAC address. It is
//! unique on the only link, so the scope of an address is ignored. A destination in the network of
//! an own address is a neighbour. All others are reached by the gateway of their family. Without a
//! gateway, they are [`LlpError::Unreachable`](crate::LlpError::Unreachable) at once.
//!
//! A neighbour is asked for three times, a second apart. If it does not answer, connection attempts
//! to it or through it fail as unreachable. Connections that stand continue to try. At most 1024
//! neighbours are known at a time. A neighbour that packets were sent to within the last minute is
//! not evicted.
//!
//! When a link is opened, it probes whether another host has its addresses, without waiting for an
//! answer, and announces them 100 ms later. If another host claims one of them, now or later, this
//! is reported by [`NetworkEvent::AddressConflict`](crate::NetworkEvent::AddressConflict) and a
//! trace event. The same event reports that the kernel of this machine has one of the addresses.
//! The kernel resets connections that it does not know, and such a connection ends with
//! [`LlpError::KernelHasAddress`](crate::LlpError::KernelHasAddress).
//!
//! # Protocols
//! Ethernet II without VLAN tags, ARP, IPv4 and IPv6 without fragments (they are dropped and
//! counted) and, with IPv6, without extension headers. TCP. ICMP echo requests are answered, up to
//! 1000 a second. ICMP errors end connection attempts with the error that they report. An error
//! counts only if it quotes a segment that the connection has in flight. No multicast listener
//! reports are sent: a switch that snoops for them has to flood unknown groups.
//!
//! # When the wire is full, or gone
//! When the wire accepts no more, frames wait in a bounded queue, in order, and connections hold
//! theirs back. When the wire is gone, the link is down permanently. Every connection ends with
//! [`LlpError::LinkDown`](crate::LlpError::LinkDown), and listeners and new connections return the
//! same error. [`Network::fault`](crate::Network::fault) and
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
