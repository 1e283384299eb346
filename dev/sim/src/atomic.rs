//! Model of atomic operations, bit by bit (RFC 7306 sections 5.1.1 and 5.1.2).

use fastrand::Rng;
use uwarp_verbs::{RemoteBuffer, SendWr, Sge};

/// An atomic operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    /// Masked FetchAdd. A 1 in `mask` marks the most significant bit of a field; no carry leaves a
    /// field.
    Add { add: u64, mask: u64 },
    /// Masked CmpSwap. `compare` and `swap` each hold an operand and its mask.
    Swap { compare: [u64; 2], swap: [u64; 2] },
}

impl Atomic {
    /// Draws an operation for a word that holds `word`. Some comparisons succeed and some fail.
    pub(crate) fn draw(random: &mut Rng, word: u64) -> Self {
        let masks = [u64::MAX, u64::MAX, random.u64(..), 0];
        let mut mask = || masks[random.usize(0..masks.len())];
        let (compare_mask, swap_mask) = (mask(), mask());
        match random.u8(0..4) {
            0 => Atomic::Add { add: 1, mask: 0 },
            1 => Atomic::Add {
                add: random.u64(..),
                mask: random.u64(..) & random.u64(..),
            },
            2 => Atomic::Swap {
                compare: [random.u64(..), compare_mask],
                swap: [random.u64(..), swap_mask],
            },
            _ => Atomic::Swap {
                compare: [word, compare_mask],
                swap: [random.u64(..), swap_mask],
            },
        }
    }

    /// Returns the work request for this operation on the word at `to`.
    pub(crate) fn request(self, wr_id: u64, sink: &[Sge], to: u64, rkey: u32) -> SendWr<'_> {
        match self {
            Atomic::Add { add, mask } => {
                SendWr::fetch_add(wr_id, sink, RemoteBuffer::at(to, rkey), add).mask(mask)
            }
            Atomic::Swap {
                compare: [compare, counts],
                swap: [swap, stored],
            } => SendWr::compare_swap(wr_id, sink, RemoteBuffer::at(to, rkey), compare, swap)
                .compare_mask(counts)
                .swap_mask(stored),
        }
    }

    /// Returns the new value of a word that holds `word`.
    pub(crate) fn on(self, word: u64) -> u64 {
        match self {
            Atomic::Add { add, mask } => {
                let (mut sum, mut carry) = (0, 0);
                for bit in 0..64 {
                    let digits = (word >> bit & 1) + (add >> bit & 1) + carry;
                    sum |= (digits & 1) << bit;
                    carry = if mask >> bit & 1 == 1 { 0 } else { digits >> 1 };
                }
                sum
            }
            Atomic::Swap {
                compare: [compare, counts],
                swap: [swap, stored],
            } => {
                if (word ^ compare) & counts == 0 {
                    word & !stored | swap & stored
                } else {
                    word
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_carried_out_of_a_field() {
        let add = |add, mask| Atomic::Add { add, mask };
        assert_eq!(add(1, 0).on(u64::MAX), 0);
        assert_eq!(add(1, 1 << 31).on(0x7_FFFF_FFFF), 0x7_0000_0000);
        assert_eq!(add(1 << 32 | 1, 1 << 31).on(u64::MAX), 0);
    }

    #[test]
    fn only_the_bits_of_the_masks_are_compared_and_stored() {
        let swap = |compare, swap| Atomic::Swap { compare, swap };
        assert_eq!(swap([0x12, 0xFF], [0xAB, 0xF0]).on(0x3412), 0x34A2);
        assert_eq!(swap([0x13, 0xFF], [0xAB, u64::MAX]).on(0x3412), 0x3412);
    }
}
