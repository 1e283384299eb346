//! Atomic operations on a 64-bit word, computed bit by bit.

/// Returns `word` after a FetchAdd. A bit that is set in `mask` stops the carry into the next bit
/// (RFC 7306 section 5.1.1).
pub(crate) fn fetch_add(word: u64, add: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let here = (word >> bit & 1) + (add >> bit & 1) + carry;
        sum |= (here & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { here >> 1 };
    }
    sum
}

/// Returns `word` after a CmpSwap (RFC 7306 section 5.1.2).
pub(crate) fn compare_swap(word: u64, [swap, swap_mask, compare, compare_mask]: [u64; 4]) -> u64 {
    let bits = 0..64;
    let set = |value: u64, bit: u64| value >> bit & 1 == 1;
    let equal = bits
        .clone()
        .all(|bit| !set(compare_mask, bit) || set(word, bit) == set(compare, bit));
    bits.fold(0, |sum, bit| {
        let from = if equal && set(swap_mask, bit) {
            swap
        } else {
            word
        };
        sum | u64::from(set(from, bit)) << bit
    })
}
