//! When a post is sent, which connections a poll drives, and when the background steps in.

use std::time::Duration;

use uwarp_engine::policy::transfer::BATCH_LIMIT;

// Takeover and stand-back (`connection/inner.rs`, `progress/poll_owner.rs`): the background leaves
// a connection to the threads that poll it, and takes it back when they stop. 8 bytes take 3.35 us
// one way if there is no background, 3.7 if it stands back, 4.5 if it is always armed, and 7 if it
// alone receives (prototype, AMD EPYC).

/// Default of `Settings::takeover`: a poll counts as recent for this time. A check of the
/// background takes 7 us (Intel Xeon), so shorter times would disturb the program more. Not
/// measured against other times.
pub(crate) const TAKEOVER: Duration = Duration::from_micros(50);
/// Number of polls of a group without an event for the background after which the program counts as
/// polling. A program that polls once for each message and then watches memory does not reach it,
/// so the background serves it at once. For single connections, which have a flag instead
/// (`polls_receive`), 8-byte Writes to such a program went from 74 us to between 16 and 30. The
/// number is not measured.
pub(crate) const GROUP_SPINS: u32 = 8;

// Back-off (`progress/back_off.rs`): the longer the program polls, the longer are the pauses of the
// background between its checks for that. On one of 100 connections, an 8-byte Send took 9.4 us
// with a check every 107 us, and 5.9 us without (Intel Xeon).

/// Each check lengthens the pause by this fraction, so that a program that stops polling waits at
/// most an eighth of the time for which it polled, beyond `takeover`. Not measured.
pub(crate) const BACK_OFF_PART: u32 = 8;
/// Maximum pause, as a multiple of `takeover`. With pauses of up to 500 us, one of 100 and one of
/// 10,000 connections have 0.86 to 1.37 times the latency of a single one, and 1.82 to 2.75 times
/// without (Intel Xeon).
pub(crate) const BACK_OFF_FACTOR: u32 = 10;

// Doorbell (`progress/doorbell.rs`, `connection/posting.rs`): what a program posts between two
// polls is staged and sent together. 8-byte Writes that are posted one by one went from 6,600 to
// 560 ns of the sender's processor time.

/// Number of staged requests that make a full batch. Larger batches save almost nothing: with 256
/// messages of 8 bytes in a call, a sender takes 28 ns for each (67 with 64, 125 with 16; raw TCP
/// with a CRC, AMD EPYC).
pub(crate) const DOORBELL_REQUESTS: u64 = 256;
/// Number of staged bytes that make a full batch: the longest that one call sends
/// ([`BATCH_LIMIT`]).
pub(crate) const DOORBELL_BYTES: u64 = BATCH_LIMIT as u64;
/// A list of this many requests counts as several posts, because a program that waits for its first
/// request would not post so many. Not measured.
pub(crate) const LONG_LIST: u64 = 16;

// Late confirmations (`progress/confirmations.rs`, `connection/outbound.rs` of the engine): the
// Response that confirms a Write of the peer waits for the post that usually follows it. The
// typical time of `ib_write_lat` by queue pair numbers went from 8.5 to 4.0 us (Intel Xeon).

/// Number of Responses in a row that a post has followed, after which one is expected to follow the
/// next. Not measured.
pub(crate) const RESPONSES_FOLLOWED: u8 = 3;
/// Maximum time after which a post follows a Response, and maximum time that the background keeps
/// one. `ib_write_lat` takes 4 us for a message in all, so this is many times what a program needs
/// that answers from a loop. Not measured against other times.
pub(crate) const POST_FOLLOWS: Duration = TAKEOVER;
/// Interval at which a process that exits checks whether its confirmations are sent. Not measured.
pub(crate) const EXIT_CHECK: Duration = Duration::from_micros(50);

// Groups (`progress/epoll_group.rs`, `cq/members.rs`): a CQ with many QPs asks one epoll set which
// of them are ready. With one of 10,000 connections active, an 8-byte Send took 8.7 ms when each
// poll drove all of them.

/// A CQ with more QPs than this has a group. With up to this many, a turn for each QP costs about
/// as much as a query of the set: a `recv` takes 224 ns.
pub(crate) const FEW_QPS: usize = 4;
/// Maximum number of ready connections that one query of the set returns, which bounds a poll. Not
/// measured.
pub(crate) const GROUP_EVENTS: usize = 64;
/// A CQ with groups drives its connections once in this many polls that find completions. Otherwise
/// a program that always finds some would leave the others to the background: 64-byte Writes on 8
/// QPs reach 1.2 million a second with these turns, and 0.14 without (Zen 4). The number is not
/// measured.
pub(crate) const GROUP_HITS: u32 = 8;

// Last active member (`progress/epoll_group/last_active.rs`): while one member of a group receives
// alone, polls try it without a query of the set, which saves a system call. On one of 100
// connections, an 8-byte Send takes 5.3 us with it, and 6.3 without (Zen 4).

