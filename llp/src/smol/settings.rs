//! Settings of a stack in user space.

use std::time::Duration;

use crate::LlpError;

/// Smallest MTU that is accepted: every IPv4 host must accept packets of this size (RFC 791 section
/// 3.2).
const MIN_MTU: usize = 576;
/// Largest MTU that is accepted: the length field of an IPv4 packet has 16 bits.
const MAX_MTU: usize = 65535;
/// Smallest MTU of IPv6 (RFC 8200 section 5).
pub(crate) const MIN_IPV6_MTU: usize = 1280;
/// Smallest useful buffer in bytes. TCP is very slow with less.
const MIN_BUFFER: usize = 2048;
/// Largest receive buffer of smoltcp.
const MAX_BUFFER: usize = 1 << 30;

/// Maximum time that is assumed for a peer to delay the acknowledgement of a single segment. RFC
/// 9293 section 3.8.6.3 allows half a second. Linux waits 40 ms, and at most 200 ms.
pub(crate) const LATEST_ACK: Duration = Duration::from_millis(200);

/// Congestion control: how a sender reduces its rate after a loss. It has no effect on the
/// retransmission of lost bytes. The default is none, because the in-memory link loses nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Congestion {
    /// Sends as much as the peer's window allows.
    #[default]
    None,
    /// Reno (RFC 5681).
    Reno,
    /// CUBIC (RFC 9438). With segments near 64 KiB, smoltcp's implementation is known to stall.
    Cubic,
}

/// Settings that the connections of one stack share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackSettings {
    pub(crate) mtu: usize,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    /// Number of packets that may wait for one connection. At this number, its sender holds packets
    /// back.
    pub(crate) inbox: usize,
    /// Maximum total size in bytes of the buffers that wait for one connection.
    pub(crate) inbox_bytes: usize,
    pub(crate) congestion: Congestion,
    /// Detects losses before smoltcp's timer fires (`connection/recovery.rs`).
    pub(crate) early_recovery: bool,
    /// True if TCP computes and verifies checksums. If false, the link does, or no checksums are
    /// used.
    pub(crate) checksums: bool,
    /// True if the link accepts TCP segments of up to 64 KiB and cuts them.
    pub(crate) bursts: bool,
    pub(crate) ack_delay: Option<Duration>,
    /// Maximum time for which the peer delays the acknowledgement of a single segment.
    pub(crate) peer_ack_delay: Duration,
    pub(crate) connect_timeout: Duration,
    /// Time without traffic after which the peer is probed.
    pub(crate) keepalive: Option<Duration>,
    /// Seed for sequence numbers and ports; for simulation.
    pub(crate) seed: Option<u64>,
}

/// Number of keep-alive probes that may stay unanswered, as in the kernel's default.
pub(crate) const KEEPALIVE_PROBES: u32 = 9;

impl StackSettings {
    /// Returns an error for values that smoltcp cannot handle.
    pub(crate) fn check(&self, op: &'static str) -> Result<(), LlpError> {
        let misuse = |why| Err(LlpError::Misuse { op, why });
        if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            return misuse("the MTU must be from 576 to 65535 bytes");
        }
        let buffers = [self.receive_buffer, self.send_buffer];
        if buffers
            .iter()
            .any(|size| !(MIN_BUFFER..=MAX_BUFFER).contains(size))
        {
            return misuse("a buffer must have from 2048 bytes to 1 GiB");
        }
        if self.inbox == 0 {
            return misuse("an inbox must hold at least one packet");
        }
        Ok(())
    }
}
