//! Fault injection: the steps through which each packet passes.

use std::cmp::Reverse;
use std::time::Duration;

use super::State;
use crate::damage::{self, Damage, Rewrite};
use crate::packet;

impl State {
    pub(super) fn send(&mut self, now: Duration, from: usize, octets: &[u8]) {
        self.counts.sent += 1;
        self.monitor.observe(octets);
        let to = packet::destination(octets).map(|number| usize::from(number).wrapping_sub(1));
        let Some(to) = to.filter(|to| *to < self.cables.len()) else {
            return;
        };
        if octets.len() > self.mtu {
            self.counts.too_large += 1;
            self.too_large.push(from);
            return;
        }
        if self.cables[from].down || self.chance(self.faults.loss) {
            self.counts.lost += 1;
            self.log.packet(now, "is lost", octets);
            return;
        }
        let mut octets = octets.to_vec();
        if self.faults.rewrite > 0.0 {
            self.rewrite(now, &mut octets);
        }
        if self.chance(self.faults.replay) {
            self.replay(now, to, &octets);
        }
        if self.chance(self.faults.corrupt) {
            self.counts.corrupted += 1;
            damage::seen(&mut self.random, &mut octets);
            self.log.packet(now, "is damaged", &octets);
            // A middlebox drops a damaged packet or passes it on unchanged. Cutting the packet
            // would repair its checksum.
            self.one(now, to, octets);
            return;
        }
        if self.chance(self.faults.corrupt_unseen) {
            self.corrupt_unseen(now, &mut octets);
        }
        if self.chance(self.faults.split)
            && let Some(at) = packet::payload_at(&octets)
            && octets.len() > at + 1
        {
            let payload = octets.len() - at;
            // Errors of the receiver are most likely if a part has only one byte.
            let first = match self.random.u8(0..4) {
                0 => 1,
                1 => payload - 1,
                _ => self.random.usize(1..payload),
            };
            if let Some([head, tail]) = packet::split(&octets, first) {
                self.counts.split += 1;
                self.one(now, to, head);
                self.one(now, to, tail);
                return;
            }
        }
        self.hold(now, to, octets);
    }

    /// Joins segments as a middlebox does. It holds at most one segment of each direction, to join
    /// it with the next one.
    fn hold(&mut self, now: Duration, to: usize, octets: Vec<u8>) {
        let flow = packet::flow(&octets);
        let held = (self.held.iter()).position(|(.., held)| packet::flow(held) == flow);
        let mut octets = octets;
        if let Some(index) = held {
            let (_, _, first) = self.held.remove(index);
            match packet::join(&first, &octets, self.mtu) {
                Some(whole) => {
                    self.counts.joined += 1;
                    self.log.packet(now, "is joined", &whole);
                    octets = whole;
                }
                None => self.one(now, to, first),
            }
        }
        if flow.is_some() && self.chance(self.faults.join) {
            let until = now + Duration::from_micros(self.random.u64(1..200));
            self.held.push((until, to, octets));
        } else {
            self.one(now, to, octets);
        }
    }

    /// Sends the segments whose hold time has passed.
    pub(super) fn let_go(&mut self, now: Duration) {
        while let Some(index) = self.held.iter().position(|(until, ..)| *until <= now) {
            let (_, to, octets) = self.held.remove(index);
            self.one(now, to, octets);
        }
    }

    fn corrupt_unseen(&mut self, now: Duration, octets: &mut [u8]) {
        let Some(at) = packet::payload_at(octets).filter(|at| *at < octets.len()) else {
            return;
        };
        self.counts.corrupted_unseen += 1;
        if let (Some(flow), Some(first)) = (packet::flow(octets), packet::sequence(octets)) {
            let damaged = self.monitor.record_damage(flow, first, octets.len() - at);
            self.damaged.extend(damaged);
        }
        let damage = Damage::any(&mut self.random, &mut octets[at..]);
        packet::fix_checksums(octets);
        self.log.packet(now, "is damaged unseen", octets);
        self.log.event(now, || format!("    by {damage:?}"));
    }

    /// Rewrites streams as a middlebox does, at most one change for each direction.
    fn rewrite(&mut self, now: Duration, octets: &mut Vec<u8>) {
        let (Some(flow), Some(at), Some(sequence), Some(flags)) = (
            packet::flow(octets),
            packet::payload_at(octets),
            packet::sequence(octets),
            packet::flags(octets),
        ) else {
            return;
        };
        let payload = octets.len() - at;
        if flags & packet::SYN != 0 {
            self.rewrites.remove(&flow);
            self.newest.insert(flow, sequence.wrapping_add(1));
        } else if let Some(newest) = self.newest.get_mut(&flow)
            && advance_newest(newest, sequence, payload)
            && !self.rewrites.contains_key(&flow)
            && octets.len() + 8 < self.mtu
            && self.chance(self.faults.rewrite)
            && let Some(rewrite) = Rewrite::draw(&mut self.random, sequence, payload)
        {
            self.log.packet(now, "is rewritten", octets);
            self.log.event(now, || format!("    {rewrite:?}"));
            self.counts.rewritten += 1;
            let damaged = self.monitor.record_damage(flow, sequence, payload);
            self.damaged.extend(damaged);
            self.rewrites.insert(flow, rewrite);
        }
        if let Some(rewrite) = self.rewrites.get(&flow) {
            rewrite.segment(octets);
        }
        if let Some(rewrite) = self.rewrites.get(&packet::reverse(flow)) {
            rewrite.acknowledgement(octets);
        }
    }

    /// Delivers the packet once more, 64 µs to 8 s later.
    fn replay(&mut self, now: Duration, to: usize, octets: &[u8]) {
        self.counts.replayed += 1;
        let later = Duration::from_micros(1 << self.random.u32(6..24));
        self.number += 1;
        let due = Reverse((now + later, self.number, to, octets.to_vec()));
        self.due.push(due);
    }

    /// Delivers one packet, or two copies if it is duplicated.
    fn one(&mut self, now: Duration, to: usize, octets: Vec<u8>) {
        let twice = self.chance(self.faults.duplicate);
        if twice {
            self.counts.duplicated += 1;
            self.enqueue(now, to, octets.clone());
        }
        self.enqueue(now, to, octets);
    }

    fn enqueue(&mut self, now: Duration, to: usize, octets: Vec<u8>) {
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
                begin + Duration::from_nanos(octets.len() as u64 * 1_000_000_000 / limit);
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
        self.due.push(Reverse((at, self.number, to, octets)));
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
    /// bytes, but not the later ones that the receiver already has.
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
