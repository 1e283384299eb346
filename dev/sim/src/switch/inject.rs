//! Fault injection: the steps through which each packet passes.

use std::cmp::Reverse;
use std::time::Duration;

use super::State;
use crate::damage::{self, Damage, Rewrite};
use crate::packet;

impl State {
    pub(super) fn send(&mut self, now: Duration, from: usize, bytes: &[u8]) {
        self.counts.sent += 1;
        self.monitor.observe(bytes);
        let to = packet::destination(bytes).map(|number| usize::from(number).wrapping_sub(1));
        let Some(to) = to.filter(|to| *to < self.cables.len()) else {
            return;
        };
        if bytes.len() > self.mtu {
            self.counts.too_large += 1;
            self.too_large.push(from);
            return;
        }
        if self.cables[from].down || self.chance(self.faults.loss) {
            self.counts.lost += 1;
            self.log.packet(now, "is lost", bytes);
            return;
        }
        let mut bytes = bytes.to_vec();
        if self.faults.rewrite > 0.0 {
            self.rewrite(now, &mut bytes);
        }
        if self.chance(self.faults.replay) {
            self.replay(now, to, &bytes);
        }
        if self.chance(self.faults.corrupt) {
            self.counts.corrupted += 1;
            damage::seen(&mut self.random, &mut bytes);
            self.log.packet(now, "is damaged", &bytes);
            // A middlebox drops a damaged packet or passes it on unchanged. Cutting the packet
            // would repair its checksum.
            self.one(now, to, bytes);
            return;
        }
        if self.chance(self.faults.corrupt_unseen) {
            self.corrupt_unseen(now, &mut bytes);
        }
        if self.chance(self.faults.split)
            && let Some(at) = packet::payload_at(&bytes)
            && bytes.len() > at + 1
        {
            let payload = bytes.len() - at;
            // Errors of the receiver are most likely if a part has only one byte.
            let first = match self.random.u8(0..4) {
                0 => 1,
                1 => payload - 1,
                _ => self.random.usize(1..payload),
            };
            if let Some([head, tail]) = packet::split(&bytes, first) {
                self.counts.split += 1;
                self.one(now, to, head);
                self.one(now, to, tail);
                return;
            }
        }
        self.hold(now, to, bytes);
    }

    /// Joins segments as a middlebox does. It holds at most one segment of each direction, to join
    /// it with the next one.
    fn hold(&mut self, now: Duration, to: usize, bytes: Vec<u8>) {
        let flow = packet::flow(&bytes);
        let held = (self.held.iter()).position(|(.., held)| packet::flow(held) == flow);
        let mut bytes = bytes;
        if let Some(index) = held {
            let (_, _, first) = self.held.remove(index);
            match packet::join(&first, &bytes, self.mtu) {
                Some(whole) => {
                    self.counts.joined += 1;
                    self.log.packet(now, "is joined", &whole);
                    bytes = whole;
                }
                None => self.one(now, to, first),
            }
        }
        if flow.is_some() && self.chance(self.faults.join) {
            let until = now + Duration::from_micros(self.random.u64(1..200));
            self.held.push((until, to, bytes));
        } else {
            self.one(now, to, bytes);
        }
    }

    /// Sends the segments whose hold time has passed.
    pub(super) fn let_go(&mut self, now: Duration) {
        while let Some(index) = self.held.iter().position(|(until, ..)| *until <= now) {
            let (_, to, bytes) = self.held.remove(index);
            self.one(now, to, bytes);
        }
    }

    fn corrupt_unseen(&mut self, now: Duration, bytes: &mut [u8]) {
        let Some(at) = packet::payload_at(bytes).filter(|at| *at < bytes.len()) else {
            return;
        };
        self.counts.corrupted_unseen += 1;
        if let (Some(flow), Some(first)) = (packet::flow(bytes), packet::sequence(bytes)) {
            let damaged = self.monitor.record_damage(flow, first, bytes.len() - at);
            self.damaged.extend(damaged);
        }
        let damage = Damage::any(&mut self.random, &mut bytes[at..]);
        packet::fix_checksums(bytes);
        self.log.packet(now, "is damaged unseen", bytes);
        self.log.event(now, || format!("    by {damage:?}"));
    }

