//! Attachments to an Ethernet: send and receive whole frames for a stack in user space.
//!
//! * [`tap::TapWire`]: a TAP device, with the kernel at the other end. Its packets have up to 64
//!   KiB with offload (GSO), otherwise up to the MTU.
//! * [`raw::RawWire`]: an AF_PACKET socket on an interface. Received packets have up to 64 KiB
//!   (GSO). Without offload, their checksums are completed here.
//! * [`unix::UnixWire`]: one frame in each Unix datagram, as QEMU's `-netdev dgram` does. Packets
//!   have up to the MTU.
//! * [`MemoryWire`]: a cable between two hosts of one process. Packets have up to the MTU.
//!
//! A wire never blocks and never panics. Frames may be lost without an error, as on a cable:
//! because a later queue is full, an interface is down for a moment, or no process receives at the
//! other end. TCP sends the data again. Only a wire that has failed permanently returns
//! [`LlpError::LinkDown`].

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

pub use error::{AttachError, InterfaceName, OpenError};
pub(crate) use memory::MemoryWire;
pub(crate) use unix::MAX_PATH;
pub use unix::remove_socket_files;
pub(crate) use vnet::{complete, ones_complement_sum};

use crate::LlpError;
use crate::smol::{LARGEST, Packet, PacketOffload};

/// Size in bytes of an Ethernet II header without a VLAN tag: destination, source, type.
pub(crate) const HEADER: usize = 14;

/// Largest MTU of an Ethernet. A frame with its header has at most 65535 bytes, as in the kernel
/// for TAP and veth.
pub(crate) const MAX_MTU: usize = 65535 - HEADER;

/// MTU that is assumed if the real one is unknown: every IPv4 host must accept packets of this size
/// (RFC 791 section 3.2).
const MIN_MTU: usize = 576;

/// An attachment to an Ethernet. Any thread may send; one thread at a time receives.
pub(crate) trait Wire: Send + Sync {
    /// Sends one frame, which consists of `header` and `packet`. `offload` describes the work
    /// offloaded to the wire; it must be empty unless the wire [offloads](Self::offloads). Returns
    /// false if the queue of the wire is full. Then nothing was sent, and the caller should try
    /// again soon.
    ///
    /// # Errors
    /// [`LlpError::LinkDown`] and others if the wire has failed permanently. If only this frame is
    /// lost, the result is `Ok(true)`.
    fn send_with(
        &self,
        header: &[u8; HEADER],
        packet: &[u8],
        offload: PacketOffload,
    ) -> Result<bool, LlpError>;

    /// Does the same as [`send_with`](Self::send_with), for a frame with complete checksums.
    #[cfg(test)]
    fn send(&self, header: &[u8; HEADER], packet: &[u8]) -> Result<bool, LlpError> {
        self.send_with(header, packet, PacketOffload::default())
    }

    /// Returns true if the other side cuts TCP segments and completes their checksums, in both
    /// directions.
    fn offloads(&self) -> bool {
        false
    }

    /// Returns the usual maximum length of a received packet on a wire with this MTU.
    fn longest(&self, mtu: usize) -> usize {
        if self.offloads() { LARGEST } else { mtu }
    }

    /// Receives a frame if there is one; never blocks. The length of `packet` is set and may exceed
    /// the MTU. The state of its checksums is set too; without [offload](Self::offloads) they are
    /// complete.
    ///
    /// # Errors
    /// The errors of [`send_with`](Self::send_with).
    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError>;

    /// Descriptor that is readable if [`recv`](Self::recv) would return a frame or an error.
    fn fd(&self) -> BorrowedFd<'_>;

    /// MAC address of this side of the wire.
    fn mac(&self) -> [u8; 6];

    /// Returns the MTU: the size of the largest IP packet in bytes. Each call asks the interface.
    fn mtu(&self) -> usize;

    /// Returns true if the interface was down at its last use, or a frame was lost because the MTU
    /// became smaller. The caller then has to call [`check`](Self::check). This query makes no
    /// system call.
    fn has_problem(&self) -> bool {
        false
    }

    /// Checks an interface that has a problem. Returns true if it has to be checked again later.
    ///
    /// # Errors
    /// [`LlpError::LinkDown`] if the interface no longer exists.
    fn check(&self) -> Result<bool, LlpError> {
        Ok(false)
    }

    /// Returns a description for a log: `TAP uw0`, `raw socket on veth0`, `Unix datagrams /a ->
    /// /b`.
    fn describe(&self) -> String;
}

/// Result of [`Wire::recv`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// No frame was received: there is none, or the data was not a valid frame. In the second case
    /// the descriptor stays readable if more frames wait.
    Nothing,
    /// A frame was received.
    Frame,
    /// A frame that the kernel of this host or another program sent on the same interface (raw
    /// socket only).
    FromOwnKernel,
}

/// Returns a MAC address that is almost certainly unique: 46 random bits, unicast, locally
/// administered.
fn random_mac() -> [u8; 6] {
    // Every `RandomState` has a different key. The address must differ from others, but is no
    // secret.
    let [mut first, b, c, d, e, f, ..] = RandomState::new().hash_one(0).to_ne_bytes();
    first = (first & 0b1111_1100) | 0b0000_0010;
    [first, b, c, d, e, f]
}
