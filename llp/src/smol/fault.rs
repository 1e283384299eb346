//! Injects faults into a link: lost, duplicated, reordered and damaged packets, chosen by a seeded
//! generator.

use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::mailbox::Mailbox;
use super::packet::{Packet, Pool};
use super::stack::{Link, Route, Stack};
use crate::LlpError;
use uwarp_engine::setters;

/// Maximum number of packets that overtake a packet that is held back.
const OVERTAKING: u8 = 3;

/// Faults of IP packets on a link, each with its own probability per packet, 0 to 1. The same seed
/// and the same sequence of packets lead to the same faults. By default there are no faults.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct FaultSettings {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Probability that a packet is dropped.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is held back until 1 to 3 later packets have passed or were
    /// dropped. If none follows, it is never delivered, and TCP sends it again.
    pub reorder: f64,
    /// Probability that one bit of a packet is flipped. TCP's checksum detects every such packet,
    /// and TCP drops it. Checksums are enabled on a link with this fault.
    pub corrupt: f64,
}

setters! { const FaultSettings {
    seed: u64,
    loss: f64,
    duplicate: f64,
    reorder: f64,
    corrupt: f64,
} }

/// Number of faults of a link, by kind. See [`FaultSettings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Packets that the injector has processed.
    pub packets: u64,
    /// Packets that were dropped.
    pub lost: u64,
    /// Packets that were delivered twice.
    pub duplicated: u64,
    /// Packets that were held back.
    pub reordered: u64,
    /// Packets in which a bit was flipped.
    pub corrupted: u64,
}

/// Origin of a packet that leaves the injector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Came {
    /// The packet passed to the injector, or its duplicate.
    Now,
    /// A packet that was held back before.
    Earlier,
}

impl FaultSettings {
    /// Returns true if any fault can happen.
    pub(crate) fn any(&self) -> bool {
        [self.loss, self.duplicate, self.reorder, self.corrupt]
            .iter()
            .any(|probability| *probability > 0.0)
    }

    /// Returns an error if a value is not a probability. `op` names the operation for the message.
    pub(crate) fn check(&self, op: &'static str) -> Result<(), LlpError> {
        let all = [self.loss, self.duplicate, self.reorder, self.corrupt];
        if all.iter().all(|p| (0.0..=1.0).contains(p)) {
            return Ok(());
        }
        Err(LlpError::Misuse {
            op,
            why: "the probability of a fault must be from 0 to 1",
        })
    }
}

/// Fault injector for one direction of a link. Packets are passed on only after the injector's lock
/// was released.
pub(crate) struct FaultInjector(Mutex<Faults>);

struct Faults {
    settings: FaultSettings,
    random: fastrand::Rng,
    counts: FaultCounts,
    held: Vec<HeldPacket>,
}

/// A packet that is held back, and the number of packets that still have to pass it.
struct HeldPacket {
    packet: Packet,
    behind: u8,
}

impl FaultInjector {
    /// Creates an injector. The settings must have passed [`FaultSettings::check`]. Each direction
    /// of a link needs a different `direction`.
    pub(crate) fn new(settings: FaultSettings, direction: u64) -> Self {
        // A first generator derives the seed. Otherwise direction 1 of one seed would equal
        // direction 0 of the next.
        let seed = fastrand::Rng::with_seed(settings.seed).u64(..);
        Self(Mutex::new(Faults {
            settings,
            random: fastrand::Rng::with_seed(seed.wrapping_add(direction)),
            counts: FaultCounts::default(),
            held: Vec::new(),
        }))
    }

    /// Decides the faults of `packet`, and calls `out` for every packet to pass on: this one (not
    /// at all, once or twice), and held packets that are due.
    pub(crate) fn pass(&self, packet: Packet, pool: &Pool, out: &mut dyn FnMut(Packet, Came)) {
        let (now, double, earlier) = {
            let mut faults = self.0.lock();
            let due = faults.release();
            let (now, double) = faults.decide(packet, pool);
            (now, double, due)
        };
        for packet in now.into_iter().chain(double) {
            out(packet, Came::Now);
        }
        for packet in earlier {
            out(packet, Came::Earlier);
        }
    }

