//! What becomes of bytes that are damaged on their way.

use fastrand::Rng;

use crate::packet;

/// How bytes are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// One bit is flipped.
    Bit,
    /// A few, anywhere.
    Bits,
    /// Bits next to each other, 32 at most, of which the first and the last are flipped: a CRC of 32 bits sees each of them.
    Burst,
    /// More than 32.
    LongBurst,
    /// Two bytes change places.
    Octets,
    /// Two words of 16 bits change places, which the checksum of TCP cannot see.
    Words,
    /// Two words of 32 bits do.
    LongWords,
    /// Bytes are those of another place, or zero: memory that was not written in time.
    Stale,
    /// The first two bytes, which may be the length of an FPDU.
    Length,
}

impl Damage {
    pub(crate) const ALL: [Damage; 9] = [
        Damage::Bit,
        Damage::Bits,
        Damage::Burst,
        Damage::LongBurst,
        Damage::Octets,
        Damage::Words,
        Damage::LongWords,
        Damage::Stale,
        Damage::Length,
    ];

    /// Damages bytes, of which there is one at least: they are others then.
    pub(crate) fn any(random: &mut Rng, octets: &mut [u8]) -> Damage {
        let damage = Damage::ALL[random.usize(0..Damage::ALL.len())];
        let before = octets.to_vec();
        damage.record_cause(random, octets);
        if *octets != *before {
            return damage;
        }
        // What changed places was the same, or there were too few.
        Damage::Bit.record_cause(random, octets);
        Damage::Bit
    }

    fn record_cause(self, random: &mut Rng, octets: &mut [u8]) {
        let bits = octets.len() * 8;
        match self {
            Damage::Bit => flip(octets, random.usize(0..bits)),
            Damage::Bits => (0..random.u8(2..9)).for_each(|_| flip(octets, random.usize(0..bits))),
            Damage::Burst => burst(random, octets, 2..=32),
            Damage::LongBurst => burst(random, octets, 33..=2000),
            Damage::Octets => swap(random, octets, 1),
            Damage::Words => swap(random, octets, 2),
            Damage::LongWords => swap(random, octets, 4),
            Damage::Stale => {
                let len = random.usize(1..=octets.len().min(64));
                let places = octets.len() - len + 1;
                let (from, to) = (random.usize(0..places), random.usize(0..places));
                if random.bool() {
                    octets.copy_within(from..from + len, to);
                } else {
                    octets[to..to + len].fill(0);
                }
            }
            Damage::Length => {
                let len = octets.len().min(2);
                random.fill(&mut octets[..len]);
            }
        }
    }
}

fn flip(octets: &mut [u8], bit: usize) {
    octets[bit / 8] ^= 0x80 >> (bit % 8);
}

fn burst(random: &mut Rng, octets: &mut [u8], long: std::ops::RangeInclusive<usize>) {
    let bits = octets.len() * 8;
    let long = random.usize(long).min(bits);
    let first = random.usize(0..=bits - long);
    flip(octets, first);
    for bit in first + 1..first + long {
        if bit == first + long - 1 || random.bool() {
            flip(octets, bit);
        }
    }
}

/// Two of the words of `size` bytes change places.
fn swap(random: &mut Rng, octets: &mut [u8], size: usize) {
    let words = octets.len() / size;
    if words < 2 {
        return;
    }
    let [one, two] = [(); 2].map(|()| random.usize(0..words) * size);
    for octet in 0..size {
        octets.swap(one + octet, two + octet);
    }
}

/// Damages a packet so that its checksum or its length tells.
pub(crate) fn seen(random: &mut Rng, octets: &mut Vec<u8>) {
    // Not in the addresses and not before: a real switch would not have brought it here.
    let header = packet::ip_len(octets).unwrap_or_default();
    let before = octets.clone();
    match random.u8(0..8) {
        0 => octets.truncate(random.usize(header..octets.len())),
        1 => {
            let wrong = random.usize(header..2 * octets.len());
            packet::say_length(octets, wrong);
        }
        _ => {
            Damage::any(random, &mut octets[header..]);
        }
    }
    // The checksum has 16 bits and sees no words that change places.
    if packet::is_right(octets) {
        octets.clone_from(&before);
        Damage::Bit.record_cause(random, &mut octets[header..]);
    }
}

/// What a middlebox does to the bytes of a connection in one direction: at one place some go, or others come in. It
/// moves the numbers of all segments behind, so that TCP does not see it.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    at: u32,
    removed: u32,
    inserted: Vec<u8>,
}

impl Rewrite {
    /// One at a place inside of this payload, whose first byte has this number.
    pub(crate) fn draw(random: &mut Rng, sequence: u32, payload: usize) -> Option<Self> {
        let most = payload.checked_sub(2).filter(|most| *most > 0)?;
        let count = random.usize(1..=most.min(8));
        let at = random.usize(1..=payload - 1 - count);
        let mut inserted = vec![0; count];
        let removed = if random.bool() {
            random.fill(&mut inserted);
            0
        } else {
            inserted.clear();
            u32::try_from(count).ok()?
        };
        Some(Rewrite {
            at: sequence.wrapping_add(u32::try_from(at).ok()?),
            removed,
            inserted,
        })
    }

