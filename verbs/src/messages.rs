//! Messages on standard error that never block the caller.
//!
//! Peers can cause messages, and the reader of standard error may be slow or absent. So a message
//! is dropped if standard error does not accept it at once, if there were too many messages in a
//! short time, or if there were too many about one peer. The next message that is printed follows
//! the number of dropped ones.
//!
//! There is no lock: a child that is forked while another thread holds one finds it taken for ever.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::clock::machine_nanos;

/// Rate of all messages of the process: more than a person reads, and 100 at once.
const OF_PROCESS: Rate = Rate {
    interval: Duration::from_millis(100),
    burst: 100,
};

/// Rate of the messages about one peer.
const OF_PEER: Rate = Rate {
    interval: Duration::from_secs(1),
    burst: 30,
};

/// Maximum number of peers with a rate of their own. Messages about further peers count only for
/// the process.
const MAX_PEERS: usize = 256;

/// Number of bytes that a pipe accepts without blocking if `poll` reports it as writable (PIPE_BUF
/// of `pipe(7)`).
const AT_ONCE: usize = 4096;

/// Messages of this process that were dropped since the last one was printed.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Limits of this process. A child inherits those of its parent.
static LIMITS: Limits = Limits::new();

/// Prints a message, which should end with a newline. `peer` is the peer that caused it, if one
/// did. Returns false if the message was dropped.
///
/// # Errors
/// Standard error cannot be written, for example because its reader has closed it.
pub fn print(peer: Option<IpAddr>, text: &str) -> io::Result<bool> {
    print_to(&io::stderr(), &LIMITS, &DROPPED, peer, text)
}

/// Writes a part of a log that the user asked for, without a limit of the rate. Returns false if
/// standard error did not accept all of it at once.
///
/// # Errors
/// As [`print()`].
pub fn write(text: &str) -> io::Result<bool> {
    let shown = write_nonblocking(&io::stderr(), text)?;
    if !shown {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
    Ok(shown)
}

fn print_to(
    to: &impl AsFd,
    limits: &Limits,
    dropped: &AtomicU64,
    peer: Option<IpAddr>,
    text: &str,
) -> io::Result<bool> {
    if !limits.take(peer, machine_nanos()) {
        dropped.fetch_add(1, Ordering::Relaxed);
        return Ok(false);
    }
    let before = dropped.swap(0, Ordering::Relaxed);
    let head = match before {
        0 => String::new(),
        1 => "uwarp: 1 more message was not shown\n".to_owned(),
        _ => format!("uwarp: {before} more messages were not shown\n"),
    };
    let shown = write_nonblocking(to, &(head + text))?;
    if !shown {
        dropped.fetch_add(before + 1, Ordering::Relaxed);
    }
    Ok(shown)
}

/// Writes a text in parts of at most [`AT_ONCE`] bytes, without blocking. Returns false if it was
/// not written completely. Bypasses the lock of [`io::Stderr`], because a blocked thread may hold
/// it.
fn write_nonblocking(to: &impl AsFd, text: &str) -> io::Result<bool> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let mut fds = [PollFd::new(to, PollFlags::OUT)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(0) => return Ok(false),
            Err(Errno::INTR) => continue,
            Ok(_) | Err(_) => {}
        }
        match rustix::io::write(to, rest.get(..AT_ONCE).unwrap_or(rest)) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}

/// A number of messages at once, and one more after each interval.
#[derive(Clone, Copy)]
struct Rate {
    interval: Duration,
    burst: u32,
}

impl Rate {
    /// Takes one message. `full_at` is the time at which the whole burst is available again. Times
    /// are in nanoseconds.
    fn take(self, full_at: &AtomicU64, now: u64) -> bool {
        let interval = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX);
        let latest = now.saturating_add(interval.saturating_mul(self.burst.into()));
        let next = |full_at: u64| {
            let next = full_at.max(now).saturating_add(interval);
            (next <= latest).then_some(next)
        };
        full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }
}

/// Times at which the bursts are available again.
struct Limits {
    process: AtomicU64,
    peers: [OfOnePeer; MAX_PEERS],
}

/// Rate of the peer that used it last. It is free for another peer when the burst is available
/// again. If two peers use it at the same moment, one of them may get a message more or less.
struct OfOnePeer {
    /// Hash of the address, or 0.
    peer: AtomicU64,
    full_at: AtomicU64,
}

