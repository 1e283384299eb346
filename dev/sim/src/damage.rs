//! Damage to bytes in transit.

use fastrand::Rng;

use crate::packet;

/// Kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Flips one bit.
    Bit,
    /// Flips a few bits anywhere.
    Bits,
    /// Flips bits in a run of at most 32. The first and the last bit of the run are always flipped.
    /// A 32-bit CRC detects every such burst.
    Burst,
    /// Flips bits in the same way in a run of more than 32 bits.
    LongBurst,
    /// Swaps two bytes.
    Bytes,
    /// Swaps two 16-bit words, which the checksum of TCP cannot detect.
    Words,
    /// Swaps two 32-bit words.
    LongWords,
    /// Overwrites bytes with those from another place or with zeros, as if they were read from
    /// memory too early.
    Stale,
    /// Overwrites the first two bytes, which may be the length of an FPDU.
    Length,
}

impl Damage {
    pub(crate) const ALL: [Damage; 9] = [
        Damage::Bit,
        Damage::Bits,
        Damage::Burst,
        Damage::LongBurst,
        Damage::Bytes,
        Damage::Words,
        Damage::LongWords,
        Damage::Stale,
        Damage::Length,
    ];

    /// Applies a random kind of damage to `bytes`, which must not be empty. The result always
    /// differs from the original. Returns the kind.
    pub(crate) fn any(random: &mut Rng, bytes: &mut [u8]) -> Damage {
        let damage = Damage::ALL[random.usize(0..Damage::ALL.len())];
        let before = bytes.to_vec();
        damage.apply(random, bytes);
        if *bytes != *before {
            return damage;
        }
        // The swapped or copied parts were equal, or there were too few bytes.
        Damage::Bit.apply(random, bytes);
        Damage::Bit
    }

    fn apply(self, random: &mut Rng, bytes: &mut [u8]) {
        let bits = bytes.len() * 8;
        match self {
            Damage::Bit => flip(bytes, random.usize(0..bits)),
            Damage::Bits => (0..random.u8(2..9)).for_each(|_| flip(bytes, random.usize(0..bits))),
            Damage::Burst => burst(random, bytes, 2..=32),
            Damage::LongBurst => burst(random, bytes, 33..=2000),
            Damage::Bytes => swap(random, bytes, 1),
            Damage::Words => swap(random, bytes, 2),
            Damage::LongWords => swap(random, bytes, 4),
            Damage::Stale => {
                let len = random.usize(1..=bytes.len().min(64));
                let places = bytes.len() - len + 1;
                let (from, to) = (random.usize(0..places), random.usize(0..places));
                if random.bool() {
                    bytes.copy_within(from..from + len, to);
                } else {
                    bytes[to..to + len].fill(0);
                }
            }
            Damage::Length => {
                let len = bytes.len().min(2);
                random.fill(&mut bytes[..len]);
            }
        }
    }
}

fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 0x80 >> (bit % 8);
}

fn burst(random: &mut Rng, bytes: &mut [u8], long: std::ops::RangeInclusive<usize>) {
    let bits = bytes.len() * 8;
    let long = random.usize(long).min(bits);
    let first = random.usize(0..=bits - long);
    flip(bytes, first);
    for bit in first + 1..first + long {
        if bit == first + long - 1 || random.bool() {
            flip(bytes, bit);
        }
    }
}

/// Swaps two words of `size` bytes.
fn swap(random: &mut Rng, bytes: &mut [u8], size: usize) {
    let words = bytes.len() / size;
    if words < 2 {
        return;
    }
    let [one, two] = [(); 2].map(|()| random.usize(0..words) * size);
    for byte in 0..size {
        bytes.swap(one + byte, two + byte);
    }
}

/// Damages a packet so that its checksum or its length is wrong.
pub(crate) fn seen(random: &mut Rng, bytes: &mut Vec<u8>) {
    // The IP header stays intact. With other addresses a real switch would not deliver the packet
    // to this host.
    let header = packet::ip_len(bytes).unwrap_or_default();
    let before = bytes.clone();
    match random.u8(0..8) {
        0 => bytes.truncate(random.usize(header..bytes.len())),
        1 => {
            let wrong = random.usize(header..2 * bytes.len());
            packet::set_length(bytes, wrong);
        }
        _ => {
            Damage::any(random, &mut bytes[header..]);
        }
    }
    // The 16-bit checksum does not detect swapped words.
    if packet::is_right(bytes) {
        bytes.clone_from(&before);
        Damage::Bit.apply(random, &mut bytes[header..]);
    }
}

