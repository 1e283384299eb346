//! Bytes that the QPs of a device have moved.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that the QPs of a device have moved since the device was opened
/// ([`Device::traffic`](crate::Device::traffic)). The verbs have no counterpart; the kernel has
/// `port_xmit_data` and `port_rcv_data` in its `counters` directory.
///
/// They are bytes of the TCP streams (with headers, Markers and CRCs, without retransmissions), and
/// for datagrams bytes of the UDP payload that arrives at a port of QPs, whether a QP takes it or
/// not. What was read before a QP had the stream does not count: an MPA Request, and bytes that the
/// program has read itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Number of bytes that the network has taken.
    pub sent_bytes: u64,
    /// Number of bytes that were received.
    pub received_bytes: u64,
}

/// Count of a device. Each call that moves bytes adds to it.
#[derive(Default, Debug)]
pub(crate) struct TrafficCount {
    sent: AtomicU64,
    received: AtomicU64,
}

impl TrafficCount {
    #[inline]
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Traffic {
        Traffic {
            sent_bytes: self.sent.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
        }
    }
}
