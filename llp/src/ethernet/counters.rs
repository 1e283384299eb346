//! Counters of frames, mainly of those that were dropped.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the link was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Frames that arrived for another host, or for an unsupported protocol.
    pub not_for_us: u64,
    /// Frames with an invalid header or a wrong checksum.
    pub malformed: u64,
    /// Fragments of IP packets, which are not reassembled here.
    pub fragments: u64,
    /// Outgoing packets that were dropped because no neighbour was found or a queue was full.
    pub unsent: u64,
    /// Echo requests (pings) that were answered.
    pub echoes: u64,
    /// ICMP messages that match no connection, or none of its segments in flight.
    pub strange_reports: u64,
}

/// The same counters, shared by threads.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) not_for_us: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) fragments: AtomicU64,
    pub(super) unsent: AtomicU64,
    pub(super) echoes: AtomicU64,
    pub(super) strange_reports: AtomicU64,
}

impl Counters {
    /// Increments one counter.
    pub(super) fn add(&self, which: impl Fn(&Self) -> &AtomicU64) {
        which(self).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> LinkCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LinkCounters {
            not_for_us: read(&self.not_for_us),
            malformed: read(&self.malformed),
            fragments: read(&self.fragments),
            unsent: read(&self.unsent),
            echoes: read(&self.echoes),
            strange_reports: read(&self.strange_reports),
        }
    }
}