/// Number of polls that skip the set after a query without ready members. Not measured.
pub(crate) const ALONE_POLLS: u32 = 16;
/// The same limit as a time, for programs that poll rarely. Not measured.
pub(crate) const ALONE_NANOSECONDS: u64 = 10_000;

// Rare clock (`connection/polling.rs`): a poll does not read the clock again after a short turn.
// Together with `send` instead of `sendmsg`, 8 bytes went from 6.26 to 6.02 us.

/// Turns that moved at most this many bytes count as short. They take a few microseconds, far less
/// than `takeover`. Not measured against other lengths.
pub(crate) const SHORT_TURN_BYTES: u64 = 4096;

// Orphan polling (`progress/orphan_polling.rs`): polls that find nothing also drive active
// connections of other CQs that no thread polls. The servers of perftest wait in this way.
// `ib_read_lat` takes 8.9 us with these polls, and 25.9 without (Zen 4).

/// Maximum number of orphans of a device, because each costs a poll one more `recv`. Not measured.
pub(crate) const MAX_ORPHANS: usize = 4;
/// An orphan is left to the background again after this many turns in a row without traffic, which
/// are about a millisecond of polls. Not measured.
pub(crate) const ORPHAN_IDLE_TURNS: u32 = 2000;
/// A program that polled within this time is expected to poll again. Not measured.
pub(crate) const ORPHAN_POLLED_WITHIN: Duration = Duration::from_millis(1);

// Reply wait (`progress/reply_wait.rs`, `cq.rs`): a poll that takes a completion waits for the
// peer's answer if the program seems to watch memory for it. Otherwise the answer waits until the
// background gets the processor: 15 us for the wake-up and 7 for its turn.

/// Maximum wait of one poll, without the time for which it yielded. A round trip of `ib_write_lat`
/// takes 8.4 us (Zen 5). Not measured against other times.
pub(crate) const REPLY_WAIT: Duration = Duration::from_micros(20);
/// A poll that has waited for this long yields between its attempts, because the reply may depend
/// on a thread that waits for this processor. A program that reads memory in a loop does not yield
/// by itself. Two pairs of `ib_write_lat` on two processors take 5.6 to 15 us per message with
/// these yields, and took 16 us to 4 ms without (Intel Xeon).
pub(crate) const REPLY_WAIT_ALONE: Duration = Duration::from_micros(5);
/// Maximum number of yields of one poll, as each may give the processor away for some milliseconds.
/// Not measured against other numbers.
pub(crate) const REPLY_YIELDS: u32 = 8;
/// Maximum number of attempts of one poll, which ends the wait even if the device's clock is
/// stopped. A poll that finds nothing takes 0.4 us, so the wait usually ends by its time. Not
/// measured.
pub(crate) const REPLY_ATTEMPTS: usize = 256;
/// Number of signs that enable the wait at first, because a few may occur by chance. Not measured.
pub(crate) const REPLY_SIGNS: u32 = 4;
/// Maximum number of signs that enable the wait. The number doubles each time that waits without a
/// reply disable it, so a program that expects none wastes little. Not measured.
pub(crate) const REPLY_SIGNS_MAX: u32 = 4096;
/// Number of waits in a row without a reply that disable the wait. Not measured.
pub(crate) const REPLY_MISSES: u32 = 4;

// Rounds and retries of the background (`progress/background.rs`, `progress/drive.rs`,
// `progress/poll_owner.rs`, `cq.rs`, `cm/listener.rs`). Where the kernel reports no event, a timer
// checks.

/// Maximum number of events that a round of the background takes from the kernel at a time. Not
/// measured.
pub(crate) const BACKGROUND_EVENTS: usize = 64;
/// Pause after a failed `epoll_wait`, so that the thread does not spin. Not measured: it never
/// fails on a valid descriptor.
pub(crate) const EPOLL_FAILED: Duration = Duration::from_millis(1);
/// Time after which adding a descriptor to an epoll set is tried again, when the kernel had no
/// memory or watches left. Not measured.
pub(crate) const EPOLL_RETRY: Duration = Duration::from_millis(10);
/// Interval at which a connection tries again to receive, after the memory limits did not allow it
/// or there was no memory for a buffer. Not measured.
pub(crate) const MEMORY_RETRY: Duration = Duration::from_millis(10);
/// Interval at which a connection checks whether the peer has closed, while a message waits for a
/// receive. Each check is a system call. Not measured.
pub(crate) const CLOSE_CHECK: Duration = Duration::from_millis(250);
/// Pause of a wait in a process without a free descriptor to sleep on. Not measured.
pub(crate) const NO_DESCRIPTOR: Duration = Duration::from_millis(1);
/// Pause of a listener that reached a limit of the system, before it tries again. Not measured.
pub(crate) const LISTENER_PAUSE: Duration = Duration::from_millis(50);
