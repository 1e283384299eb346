//! Which MAC address a neighbour has: the cache behind ARP and NDP.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::Mac;
use crate::smol::{Mailbox, Packet};

/// Neighbours known at a time.
pub(super) const MAX_NEIGHBOURS: usize = 1024;
/// Neighbours looked for at a time.
const MAX_INCOMPLETE: usize = 256;
/// Packets that wait for one neighbour before its connections hold more of them back.
const WAITING: usize = 8;
/// As many are taken beyond it, of what is sent without asking for room.
const ANSWERS: usize = 8;

/// The times of neighbour discovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// Between two questions.
    pub(super) retry: Duration,
    /// Questions until a neighbour counts as unreachable.
    pub(super) attempts: u8,
    /// How long an answer is believed without asking again.
    pub(super) reachable: Duration,
    /// A neighbour that nothing was sent to for so long may be forgotten for another.
    pub(super) idle: Duration,
}

impl Default for Timing {
    /// As RFC 4861 section 10 says; the last is our own.
    fn default() -> Self {
        Self {
            retry: Duration::from_secs(1),
            attempts: 3,
            reachable: Duration::from_secs(30),
            idle: Duration::from_secs(60),
        }
    }
}

/// What is known of one neighbour.
///
/// ```text
///              a packet for it                        answer
///  (unknown) ─────────────────► Incomplete ────────────────────────────► Known ◄──────┐
///      ▲  │                         │ asked 3 times: unreachable           │          │
///      │  │ it asks for us          │                      a packet for it,│          │ answer
///      │  └──────────────────────── │ ────────────────►    not fresh       ▼          │
///      │                            │                 Known ──────────►  Probe ───────┘
///      └────────────────────────────┴──────────────────────────────────────┘
///                                                              asked 3 times
/// ```
/// In `Known` and in `Probe` packets go out at once.
enum State {
    /// Its address is asked for of everybody.
    Incomplete {
        asked: u8,
        next: Instant,
        waiting: VecDeque<Packet>,
        /// Connections that wait for the answer.
        held_back: Vec<Arc<Mailbox>>,
    },
    /// Its address is believed without a question until `fresh_until`.
    Known { mac: Mac, fresh_until: Instant },
    /// It is asked itself whether it is still there.
    Probe { mac: Mac, asked: u8, next: Instant },
}

struct Entry {
    state: State,
    /// When we last sent to it; `None` for one that only asked for us.
    used: Option<Instant>,
    seen: Instant,
}

/// A question to send: who has `addr`? To everybody, or to the one that had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) addr: IpAddr,
    pub(super) to: Option<Mac>,
}

/// What to do with a packet.
pub(super) enum Way {
    /// Send it there.
    To(Mac, Packet),
    /// It waits for an answer.
    Waits,
    /// There is no place to wait.
    Dropped(Packet),
}

/// What somebody said about the address of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// It answered a question of ours.
    Answer,
    /// It asked for one of our addresses, and will want to hear from us.
    Asks,
    /// It told everybody of its address, or asked for somebody else.
    Tells,
    /// An advertisement that does not override what is known (RFC 4861 section 7.2.5).
    AnswerWithoutOverride,
}

/// What comes of an answer, or of none.
#[derive(Default)]
pub(super) struct Released {
    pub(super) packets: VecDeque<Packet>,
    pub(super) held_back: Vec<Arc<Mailbox>>,
}

/// What is due by the clock.
#[derive(Default)]
pub(super) struct Due {
    pub(super) asks: Vec<Ask>,
    /// Neighbours that did not answer.
    pub(super) unreachable: Vec<(IpAddr, Released)>,
}

/// The cache. It is bounded, and none of what others send can push out a neighbour that we talk to.
pub(super) struct Neighbours {
    entries: HashMap<IpAddr, Entry>,
    timing: Timing,
    limit: usize,
    incomplete: usize,
    probing: usize,
}

impl Neighbours {
    pub(super) fn new(timing: Timing, limit: usize) -> Self {
        Self {
            entries: HashMap::new(),
            timing,
            limit,
            incomplete: 0,
            probing: 0,
        }
    }

    /// How many neighbours are being looked for.
    pub(super) fn incomplete(&self) -> usize {
        self.incomplete
    }