impl OfOnePeer {
    const fn new() -> Self {
        OfOnePeer {
            peer: AtomicU64::new(0),
            full_at: AtomicU64::new(0),
        }
    }
}

impl Limits {
    const fn new() -> Self {
        Limits {
            process: AtomicU64::new(0),
            peers: [const { OfOnePeer::new() }; MAX_PEERS],
        }
    }

    fn take(&self, peer: Option<IpAddr>, now: u64) -> bool {
        if let Some(of_peer) = peer.and_then(|peer| self.of_peer(peer, now))
            && !OF_PEER.take(&of_peer.full_at, now)
        {
            return false;
        }
        OF_PROCESS.take(&self.process, now)
    }

    /// Returns the rate of a peer, or a free one. `None` if there is none.
    fn of_peer(&self, peer: IpAddr, now: u64) -> Option<&OfOnePeer> {
        let mut hasher = DefaultHasher::new();
        peer.hash(&mut hasher);
        let hash = hasher.finish().max(1);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let known = |of: &&OfOnePeer| of.peer.load(Ordering::Relaxed) == hash;
        let takes = |of: &&OfOnePeer| {
            let before = of.peer.load(Ordering::Relaxed);
            let is_free = of.full_at.load(Ordering::Relaxed) <= now;
            is_free
                && of
                    .peer
                    .compare_exchange(before, hash, success, failure)
                    .is_ok()
        };
        let found = self.peers.iter().find(known);
        found.or_else(|| self.peers.iter().find(takes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write, pipe};

    #[test]
    fn a_rate_is_a_burst_and_one_message_for_each_interval() {
        let rate = Rate {
            interval: Duration::from_secs(1),
            burst: 3,
        };
        let full_at = AtomicU64::new(0);
        let taken = |millis: u64| {
            let now = (5000 + millis) * 1_000_000;
            (0..10).filter(|_| rate.take(&full_at, now)).count()
        };
        assert_eq!(taken(0), 3);
        assert_eq!(taken(999), 0);
        assert_eq!(taken(1000), 1);
        assert_eq!(taken(60_000), 3);
    }

    #[test]
    fn a_peer_that_causes_many_messages_leaves_room_for_those_about_others() {
        let limits = Limits::new();
        let now = 5_000_000_000;
        let noisy = Some([192, 0, 2, 1].into());
        let shown = (0..1000).filter(|_| limits.take(noisy, now)).count();
        assert_eq!(shown, 30);
        assert!(limits.take(Some([192, 0, 2, 2].into()), now) && limits.take(None, now));
        // Neither many peers nor messages without a peer exceed the rate of the process.
        for number in 0..1000_u32 {
            limits.take(Some(number.to_be_bytes().into()), now);
        }
        assert!(!limits.take(None, now));
        // All are forgotten when their bursts are available again, and new ones have room.
        let later = now + 60_000_000_000;
        let shown = (0..1000).filter(|_| limits.take(noisy, later)).count();
        assert_eq!(shown, 30);
    }

    #[test]
    fn messages_into_a_full_pipe_are_dropped_and_counted() {
        let (mut reader, writer) = pipe().unwrap();
        let (limits, dropped) = (Limits::new(), AtomicU64::new(0));
        // A pipe holds 64 KiB, which is less than these messages.
        let line = format!("{}\n", "x".repeat(1999));
        let shown = (0..60).filter(|_| {
            let print = print_to(&writer, &limits, &dropped, None, &line);
            print.unwrap()
        });
        let shown = shown.count();
        assert!((28..=33).contains(&shown), "{shown}");
        assert_eq!(dropped.load(Ordering::Relaxed), 60 - shown as u64);
        let mut read = vec![0; shown * line.len()];
        reader.read_exact(&mut read).unwrap();
        assert!(print_to(&writer, &limits, &dropped, None, "last\n").unwrap());
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let count = 60 - shown;
        assert_eq!(
            rest,
            format!("uwarp: {count} more messages were not shown\nlast\n")
        );
    }

    #[test]
    fn a_message_for_a_reader_that_is_gone_is_an_error() {
        let (reader, mut writer) = pipe().unwrap();
        drop(reader);
        let (limits, dropped) = (Limits::new(), AtomicU64::new(0));
        let error = print_to(&writer, &limits, &dropped, None, "text\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let _ = writer.flush();
    }
}
