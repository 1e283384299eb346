//! Sorts the segments of one TCP connection into causal order.
//!
//! In a capture, a segment may follow its own acknowledgement. This happens if the capture was
//! merged from two queues of a network adapter, two mirror ports or two files. The sorter releases
//! a segment after it has released all bytes before it and all bytes that it acknowledges. Until
//! then, the segment waits. The wait is bounded, because the capture may lack the awaited bytes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use super::connection::Now;

/// Maximum wait of a segment, in packets of its connection. The queues of an adapter hold some
/// hundreds of packets.
const PATIENCE: u64 = 256;
/// Maximum wait of a segment, in time of the capture. It is checked when the next packet of the
/// connection arrives.
const PATIENCE_TIME: Duration = Duration::from_secs(1);
/// Maximum number of bytes that wait.
const MAX_WAITING: usize = 1024 * 1024;
/// Estimated memory of a waiting segment besides its bytes.
const OVERHEAD: usize = size_of::<(u64, Arrival<'static>)>();
/// Largest TCP window (RFC 7323 section 2.3). A sequence number at a greater distance does not
/// belong to this connection.
const WINDOW: i32 = 1 << 30;

/// A TCP segment of a connection, as the capture contains it.
#[derive(Debug, Clone)]
pub(super) struct Arrival<'a> {
    pub(super) now: Now,
    /// Index of the side that sent the segment.
    pub(super) from: usize,
    pub(super) seq: u32,
    pub(super) ack: Option<u32>,
    pub(super) syn: bool,
    pub(super) fin: bool,
    pub(super) rst: bool,
    /// Captured part of the payload.
    pub(super) bytes: Cow<'a, [u8]>,
    /// Length of the payload on the wire.
    pub(super) len: u32,
}

impl Arrival<'_> {
    fn into_owned(self) -> Arrival<'static> {
        Arrival {
            bytes: Cow::Owned(self.bytes.into_owned()),
            ..self
        }
    }

    fn held(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }

    /// Returns the sequence number after the segment.
    fn end(&self) -> u32 {
        let flags = u32::from(self.syn) + u32::from(self.fin);
        self.seq.wrapping_add(self.len).wrapping_add(flags)
    }
}

/// State of one direction.
#[derive(Debug, Default)]
struct Way {
    /// Sequence number after all released bytes. It is unknown until a SYN arrives. For a
    /// connection that began before the capture, it is unknown until its first segment is released.
    next: Option<u32>,
    /// True if a segment of this direction has arrived.
    seen: bool,
    /// True if the wait for this direction ended before any of its segments arrived. Then the other
    /// direction no longer waits for it.
    absent: bool,
}

/// Sorts the segments of a connection.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    ways: [Way; 2],
    /// Waiting segments in the order of the capture. The number counts all segments of the
    /// connection up to this one.
    waiting: VecDeque<(u64, Arrival<'static>)>,
    held: usize,
    arrivals: u64,
}

/// Returns true if sequence number `number` is after `other`, by less than a window.
fn is_after(number: u32, other: u32) -> bool {
    (1..WINDOW).contains(&(number.wrapping_sub(other) as i32))
}

impl Sorter {
    /// Returns the memory that the waiting segments use.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Returns true if the capture seems to contain no segment of this direction.
    pub(super) fn is_absent(&self, way: usize) -> bool {
        self.ways[way].absent
    }