    /// How far a number is behind the place.
    fn behind(&self, sequence: u32) -> i64 {
        i64::from(sequence.wrapping_sub(self.at).cast_signed())
    }

    fn grows(&self) -> u32 {
        u32::try_from(self.inserted.len()).unwrap_or_default()
    }

    /// A segment in this direction.
    pub(crate) fn segment(&self, packet: &mut Vec<u8>) {
        let (Some(start), Some(sequence)) = (packet::payload_at(packet), packet::sequence(packet))
        else {
            return;
        };
        let (payload, behind) = (packet.split_off(start), self.behind(sequence));
        let removed = i64::from(self.removed);
        for (index, octet) in (0..).zip(&payload) {
            let place = behind + index;
            if place == 0 {
                packet.extend_from_slice(&self.inserted);
            }
            if !(0..removed).contains(&place) {
                packet.push(*octet);
            }
        }
        let sequence = match behind {
            ..=0 => sequence,
            _ if behind < removed => self.at,
            _ => sequence
                .wrapping_sub(self.removed)
                .wrapping_add(self.grows()),
        };
        packet::renumber(packet, Some(sequence), None);
    }

    /// A segment of the other direction, which acknowledges what is sent in this one.
    pub(crate) fn acknowledgement(&self, packet: &mut [u8]) {
        let Some(number) = packet::acknowledges(packet) else {
            return;
        };
        let behind = self.behind(number);
        let number = match behind {
            ..=0 => number,
            _ if behind < i64::from(self.grows()) => self.at,
            _ => number.wrapping_sub(self.grows()).wrapping_add(self.removed),
        };
        packet::renumber(packet, None, Some(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::segment;

    #[test]
    fn damage_changes_octets_and_no_burst_is_longer_than_it_says() {
        let random = &mut Rng::with_seed(1);
        for len in 1..200 {
            let before: Vec<_> = (0..len).map(|octet| octet as u8).collect();
            for damage in Damage::ALL {
                damage.record_cause(random, &mut before.clone());
            }
            let mut octets = before.clone();
            Damage::any(random, &mut octets);
            assert!(octets != before && octets.len() == before.len());
            let mut octets = before.clone();
            Damage::Burst.record_cause(random, &mut octets);
            let flipped: Vec<_> = (0..len * 8)
                .filter(|bit| (octets[bit / 8] ^ before[bit / 8]) & 0x80 >> (bit % 8) != 0)
                .collect();
            assert!(flipped[flipped.len() - 1] - flipped[0] < 32, "{flipped:?}");
        }
    }

    #[test]
    fn what_is_to_be_seen_is_seen() {
        let random = &mut Rng::with_seed(2);
        for _ in 0..2000 {
            // Words of it can change places, and the checksum is the same.
            let mut packet = segment(b"abababcdefghijklmn");
            assert!(packet::is_right(&packet));
            seen(random, &mut packet);
            assert!(!packet::is_right(&packet), "{packet:02x?}");
        }
    }

    /// Cuts a payload into segments, rewrites each, and gives the stream that a receiver makes of it.
    fn stream(rewrite: &Rewrite, payload: &[u8], pieces: &[usize]) -> Vec<u8> {
        let mut rest = segment(payload);
        let mut all = vec![None; payload.len() + 8];
        let mut put = |mut packet: Vec<u8>| {
            rewrite.segment(&mut packet);
            assert!(packet::is_right(&packet));
            let at = packet::sequence(&packet).unwrap().wrapping_add(1) as usize;
            for (index, octet) in packet[40..].iter().enumerate() {
                all[at + index] = Some(*octet);
            }
        };
        for piece in pieces {
            let [head, tail] = packet::split(&rest, *piece).unwrap();
            put(head);
            rest = tail;
        }
        put(rest);
        all.into_iter().map_while(|octet| octet).collect()
    }

    #[test]
    fn a_stream_that_a_middlebox_changes_is_the_same_however_it_is_cut() {
        // The first byte of the segment has the number u32::MAX, so the third has 1.
        let goes = Rewrite {
            at: 1,
            removed: 3,
            inserted: Vec::new(),
        };
        let comes = Rewrite {
            at: 1,
            removed: 0,
            inserted: b"XY".to_vec(),
        };
        for pieces in [&[][..], &[1], &[2], &[3], &[4, 2], &[2, 1, 1, 1]] {
            assert_eq!(stream(&goes, b"abcdefgh", pieces), b"abfgh");
            assert_eq!(stream(&comes, b"abcdefgh", pieces), b"abXYcdefgh");
        }
        let acknowledged = |rewrite: &Rewrite, number| {
            let mut packet = segment(b"");
            packet::renumber(&mut packet, None, Some(number));
            rewrite.acknowledgement(&mut packet);
            packet::acknowledges(&packet).unwrap()
        };
        assert_eq!(
            [0, 1, 2].map(|number| acknowledged(&goes, number)),
            [0, 1, 5]
        );
        let numbers = [1, 2, 3, 4].map(|number| acknowledged(&comes, number));
        assert_eq!(numbers, [1, 1, 1, 2]);
    }
}
