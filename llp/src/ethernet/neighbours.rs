//! Neighbour cache: the MAC addresses that ARP and NDP have found.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::Mac;
use crate::smol::{Mailbox, Packet};

/// Maximum number of neighbours in the cache.
pub(super) const MAX_NEIGHBOURS: usize = 1024;
/// Maximum number of neighbours whose MAC address is not known yet.
const MAX_INCOMPLETE: usize = 256;
/// Number of packets that may wait for one neighbour. At this number, connections hold further
/// packets back.
const WAITING: usize = 8;
/// Number of packets accepted beyond [`WAITING`], for senders that do not check for room.
const ANSWERS: usize = 8;

/// Timers of neighbour discovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// Time to wait for an answer before the question is repeated.
    pub(super) retry: Duration,
    /// Number of unanswered questions after which a neighbour counts as unreachable.
    pub(super) attempts: u8,
    /// Time for which an answer is used without asking again.
    pub(super) reachable: Duration,
    /// Minimum time since the last packet to a neighbour before its entry may be replaced.
    pub(super) idle: Duration,
}

impl Default for Timing {
    /// Returns the values of RFC 4861 section 10. The RFC has no value for `idle`.
    fn default() -> Self {
        Self {
            retry: Duration::from_secs(1),
            attempts: 3,
            reachable: Duration::from_secs(30),
            idle: Duration::from_secs(60),
        }
    }
}

/// State of a neighbour.
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
/// In `Known` and in `Probe`, packets are sent at once.
enum State {
    /// The MAC address is unknown, and all hosts are asked for it.
    Incomplete {
        asked: u8,
        next: Instant,
        waiting: VecDeque<Packet>,
        /// Connections that hold packets back until the answer arrives.
        held_back: Vec<Arc<Mailbox>>,
    },
    /// The MAC address is known. It is used without a new question until `fresh_until`.
    Known { mac: Mac, fresh_until: Instant },
    /// The MAC address is used, and the neighbour is asked to confirm it.
    Probe { mac: Mac, asked: u8, next: Instant },
}

struct Entry {
    state: State,
    /// Time of the last packet to the neighbour. `None` for a neighbour that only asked for this
    /// host's address.
    used: Option<Instant>,
    seen: Instant,
}

/// Question for the MAC address of `addr`. It is sent to the known MAC address `to`, or to all
/// hosts if `to` is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) addr: IpAddr,
    pub(super) to: Option<Mac>,
}

/// Decision about a packet for a neighbour.
pub(super) enum Resolution {
    /// The packet is to be sent to this MAC address.
    To(Mac, Packet),
    /// The packet waits for an answer.
    Waits,
    /// The queue is full; the packet has to be dropped.
    Dropped(Packet),
}

/// Kind of message that contained a neighbour's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// An answer to a question of this host.
    Answer,
    /// A question for an address of this host. Its sender will probably receive packets from this
    /// host.
    Asks,
    /// An announcement to all hosts, or a question for another host's address.
    Tells,
    /// An advertisement that does not replace a known MAC address (RFC 4861 section 7.2.5).
    AnswerWithoutOverride,
}

/// Packets that waited for a neighbour's MAC address, and connections that held packets back.
#[derive(Default)]
pub(super) struct Released {
    pub(super) packets: VecDeque<Packet>,
    pub(super) held_back: Vec<Arc<Mailbox>>,
}

/// Actions of [`Neighbours::tick`] that the caller has to perform.
#[derive(Default)]
pub(super) struct Due {
    pub(super) asks: Vec<Ask>,
    /// Neighbours that did not answer.
    pub(super) unreachable: Vec<(IpAddr, Released)>,
}

/// Cache of neighbours. It is bounded, and messages from other hosts cannot evict a neighbour to
/// which this host sends packets.
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

    /// Returns the number of neighbours whose MAC address is not known yet.
    pub(super) fn incomplete(&self) -> usize {
        self.incomplete
    }

    /// Decides about a packet for the neighbour `hop`. Also returns the question that has to be
    /// sent, if any.
    pub(super) fn resolve(
        &mut self,
        hop: IpAddr,
        packet: Packet,
        now: Instant,
    ) -> (Resolution, Option<Ask>) {
        let timing = self.timing;
        let Some(entry) = self.entries.get_mut(&hop) else {
            return self.look_for(hop, packet, now);
        };
        entry.used = Some(now);
        match &mut entry.state {
            State::Incomplete { waiting, .. } => {
                if waiting.len() >= WAITING + ANSWERS {
                    return (Resolution::Dropped(packet), None);
                }
                waiting.push_back(packet);
                (Resolution::Waits, None)
            }
            State::Probe { mac, .. } => (Resolution::To(*mac, packet), None),
            State::Known { mac, fresh_until } => {
                let mac = *mac;
                if now < *fresh_until {
                    return (Resolution::To(mac, packet), None);
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
                (Resolution::To(mac, packet), Some(ask))
            }
        }
    }

    /// Adds an entry for an unknown neighbour. Returns the question for its MAC address.
    fn look_for(&mut self, hop: IpAddr, packet: Packet, now: Instant) -> (Resolution, Option<Ask>) {
        if self.incomplete >= MAX_INCOMPLETE {
            self.forget_oldest(|entry| matches!(entry.state, State::Incomplete { .. }));
        }
        if self.entries.len() >= self.limit && !self.make_room(now) {
            return (Resolution::Dropped(packet), None);
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
        (Resolution::Waits, Some(ask))
    }

    /// Returns true if connections have to hold back packets to `hop`. In that case, the signal of
    /// `sender` is raised once packets may be sent again.
    pub(super) fn subscribe_if_full(&mut self, hop: IpAddr, sender: &Arc<Mailbox>) -> bool {
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

    /// Records a message that claims the MAC address `mac` for `addr`. Returns the packets and
    /// connections that waited for this MAC address.
    pub(super) fn record(
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
                    // The neighbour may have moved, so the next packet causes a question.
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

    /// Records a host that asked for this host's address. In a full cache, the new entry can
    /// replace only an entry of the same kind.
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

    /// Removes the least useful entry. Returns false if every entry is in use.
    fn make_room(&mut self, now: Instant) -> bool {
        let idle = self.timing.idle;
        self.forget_oldest(|entry| entry.used.is_none())
            || self.forget_oldest(|entry| {
                let known = !matches!(entry.state, State::Incomplete { .. });
                known && entry.used.is_some_and(|used| used + idle <= now)
            })
            || self.forget_oldest(|entry| matches!(entry.state, State::Incomplete { .. }))
    }

    /// Removes the entry that `of` selects and that was used or seen least recently.
    fn forget_oldest(&mut self, of: impl Fn(&Entry) -> bool) -> bool {
        let candidates = self.entries.iter().filter(|(_, entry)| of(entry));
        let oldest = candidates.min_by_key(|(_, entry)| entry.used.unwrap_or(entry.seen));
        let Some(addr) = oldest.map(|(addr, _)| *addr) else {
            return false;
        };
        // Waiting packets are dropped. Senders that were held back are notified.
        for sender in self.remove(addr).held_back {
            sender.signal.raise();
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

    /// Repeats unanswered questions, and removes neighbours that did not answer the last one.
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
        // The order of a `HashMap` is random. Sorting makes it the same in every run.
        due.asks.sort_unstable_by_key(|ask| ask.addr);
        silent.sort_unstable();
        for (addr, nobody_has_it) in silent {
            let released = self.remove(addr);
            if nobody_has_it {
                due.unreachable.push((addr, released));
            }
        }
        due
    }

    /// Returns the time of the next action of [`tick`](Self::tick).
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
mod tests;