    /// Rewrites streams as a middlebox does, at most one change for each direction.
    fn rewrite(&mut self, now: Duration, bytes: &mut Vec<u8>) {
        let (Some(flow), Some(at), Some(sequence), Some(flags)) = (
            packet::flow(bytes),
            packet::payload_at(bytes),
            packet::sequence(bytes),
            packet::flags(bytes),
        ) else {
            return;
        };
        let payload = bytes.len() - at;
        if flags & packet::SYN != 0 {
            self.rewrites.remove(&flow);
            self.newest.insert(flow, sequence.wrapping_add(1));
        } else if let Some(newest) = self.newest.get_mut(&flow)
            && advance_newest(newest, sequence, payload)
            && !self.rewrites.contains_key(&flow)
            && bytes.len() + 8 < self.mtu
            && self.chance(self.faults.rewrite)
            && let Some(rewrite) = Rewrite::draw(&mut self.random, sequence, payload)
        {
            self.log.packet(now, "is rewritten", bytes);
            self.log.event(now, || format!("    {rewrite:?}"));
            self.counts.rewritten += 1;
            let damaged = self.monitor.record_damage(flow, sequence, payload);
            self.damaged.extend(damaged);
            self.rewrites.insert(flow, rewrite);
        }
        if let Some(rewrite) = self.rewrites.get(&flow) {
            rewrite.segment(bytes);
        }
        if let Some(rewrite) = self.rewrites.get(&packet::reverse(flow)) {
            rewrite.acknowledgement(bytes);
        }
    }

    /// Delivers the packet once more, 64 µs to 8 s later.
    fn replay(&mut self, now: Duration, to: usize, bytes: &[u8]) {
        self.counts.replayed += 1;
        let later = Duration::from_micros(1 << self.random.u32(6..24));
        self.number += 1;
        let due = Reverse((now + later, self.number, to, bytes.to_vec()));
        self.due.push(due);
    }

    /// Delivers one packet, or two copies if it is duplicated.
    fn one(&mut self, now: Duration, to: usize, bytes: Vec<u8>) {
        let twice = self.chance(self.faults.duplicate);
        if twice {
            self.counts.duplicated += 1;
            self.enqueue(now, to, bytes.clone());
        }
        self.enqueue(now, to, bytes);
    }

    fn enqueue(&mut self, now: Duration, to: usize, bytes: Vec<u8>) {
        let faults = self.faults;
        let cable = &mut self.cables[to];
        let mut at = now;
        if let Some(limit) = Some(faults.bandwidth).filter(|limit| *limit > 0) {
            let begin = cable.busy_until.max(now);
            let waiting = (begin - now).as_nanos() as u64 * limit / 1_000_000_000;
            if waiting > faults.queue {
                self.counts.overflowed += 1;
                return;
            }
            cable.busy_until =
                begin + Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / limit);
            at = cable.busy_until;
        }
        at += faults.delay;
        if !faults.jitter.is_zero() {
            at += Duration::from_nanos(self.random.u64(0..faults.jitter.as_nanos() as u64));
        }
        if self.chance(faults.reorder) {
            self.counts.reordered += 1;
            at += faults.delay + Duration::from_micros(self.random.u64(1..2000));
        } else {
            let cable = &mut self.cables[to];
            at = at.max(cable.last);
            cable.last = at;
        }
        self.number += 1;
        self.due.push(Reverse((at, self.number, to, bytes)));
    }
}

/// Advances `newest`, the sequence number after the last byte that has passed. Returns true if all
/// bytes of the segment are new; only then may they be changed. Lost bytes before `newest` count as
/// passed.
fn advance_newest(newest: &mut u32, sequence: u32, payload: usize) -> bool {
    let is_behind = |number: u32, newest: u32| number.wrapping_sub(newest).cast_signed() >= 0;
    let next = sequence.wrapping_add(u32::try_from(payload).unwrap_or_default());
    let is_new = is_behind(sequence, *newest);
    if is_behind(next, *newest) {
        *newest = next;
    }
    is_new
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A retransmission of a lost segment must not count as new. A change in it would move its
    /// bytes, but not the later bytes that the receiver already has.
    #[test]
    fn what_is_sent_again_after_a_loss_is_not_new() {
        let mut newest = u32::MAX;
        assert!(advance_newest(&mut newest, u32::MAX, 10));
        // Bytes 9 to 19 were lost.
        assert!(advance_newest(&mut newest, 19, 10));
        assert!(!advance_newest(&mut newest, 9, 20));
        assert!(!advance_newest(&mut newest, 28, 1));
        assert!(advance_newest(&mut newest, 29, 1));
        assert_eq!(newest, 30);
    }
}