    /// Where a packet for the neighbour `hop` goes, and what has to be asked for that.
    pub(super) fn way(&mut self, hop: IpAddr, packet: Packet, now: Instant) -> (Way, Option<Ask>) {
        let timing = self.timing;
        let Some(entry) = self.entries.get_mut(&hop) else {
            return self.look_for(hop, packet, now);
        };
        entry.used = Some(now);
        match &mut entry.state {
            State::Incomplete { waiting, .. } => {
                if waiting.len() >= WAITING + ANSWERS {
                    return (Way::Dropped(packet), None);
                }
                waiting.push_back(packet);
                (Way::Waits, None)
            }
            State::Probe { mac, .. } => (Way::To(*mac, packet), None),
            State::Known { mac, fresh_until } => {
                let mac = *mac;
                if now < *fresh_until {
                    return (Way::To(mac, packet), None);
                }
                let next = now + timing.retry;
                entry.state = State::Probe {
                    mac,
                    asked: 1,
                    next,
                };
                self.probing += 1;
                let ask = Ask {
                    addr: hop,
                    to: Some(mac),
                };
                (Way::To(mac, packet), Some(ask))
            }
        }
    }

    /// Begins to ask for a neighbour.
    fn look_for(&mut self, hop: IpAddr, packet: Packet, now: Instant) -> (Way, Option<Ask>) {
        if self.incomplete >= MAX_INCOMPLETE {
            self.forget_oldest(|entry| matches!(entry.state, State::Incomplete { .. }));
        }
        if self.entries.len() >= self.limit && !self.make_room(now) {
            return (Way::Dropped(packet), None);
        }
        let state = State::Incomplete {
            asked: 1,
            next: now + self.timing.retry,
            waiting: VecDeque::from([packet]),
            held_back: Vec::new(),
        };
        let entry = Entry {
            state,
            used: Some(now),
            seen: now,
        };
        self.entries.insert(hop, entry);
        self.incomplete += 1;
        let ask = Ask {
            addr: hop,
            to: None,
        };
        (Way::Waits, Some(ask))
    }

    /// Whether connections that send to `hop` are to wait; `sender` is told when they need not.
    pub(super) fn is_full(&mut self, hop: IpAddr, sender: &Arc<Mailbox>) -> bool {
        let Some(Entry {
            state: State::Incomplete {
                waiting, held_back, ..
            },
            ..
        }) = self.entries.get_mut(&hop)
        else {
            return false;
        };
        let full = waiting.len() >= WAITING;
        if full && !held_back.iter().any(|other| Arc::ptr_eq(other, sender)) {
            held_back.push(Arc::clone(sender));
        }
        full
    }

    /// Notes what was said about the address of `addr`, and gives what waited for it.
    pub(super) fn hear(
        &mut self,
        addr: IpAddr,
        mac: Mac,
        claim: Claim,
        now: Instant,
    ) -> Option<Released> {
        let reachable = self.timing.reachable;
        let Some(entry) = self.entries.get_mut(&addr) else {
            if claim == Claim::Asks {
                self.learn(addr, mac, now);
            }
            return None;
        };
        let answers = matches!(claim, Claim::Answer | Claim::AnswerWithoutOverride);
        let fresh_until = if answers { now + reachable } else { now };
        let known = State::Known { mac, fresh_until };
        match &mut entry.state {
            State::Incomplete {
                waiting, held_back, ..
            } => {
                let released = Released {
                    packets: std::mem::take(waiting),
                    held_back: std::mem::take(held_back),
                };
                entry.state = known;
                self.incomplete -= 1;
                return Some(released);
            }
            State::Known { mac: old, .. } | State::Probe { mac: old, .. }
                if *old != mac && claim == Claim::AnswerWithoutOverride => {}
            State::Known {
                mac: old,
                fresh_until: until,
            } => {
                if answers {
                    *until = fresh_until;
                } else if *old != mac {
                    // It moved, says somebody: to be asked.
                    *until = now;
                }
                *old = mac;
            }
            State::Probe { mac: old, .. } => {
                if answers {
                    entry.state = known;
                    self.probing -= 1;
                } else {
                    *old = mac;
                }
            }
        }
        entry.seen = now;
        None
    }

    /// Notes somebody who asked for us. Only others like it may have to go for that.
    fn learn(&mut self, addr: IpAddr, mac: Mac, now: Instant) {
        if self.entries.len() >= self.limit && !self.forget_oldest(|entry| entry.used.is_none()) {
            return;
        }
        let state = State::Known {
            mac,
            fresh_until: now,
        };
        let entry = Entry {
            state,
            used: None,
            seen: now,
        };
        self.entries.insert(addr, entry);
    }

    /// Forgets one that nobody needs; false when all are needed.
    fn make_room(&mut self, now: Instant) -> bool {
        let idle = self.timing.idle;
        self.forget_oldest(|entry| entry.used.is_none())
            || self.forget_oldest(|entry| {
                let known = !matches!(entry.state, State::Incomplete { .. });
                known && entry.used.is_some_and(|used| used + idle <= now)
            })
            || self.forget_oldest(|entry| matches!(entry.state, State::Incomplete { .. }))
    }

