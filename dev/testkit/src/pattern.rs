//! Byte patterns for the content of memory and messages.

/// Returns `len` bytes of the endless pattern for `seed`, starting with byte `at`.
///
/// Byte `n` of the pattern is byte `n % 8`, lowest first, of output `n / 8` of a SplitMix64
/// generator that starts from `seed`. The agent uses the same pattern.
#[must_use]
pub fn pattern(seed: u64, at: u64, len: usize) -> Vec<u8> {
    // Whole words are generated, which is faster; some patterns have 16 MiB.
    let skip = (at % 8) as usize;
    let mut bytes = Vec::with_capacity(skip + len + 8);
    for number in (at / 8..).take((skip + len).div_ceil(8)) {
        bytes.extend_from_slice(&word(seed, number).to_le_bytes());
    }
    bytes.truncate(skip + len);
    bytes.drain(..skip);
    bytes
}

/// Returns bytes of varied values that resemble no protocol.
#[must_use]
pub fn filler(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 31 % 251) as u8).collect()
}

fn word(seed: u64, number: u64) -> u64 {
    let steps = number.wrapping_add(1);
    let mut z = seed.wrapping_add(steps.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_that_of_splitmix64() {
        // The first two outputs for the seed 1234567, as published with the generator.
        let outputs = [6_457_827_717_110_365_317_u64, 3_203_168_211_198_807_973];
        let bytes: Vec<u8> = outputs.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(pattern(1_234_567, 0, 16), bytes);
        assert_eq!(pattern(1_234_567, 5, 7), bytes[5..12]);
        // Output of the agent: `fill` with seed 7, then `peek`.
        assert_eq!(pattern(7, 0, 4), [0xd7, 0x0d, 0x32, 0x59]);
    }
}
