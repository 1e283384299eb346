//! Messages of the demo. They have many sizes, and each is at an odd offset of one region. Their
//! pattern differs by kind, message and position, so that wrong data cannot match by chance.

use uwarp_verbs::{MemoryRegion, OutOfRange, Sge};

/// Lengths of the messages in bytes: 0, less than a word, close to the payload of a TCP segment,
/// close to 64 KiB (the maximum of one FPDU), and up to 16 MiB.
pub(super) const SIZES: [u32; 22] = [
    0, 1, 2, 3, 5, 8, 17, 64, 255, 256, 1459, 1460, 1461, 4095, 4096, 16_383, 65_535, 65_537,
    262_147, 1_048_577, 4_194_301, 16_777_216,
];

/// Number of bytes in the gap between two messages. No operation may change a gap.
const GAP: u32 = 29;
/// Value of every byte in the gaps.
const BLANK: u8 = 0xEE;
/// Number of bytes that are compared at a time.
const CHUNK: usize = 64 << 10;

/// Origin of the data. It selects the pattern of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    SentByA = 1,
    SentByB,
    Written,
    Read,
}

/// Position of one message in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) index: usize,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// Returns the positions of all messages in a region.
pub(super) fn slots() -> impl Iterator<Item = Slot> {
    let mut next = 1;
    SIZES.iter().enumerate().map(move |(index, &len)| {
        let offset = next;
        next = (offset + len + GAP) | 1;
        Slot { index, offset, len }
    })
}

/// Returns the length in bytes of a region that holds all messages and gaps.
pub(super) fn region_len() -> usize {
    slots()
        .last()
        .map_or(0, |slot| (slot.offset + slot.len + GAP) as usize)
}

/// Returns the number of bytes in all messages.
pub(super) fn total() -> u64 {
    SIZES.iter().map(|size| u64::from(*size)).sum()
}

/// Returns the initial content of a region, in which every byte is [`BLANK`].
pub(super) fn blank() -> Vec<u8> {
    vec![BLANK; region_len()]
}

/// Returns the content of a region with every message in place.
pub(super) fn filled(kind: Kind) -> Vec<u8> {
    let mut bytes = blank();
    for slot in slots() {
        let place = &mut bytes[slot.offset as usize..][..slot.len as usize];
        fill(seed(kind, slot.index), 0, place);
    }
    bytes
}

impl Slot {
    /// Describes the message in `region` as up to three pieces of odd lengths.
    pub(super) fn pieces(&self, region: &MemoryRegion) -> Vec<Sge> {
        let cuts = if self.len < 3 {
            vec![self.len]
        } else {
            vec![1, self.len / 2, self.len - 1 - self.len / 2]
        };
        let mut at = self.offset;
        cuts.into_iter()
            .map(|len| {
                let sge = region.sge(at.into(), len);
                at += len;
                sge
            })
            .collect()
    }

    /// Describes the message in `region` as one piece.
    pub(super) fn whole(&self, region: &MemoryRegion) -> [Sge; 1] {
        [region.sge(self.offset.into(), self.len)]
    }
}

/// Checks every byte of a region that received all messages of `kind`: the messages, and the
/// unchanged gaps between them.
pub(super) fn verify(region: &MemoryRegion, kind: Kind) -> Result<(), String> {
    verify_with(kind, |offset, out| region.read_at(offset, out))
}

fn verify_with(
    kind: Kind,
    read: impl Fn(usize, &mut [u8]) -> Result<(), OutOfRange>,
) -> Result<(), String> {
    let mut got = vec![0; CHUNK];
    let mut want = vec![0; CHUNK];
    let mut compare = |at: usize, len: usize, what: &str, seed: Option<u64>| {
        for start in (0..len).step_by(CHUNK) {
            let len = CHUNK.min(len - start);
            let (got, want) = (&mut got[..len], &mut want[..len]);
            read(at + start, got).map_err(|error| error.to_string())?;
            match seed {
                Some(seed) => fill(seed, start, want),
                None => want.fill(BLANK),
            }
            if got != want {
                let wrong = got
                    .iter()
                    .zip(&*want)
                    .position(|(got, want)| got != want)
                    .unwrap_or(0);
                return Err(format!(
                    "{what}: byte {} is {:#04x}, expected {:#04x}",
                    start + wrong,
                    got[wrong],
                    want[wrong]
                ));
            }
        }
        Ok(())
    };
    let mut gap_from = 0;
    for slot in slots() {
        let (offset, len) = (slot.offset as usize, slot.len as usize);
        let before = format!("memory before message {}", slot.index);
        compare(gap_from, offset - gap_from, &before, None)?;
        let what = format!("message {} of {len} bytes", slot.index);
        compare(offset, len, &what, Some(seed(kind, slot.index)))?;
        gap_from = offset + len;
    }
    compare(
        gap_from,
        region_len() - gap_from,
        "memory after the last message",
        None,
    )
}

fn seed(kind: Kind, index: usize) -> u64 {
    scramble((kind as u64) << 32 | index as u64)
}

/// Writes the pattern to `out`, starting at byte `from` of the pattern (a multiple of 8).
fn fill(seed: u64, from: usize, out: &mut [u8]) {
    for (block, place) in (from as u64 / 8..).zip(out.chunks_mut(8)) {
        let bytes = scramble(seed.wrapping_add(block)).to_le_bytes();
        place.copy_from_slice(&bytes[..place.len()]);
    }
}

/// Finalizer of SplitMix64: every output bit depends on every input bit.
fn scramble(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], kind: Kind) -> Result<(), String> {
        verify_with(kind, |offset, out| {
            out.copy_from_slice(&bytes[offset..][..out.len()]);
            Ok(())
        })
    }

    #[test]
    fn sizes_go_from_0_to_16_mib_and_every_offset_is_odd() {
        assert_eq!((SIZES[0], SIZES[SIZES.len() - 1]), (0, 16 << 20));
        assert!(SIZES.iter().filter(|size| *size % 2 == 1).count() > 8);
        let mut end = 0;
        for slot in slots() {
            assert!(slot.offset % 2 == 1 && slot.offset > end, "{slot:?}");
            end = slot.offset + slot.len;
        }
    }

    #[test]
    fn one_wrong_byte_anywhere_is_found_and_named() {
        let mut bytes = filled(Kind::Read);
        assert_eq!(check(&bytes, Kind::Read), Ok(()));
        assert!(check(&bytes, Kind::Written).is_err());
        let last = slots().last().unwrap();
        for (at, what) in [
            (0, "memory before message 0"),
            (bytes.len() - 1, "memory after"),
            (
                last.offset as usize + 70_000,
                "message 21 of 16777216 bytes: byte 70000 is",
            ),
        ] {
            bytes[at] ^= 1;
            let error = check(&bytes, Kind::Read).unwrap_err();
            assert!(error.starts_with(what), "{error}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn two_messages_that_changed_places_are_found() {
        let mut bytes = filled(Kind::SentByA);
        let (a, b) = (slots().nth(8).unwrap(), slots().nth(9).unwrap());
        for at in 0..a.len {
            bytes.swap((a.offset + at) as usize, (b.offset + at) as usize);
        }
        assert!(
            check(&bytes, Kind::SentByA)
                .unwrap_err()
                .starts_with("message 8 of 255")
        );
    }
}
