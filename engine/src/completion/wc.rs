//! Completion entries: opcode and data of one work request.

use core::num::NonZeroU32;

use crate::datagram::Header;

use crate::cause::Cause;
use crate::status::Status;

/// Kind of a completed work request. The numeric values are those of `ibv_wc_opcode`. In `ibv_wc`
/// it has no meaning if the status is an error; here it is always set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A Send of any kind.
    #[default]
    Send = 0,
    /// An RDMA Write.
    RdmaWrite = 1,
    /// An RDMA Read.
    RdmaRead = 2,
    /// An atomic compare and swap (RFC 7306).
    CompareSwap = 3,
    /// An atomic fetch and add (RFC 7306).
    FetchAdd = 4,
    /// Binding a memory window.
    BindWindow = 5,
    /// Invalidating a local STag.
    LocalInvalidate = 6,
    /// Fast registration. `ibv_wc_opcode` has no number for it; only the kernel's has.
    Register = 0x100,
    /// A receive.
    Recv = 128,
    /// A receive that Immediate Data (RFC 7306) completed.
    RecvImmediate = 129,
}

impl WcOpcode {
    /// The value as `ibv_wc_opcode`.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Returns true for work requests of the receive queue (the bit `IBV_WC_RECV`).
    #[must_use]
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvImmediate)
    }
}

/// One entry of a completion queue (a CQE, `ibv_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Completion {
    /// Number that the program gave to the work request.
    pub wr_id: u64,
    /// Status of the request.
    pub status: Status,
    /// Kind of the request.
    pub opcode: WcOpcode,
    /// Number of bytes received into the memory of the receive, or read; 8 for an atomic operation.
    /// It is 0 for Immediate Data, even after a Write (see [`written`](Self::written)).
    pub byte_len: u32,
    /// QP to which the request was posted.
    pub qp_num: u32,
    /// STag that was invalidated on this side: by the peer's Send (RFC 5040 section 5.3), or by an
    /// RDMA Read for its sink (`SendWr::invalidate_sink`).
    pub invalidated: Option<u32>,
    /// True if the peer requested a solicited event.
    pub solicited: bool,
    /// The 8 bytes of Immediate Data of a [`WcOpcode::RecvImmediate`], in wire order (RFC 7306
    /// section 6). Of a [`WcOpcode::Recv`]: the 4 bytes of a
    /// [Send with Immediate Data](crate::wr::SendWr::send_with_immediate), and 4 zeros.
    pub immediate: Option<[u8; 8]>,
    /// Number of bytes of the Write that preceded this Immediate Data (`byte_len` of `ibv_wc`). It
    /// is 0 if no Write preceded it, or if a message in between took a receive.
    pub written: u32,
    /// Origin of the datagram that was received. The receive then begins with a Global Route
    /// Header of 40 bytes, which [`byte_len`](Self::byte_len) includes.
    pub datagram: Option<DatagramSource>,
    /// Cause of the failure or flush; `None` for success.
    pub cause: Option<Cause>,
}

/// Origin of a datagram, in the completion of the receive
/// (`Completion::datagram`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramSource(NonZeroU32);

impl DatagramSource {
    /// Bit that no number of a QP has (24 bits).
    const IPV6: u32 = 1 << 31;

    /// Returns the origin of a datagram; `None` if its QP number is none.
    pub(crate) fn of(header: &Header) -> Option<Self> {
        let number = NonZeroU32::new(header.source).filter(|number| number.get() >> 24 == 0)?;
        let family = if header.is_ipv6() { Self::IPV6 } else { 0 };
        Some(DatagramSource(number | family))
    }

    /// Number of the QP that sent it.
    #[must_use]
    pub fn qp_num(self) -> u32 {
        self.0.get() & !Self::IPV6
    }

    /// Returns true if it came by IPv6. The Global Route Header is then an IPv6 header. Otherwise
    /// it is an IPv4 header in its bytes 20 to 39.
    #[must_use]
    pub fn is_ipv6(self) -> bool {
        self.0.get() & Self::IPV6 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_ibverbs() {
        assert_eq!(WcOpcode::Recv.code(), 128);
        assert_eq!(WcOpcode::RdmaRead.code(), 2);
    }
}
