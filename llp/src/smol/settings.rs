//! What may be set for a stack in user space.

use std::time::Duration;

use crate::LlpError;

/// The smallest MTU: what every IPv4 host must take (RFC 791 section 3.2).
const MIN_MTU: usize = 576;
/// The largest: the length field of an IPv4 packet has 16 bits.
const MAX_MTU: usize = 65535;
/// The smallest MTU that IPv6 works with: RFC 8200 section 5.
pub(crate) const MIN_IPV6_MTU: usize = 1280;
/// A buffer smaller than this only makes TCP crawl.
const MIN_BUFFER: usize = 2048;
/// smoltcp takes no larger receive buffer.
const MAX_BUFFER: usize = 1 << 30;

/// How late a peer of which nothing is known acknowledges a single segment. RFC 9293 section 3.8.6.3 allows half a
/// second; Linux waits for 40 ms, and for 200 ms at most.
pub(crate) const LATEST_ACK: Duration = Duration::from_millis(200);

/// How a sender reacts to loss: how much it sends then. What is lost is sent again in the same way with each of them. A link in
/// memory loses nothing, so that the default is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Congestion {
    /// Send whatever the peer's window allows.
    #[default]
    None,
    /// Reno, as RFC 5681.
    Reno,
    /// CUBIC, as RFC 9438. With segments near 64 KiB, smoltcp's is known to stall.
    Cubic,
}

/// What the connections of one stack have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackSettings {
    pub(crate) mtu: usize,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    /// Packets that may wait for one connection before its sender holds back.
    pub(crate) inbox: usize,
    /// The most bytes that the buffers may have which wait for one connection.
    pub(crate) inbox_octets: usize,
    pub(crate) congestion: Congestion,
    /// Whether losses are found before smoltcp does.
    pub(crate) early_recovery: bool,
    /// Whether TCP makes and verifies checksums; else the link does, or nobody.
    pub(crate) checksums: bool,
    /// Whether the link takes TCP segments of up to 64 KiB and has them cut.
    pub(crate) bursts: bool,
    pub(crate) ack_delay: Option<Duration>,
    /// How late the peer may acknowledge a single segment.
    pub(crate) peer_ack_delay: Duration,
    pub(crate) connect_timeout: Duration,
    /// After so long without traffic the peer is asked whether it is still there.
    pub(crate) keepalive: Option<Duration>,
    /// What sequence numbers and ports come from; for simulation.
    pub(crate) seed: Option<u64>,
}

/// So many questions of the keep-alive may stay without an answer: the kernel's default.
pub(crate) const KEEPALIVE_PROBES: u32 = 9;

impl StackSettings {
    /// Refuses what smoltcp cannot do.
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
