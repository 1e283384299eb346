//! Chooses STags that are hard to guess and are reused as late as possible.
//!
//! An STag has a 24-bit index and an 8-bit key. The indices follow a keyed permutation of all 2^24
//! values: they look random, but none repeats before all others were used (RFC 5042 section 6.1.1).
//! The key is random.
//!
//! The permutation is a Feistel network with SipHash-2-4 as its round function, a specified keyed
//! function (Aumasson and Bernstein, 2012). The standard library's hasher is no replacement: its
//! algorithm may change, and std does not promise that a secret makes it unpredictable.

use rustix::rand::{GetRandomFlags, getrandom};
use siphasher::sip::SipHasher24;

use super::error::RegisterError;
use crate::policy::KEY_BYTES;

/// Number of bits of an STag's index.
pub(super) const INDEX_BITS: u32 = 24;
const HALF: u32 = (1 << (INDEX_BITS / 2)) - 1;
/// Number of rounds, as in FF1 (NIST SP 800-38G). With few rounds, a peer that sees many indices of
/// such short halves could find the round functions.
const ROUNDS: u8 = 10;

/// Returns the STag with the next key: same index, last byte incremented (`ibv_inc_rkey`).
#[must_use]
pub fn inc_rkey(rkey: u32) -> u32 {
    rkey & !0xFF | rkey.wrapping_add(1) & 0xFF
}

/// Generates indices and keys.
pub(super) struct STagSource {
    permutation: Permutation,
    position: u32,
    bytes: RandomBytes,
    pool: [u8; KEY_BYTES],
    left: usize,
}

/// Keyed permutation of all values of `INDEX_BITS` bits.
struct Permutation(SipHasher24);

/// Source of random bytes.
enum RandomBytes {
    System,
    /// Deterministic, for simulation. `asked` counts the blocks of 8 bytes generated so far.
    Seeded {
        seed: u64,
        asked: u64,
    },
}

impl STagSource {
    /// Creates a generator with its own secret. With a seed the sequence is reproducible (for
    /// simulation only).
    pub(super) fn new(seed: Option<u64>) -> Result<Self, RegisterError> {
        let mut bytes = seed.map_or(RandomBytes::System, |seed| RandomBytes::Seeded {
            seed,
            asked: 0,
        });
        let mut secret = [0; 16];
        bytes.fill(&mut secret)?;
        let mut start = [0; 4];
        bytes.fill(&mut start)?;
        Ok(Self {
            bytes,
            permutation: Permutation(SipHasher24::new_with_key(&secret)),
            position: u32::from_le_bytes(start),
            pool: [0; KEY_BYTES],
            left: 0,
        })
    }

    /// Returns the next index, 1 to 2^24 - 1. Index 0 is never used, so no STag is 0.
    pub(super) fn next_index(&mut self) -> u32 {
        loop {
            self.position = self.position.wrapping_add(1);
            let index = self
                .permutation
                .permute(self.position & ((1 << INDEX_BITS) - 1));
            if index != 0 {
                return index;
            }
        }
    }

    /// Returns a random key.
    pub(super) fn next_key(&mut self) -> Result<u8, RegisterError> {
        if self.left == 0 {
            self.bytes.fill(&mut self.pool)?;
            self.left = KEY_BYTES;
        }
        self.left -= 1;
        // `left` is below `KEY_BYTES`.
        Ok(self.pool.get(self.left).copied().unwrap_or_default())
    }
}

impl Permutation {
    /// Permutes a value by a Feistel network over its two halves. Such a network is a permutation
    /// whatever its round function is.
    fn permute(&self, value: u32) -> u32 {
        let (mut left, mut right) = (value >> (INDEX_BITS / 2), value & HALF);
        for round in 0..ROUNDS {
            let [low, high, ..] = right.to_le_bytes();
            let hash = self.0.hash(&[round, low, high]);
            (left, right) = (right, left ^ (hash as u32 & HALF));
        }
        left << (INDEX_BITS / 2) | right
    }
}

