//! Attachments to an Ethernet: what takes whole frames from this program and gives it those that
//! arrive.

mod memory;

use std::os::fd::BorrowedFd;

pub(crate) use memory::MemoryWire;

use crate::LlpError;
use crate::smol::Packet;

/// Octets of an Ethernet II header without a VLAN tag.
pub(crate) const HEADER: usize = 14;

/// One attachment to an Ethernet.
pub(crate) trait Wire: Send + Sync {
    /// Sends one frame: the header, then the packet. `false`: the queue of the wire is full, nothing
    /// was sent, try again soon. A frame that a passing cause loses counts as sent.
    ///
    /// # Errors
    /// The wire is gone (unplugged, deleted, down for good): the link has failed.
    fn send(&self, header: &[u8; HEADER], packet: &[u8]) -> Result<bool, LlpError>;

    /// Takes one frame when one is there; never blocks. The packet is resized to what came, which
    /// may be longer than the MTU; its checksums are complete.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError>;

    /// Readable while a frame is there, and once the wire is gone.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Our address on this wire.
    fn mac(&self) -> [u8; 6];

    /// The longest IP packet that it carries, in octets.
    fn mtu(&self) -> usize;

    /// What it is, for a log: `TAP uw0`, `raw socket on veth0` ...
    fn describe(&self) -> String;
}

/// What [`Wire::recv`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// No frame is there now.
    Nothing,
    /// A frame that came over the wire.
    Frame,
    /// A frame that this host's own kernel sent on the same interface.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "only a raw socket sees what the kernel sends")
    )]
    FromOwnKernel,
}
