//! The segments of one TCP connection in the order of their causes, whatever order the capture has them in.
//!
//! A capture has a segment after its acknowledgement if two queues of a network adapter, two mirror
//! ports or two files were joined in another order than that of the wire. A segment goes on when all
//! bytes before it, and all bytes that it acknowledges, have gone on; until then it waits. What the
//! capture never has is given up after a bounded wait.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use super::connection::Now;

/// Packets of its connection that a segment waits for at most. The queues of an adapter hold some
/// hundreds.
const PATIENCE: u64 = 256;
/// Time of the capture that it waits at most. The time is looked at when the next packet of the connection comes.
const PATIENCE_TIME: Duration = Duration::from_secs(1);
/// Bytes that wait at most.
const MAX_WAITING: usize = 1024 * 1024;
/// What a waiting segment costs besides its bytes.
const OVERHEAD: usize = size_of::<(u64, Arrival<'static>)>();
/// No window of TCP is larger (RFC 7323 section 2.3): what lies further off belongs to something else.
const WINDOW: i32 = 1 << 30;

/// A TCP segment of a connection, as the capture has it.
#[derive(Debug, Clone)]
pub(super) struct Arrival<'a> {
    pub(super) now: Now,
    /// Index of the end that sent it.
    pub(super) from: usize,
    pub(super) seq: u32,
    pub(super) ack: Option<u32>,
    pub(super) syn: bool,
    pub(super) fin: bool,
    pub(super) rst: bool,
    /// Its payload, as far as it was captured.
    pub(super) octets: Cow<'a, [u8]>,
    /// Length of its payload on the wire.
    pub(super) len: u32,
}

impl Arrival<'_> {
    fn into_owned(self) -> Arrival<'static> {
        Arrival {
            octets: Cow::Owned(self.octets.into_owned()),
            ..self
        }
    }

    fn held(&self) -> usize {
        self.octets.len() + OVERHEAD
    }

    /// The sequence number after it.
    fn end(&self) -> u32 {
        let flags = u32::from(self.syn) + u32::from(self.fin);
        self.seq.wrapping_add(self.len).wrapping_add(flags)
    }
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    /// The sequence number after all that has gone on; unknown before a SYN, or the first segment of
    /// a connection that was there before the capture.
    next: Option<u32>,
    /// The capture has segments of it.
    seen: bool,
    /// The other direction has not come in time: the capture has one direction only, so far.
    absent: bool,
}

/// Puts the segments of a connection in order.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    ways: [Way; 2],
    /// In the order of the capture, with the number of the arrival.
    waiting: VecDeque<(u64, Arrival<'static>)>,
    held: usize,
    arrivals: u64,
}

/// `number` lies after `other`, within a window.
fn is_after(number: u32, other: u32) -> bool {
    (1..WINDOW).contains(&(number.wrapping_sub(other) as i32))
}

impl Sorter {
    /// Memory that the waiting segments take.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Returns true if the capture has no segment of this direction, as far as is known.
    pub(super) fn is_absent(&self, way: usize) -> bool {
        self.ways[way].absent
    }

    /// Takes a segment of the capture. Returns it if it need not wait; after that, others may be due
    /// ([`due`](Self::due)).
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
        if self.may_go(&arrival) {
            self.gone(&arrival);
            return Some(arrival);
        }
        self.held += arrival.held();
        self.waiting
            .push_back((self.arrivals, arrival.into_owned()));
        None
    }

    /// The next segment whose wait is over. `now`: time of the capture; `None` at its end.
    pub(super) fn due(&mut self, now: Option<Duration>) -> Option<Arrival<'static>> {
        loop {
            let at = self
                .waiting
                .iter()
                .position(|(_, arrival)| self.may_go(arrival));
            if let Some((_, arrival)) = at.and_then(|at| self.waiting.remove(at)) {
                self.held -= arrival.held();
                self.gone(&arrival);
                return Some(arrival);
            }
            if !self.is_overdue(now) {
                return None;
            }
            self.give_up();
        }
    }

    fn may_go(&self, arrival: &Arrival<'_>) -> bool {
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

    fn gone(&mut self, arrival: &Arrival<'_>) {
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

    /// The lowest sequence number that waits in a direction, from `base` on; that of the first to
    /// come where there is none.
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

    /// Gives up one thing that the oldest segment waits for, so that in the end it may go.
    fn give_up(&mut self) {
        let Some((_, oldest)) = self.waiting.front() else {
            return;
        };
        let (way, other) = (oldest.from, 1 - oldest.from);
        let next = self.ways[way].next;
        // Its direction begins, or goes on, with what is there.
        if let Some(lowest) = self.lowest(way, next)
            && next.is_none_or(|next| is_after(lowest, next))
        {
            self.ways[way].next = Some(lowest);
            return;
        }
        // The first of its direction waits for what it acknowledges.
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
