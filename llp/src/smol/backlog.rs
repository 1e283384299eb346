//! Queue of SYNs for a listener, between the stack and the listener.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::packet::Packet;
use super::signal::Signal;

/// State that a listener shares with the stack.
pub(crate) struct Backlog {
    queue: Mutex<Queue>,
    /// Number of connections of the listener that are in their handshake or wait for `try_accept`.
    pub(crate) held: AtomicUsize,
    limit: usize,
    pub(crate) signal: Arc<Signal>,
}

#[derive(Default)]
struct Queue {
    packets: VecDeque<Packet>,
    closed: bool,
}

impl Backlog {
    /// Creates a backlog for `limit` connections (at least one) that were not accepted yet.
    pub(crate) fn new(limit: u32, signal: Arc<Signal>) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        Self {
            queue: Mutex::default(),
            held: AtomicUsize::new(0),
            limit,
            signal,
        }
    }

    /// Adds a SYN. Returns it if there is no room or the backlog is closed. A peer sends a dropped
    /// SYN again after about a second.
    pub(crate) fn deliver(&self, packet: Packet) -> Result<(), Packet> {
        {
            let mut queue = self.queue.lock();
            let used = queue.packets.len() + self.held.load(Ordering::Acquire);
            if queue.closed || used >= self.limit {
                return Err(packet);
            }
            queue.packets.push_back(packet);
        }
        self.signal.raise();
        Ok(())
    }

    /// Removes and returns the oldest SYN.
    pub(crate) fn take(&self) -> Option<Packet> {
        self.queue.lock().packets.pop_front()
    }

    /// Closes the backlog. Returns the SYNs that are still in the queue.
    pub(crate) fn close(&self) -> VecDeque<Packet> {
        let mut queue = self.queue.lock();
        queue.closed = true;
        mem::take(&mut queue.packets)
    }
}
