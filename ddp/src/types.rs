//! Types for the numbers of DDP, one for each kind, so that they cannot be confused.

use core::fmt;

/// Steering Tag: names a Tagged Buffer (RFC 5041 section 4.2).
///
/// The side that created the STag chooses the meaning of its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct STag(
    /// Value on the wire.
    pub u32,
);

/// Tagged Offset, in bytes: a position in a Tagged Buffer (RFC 5041 section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct TaggedOffset(
    /// Value on the wire.
    pub u64,
);

/// Queue Number: one of the queues of Untagged Buffers of a stream (RFC 5041 section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Qn(
    /// Value on the wire.
    pub u32,
);

/// Message Sequence Number: counts the messages of one queue (RFC 5041 section 4.3).
///
/// The first message has number 1, and 0 follows `0xFFFF_FFFF`. Because the numbers wrap, the type
/// has no order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Msn(
    /// Value on the wire.
    pub u32,
);

impl Msn {
    /// Number of the first message on every queue.
    pub const FIRST: Msn = Msn(1); // 5041-4.3-08

    /// Returns the number of the next message.
    #[must_use]
    pub const fn next(self) -> Msn {
        Msn(self.0.wrapping_add(1)) // 5041-4.3-07, 5041-4.3-09
    }
}

impl TaggedOffset {
    /// Returns the offset `bytes` bytes after this one.
    ///
    /// The sum wraps at 2^64. The receiver refuses a segment that ends beyond 2^64
    /// ([`TaggedFault::ToWrap`](crate::TaggedFault::ToWrap)).
    #[must_use]
    pub const fn advance(self, bytes: u32) -> TaggedOffset {
        TaggedOffset(self.0.wrapping_add(bytes as u64))
    }
}

impl fmt::Display for STag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Display for TaggedOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Qn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn msn_starts_at_one_and_wraps_to_zero() {
        assert_eq!(Msn::FIRST, Msn(1));
        assert_eq!(Msn::FIRST.next(), Msn(2));
        assert_eq!(Msn(u32::MAX).next(), Msn(0)); // 5041-4.3-09
    }

    #[test]
    fn advance_wraps_instead_of_panicking() {
        assert_eq!(TaggedOffset(u64::MAX).advance(2), TaggedOffset(1));
        assert_eq!(TaggedOffset(16384).advance(1486), TaggedOffset(17870)); // RFC 5041 section 5.2
    }

    #[test]
    fn stags_print_with_all_eight_digits() {
        assert_eq!(STag(0x1a).to_string(), "0x0000001a");
    }
}
