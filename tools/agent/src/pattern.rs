//! Byte pattern for the content of regions. With it, data need not cross the control connection.

/// Returns the bytes of the pattern of `seed`, beginning at byte `at`. Byte `n` of the pattern is
/// byte `n % 8`, counted from the lowest, of output `n / 8` of the SplitMix64 generator with this
/// seed.
pub(crate) fn pattern(seed: u64, at: u64) -> impl Iterator<Item = u8> {
    let first = at / 8;
    // The index wraps only after byte 2^64.
    let words = (0..).map(move |index| word(seed, first.wrapping_add(index)));
    words
        .flat_map(u64::to_le_bytes)
        .skip(usize::try_from(at % 8).unwrap_or_default())
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
        // First two outputs for the seed 1234567, as published with the generator.
        let outputs = [6_457_827_717_110_365_317_u64, 3_203_168_211_198_807_973];
        let bytes: Vec<u8> = outputs.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(pattern(1_234_567, 0).take(16).collect::<Vec<_>>(), bytes);
        assert_eq!(
            pattern(1_234_567, 5).take(7).collect::<Vec<_>>(),
            bytes[5..12]
        );
        // First bytes that the agent in C writes for seed 7.
        let seven: Vec<_> = pattern(7, 0).take(4).collect();
        assert_eq!(seven, [0xd7, 0x0d, 0x32, 0x59]);
    }
}
