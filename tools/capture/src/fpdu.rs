//! Finds where the FPDUs of one direction begin and end, by their lengths (RFC 5044 section 4).
//!
//! It uses only ULPDU_Length and the positions of Markers, and checks no CRC. It serves to cut
//! synthesized segments, not to validate.

/// Distance of Markers in bytes. A Marker begins at each multiple of it, counted from the first
/// byte of Full Operation.
pub(crate) const MARKER_INTERVAL: u64 = 512;
/// Length of a Marker in bytes.
pub(crate) const MARKER_LEN: usize = 4;
/// Number of bytes between two Markers.
const BETWEEN_MARKERS: usize = MARKER_INTERVAL as usize - MARKER_LEN;
/// Longest ULPDU, in bytes (RFC 5044 section 4).
const MAX_ULPDU: usize = 64_768;

/// Number of bytes from which the length of an FPDU can be read: a leading Marker, if any, and
/// ULPDU_Length. Wireshark also requires that the first segment of an FPDU holds this many of its
/// bytes. No FPDU is shorter.
pub(crate) const HEAD_LEN: usize = 8;

/// Error: the bytes at the expected start of an FPDU cannot be an FPDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostTrack;

/// Position in the FPDUs of one direction. It begins at the first byte of Full Operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chain {
    markers: bool,
    /// Offset in Full Operation of the next byte to pass to [`Chain::advance`].
    position: u64,
    /// Number of bytes from `position` to the end of the current FPDU. 0 if an FPDU begins at
    /// `position`.
    left: usize,
}

impl Chain {
    pub(crate) fn new(markers: bool) -> Self {
        Self {
            markers,
            position: 0,
            left: 0,
        }
    }

    pub(crate) fn markers(&self) -> bool {
        self.markers
    }

    /// Returns the number of bytes that the current FPDU still lacks.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Returns the length on the wire, with Markers, of the FPDU that begins `ahead` bytes after
    /// the current position with the bytes `head`. Returns `None` if `head` is shorter than
    /// [`HEAD_LEN`].
    pub(crate) fn fpdu_len(&self, ahead: usize, head: &[u8]) -> Option<Result<usize, LostTrack>> {
        let head = head.first_chunk::<HEAD_LEN>()?;
        let to_marker = if self.markers {
            let into = (self.position + ahead as u64) % MARKER_INTERVAL;
            // The number is below 512.
            Some(((MARKER_INTERVAL - into) % MARKER_INTERVAL) as usize)
        } else {
            None
        };
        let length = match (to_marker, head) {
            // A Marker before an FPDU is zero (RFC 5044 section 4.3).
            (Some(0), [0, 0, 0, 0, high, low, ..]) => [*high, *low],
            (Some(0), _) => return Some(Err(LostTrack)),
            (_, [high, low, ..]) => [*high, *low],
        };
        let ulpdu = usize::from(u16::from_be_bytes(length));
        if ulpdu > MAX_ULPDU {
            return Some(Err(LostTrack));
        }
        let bytes = (2 + ulpdu).next_multiple_of(4) + 4;
        let markers = to_marker.map_or(0, |first| markers_within(first, bytes));
        Some(Ok(bytes + markers * MARKER_LEN))
    }

    /// Starts an FPDU of `len` bytes on the wire.
    pub(crate) fn begin(&mut self, len: usize) {
        self.left = len;
    }

    /// Moves the position forward by `len` bytes, at most to the end of the current FPDU.
    pub(crate) fn advance(&mut self, len: usize) {
        self.position += len as u64;
        self.left = self.left.saturating_sub(len);
    }
}

/// Returns the number of Markers inside an FPDU that has `bytes` bytes besides its Markers. `first`
/// is the offset in the FPDU at which the first Marker is due. A Marker due right after the last
/// byte belongs to the next FPDU.
pub(crate) fn markers_within(first: usize, bytes: usize) -> usize {
    if bytes > first {
        (bytes - first).div_ceil(BETWEEN_MARKERS)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the length by stepping over the FPDU four bytes at a time, as RFC 5044 draws it.
    fn walked(position: u64, ulpdu: usize) -> usize {
        let mut words = (2 + ulpdu).div_ceil(4) + 1;
        let mut at = position;
        while words > 0 {
            if at.is_multiple_of(512) {
                at += 4;
            }
            at += 4;
            words -= 1;
        }
        (at - position) as usize
    }

    #[test]
    fn the_length_with_markers_is_the_one_found_by_walking() {
        for position in (0..1024).step_by(4) {
            for ulpdu in (0..2100).chain([64_767, 64_768]) {
                let mut chain = Chain::new(true);
                chain.begin(position);
                chain.advance(position);
                let mut head = [0; 8];
                let at = if position % 512 == 0 { 4 } else { 0 };
                head[at..at + 2].copy_from_slice(&(ulpdu as u16).to_be_bytes());
                let expected = walked(position as u64, ulpdu);
                assert_eq!(chain.fpdu_len(0, &head), Some(Ok(expected)));
            }
        }
    }

    #[test]
    fn the_fpdus_of_rfc_5044_figures_5_and_6_have_their_length() {
        // Both FPDUs have a ULPDU of 42 bytes and one Marker. In Figure 5 it is before the FPDU. In
        // Figure 6 it is after the first 20 bytes.
        let mut chain = Chain::new(true);
        let figure5 = [0, 0, 0, 0, 0, 0x2a, 0x41, 0x43];
        assert_eq!(chain.fpdu_len(0, &figure5), Some(Ok(52)));
        chain.begin(512 - 20);
        chain.advance(512 - 20);
        let figure6 = [0, 0x2a, 0x41, 0x43, 0, 0, 0, 0];
        assert_eq!(chain.fpdu_len(0, &figure6), Some(Ok(52)));
    }

    #[test]
    fn a_leading_marker_that_is_not_zero_and_a_length_above_the_limit_lose_track() {
        let marked = Chain::new(true);
        let head = [0, 0, 0, 4, 0, 20, 0, 0];
        assert_eq!(marked.fpdu_len(0, &head), Some(Err(LostTrack)));
        let plain = Chain::new(false);
        let head = [0xFD, 0x01, 0, 0, 0, 0, 0, 0];
        assert_eq!(plain.fpdu_len(0, &head), Some(Err(LostTrack)));
    }
}
