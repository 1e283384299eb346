//! Constants that bound a turn, and what one call takes.

use std::time::Duration;

// Bounds on a turn. They share a thread fairly between its connections, so no build is without
// them.

/// Maximum number of bytes that one turn receives, and also the maximum that it sends. It bounds
/// the wait of the thread's other connections, and of threads that need the lock. With 1 MiB, Reads
/// of 1 MiB and 64 KiB had 0.96 and 0.94 of the throughput (Intel Xeon, within the noise).
pub(crate) const MAX_TURN_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of connections that a listener accepts in one turn. Not measured.
pub(crate) const ACCEPTS_PER_TURN: u32 = 64;
/// Maximum number of datagrams that one poll receives, so that its thread gets its completions. Not
/// measured.
pub(crate) const DATAGRAMS_PER_POLL: u32 = 32;
/// Maximum number of datagrams that the background receives in one turn. Not measured.
pub(crate) const DATAGRAMS_PER_TURN: u32 = 256;
/// Maximum time that a Send of a datagram waits for room in the socket. Linux's usual send buffer
/// (212,992 bytes) is sent in 17 ms at 100 Mbit/s.
pub(crate) const DATAGRAM_WAIT: Duration = Duration::from_millis(20);
/// Maximum number of completions that the async API delivers before it releases its lock; they are
/// on the stack. Not measured.
pub(crate) const DELIVERED_AT_ONCE: usize = 8;
