//! The numbers of DDP, each a type of its own so that none is taken for another.

use core::fmt;

/// Steering Tag: names a Tagged Buffer (RFC 5041 section 4.2).
///
/// What its bits mean is the business of the side that gave it out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct STag(
    /// The value as it stands on the wire.
    pub u32,
);

/// Tagged Offset, in octets: a place in a Tagged Buffer (RFC 5041 section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct TaggedOffset(
    /// The value as it stands on the wire.
    pub u64,
);

/// Queue Number: one of the queues of Untagged Buffers of a stream (RFC 5041 section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Qn(
    /// The value as it stands on the wire.
    pub u32,
);

/// Message Sequence Number: counts the messages of one queue (RFC 5041 section 4.3).
///
/// The first message has 1, and 0 comes after `0xFFFF_FFFF`; so there is no order on these numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Msn(
    /// The value as it stands on the wire.
    pub u32,
);

impl Msn {
    /// The number of the first message on every queue.
    pub const FIRST: Msn = Msn(1); // 5041-4.3-08

    /// The number of the message after this one.
    #[must_use]
    pub const fn next(self) -> Msn {
        Msn(self.0.wrapping_add(1)) // 5041-4.3-07, 5041-4.3-09
    }
}

impl TaggedOffset {
    /// The offset `octets` further on.
    ///
    /// It wraps: a message whose end lies beyond 2^64 is for the receiver to refuse
    /// ([`TaggedFault::ToWrap`](crate::TaggedFault::ToWrap)).
    #[must_use]
    pub const fn advance(self, octets: u32) -> TaggedOffset {
        TaggedOffset(self.0.wrapping_add(octets as u64))
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