    /// Handles a segment of the capture. Returns the segment if it need not wait. Call
    /// [`due`](Self::due) afterwards, because the segment may release other segments.
    pub(super) fn push<'a>(&mut self, arrival: Arrival<'a>) -> Option<Arrival<'a>> {
        self.arrivals += 1;
        let way = &mut self.ways[arrival.from];
        (way.seen, way.absent) = (true, false);
        if arrival.syn {
            way.next.get_or_insert(arrival.seq);
            if let Some(ack) = arrival.ack {
                self.ways[1 - arrival.from].next.get_or_insert(ack);
            }
        }
        if self.is_ready(&arrival) {
            self.mark_released(&arrival);
            return Some(arrival);
        }
        self.held += arrival.held();
        self.waiting
            .push_back((self.arrivals, arrival.into_owned()));
        None
    }

    /// Removes and returns the next segment whose wait is over. `now` is the time of the capture,
    /// or `None` at its end.
    pub(super) fn due(&mut self, now: Option<Duration>) -> Option<Arrival<'static>> {
        loop {
            let at = self
                .waiting
                .iter()
                .position(|(_, arrival)| self.is_ready(arrival));
            if let Some((_, arrival)) = at.and_then(|at| self.waiting.remove(at)) {
                self.held -= arrival.held();
                self.mark_released(&arrival);
                return Some(arrival);
            }
            if !self.is_overdue(now) {
                return None;
            }
            self.give_up();
        }
    }

    fn is_ready(&self, arrival: &Arrival<'_>) -> bool {
        let (way, other) = (&self.ways[arrival.from], &self.ways[1 - arrival.from]);
        let Some(next) = way.next else {
            return false;
        };
        let has_all = match (arrival.ack, other.next) {
            _ if other.absent => true,
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ack), Some(next)) => !is_after(ack, next),
        };
        has_all && !is_after(arrival.seq, next)
    }

    fn mark_released(&mut self, arrival: &Arrival<'_>) {
        let end = arrival.end();
        if let Some(next) = &mut self.ways[arrival.from].next
            && !arrival.rst
            && is_after(end, *next)
        {
            *next = end;
        }
    }

    fn is_overdue(&self, now: Option<Duration>) -> bool {
        let Some((number, oldest)) = self.waiting.front() else {
            return false;
        };
        let Some(now) = now else {
            return true;
        };
        self.arrivals - number >= PATIENCE
            || now.saturating_sub(oldest.now.time) >= PATIENCE_TIME
            || self.held > MAX_WAITING
    }

    /// Returns the lowest sequence number that waits in a direction. Numbers are compared relative
    /// to `base`. If `base` is `None`, they are compared relative to the segment that arrived
    /// first.
    fn lowest(&self, way: usize, base: Option<u32>) -> Option<u32> {
        let numbers = || {
            let of_way = self
                .waiting
                .iter()
                .filter(move |(_, arrival)| arrival.from == way);
            of_way.map(|(_, arrival)| arrival.seq)
        };
        let base = base.or_else(|| numbers().next())?;
        numbers().min_by_key(|seq| seq.wrapping_sub(base) as i32)
    }

    /// Gives up one of the conditions for which the oldest segment waits. Repeated calls release
    /// the segment.
    fn give_up(&mut self) {
        let Some((_, oldest)) = self.waiting.front() else {
            return;
        };
        let (way, other) = (oldest.from, 1 - oldest.from);
        let next = self.ways[way].next;
        // The direction of the segment is assumed to begin, or continue, at the lowest waiting
        // number.
        if let Some(lowest) = self.lowest(way, next)
            && next.is_none_or(|next| is_after(lowest, next))
        {
            self.ways[way].next = Some(lowest);
            return;
        }
        // Otherwise the first segment of this direction waits for bytes that it acknowledges.
        let first = self
            .waiting
            .iter()
            .filter(|(_, arrival)| arrival.from == way)
            .min_by_key(|(_, arrival)| arrival.seq.wrapping_sub(next.unwrap_or_default()) as i32);
        let ack = first.and_then(|(_, arrival)| arrival.ack);
        let there = self.ways[other].next;
        let lowest = self.lowest(other, there);
        let to = match (there, lowest, ack) {
            (None, lowest, _) => lowest,
            (Some(there), Some(lowest), Some(ack))
                if is_after(lowest, there) && is_after(ack, lowest) =>
            {
                Some(lowest)
            }
            (Some(_), _, ack) => ack,
        };
        let other = &mut self.ways[other];
        other.absent = !other.seen;
        if let Some(to) = to {
            other.next = Some(to);
        }
    }
}

#[cfg(test)]
#[path = "sorter/tests.rs"]
mod tests;
