//! Positions of content and Markers in an FPDU, as both framer and deframer compute them.
//!
//! The content of an FPDU is the FPDU without its Markers: `ULPDU_Length | ULPDU | PAD | CRC` (RFC
//! 5044 section 4.1). A Marker starts at every stream offset that is a multiple of 512 (section
//! 4.3), so 508 bytes of content lie between two Markers. The length of every FPDU and the Marker
//! interval are multiples of four. No Marker therefore cuts the length field, the CRC or another
//! Marker.

/// Length of the `ULPDU_Length` field in bytes.
pub(crate) const LENGTH_FIELD: usize = 2;
/// Length of the CRC field in bytes.
pub(crate) const CRC_FIELD: usize = 4;
/// Length of a Marker in bytes.
pub(crate) const MARKER: usize = 4;
/// Distance in bytes from the start of one Marker to the start of the next.
pub(crate) const INTERVAL: usize = 512;
/// Bytes of content between two Markers.
pub(crate) const RUN: usize = INTERVAL - MARKER;

/// Returns the length in bytes of the PAD after a ULPDU of `ulpdu` bytes.
pub(crate) const fn pad_len(ulpdu: usize) -> usize {
    // 5044-4.1-i02
    (LENGTH_FIELD + ulpdu).wrapping_neg() % 4
}

/// Positions of the Markers in one FPDU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Markers {
    /// Bytes of content before the first Marker; `usize::MAX` on a stream without Markers.
    first: usize,
}

impl Markers {
    /// Returns the Markers of the FPDU at stream offset `position`. A Marker directly before the
    /// length field belongs to the FPDU, which then starts at the Marker.
    pub(crate) const fn of(enabled: bool, position: u64) -> Self {
        let first = if enabled {
            (INTERVAL - (position % INTERVAL as u64) as usize) % INTERVAL
        } else {
            usize::MAX
        };
        Self { first }
    }

    /// Returns true if the stream has no Markers.
    pub(crate) const fn are_none(self) -> bool {
        self.first == usize::MAX
    }

    /// Returns the length in bytes of the Marker directly before the length field: 4, or 0 if there
    /// is none.
    pub(crate) const fn leading(self) -> usize {
        if self.first == 0 { MARKER } else { 0 }
    }

    /// Returns the number of Markers before or among the first `content` bytes of content.
    const fn count(self, content: usize) -> usize {
        content.saturating_sub(self.first).div_ceil(RUN)
    }

    /// Returns the length on the wire of an FPDU with a ULPDU of `ulpdu` bytes, Markers included.
    pub(crate) const fn wire_len(self, ulpdu: usize) -> usize {
        let content = LENGTH_FIELD + ulpdu + pad_len(ulpdu) + CRC_FIELD;
        content + MARKER * self.count(content)
    }

    /// Converts an offset in the content to an offset in the FPDU, both in bytes.
    pub(crate) const fn wire_offset(self, content: usize) -> usize {
        content + MARKER * self.count(content.saturating_add(1))
    }

    /// Returns the number of bytes of content from offset `content` to the next Marker.
    pub(crate) const fn run(self, content: usize) -> usize {
        if content < self.first {
            self.first - content
        } else {
            RUN - (content - self.first) % RUN
        }
    }

    /// Iterates over the Markers of an FPDU of `wire_len` bytes. Yields the offset of each from the
    /// first byte of the FPDU, and its FPDUPTR (5044-4.3-03, -05, -07).
    pub(crate) fn each(self, wire_len: usize) -> impl Iterator<Item = (usize, u16)> {
        let length_field = self.leading();
        (self.first..wire_len).step_by(INTERVAL).map(move |at| {
            // The FPDU of the longest ULPDU has 65288 bytes, so the distance always fits.
            (at, at.saturating_sub(length_field) as u16)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "exhaustive, and nothing but arithmetic")]
    fn layout_agrees_with_walking_the_stream_byte_by_byte() {
        for position in (0..1024).step_by(4) {
            for ulpdu in (0..64).chain(400..1100).chain([2000, 64768]) {
                let markers = Markers::of(true, position);
                let content = LENGTH_FIELD + ulpdu + pad_len(ulpdu) + CRC_FIELD;
                assert_eq!(content % 4, 0);
                let mut wire = 0;
                for byte in 0..content {
                    if (position as usize + wire).is_multiple_of(INTERVAL) {
                        wire += MARKER;
                    }
                    if ulpdu < 1100 {
                        assert_eq!(markers.wire_offset(byte), wire, "{position} {byte}");
                    }
                    wire += 1;
                }
                assert_eq!(markers.wire_len(ulpdu), wire, "{position} {ulpdu}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "exhaustive, and nothing but arithmetic")]
    fn the_longest_fpdu_keeps_fpduptr_within_16_bits() {
        let longest = (0..512)
            .step_by(4)
            .map(|position| Markers::of(true, position).wire_len(crate::MAX_ULPDU))
            .max();
        assert_eq!(longest, Some(65_288));
    }

    #[test]
    fn without_markers_the_content_is_the_wire() {
        let markers = Markers::of(false, 0);
        assert_eq!(markers.leading(), 0);
        assert_eq!(markers.wire_len(64_768), 64_776);
        assert_eq!(markers.wire_offset(64_000), 64_000);
        assert!(markers.run(0) > 65_536);
        assert_eq!(markers.each(64_776).count(), 0);
    }
}
