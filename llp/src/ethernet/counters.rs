//! Counters of a link, mainly of dropped frames and packets.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of an Ethernet link since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Received frames for another host or of an unsupported protocol.
    pub not_for_us: u64,
    /// Received frames with an invalid header or a wrong checksum.
    pub malformed: u64,
    /// Received fragments of IP packets, which are not reassembled.
    pub fragments: u64,
    /// Outgoing packets that were dropped because no neighbour was found or a queue was full.
    pub unsent: u64,
    /// Echo requests (pings) that were answered.
    pub echoes: u64,
    /// Received ICMP errors that match no connection, or no segment that a connection has in
    /// flight.
    pub strange_reports: u64,
}

/// The counters of [`LinkCounters`] as atomics, shared by threads.
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
    /// Increments the counter that `which` selects.
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
