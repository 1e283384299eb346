//! Constants of batches, buffers, queues and the close.

use std::time::Duration;

// Batches (`connection/transmit.rs`): what one call gives to the LLP. The sender is the bottleneck
// of a stream within a host, and each call, segment and acknowledgement costs it more than the
// bytes: 1 MiB in calls of 64 KiB costs a raw sender 220 us, in one call 104 (Zen 4).

/// A batch with this many staged and lent bytes is handed to the LLP, unless the peer or the
/// program has asked for much more ([`BATCH_LIMIT`]). So much staging stays in the second-level
/// cache. With 128 KiB, Read Responses of 1 MiB and 64 KiB had 0.93 and 0.90 of the throughput;
/// with 512 KiB 0.82 and 0.94 (Intel Xeon, within the noise).
pub(crate) const STAGED_LIMIT: usize = 256 * 1024;
/// A batch with this many bytes in all (staged, lent and in place) is handed to the LLP. Writes in
/// batches of 256 and 512 KiB are slower or equal (Intel Xeon).
pub const BATCH_LIMIT: usize = 1024 * 1024;
/// Maximum number of parts handed to the LLP in one call. Not measured: the kernel takes 1024, and
/// the array is cleared for each call.
pub const PARTS_PER_CALL: usize = 64;
/// Maximum number of parts of one batch, which then takes several calls. Not measured.
pub(crate) const PARTS_LIMIT: usize = 4 * PARTS_PER_CALL;
/// Room in bytes for one FPDU, with Markers, beyond the limit of a batch. The largest has 68 KiB;
/// the rest is for a vector that grows. Not measured.
pub(crate) const FPDU_ROOM: usize = 128 * 1024;
/// Maximum capacity in bytes of the staging buffer that a connection keeps between batches: a full
/// batch and one more FPDU, so that no message causes an allocation.
pub(crate) const STAGING_KEPT: usize = BATCH_LIMIT + FPDU_ROOM;
/// Size in bytes of the largest staging buffer that an idle connection keeps; a larger one returns
/// to the pool. Otherwise a peer could make many connections keep large ones, by Reads. Not
/// measured.
pub(crate) const SMALL_STAGING: usize = 16 * 1024;
/// Maximum length in bytes of a ULPDU while memory is short (`connection/staging_account.rs`). A
/// vector may double its capacity, which then is still at most [`SMALL_STAGING`].
pub(crate) const SHORT_ULPDU: usize = 7 * 1024;

// In place (`connection/outbound.rs`): large payload without a CRC, or with
// `Settings::send_in_place`, leaves from the program's memory. With it, 1 MiB Reads without a CRC
// went from 0.80 to 0.95 of the best raw TCP (Zen 5).

/// Minimum number of payload bytes of an FPDU that is sent in place. Staging a smaller payload is
/// faster and needs no pin: FPDUs of 1448 bytes in a `writev` have 0.60 to 0.65 of the best raw
/// TCP, and staged ones 0.78 (prototype, AMD EPYC).
pub(crate) const IN_PLACE_BYTES: usize = 8 * 1024;

// Fast paths (`connection/send_fast_path.rs`, `receive_fast_path.rs`, `write_fast_path.rs`): small
// requests and whole segments skip the general path. 8-byte Writes in lists of 64 went from 1,873
// to 960 instructions at the requester, and from 793 to 650 at the target. The send path takes what
// is staged and fits one segment, so it has no constant of its own.

// Rare EMSS (`connection.rs`): over the kernel's TCP a query of the EMSS is a system call.

/// Number of bytes sent between two queries of the EMSS where they are system calls. The EMSS
/// changes when the path does, and FPDUs that are not aligned until then are correct. Not measured.
pub(crate) const EMSS_INTERVAL: u64 = 16 * 1024 * 1024;

// Receive buffers (`connection/receive_buffer.rs`): one read takes many FPDUs.

/// Length in bytes of a normal receive buffer. It has room for many FPDUs, and for more than one of
/// the largest. With 512 KiB, 1 MiB Reads had 0.96 and 64 KiB Reads 0.91 of the throughput (Intel
/// Xeon, within the noise).
pub(crate) const RECEIVE_BUFFER: usize = 256 * 1024;
/// Length in bytes of the receive buffer of a connection that fills a normal one. Besides the
/// bytes, each read costs the socket lock of the kernel and an acknowledgement. A raw TCP sender
/// takes 104 us per MiB if the receiver reads 1 MiB at once, and 119 us if it polls with reads of
/// 256 KiB (Zen 4).
pub(crate) const LARGE_RECEIVE_BUFFER: usize = 1024 * 1024;
/// A connection stops using a large buffer after this many reads in a row that would have fit a
/// normal one. If a receiver is faster than its peer, short reads occur between those that need the
/// large buffer. Not measured against other numbers.
pub(crate) const SMALL_READS: u16 = 1024;

// Buffer pool (`connection/buffer_pool.rs`): connections share unused receive and staging buffers,
// which are still in the caches of the thread that used them last.

/// Number of shelves of a pool, so that few threads share a lock. Not measured.
pub(crate) const POOL_SHELVES: usize = 8;
/// Maximum number of buffers of each kind on one shelf, so 16 in a pool. A thread that serves one
/// connection after the other needs one. Not measured.
pub(crate) const SHELF_BUFFERS: usize = 2;

// Queues and the close. No build is without these.

/// Number of places that a send queue allocates for its first request. Each further time it
/// doubles, so that an idle connection stays small. Not measured.
pub(crate) const FIRST_PLACES: usize = 4;
/// Number of bytes that one confirmation of this side's Writes covers while more requests wait.
/// Without a limit, a program that always has requests in the queue would get no completion. Not
/// measured.
pub(crate) const CONFIRMED_AT_ONCE: u64 = 256 * 1024;
/// Interval at which a connection that both sides have closed checks whether its last bytes were
/// acknowledged. Not measured.
pub const ACKNOWLEDGED_CHECK: Duration = Duration::from_millis(10);