    /// Returns the number of faults so far.
    pub(crate) fn counts(&self) -> FaultCounts {
        self.0.lock().counts
    }
}

impl Faults {
    /// Counts the current packet as one that overtakes each held packet. Returns the held packets
    /// that are due.
    fn release(&mut self) -> Vec<Packet> {
        let mut due = Vec::new();
        for mut held in mem::take(&mut self.held) {
            held.behind -= 1;
            if held.behind == 0 {
                due.push(held.packet);
            } else {
                self.held.push(held);
            }
        }
        due
    }

    /// Decides and applies the faults of a packet. Returns up to two packets to pass on: the packet
    /// and its duplicate.
    fn decide(&mut self, mut packet: Packet, pool: &Pool) -> (Option<Packet>, Option<Packet>) {
        let FaultSettings {
            loss,
            duplicate,
            reorder,
            corrupt,
            ..
        } = self.settings;
        // Every packet uses the same number of random numbers, so that its faults do not change
        // those of later packets.
        let random = &mut self.random;
        let [lost, corrupted, duplicated, reordered] =
            [loss, corrupt, duplicate, reorder].map(|probability| random.f64() < probability);
        let (bit, behind) = (random.u64(..), random.u8(1..=OVERTAKING));
        let counts = &mut self.counts;
        counts.packets += 1;
        if lost {
            counts.lost += 1;
            pool.give_one(packet);
            return (None, None);
        }
        if corrupted {
            counts.corrupted += 1;
            flip(packet.bytes_mut(), bit);
        }
        let double = duplicated.then(|| {
            counts.duplicated += 1;
            pool.copy(&packet)
        });
        if reordered {
            counts.reordered += 1;
            self.held.push(HeldPacket { packet, behind });
            return (double, None);
        }
        (Some(packet), double)
    }
}

/// Flips the bit with this number, modulo the number of bits.
fn flip(bytes: &mut [u8], number: u64) {
    let bits = bytes.len() as u64 * 8;
    let bit = number.checked_rem(bits).unwrap_or(0);
    let at = usize::try_from(bit / 8).unwrap_or(0);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << (bit % 8);
    }
}

/// A link with faults in its outgoing packets.
pub(crate) struct FaultyLink<L> {
    pub(crate) inner: L,
    pub(crate) injector: Arc<FaultInjector>,
    pub(crate) pool: Arc<Pool>,
}

impl<L: Link> Link for FaultyLink<L> {
    fn send(&self, packet: Packet, route: &mut Route) {
        self.injector
            .pass(packet, &self.pool, &mut |packet, came| match came {
                Came::Now => self.inner.send(packet, route),
                // The packet may belong to another connection, whose route is not known here.
                Came::Earlier => self.inner.send(packet, &mut Route::default()),
            });
    }

    fn reaches(&self, addr: IpAddr) -> bool {
        self.inner.reaches(addr)
    }

    fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        self.inner.next_hop(to)
    }

    fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        self.inner.source_for(to)
    }

    fn subscribe_if_full(&self, route: &Route, sender: &Arc<Mailbox>) -> bool {
        self.inner.subscribe_if_full(route, sender)
    }

    fn poll(&self, stack: &Stack) {
        self.inner.poll(stack);
    }

    fn takes_in(&self) -> bool {
        self.inner.takes_in()
    }

    fn close(&self) {
        self.inner.close();
    }

    fn describe(&self) -> String {
        format!("{} with faults", self.inner.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u8) -> Packet {
        let mut packet = Packet::new(1);
        packet.resize(40).fill(number);
        packet
    }

    /// Passes `count` packets through an injector. Returns the first byte of each packet passed on.
    fn passed(settings: FaultSettings, direction: u64, count: u8) -> (Vec<u8>, FaultCounts) {
        let injector = FaultInjector::new(settings, direction);
        let pool = Pool::new(40);
        let mut out = Vec::new();
        for number in 0..count {
            injector.pass(numbered(number), &pool, &mut |packet, _| {
                out.push(packet.bytes()[0]);
            });
        }
        (out, injector.counts())
    }

    fn all() -> FaultSettings {
        FaultSettings {
            seed: 11,
            loss: 0.2,
            duplicate: 0.2,
            reorder: 0.2,
            corrupt: 0.2,
        }
    }

    #[test]
    fn without_faults_every_packet_passes_as_it_is() {
        let (out, counts) = passed(FaultSettings::default(), 0, 200);
        assert_eq!(out, (0..200).collect::<Vec<_>>());
        let only = FaultCounts {
            packets: 200,
            ..FaultCounts::default()
        };
        assert_eq!(counts, only);
    }

    #[test]
    fn the_same_seed_decides_the_same_and_another_seed_or_direction_differently() {
        assert_eq!(passed(all(), 0, 200), passed(all(), 0, 200));
        assert_ne!(passed(all(), 0, 200).0, passed(all(), 1, 200).0);
        let other = FaultSettings { seed: 12, ..all() };
        assert_ne!(passed(all(), 0, 200).0, passed(other, 0, 200).0);
    }

    #[test]
    fn what_is_counted_is_what_came_out() {
        let loss = FaultSettings {
            loss: 0.5,
            ..FaultSettings::default()
        };
        let (out, counts) = passed(loss, 0, 200);
        assert_eq!(out.len() as u64, 200 - counts.lost);
        assert!((60..140).contains(&counts.lost), "{counts:?}");

        let duplicate = FaultSettings {
            duplicate: 0.5,
            ..FaultSettings::default()
        };
        let (out, counts) = passed(duplicate, 0, 200);
        let doubles = out.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert_eq!(doubles as u64, counts.duplicated);
        assert!((60..140).contains(&doubles), "{counts:?}");
    }

    #[test]
    fn a_packet_held_back_comes_behind_the_next_one_to_three() {
        let reorder = FaultSettings {
            reorder: 0.3,
            ..FaultSettings::default()
        };
        let (out, counts) = passed(reorder, 0, 200);
        assert!(counts.reordered > 0);
        let mut late = std::collections::BTreeSet::<u8>::new();
        for (at, number) in out.iter().enumerate() {
            // Number of packets that entered later and were passed on earlier.
            let overtook = out[..at].iter().filter(|other| *other > number).count();
            assert!(overtook <= 3, "{number}: {out:?}");
            late.extend((overtook > 0).then_some(number));
        }
        assert!(late.len() > 20, "{out:?}");
        let missing = 200 - out.len();
        assert!(missing <= 3, "more than the last ones are held: {missing}");
    }

    #[test]
    fn a_held_packet_leaves_although_the_next_ones_are_lost() {
        let injector = FaultInjector::new(
            FaultSettings {
                reorder: 1.0,
                ..FaultSettings::default()
            },
            0,
        );
        let pool = Pool::new(40);
        injector.pass(numbered(1), &pool, &mut |_, _| panic!("it is not held"));
        injector.0.lock().settings.loss = 1.0;
        let mut out = Vec::new();
        for _ in 0..3 {
            injector.pass(numbered(2), &pool, &mut |packet, came| {
                out.push((packet.bytes()[0], came));
            });
        }
        assert_eq!(out, [(1, Came::Earlier)]);
    }

    #[test]
    fn corruption_flips_one_bit_anywhere() {
        let corrupt = FaultSettings {
            corrupt: 1.0,
            ..FaultSettings::default()
        };
        let (injector, pool) = (FaultInjector::new(corrupt, 0), Pool::new(40));
        let mut seen = [false; 40];
        for _ in 0..1000 {
            injector.pass(numbered(0), &pool, &mut |packet, _| {
                let flipped: u32 = packet.bytes().iter().map(|o| o.count_ones()).sum();
                assert_eq!(flipped, 1);
                let at = packet.bytes().iter().position(|byte| *byte != 0);
                seen[at.unwrap()] = true;
            });
        }
        assert_eq!(seen, [true; 40]);
        flip(&mut [], 7);
    }

    #[test]
    fn what_is_no_probability_is_refused() {
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let settings = FaultSettings {
                reorder: wrong,
                ..FaultSettings::default()
            };
            assert!(settings.check("try").is_err(), "{wrong}");
        }
        assert!(all().check("try").is_ok());
    }
}