    /// Forgets the one of those that was used or seen longest ago.
    fn forget_oldest(&mut self, of: impl Fn(&Entry) -> bool) -> bool {
        let candidates = self.entries.iter().filter(|(_, entry)| of(entry));
        let oldest = candidates.min_by_key(|(_, entry)| entry.used.unwrap_or(entry.seen));
        let Some(addr) = oldest.map(|(addr, _)| *addr) else {
            return false;
        };
        // What waited for it is lost, as on any link; who was held back is told.
        for sender in self.remove(addr).held_back {
            sender.raise();
        }
        true
    }

    fn remove(&mut self, addr: IpAddr) -> Released {
        match self.entries.remove(&addr).map(|entry| entry.state) {
            Some(State::Incomplete {
                waiting, held_back, ..
            }) => {
                self.incomplete -= 1;
                Released {
                    packets: waiting,
                    held_back,
                }
            }
            Some(State::Probe { .. }) => {
                self.probing -= 1;
                Released::default()
            }
            Some(State::Known { .. }) | None => Released::default(),
        }
    }

    /// Asks again where no answer came, and gives up where none will.
    pub(super) fn tick(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        if self.incomplete + self.probing == 0 {
            return due;
        }
        let Timing {
            retry, attempts, ..
        } = self.timing;
        let mut silent = Vec::new();
        for (addr, entry) in &mut self.entries {
            let (asked, next, to) = match &mut entry.state {
                State::Incomplete { asked, next, .. } => (asked, next, None),
                State::Probe { mac, asked, next } => (asked, next, Some(*mac)),
                State::Known { .. } => continue,
            };
            if *next > now {
                continue;
            }
            if *asked >= attempts {
                silent.push((*addr, to.is_none()));
                continue;
            }
            *asked += 1;
            *next = now + retry;
            due.asks.push(Ask { addr: *addr, to });
        }
        for (addr, nobody_has_it) in silent {
            let released = self.remove(addr);
            if nobody_has_it {
                due.unreachable.push((addr, released));
            }
        }
        due
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.incomplete + self.probing == 0 {
            return None;
        }
        let next = |entry: &Entry| match entry.state {
            State::Incomplete { next, .. } | State::Probe { next, .. } => Some(next),
            State::Known { .. } => None,
        };
        self.entries.values().filter_map(next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smol::Pool;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const MAC: Mac = [2, 0, 0, 0, 0, 9];
    const OTHER: Mac = [2, 0, 0, 0, 0, 10];

    fn host(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0xc000_0200 + number))
    }

    fn packet() -> Packet {
        Packet::new(1)
    }

    fn cache(limit: usize) -> (Neighbours, Instant) {
        (Neighbours::new(Timing::default(), limit), Instant::now())
    }

    fn sent_to(cache: &mut Neighbours, addr: IpAddr, now: Instant) -> Option<Mac> {
        match cache.way(addr, packet(), now).0 {
            Way::To(mac, _) => Some(mac),
            Way::Waits | Way::Dropped(_) => None,
        }
    }

    fn known(cache: &mut Neighbours, addr: IpAddr, now: Instant) {
        assert_eq!(sent_to(cache, addr, now), None);
        let released = cache.hear(addr, MAC, Claim::Answer, now).unwrap();
        assert_eq!(released.packets.len(), 1);
        assert_eq!(sent_to(cache, addr, now), Some(MAC));
    }

    #[test]
    fn a_neighbour_that_never_answers_is_asked_three_times_and_is_unreachable_then() {
        let (mut cache, start) = cache(8);
        let everybody = Ask {
            addr: host(1),
            to: None,
        };
        let (way, ask) = cache.way(host(1), packet(), start);
        assert!(matches!(way, Way::Waits));
        assert_eq!(ask, Some(everybody));
        for second in 1..3 {
            let now = start + Duration::from_secs(second);
            assert_eq!(cache.deadline(), Some(now));
            assert_eq!(cache.tick(now).asks, [everybody]);
            assert!(cache.tick(now).asks.is_empty());
        }
        let due = cache.tick(start + Duration::from_secs(3));
        assert!(due.asks.is_empty());
        assert_eq!(due.unreachable[0].0, host(1));
        assert_eq!(due.unreachable[0].1.packets.len(), 1);
        assert_eq!((cache.deadline(), cache.incomplete()), (None, 0));
    }

