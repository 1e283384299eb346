//! Byte pattern with which agents fill memory (SplitMix64; docs/agent.md).

/// Returns `len` bytes of the pattern with `seed`, beginning at offset `at`.
pub(crate) fn pattern(seed: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64)
        .map(|at| (word(seed, at / 8) >> (8 * (at % 8))) as u8)
        .collect()
}

fn word(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_goes_on_where_another_call_ended() {
        let whole = pattern(7, 0, 40);
        assert_eq!(pattern(7, 13, 27), whole[13..]);
        assert_ne!(pattern(8, 0, 40), whole);
    }
}
