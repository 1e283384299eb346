use super::*;
use proptest::prelude::*;

pub(crate) fn ops() -> impl Strategy<Value = AtomicOp> {
    let words = || prop_oneof![any::<u64>(), Just(0), Just(u64::MAX), 0u64..4];
    prop_oneof![
        (words(), words()).prop_map(|(add, mask)| AtomicOp::FetchAdd { add, mask }),
        (words(), words(), words(), words()).prop_map(
            |(compare, compare_mask, swap, swap_mask)| AtomicOp::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            }
        ),
    ]
}

/// FetchAdd as RFC 7306 section 5.1.1 defines it: bit by bit, with carries stopped by the mask.
fn add_bit_by_bit(original: u64, add: u64, mask: u64) -> u64 {
    let (mut result, mut carry) = (0, 0);
    for bit in 0..64 {
        let sum = carry + (original >> bit & 1) + (add >> bit & 1);
        result |= (sum & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
    }
    result
}

/// CmpSwap as RFC 7306 section 5.1.2 defines it, bit by bit.
fn swap_bit_by_bit(original: u64, [compare, compare_mask, swap, swap_mask]: [u64; 4]) -> u64 {
    let bit = |word: u64, bit: u32| word >> bit & 1;
    let equal =
        (0..64).all(|at| bit(compare_mask, at) == 0 || bit(compare, at) == bit(original, at));
    (0..64).fold(0, |result, at| {
        let from = if equal && bit(swap_mask, at) == 1 {
            swap
        } else {
            original
        };
        result | bit(from, at) << at
    })
}

proptest! {
    #[test]
    fn an_operation_is_what_the_rfc_says_bit_by_bit(op in ops(), original in any::<u64>()) {
        let expected = match op {
            AtomicOp::FetchAdd { add, mask } => add_bit_by_bit(original, add, mask),
            AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                swap_bit_by_bit(original, [compare, compare_mask, swap, swap_mask])
            }
        };
        prop_assert_eq!(op.apply(original), expected);
    }

    #[test]
    fn a_swap_without_compare_mask_is_unconditional(
        original in any::<u64>(), compare in any::<u64>(), swap in any::<u64>(),
    ) {
        let op = AtomicOp::CompareSwap { compare, compare_mask: 0, swap, swap_mask: u64::MAX };
        prop_assert_eq!(op.apply(original), swap);
    }

    #[test]
    fn a_compare_that_fails_changes_nothing(original in any::<u64>(), swap in any::<u64>()) {
        let op = AtomicOp::CompareSwap {
            compare: !original,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        };
        prop_assert_eq!(op.apply(original), original); // 7306-5.1.2-01
    }

    #[test]
    fn requests_come_back_as_they_were_written(
        id in any::<u32>(), stag in any::<u32>(), to in any::<u64>(), op in ops(),
    ) {
        let request = AtomicRequestHeader::new(id, STag(stag), TaggedOffset(to), op);
        let bytes = request.emit();
        prop_assert_eq!(AtomicRequestHeader::parse(&bytes), Some(request));
        prop_assert_eq!(request.op(), Some(op));
        prop_assert_eq!(AtomicRequestHeader::parse(&bytes[..51]), None);
    }

    #[test]
    fn any_bytes_are_a_request_and_reserved_bits_do_not_count(bytes in any::<[u8; 52]>()) {
        let request = AtomicRequestHeader::parse(&bytes).unwrap();
        let mut again = request.emit();
        prop_assert_eq!(again[..4].iter().map(|byte| u32::from(*byte)).sum::<u32>(), u32::from(bytes[3] & 15));
        again[..3].copy_from_slice(&bytes[..3]);
        again[3] = bytes[3];
        prop_assert_eq!(again, bytes); // 7306-5.2.1-i01, 7306-5.2.1-i02
    }

    #[test]
    fn responses_come_back_as_they_were_written(id in any::<u32>(), original in any::<u64>()) {
        let response = AtomicResponseHeader { id, original };
        let bytes = response.emit();
        prop_assert_eq!(AtomicResponseHeader::parse(&bytes), Some(response));
        prop_assert_eq!(AtomicResponseHeader::parse(&bytes[..11]), None);
    }
}

#[test]
fn fields_stand_where_the_rfc_puts_them() {
    let bytes: [u8; 52] = core::array::from_fn(|index| index as u8);
    let request = AtomicRequestHeader {
        code: 3,
        id: 0x0405_0607,
        stag: STag(0x0809_0A0B),
        to: TaggedOffset(0x0C0D_0E0F_1011_1213),
        data: 0x1415_1617_1819_1A1B,
        mask: 0x1C1D_1E1F_2021_2223,
        compare: 0x2425_2627_2829_2A2B,
        compare_mask: 0x2C2D_2E2F_3031_3233,
    };
    assert_eq!(AtomicRequestHeader::parse(&bytes), Some(request));
    let response = AtomicResponseHeader {
        id: 0x0001_0203,
        original: 0x0405_0607_0809_0A0B,
    };
    assert_eq!(AtomicResponseHeader::parse(&bytes), Some(response));
}

#[test]
fn a_fetch_add_sends_compare_data_of_zeros_and_a_compare_mask_of_ones() {
    let op = AtomicOp::FetchAdd { add: 5, mask: 6 };
    let bytes = AtomicRequestHeader::new(1, STag(2), TaggedOffset(3), op).emit();
    assert_eq!(bytes[36..44], [0; 8]);
    assert_eq!(bytes[44..52], [0xFF; 8]); // 7306-5.2.1-i04
    // The receiver ignores Compare Data and Compare Mask.
    let mut other = bytes;
    other[36..52].fill(0x55);
    assert_eq!(AtomicRequestHeader::parse(&other).unwrap().op(), Some(op));
}

#[test]
fn other_operation_codes_have_no_operation() {
    let op = AtomicOp::FetchAdd { add: 5, mask: 6 };
    let request = AtomicRequestHeader::new(1, STag(2), TaggedOffset(3), op);
    for code in (0..16).filter(|code| ![0, 2].contains(code)) {
        assert_eq!(AtomicRequestHeader { code, ..request }.op(), None);
    }
}
