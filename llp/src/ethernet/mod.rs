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
//! Whoever drives a connection first takes in what the wire has, for all connections of the host.
//! The thread of the link does it while nobody does. When somebody did within the last 50 us, it
//! stands back, without a look at the wire, and asks again 50 us later (200 us after a millisecond of that), and so takes no
//! processor from a thread that spins.
//!
//! # Offload
//! A wire of TAP or a raw socket has a virtio-net header in front of every frame, unless [`Offload::Off`] is set. Then TCP
//! makes packets of nearly 64 KiB without checksums, and the kernel cuts them at the MSS of the peer and completes
//! them; the other way they come as the kernel has them. Of those that arrive, a checksum is verified here only if the
//! header neither says that somebody has, nor that it was never made. See `smol/burst.rs` for what TCP is told, and
//! `smol/align.rs` for where the kernel cuts. Packets that are longer than [`LinkSettings::mtu`] are in no
//! buffer that waits for long unless they fill a part of it, and an inbox is bounded in bytes, too.
//!
//! A host that is [`with_carrier`](EthernetNetwork::with_carrier) has no thread: whoever carries its frames hands them in, and gives it
//! turns.
//!
//! # Addresses
//! Everything is configured by [`LinkSettings`]: Router Advertisements are ignored, and there is no
//! DHCP. With an IPv6 address comes the link-local one of the MAC address; it is unique on its
//! only link, so the scope of an address is ignored. A destination in the network of one of our addresses is
//! a neighbour; all others are reached by the gateway of their family, or not at all
//! ([`LlpError::Unreachable`](crate::LlpError::Unreachable), at once).
//! A neighbour is asked for three times, a second apart; if it does not answer, connections that
//! are being made to it or through it fail as unreachable, and those that stand go on trying. At
//! most 1024 neighbours are known at a time, and none that was sent to within the last minute makes
//! room for another.
//!
//! Opening a link asks whether anybody else has its addresses, without waiting for an answer, and
//! announces them 100 ms later. When another host, now or later, claims one of them, that is told by
//! [`NetworkEvent::AddressConflict`](crate::NetworkEvent::AddressConflict), and a trace. The same event tells
//! that the kernel of this machine has one of our addresses: it resets connections that it knows
//! nothing of, and such a connection ends with
//! [`LlpError::KernelHasAddress`](crate::LlpError::KernelHasAddress).
//!
//! # What is spoken
//! Ethernet II without VLAN tags, ARP, IPv4 and IPv6 without fragments (they are dropped and
//! counted) and, with IPv6, without extension headers. TCP; of ICMP the echo, answered up to 1000
//! times a second, and reports about our connections: one that cannot be made ends with what was
//! reported. A report counts only if it quotes what the connection has under way. No multicast
//! listener reports are sent: a switch that snoops for them has to flood unknown groups.
//!
//! # When the wire is full, or gone
//! When the wire takes no more, frames wait in a bounded queue, in order, and connections hold
//! theirs back. When it is gone, the link is down for good: every connection ends with
//! [`LlpError::LinkDown`](crate::LlpError::LinkDown), listeners and new connections say the same, and
//! [`Network::fault`](crate::Network::fault) and
//! [`NetworkEvent::Down`](crate::NetworkEvent::Down) tell of it.

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