impl RandomBytes {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), RegisterError> {
        let RandomBytes::Seeded { seed, asked } = self else {
            return random(out);
        };
        let function = SipHasher24::new_with_keys(*seed, 0);
        for chunk in out.chunks_mut(8) {
            let block = function.hash(&asked.to_le_bytes()).to_le_bytes();
            *asked += 1;
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
        Ok(())
    }
}

/// Fills `out` with random bytes of the system.
fn random(out: &mut [u8]) -> Result<(), RegisterError> {
    let mut filled = 0;
    while let Some(rest) = out.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                return Err(RegisterError::NoRandomness {
                    errno: errno.raw_os_error(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key of the vectors: the bytes 0 to 15.
    fn key() -> [u8; 16] {
        core::array::from_fn(|at| at as u8)
    }

    /// The vector of appendix A of "SipHash: a fast short-input PRF", and the one of the reference
    /// implementation for no bytes.
    #[test]
    fn round_function_is_siphash_2_4() {
        let function = SipHasher24::new_with_key(&key());
        let input: [u8; 15] = core::array::from_fn(|at| at as u8);
        assert_eq!(function.hash(&input), 0xa129_ca61_49be_45e5);
        assert_eq!(function.hash(&[]), 0x726f_db47_dd0e_0e31);
    }

    /// The values come from a separate implementation of the network and of SipHash in Python.
    #[test]
    fn permutation_has_known_values() {
        let permutation = Permutation(SipHasher24::new_with_key(&key()));
        for (value, permuted) in [
            (0, 0x9b_dc5b),
            (1, 0x4d_55f8),
            (2, 0xf3_bcf0),
            (0x12_3456, 0xf4_3d5f),
            (0xff_ffff, 0xee_6175),
        ] {
            assert_eq!(permutation.permute(value), permuted, "{value:#x}");
        }
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "statistics of many numbers, and nothing but arithmetic"
    )]
    fn no_index_comes_twice_before_all_others_came() {
        let mut source = STagSource::new(None).unwrap();
        let mut seen = vec![0_u64; 1 << (INDEX_BITS - 6)];
        for _ in 0..200_000 {
            let index = source.next_index();
            assert!((1..1 << INDEX_BITS).contains(&index));
            let bit = 1 << (index & 63);
            assert_eq!(
                seen[index as usize >> 6] & bit,
                0,
                "index {index:#x} came twice"
            );
            seen[index as usize >> 6] |= bit;
        }
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "statistics of many numbers, and nothing but arithmetic"
    )]
    fn indices_follow_no_sequence() {
        let mut source = STagSource::new(None).unwrap();
        let indices: Vec<u32> = (0..2000).map(|_| source.next_index()).collect();
        let near = indices
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) < 1000)
            .count();
        // 2000 uniform pairs out of 2^24 have 0.24 such neighbours on average.
        assert!(
            near < 12,
            "{near} of 2000 indices are next to the one before"
        );
        let mut steps: Vec<u32> = indices
            .windows(2)
            .map(|p| p[1].wrapping_sub(p[0]))
            .collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 1900, "the steps repeat");
    }

    #[test]
    fn a_seed_gives_the_same_stags_each_time_and_another_one_others() {
        // Miri interprets ten hashes for each STag.
        let count = if cfg!(miri) { 30 } else { 600 };
        let stags = |seed| {
            let mut source = STagSource::new(Some(seed)).unwrap();
            let next = || (source.next_index(), source.next_key().unwrap());
            core::iter::repeat_with(next)
                .take(count)
                .collect::<Vec<_>>()
        };
        assert_eq!(stags(7), stags(7));
        let differ = stags(7).into_iter().zip(stags(8)).filter(|(a, b)| a != b);
        assert!(differ.count() > count - 10);
    }

    #[test]
    fn two_sources_differ() {
        let mut one = STagSource::new(None).unwrap();
        let mut two = STagSource::new(None).unwrap();
        let same = (0..if cfg!(miri) { 20 } else { 100 })
            .filter(|_| one.next_index() == two.next_index())
            .count();
        assert!(same < 5);
    }
}
