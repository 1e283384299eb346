//! Tuning constants of the kernel's TCP and UDP, each with the reason for its value. Those of TCP
//! in user space are beside its code, in [`smol`](crate::smol) and [`ethernet`](crate::ethernet).
//!
//! [`uwarp_engine::policy`] has the switch that builds without a heuristic.

use std::time::Duration;

uwarp_engine::heuristics! {
    pub const NAMES;

    /// Off: the kernel chooses the window of every connection.
    LoopbackWindow = "loopback_window",
    /// Off: a connection within the host has the system's congestion control.
    RenoWithinHost = "reno_within_host",
    /// Off: `net.ipv4.tcp_notsent_lowat` applies, which does not bound unsent bytes by default.
    UnsentBound = "unsent_bound",
}

// Loopback window: while the peer streams within a host, the window that this end offers is two
// segments. `kernel/loopback_window.rs` says why, and what ends it.

/// Minimum size of a bounded window in bytes; it is rounded up to whole segments. This gives two
/// segments on a loopback device with its default MTU (65,483 bytes each, 65,464 over IPv6),
/// because the kernel acknowledges every second segment immediately. The kernel rounds the window
/// that it offers up to a multiple of the window scale.
///
/// `MPI_Put` of 1 MiB reached 8.5 GB/s with two segments, and 7.1 to 7.6 GB/s with three to eight
/// (Open MPI on the drop-in library, AMD EPYC of Zen 4).
pub(crate) const WINDOW: u32 = 128_000;
/// Number of bytes received between two checks of the window. A check bounds a bounded window
/// again, because the kernel widens the window when it enlarges the receive buffer or receives
/// larger segments. The system calls take about 0.1 to 0.2 % of the time in which these bytes
/// arrive. Bounded only once, the window was back at 2.7 MB after 4 MB, and `MPI_Put` at 7.1 GB/s.
pub(crate) const WINDOW_INTERVAL: u64 = 4 << 20;
/// Longest time in which [`WINDOW_INTERVAL`] bytes of a stream arrive. It corresponds to 1 GB/s,
/// half of what the slowest pair of processors reached.
pub(crate) const STREAM: Duration = Duration::from_millis(4);
/// Minimum number of bytes sent in one call that count as an answer, which frees the window. It is
/// less than a segment, because the kernel may accept one segment at a time. The module has what a
/// bounded window costs an exchange.
pub(crate) const ANSWER: usize = 60_000;

// Congestion control: within a host, `reno` replaces a system's control that is not loss-based, as
// `kernel/control.rs` describes.

/// Congestion control within a host, which every kernel has and every user may choose (`tcp(7)`).
/// `iperf3 -l 1M` over the loopback device reached 38 to 41 Gbit/s with it, and 31 to 35 with
/// `bbr`.
pub(crate) const WITHIN_A_HOST: &[u8] = b"reno";

// Unsent bytes (`kernel.rs`).

/// Number of bytes that wait in the kernel unsent before a send blocks (TCP_NOTSENT_LOWAT of
/// `tcp(7)`). The kernel may exceed it by a segment.
///
/// Without it a peer that never reads makes this end fill the send buffer (2.6 MB over loopback),
/// with a CRC and a copy for all of it. With 250 such peers a second, an honest peer had 0.47 to
/// 0.65 of its throughput; with this bound it had 0.85 (the attack `reads_without_reading`).
/// Streams of Writes, Reads and Sends of 64 KiB to 8 MiB over loopback had their throughput from
/// before, within the noise. A bound of 256 KiB took a quarter of it.
///
/// The bound takes precedence over `net.ipv4.tcp_notsent_lowat`.
pub(crate) const MAX_UNSENT: u32 = 1 << 20;

// Bounds on one call and on what waits (`kernel/listener.rs`, `kernel/datagrams.rs`).

/// Maximum number of connections that one accept skips because they failed before, so that a flood
/// of them does not hold the thread. Not measured.
pub(crate) const MAX_DEAD: usize = 64;
/// Size of the receive buffer that is requested for datagrams, because the kernel drops what finds
/// it full; the kernel grants at most `net.core.rmem_max`. Not measured: it holds a thousand
/// datagrams of the largest size.
pub(crate) const DATAGRAM_BUFFER: usize = 4 * 1024 * 1024;
