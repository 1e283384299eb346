//! Attachments to an Ethernet: what sends and receives whole frames for a stack in user space.
//!
//! | wire | what it is | frames the other side may give |
//! |---|---|---|
//! | [`tap::TapWire`] | a TAP device: the kernel is the other end | with offload up to 64 KiB (GSO), else up to the MTU |
//! | [`raw::RawWire`] | an AF_PACKET socket on an interface of its own | up to 64 KiB (GSO); without offload checksums are filled in here |
//! | [`unix::UnixWire`] | one frame in one Unix datagram, as QEMU's `-netdev dgram` | up to the MTU |
//! | [`MemoryWire`] | a cable between two hosts of one process | up to the MTU |
//!
//! A wire never blocks and never panics. What is lost on the way (a full queue further on, an
//! interface that is down for a moment, nobody at the other end) is lost as on a cable, and TCP
//! sends it again. Only a wire that will not come back says [`LlpError::LinkDown`].

mod error;
mod filter;
mod interface;
mod memory;
mod owner;
mod raw;
mod scatter;
mod sys;
mod tap;
#[cfg(test)]
mod tests;
mod unix;
mod vnet;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;

pub use error::{AttachError, InterfaceName};
pub(crate) use memory::MemoryWire;
pub(crate) use unix::MAX_PATH;
pub use unix::remove_socket_files;
pub(crate) use vnet::{complete, ones_complement_sum};

use crate::LlpError;
use crate::smol::{LARGEST, Left, Packet};

/// Bytes of an Ethernet II header without a VLAN tag: destination, source, type.
pub(crate) const HEADER: usize = 14;

/// The largest MTU of an Ethernet: a frame and its header within 65535 bytes, as the kernel has it
/// for TAP and veth.
pub(crate) const MAX_MTU: usize = 65535 - HEADER;

/// The MTU when nobody can tell: what every IPv4 host must take (RFC 791 section 3.2).
const MIN_MTU: usize = 576;

/// One attachment to an Ethernet. Any thread may send; one receives.
pub(crate) trait Wire: Send + Sync {
    /// Sends one frame: header, then packet, which leaves to the wire what `left` says; nothing, unless the wire
    /// [offloads](Self::offloads). `false`: the queue of the wire is full, nothing was sent, try again soon.
    ///
    /// # Errors
    /// [`LlpError::LinkDown`] and others when the wire is gone for good. A frame lost to a cause
    /// that passes is `Ok(true)`.
    fn send_with(&self, header: &[u8; HEADER], packet: &[u8], left: Left)
    -> Result<bool, LlpError>;

    /// Sends a whole frame, as [`send_with`](Self::send_with).
    #[cfg(test)]
    fn send(&self, header: &[u8; HEADER], packet: &[u8]) -> Result<bool, LlpError> {
        self.send_with(header, packet, Left::default())
    }

    /// Whether the other side cuts TCP segments and completes their checksums, for frames in both directions.
    fn offloads(&self) -> bool {
        false
    }

    /// The most bytes that the packet of a frame has, as a rule, on a wire with this MTU.
    fn longest(&self, mtu: usize) -> usize {
        if self.offloads() { LARGEST } else { mtu }
    }

    /// Takes one frame when one is there; never blocks. The packet is resized to what came, which
    /// may exceed the MTU, and says how far its checksums are. Without [offload](Self::offloads) they are complete.
    ///
    /// # Errors
    /// As [`send_with`](Self::send_with).
    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError>;

    /// Readable when a frame is there, or an error that [`recv`](Self::recv) will tell.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Our own MAC address on this wire.
    fn mac(&self) -> [u8; 6];

    /// The largest IP packet in bytes, asked of the interface at each call.
    fn mtu(&self) -> usize;

    /// Whether the interface is down, or has lost a frame because its MTU is smaller by now: to be
    /// looked at with [`look`](Self::look). A cheap question.
    fn is_troubled(&self) -> bool {
        false
    }

    /// Looks at an interface that is troubled. `true`: it still is, look again in a while.
    ///
    /// # Errors
    /// [`LlpError::LinkDown`] when the interface is gone.
    fn look(&self) -> Result<bool, LlpError> {
        Ok(false)
    }

    /// What it is, for a log: `TAP uw0`, `raw socket on veth0`, `Unix datagrams /a -> /b`.
    fn describe(&self) -> String;
}

/// What [`Wire::recv`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Nothing is there now. (Or what was there was no frame; the descriptor then stays readable as
    /// long as there is more.)
    Nothing,
    /// A frame.
    Frame,
    /// A frame that this host's own kernel, or another program, sent on that interface (AF_PACKET
    /// only).
    FromOwnKernel,
}

/// A MAC address nobody else has, in all likelihood: 46 random bits, unicast, locally administered.
fn random_mac() -> [u8; 6] {
    // Every `RandomState` is another secret key.
    let [mut first, b, c, d, e, f, ..] = RandomState::new().hash_one(0).to_ne_bytes();
    first = (first & 0b1111_1100) | 0b0000_0010;
    [first, b, c, d, e, f]
}
