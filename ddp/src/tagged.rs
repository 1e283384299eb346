//! Placement of a tagged segment: TO wrap and bounds (RFC 5041 section 7.1).

use core::ops::Range;

use crate::error::TaggedFault;
use crate::types::TaggedOffset;

/// Range of Tagged Offsets that an STag covers.
///
/// [`locate`](Self::locate) does the last two checks for a tagged segment. The checks before them
/// (the STag is valid, belongs to the stream and grants the right) need information that only the
/// owner of the memory has. See [`TaggedFault`] for their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaggedRange {
    /// TO of the first byte.
    pub base: TaggedOffset,
    /// Length in bytes.
    pub len: u64,
}

impl TaggedRange {
    /// Returns the offsets from `base` of the `len` bytes at `to`.
    ///
    /// Do not call it with a `len` of 0, because empty segments are not checked (5041-5.2-11).
    ///
    /// # Errors
    /// [`TaggedFault::ToWrap`] if `to + len` does not fit into 64 bits, else
    /// [`TaggedFault::BaseOrBounds`] if a byte lies outside the range.
    pub fn locate(&self, to: TaggedOffset, len: u32) -> Result<Range<u64>, TaggedFault> {
        if to.0.checked_add(u64::from(len)).is_none() {
            return Err(TaggedFault::ToWrap); // 5041-7.1-14
        }
        // Computed with distances from `base`, because `base + len` may be 2^64, which exceeds
        // `u64`.
        let start =
            to.0.checked_sub(self.base.0)
                .ok_or(TaggedFault::BaseOrBounds)?; // 5041-7.1-12
        let end = start
            .checked_add(u64::from(len))
            .ok_or(TaggedFault::BaseOrBounds)?;
        if end > self.len {
            return Err(TaggedFault::BaseOrBounds); // 5041-7.1-13
        }
        Ok(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RANGE: TaggedRange = TaggedRange {
        base: TaggedOffset(1000),
        len: 100,
    };

    #[test]
    fn bytes_inside_are_found() {
        assert_eq!(RANGE.locate(TaggedOffset(1000), 100), Ok(0..100));
        assert_eq!(RANGE.locate(TaggedOffset(1099), 1), Ok(99..100));
    }

    #[test]
    fn one_byte_outside_is_a_base_or_bounds_violation() {
        assert_eq!(
            RANGE.locate(TaggedOffset(999), 1),
            Err(TaggedFault::BaseOrBounds)
        );
        assert_eq!(
            RANGE.locate(TaggedOffset(1099), 2),
            Err(TaggedFault::BaseOrBounds)
        );
        assert_eq!(
            RANGE.locate(TaggedOffset(1100), 1),
            Err(TaggedFault::BaseOrBounds)
        );
    }

    #[test]
    fn a_sum_beyond_64_bits_is_a_to_wrap_and_not_a_bounds_violation() {
        assert_eq!(
            RANGE.locate(TaggedOffset(u64::MAX), 1),
            Err(TaggedFault::ToWrap)
        );
        assert_eq!(
            RANGE.locate(TaggedOffset(u64::MAX - 1), 1),
            Err(TaggedFault::BaseOrBounds)
        );
    }

    proptest! {
        #[test]
        fn locate_agrees_with_arithmetic_in_128_bits(
            base in prop_oneof![any::<u64>(), u64::MAX - 300..=u64::MAX, 0u64..300],
            size in prop_oneof![any::<u64>(), 0u64..300],
            from_base in prop_oneof![-300i64..300, any::<i64>()],
            len in prop_oneof![1u32..300, 1u32..],
        ) {
            let range = TaggedRange { base: TaggedOffset(base), len: size };
            let to = base.wrapping_add_signed(from_base);
            let end = u128::from(to) + u128::from(len);
            let expected = if end > u128::from(u64::MAX) {
                Err(TaggedFault::ToWrap)
            } else if to < base || end > u128::from(base) + u128::from(size) {
                Err(TaggedFault::BaseOrBounds)
            } else {
                Ok(to - base..to - base + u64::from(len))
            };
            prop_assert_eq!(range.locate(TaggedOffset(to), len), expected);
        }
    }
}
