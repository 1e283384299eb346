//! Segmentation of messages (RFC 5041 section 5.2).

use core::ops::Range;

/// Length in bytes of the longest ULPDU, for any MULPDU (RFC 5044 section 3).
pub const MAX_ULPDU: usize = 64768;

/// Part of a message that goes into one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Offset of this part in the message, in bytes.
    pub offset: u32,
    /// Length of this part in bytes.
    pub len: u32,
    /// The part is the last one of the message, so its segment has the flag L.
    pub last: bool,
}

impl Segment {
    /// Returns this part of the message as a range for slices.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        let start = self.offset as usize;
        start..start + self.len as usize
    }
}

/// Cuts a message into segments, in the order of their offsets (5041-5.3-02).
///
/// It is not an iterator, because the MULPDU may change between two segments of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segmenter {
    len: u32,
    at: u32,
    /// True if the last segment was returned. `at == len` cannot replace this flag, because an
    /// empty message has one segment.
    done: bool,
}

impl Segmenter {
    /// Starts a message of `len` bytes. DDP has no messages longer than `u32::MAX` bytes
    /// (5041-5.2-03).
    #[must_use]
    pub const fn new(len: u32) -> Self {
        Segmenter {
            len,
            at: 0,
            done: false,
        }
    }

    /// Returns the next segment, or `None` after the last one. The segment is as large as `mulpdu`
    /// allows, with `header_len` bytes of headers before the payload (5044-4.5-05).
    ///
    /// An empty message has exactly one segment (5041-5.2-09). No ULPDU exceeds [`MAX_ULPDU`]. If
    /// `mulpdu` leaves no room for payload, each segment has one byte of payload, so that every
    /// message ends. MPA never has such an MULPDU: its minimum is 128 (RFC 5044).
    #[must_use]
    pub fn next_segment(&mut self, header_len: usize, mulpdu: usize) -> Option<Segment> {
        if self.done {
            return None;
        }
        // 5041-5.2-02, 5044-3-05. The value is at most 64768, so the conversion does not truncate
        // it.
        let room = mulpdu.min(MAX_ULPDU).saturating_sub(header_len).max(1) as u32;
        let offset = self.at;
        let left = self.len - offset;
        let len = left.min(room);
        self.at += len;
        self.done = len == left;
        Some(Segment {
            offset,
            len,
            last: self.done,
        }) // 5041-4.1-03, 5041-4.1-04
    }

    /// Returns the length of the message in bytes.
    #[must_use]
    pub const fn message_len(&self) -> u32 {
        self.len
    }

    /// Returns the sum of the lengths of the segments returned so far.
    #[must_use]
    pub const fn position(&self) -> u32 {
        self.at
    }

    /// Returns true if the last segment was returned.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn segments(len: u32, header_len: usize, mulpdu: usize) -> Vec<(u32, u32, bool)> {
        let mut segmenter = Segmenter::new(len);
        let mut all = Vec::new();
        while let Some(segment) = segmenter.next_segment(header_len, mulpdu) {
            all.push((segment.offset, segment.len, segment.last));
        }
        assert!(segmenter.is_done());
        assert_eq!(segmenter.position(), len);
        all
    }

    #[test]
    fn the_examples_of_the_rfc() {
        // RFC 5041 section 5.2: 2048 bytes, MULPDU 1500, untagged and tagged.
        assert_eq!(
            segments(2048, 18, 1500),
            [(0, 1482, false), (1482, 566, true)]
        );
        assert_eq!(
            segments(2048, 14, 1500),
            [(0, 1486, false), (1486, 562, true)]
        );
    }

    #[test]
    fn a_message_of_no_bytes_takes_exactly_one_segment() {
        assert_eq!(segments(0, 18, 1500), [(0, 0, true)]); // 5041-5.2-09
    }

    #[test]
    fn a_message_that_just_fits_takes_one_segment() {
        assert_eq!(segments(1482, 18, 1500), [(0, 1482, true)]);
        assert_eq!(
            segments(1483, 18, 1500),
            [(0, 1482, false), (1482, 1, true)]
        );
    }

    #[test]
    fn no_ulpdu_exceeds_the_maximum_of_mpa() {
        let first = Segmenter::new(u32::MAX).next_segment(14, usize::MAX);
        assert_eq!(
            first,
            Some(Segment {
                offset: 0,
                len: 64754,
                last: false
            })
        ); // 5044-3-05
    }

    #[test]
    fn a_mulpdu_without_room_still_makes_progress() {
        assert_eq!(segments(2, 18, 0), [(0, 1, false), (1, 1, true)]);
    }

    #[test]
    fn the_mulpdu_may_change_within_a_message() {
        let mut segmenter = Segmenter::new(300);
        assert_eq!(
            segmenter.next_segment(18, 128).map(|s| (s.offset, s.len)),
            Some((0, 110))
        );
        assert_eq!(
            segmenter.next_segment(18, 218).map(|s| (s.offset, s.len)),
            Some((110, 190))
        );
        assert_eq!(segmenter.next_segment(18, 218), None);
    }

    proptest! {
        #[test]
        fn segments_cover_the_message_once_and_only_the_last_says_so(
            len in 0u32..200_000,
            mulpdu in 128usize..70_000,
            header_len in prop_oneof![Just(14usize), Just(18)],
        ) {
            let all = segments(len, header_len, mulpdu);
            let mut expected = 0;
            for (index, &(offset, part, last)) in all.iter().enumerate() {
                prop_assert_eq!(offset, expected);
                prop_assert!(header_len + part as usize <= mulpdu.min(MAX_ULPDU));
                prop_assert_eq!(last, index + 1 == all.len());
                prop_assert!(part > 0 || len == 0);
                expected += part;
            }
            prop_assert_eq!(expected, len);
        }
    }
}