    #[test]
    fn an_answer_releases_what_waited_in_order_and_is_believed_for_thirty_seconds() {
        let (mut cache, start) = cache(8);
        for number in 0..3 {
            let mut packet = packet();
            packet.resize(1).fill(number);
            assert!(matches!(cache.way(host(1), packet, start).0, Way::Waits));
        }
        let released = cache.hear(host(1), MAC, Claim::Answer, start).unwrap();
        let order: Vec<u8> = released.packets.iter().map(|p| p.octets()[0]).collect();
        assert_eq!(order, [0, 1, 2]);
        let fresh = start + Duration::from_secs(29);
        assert!(cache.way(host(1), packet(), fresh).1.is_none());
        let stale = start + Duration::from_secs(31);
        let (way, ask) = cache.way(host(1), packet(), stale);
        assert!(matches!(way, Way::To(MAC, _)), "it is still used");
        assert_eq!(ask.unwrap().to, Some(MAC), "and asked itself");
    }

    #[test]
    fn a_probe_without_answer_ends_in_asking_everybody_anew() {
        let (mut cache, start) = cache(8);
        known(&mut cache, host(1), start);
        let mut now = start + Duration::from_secs(31);
        assert_eq!(sent_to(&mut cache, host(1), now), Some(MAC));
        for _ in 0..3 {
            now += Duration::from_secs(1);
            assert!(cache.tick(now).unreachable.is_empty());
        }
        let (way, ask) = cache.way(host(1), packet(), now);
        assert!(matches!(way, Way::Waits));
        assert_eq!(ask.unwrap().to, None);
    }

    #[test]
    fn connections_hold_back_while_a_neighbour_is_looked_for() {
        let (mut cache, start) = cache(8);
        let sender = Arc::new(Mailbox::new(1, Arc::new(Pool::new(64)), None).unwrap());
        for _ in 0..WAITING {
            assert!(!cache.is_full(host(1), &sender));
            cache.way(host(1), packet(), start);
        }
        assert!(cache.is_full(host(1), &sender) && cache.is_full(host(1), &sender));
        for _ in 0..ANSWERS {
            assert!(matches!(cache.way(host(1), packet(), start).0, Way::Waits));
        }
        assert!(matches!(
            cache.way(host(1), packet(), start).0,
            Way::Dropped(_)
        ));
        let released = cache.hear(host(1), MAC, Claim::Tells, start).unwrap();
        assert_eq!(released.packets.len(), WAITING + ANSWERS);
        assert_eq!(released.held_back.len(), 1);
        assert!(!cache.is_full(host(1), &sender));
    }

    #[test]
    fn made_up_addresses_push_out_nobody_that_we_talk_to() {
        let (mut cache, now) = cache(64);
        for number in 0..8 {
            known(&mut cache, host(number), now);
        }
        for number in 100..100_000 {
            cache.hear(host(number), OTHER, Claim::Asks, now);
            cache.hear(host(number + 1), OTHER, Claim::Tells, now);
        }
        // Connection attempts from made-up addresses make us look for them.
        for number in 200_000..201_000 {
            cache.way(host(number), packet(), now);
        }
        assert!(cache.entries.len() <= 64 && cache.incomplete() <= 64);
        for number in 0..8 {
            assert_eq!(sent_to(&mut cache, host(number), now), Some(MAC));
        }
    }

    #[test]
    fn what_nobody_asked_for_makes_no_entry_but_a_neighbour_may_move() {
        let (mut cache, now) = cache(8);
        cache.hear(host(1), MAC, Claim::Tells, now);
        cache.hear(host(1), MAC, Claim::Answer, now);
        assert!(cache.entries.is_empty());
        known(&mut cache, host(1), now);
        cache.hear(host(1), OTHER, Claim::AnswerWithoutOverride, now);
        assert_eq!(sent_to(&mut cache, host(1), now), Some(MAC));
        cache.hear(host(1), OTHER, Claim::Tells, now);
        let (way, ask) = cache.way(host(1), packet(), now);
        assert!(matches!(way, Way::To(OTHER, _)));
        assert_eq!(ask.unwrap().to, Some(OTHER), "and it is asked whether so");
    }

    #[test]
    fn who_asks_for_us_is_answered_without_a_question() {
        let (mut cache, now) = cache(8);
        let addr = IpAddr::V6(Ipv6Addr::LOCALHOST);
        cache.hear(addr, MAC, Claim::Asks, now);
        let (way, ask) = cache.way(addr, packet(), now);
        assert!(matches!(way, Way::To(MAC, _)));
        assert_eq!(ask.unwrap().to, Some(MAC));
    }
}