/// Change that a middlebox makes to one direction of a connection: it removes or inserts bytes at
/// one place. The middlebox also renumbers all later segments, so that TCP does not detect the
/// change.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    at: u32,
    removed: u32,
    inserted: Vec<u8>,
}

impl Rewrite {
    /// Draws a change inside this payload, whose first byte has sequence number `sequence`. Returns
    /// `None` for a payload that is too short.
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

    /// Returns the distance from the place of the change to a sequence number. It is negative
    /// before the place.
    fn distance(&self, sequence: u32) -> i64 {
        i64::from(sequence.wrapping_sub(self.at).cast_signed())
    }

    fn inserted_len(&self) -> u32 {
        u32::try_from(self.inserted.len()).unwrap_or_default()
    }

    /// Applies the change to a segment of this direction.
    pub(crate) fn segment(&self, packet: &mut Vec<u8>) {
        let (Some(start), Some(sequence)) = (packet::payload_at(packet), packet::sequence(packet))
        else {
            return;
        };
        let (payload, distance) = (packet.split_off(start), self.distance(sequence));
        let removed = i64::from(self.removed);
        for (index, byte) in (0..).zip(&payload) {
            let place = distance + index;
            if place == 0 {
                packet.extend_from_slice(&self.inserted);
            }
            if !(0..removed).contains(&place) {
                packet.push(*byte);
            }
        }
        let sequence = match distance {
            ..=0 => sequence,
            _ if distance < removed => self.at,
            _ => sequence
                .wrapping_sub(self.removed)
                .wrapping_add(self.inserted_len()),
        };
        packet::renumber(packet, Some(sequence), None);
    }

    /// Adjusts the acknowledgement number of a segment of the other direction.
    pub(crate) fn acknowledgement(&self, packet: &mut [u8]) {
        let Some(number) = packet::acknowledges(packet) else {
            return;
        };
        let distance = self.distance(number);
        let number = match distance {
            ..=0 => number,
            _ if distance < i64::from(self.inserted_len()) => self.at,
            _ => number
                .wrapping_sub(self.inserted_len())
                .wrapping_add(self.removed),
        };
        packet::renumber(packet, None, Some(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::segment;

    #[test]
    fn damage_changes_bytes_and_no_burst_is_longer_than_it_says() {
        let random = &mut Rng::with_seed(1);
        for len in 1..200 {
            let before: Vec<_> = (0..len).map(|byte| byte as u8).collect();
            for damage in Damage::ALL {
                damage.apply(random, &mut before.clone());
            }
            let mut bytes = before.clone();
            Damage::any(random, &mut bytes);
            assert!(bytes != before && bytes.len() == before.len());
            let mut bytes = before.clone();
            Damage::Burst.apply(random, &mut bytes);
            let flipped: Vec<_> = (0..len * 8)
                .filter(|bit| (bytes[bit / 8] ^ before[bit / 8]) & 0x80 >> (bit % 8) != 0)
                .collect();
            assert!(flipped[flipped.len() - 1] - flipped[0] < 32, "{flipped:?}");
        }
    }

    #[test]
    fn what_is_to_be_seen_is_seen() {
        let random = &mut Rng::with_seed(2);
        for _ in 0..2000 {
            // This payload has equal words, so that a swap may leave the packet valid.
            let mut packet = segment(b"abababcdefghijklmn");
            assert!(packet::is_right(&packet));
            seen(random, &mut packet);
            assert!(!packet::is_right(&packet), "{packet:02x?}");
        }
    }

    /// Cuts a payload into segments, rewrites each, and returns the stream that a receiver
    /// reassembles.
    fn stream(rewrite: &Rewrite, payload: &[u8], pieces: &[usize]) -> Vec<u8> {
        let mut rest = segment(payload);
        let mut all = vec![None; payload.len() + 8];
        let mut put = |mut packet: Vec<u8>| {
            rewrite.segment(&mut packet);
            assert!(packet::is_right(&packet));
            let at = packet::sequence(&packet).unwrap().wrapping_add(1) as usize;
            for (index, byte) in packet[40..].iter().enumerate() {
                all[at + index] = Some(*byte);
            }
        };
        for piece in pieces {
            let [head, tail] = packet::split(&rest, *piece).unwrap();
            put(head);
            rest = tail;
        }
        put(rest);
        all.into_iter().map_while(|byte| byte).collect()
    }

    #[test]
    fn a_stream_that_a_middlebox_changes_is_the_same_however_it_is_cut() {
        // The first byte of the segment has sequence number u32::MAX, so the third byte has 1.
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
