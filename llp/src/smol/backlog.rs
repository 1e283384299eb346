//! Queue of completed handshakes for a listener, between the stack and the listener.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::handshakes::Handshake;
use super::packet::Packet;
use super::segment::FlowKey;
use super::signal::Signal;

/// State that a listener shares with the stack.
pub(crate) struct Backlog {
    queue: Mutex<Queue>,
    /// Number of connections of the listener that wait for `try_accept`.
    pub(crate) held: AtomicUsize,
    limit: usize,
    pub(crate) signal: Signal,
}

/// Maximum number of segments that wait with a handshake until the connection is created: the
/// acknowledgement, an initial window of 10 segments (RFC 6928), and some in reserve.
const SEGMENTS: usize = 16;

/// A handshake that the peer has completed.
pub(crate) struct Completed {
    pub(crate) key: FlowKey,
    pub(crate) handshake: Handshake,
    /// The segment that completed the handshake, and those that arrived after it.
    pub(crate) packets: Vec<Packet>,
}

#[derive(Default)]
struct Queue {
    completed: VecDeque<Completed>,
    closed: bool,
}

impl Backlog {
    /// Creates a backlog for `limit` connections (at least one) that were not accepted yet.
    pub(crate) fn new(limit: u32, signal: Signal) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        Self {
            queue: Mutex::default(),
            held: AtomicUsize::new(0),
            limit,
            signal,
        }
    }

    /// Adds a segment of a completed handshake. Returns the segment if there is no room or the
    /// backlog is closed. A peer sends dropped data again, and the data then completes the
    /// handshake.
    pub(crate) fn deliver(
        &self,
        key: FlowKey,
        handshake: Handshake,
        packet: Packet,
    ) -> Result<(), Packet> {
        {
            let mut queue = self.queue.lock();
            let used = queue.completed.len() + self.held.load(Ordering::Acquire);
            let mut completed = queue.completed.iter_mut().rev();
            if let Some(known) = completed.find(|known| known.key == key) {
                if known.packets.len() >= SEGMENTS {
                    return Err(packet);
                }
                known.packets.push(packet);
                return Ok(());
            }
            if queue.closed || used >= self.limit {
                return Err(packet);
            }
            queue.completed.push_back(Completed {
                key,
                handshake,
                packets: vec![packet],
            });
        }
        self.signal.raise();
        Ok(())
    }

    /// Removes and returns the oldest handshake.
    pub(crate) fn take(&self) -> Option<Completed> {
        self.queue.lock().completed.pop_front()
    }

    /// Closes the backlog. Returns the handshakes that are still in the queue.
    pub(crate) fn close(&self) -> VecDeque<Completed> {
        let mut queue = self.queue.lock();
        queue.closed = true;
        mem::take(&mut queue.completed)
    }
}
