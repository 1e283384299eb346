//! Maximum ULPDU length, MULPDU (RFC 5044 section 4.5).

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// Length in bytes of the longest ULPDU that an FPDU may carry (RFC 5044 section 3).
pub const MAX_ULPDU: usize = 64_768;

/// Lower limit of MULPDU in bytes, whatever the TCP segment size is.
pub const MIN_MULPDU: usize = 128;

/// Length in bytes of the FPDU of a [`MAX_ULPDU`], without Markers.
const LONGEST_FPDU: usize = 2 + MAX_ULPDU + 2 + 4;

/// Returns the length in bytes of the longest ULPDU whose FPDU fits into one TCP segment of `emss`
/// bytes.
///
/// The layer above is given this value as the limit of what it may send (5044-3-02).
///
/// `markers`: this side sends Markers, and the result leaves room for the largest possible number
/// of them. For every `emss`, the result lies between [`MIN_MULPDU`] and [`MAX_ULPDU`]. Source: RFC
/// 5044 section 4.5.
///
/// ```
/// use uwarp_mpa::mulpdu;
/// assert_eq!(mulpdu(1460, false), 1454);
/// assert_eq!(mulpdu(1460, true), 1442);
/// assert_eq!(mulpdu(65_483, false), 64_768);
/// assert_eq!(mulpdu(0, true), 128);
/// ```
#[must_use]
pub const fn mulpdu(emss: usize, markers: bool) -> usize {
    // 5044-4.5-01, 5044-4.5-02
    let markers = if markers { 4 * emss.div_ceil(512) } else { 0 };
    let overhead = 6 + markers + emss % 4;
    let fitting = emss.saturating_sub(overhead);
    // 5044-3-04, 5044-4.5-06
    if fitting < MIN_MULPDU {
        MIN_MULPDU
    } else if fitting > MAX_ULPDU {
        MAX_ULPDU
    } else {
        fitting
    }
}

/// Number of TCP segments that one FPDU may span.
///
/// [`ONE`](Self::ONE) is the default and the rule of RFC 5044: an FPDU fits into one segment.
///
/// A larger number gives up FPDU alignment on purpose. MULPDU is then computed by the formulas of
/// section 4.5 from the bytes of that many segments. This deviates from 5044-4.5-01, 5044-4.5-02
/// and 5044-5.1-01. Segments then begin and end within FPDUs (5044-5.1-03).
///
/// This is for senders with segmentation offload, which divides long runs of bytes into segments.
/// For such a sender, a long FPDU costs as much as a short one. Every receiver must accept FPDUs
/// that are not aligned (5044-5.1-05). A receiver need not accept ULPDUs above the MULPDU of
/// section 4.5, and some adapters do not.
///
/// ```
/// use uwarp_mpa::FpduSegments;
/// assert_eq!(FpduSegments::ONE.mulpdu(1460, false), 1454);
/// assert_eq!(FpduSegments::new(4).unwrap().mulpdu(1460, false), 5834);
/// // The longest FPDU fills 44 whole segments of 1460 bytes.
/// assert_eq!(FpduSegments::MOST.mulpdu(1460, false), 64_234);
/// assert_eq!("45".parse(), Ok(FpduSegments::new(45).unwrap()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FpduSegments(u16);

/// Rejected number of segments for an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FpduSegmentsError {
    /// The text is not a number.
    #[error(
        "that is not a number; expected one of TCP segments, 1 to {}",
        FpduSegments::MOST
    )]
    NoNumber,
    /// The number is 0.
    #[error(
        "an FPDU goes over one TCP segment at least; expected 1 to {}",
        FpduSegments::MOST
    )]
    Zero,
    /// The number is above [`FpduSegments::MOST`].
    #[error(
        "no FPDU is as long as that; expected 1 to {} TCP segments",
        FpduSegments::MOST
    )]
    TooMany,
}

impl FpduSegments {
    /// One segment. Every FPDU fits into it, if segments have at least 134 bytes.
    pub const ONE: Self = Self(1);

    /// Largest allowed number: the longest FPDU fills this many segments of [`MIN_MULPDU`] bytes.
    #[expect(clippy::cast_possible_truncation, reason = "it is 506")]
    pub const MOST: Self = Self((MAX_ULPDU / MIN_MULPDU) as u16);

    /// Creates the value; `None` for 0 and for more than [`MOST`](Self::MOST).
    #[must_use]
    pub const fn new(segments: u16) -> Option<Self> {
        if segments == 0 || segments > Self::MOST.0 {
            None
        } else {
            Some(Self(segments))
        }
    }

    /// Returns the number of segments.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns the length in bytes of the longest ULPDU whose FPDU fits into this many TCP segments
    /// of `emss` bytes. For one segment it equals [`mulpdu`].
    ///
    /// The number of segments is capped at the number of whole segments that the longest FPDU
    /// fills. An FPDU of the resulting length then ends at the end of a segment, and the next FPDU
    /// begins with the next segment.
    #[must_use]
    pub const fn mulpdu(self, emss: usize, markers: bool) -> usize {
        let wanted = self.0 as usize;
        // The first case: a segment is longer than any FPDU, or `emss` is 0.
        match LONGEST_FPDU.checked_div(emss) {
            None | Some(0) => mulpdu(emss, markers),
            Some(whole) if whole < wanted => mulpdu(whole * emss, markers),
            Some(_) => mulpdu(wanted * emss, markers),
        }
    }
}

impl Default for FpduSegments {
    /// Returns [`ONE`](Self::ONE).
    fn default() -> Self {
        Self::ONE
    }
}

impl fmt::Display for FpduSegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FpduSegments {
    type Err = FpduSegmentsError;

    fn from_str(text: &str) -> Result<Self, FpduSegmentsError> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(FpduSegmentsError::NoNumber);
        }
        match text.parse() {
            Ok(0) => Err(FpduSegmentsError::Zero),
            // Only digits are left here, so a number that does not parse has too many of them.
            number => number
                .ok()
                .and_then(Self::new)
                .ok_or(FpduSegmentsError::TooMany),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;
    use crate::Framer;
    use crate::layout::Markers;

    #[test]
    #[cfg_attr(miri, ignore = "exhaustive, and nothing but arithmetic")]
    fn the_fpdu_of_a_mulpdu_fits_the_segment_wherever_it_starts() {
        for emss in (150..3000).chain([8948, 65_483]) {
            assert!(Framer::new(true, false).fpdu_len(mulpdu(emss, false)) <= emss);
            for position in (0..512).step_by(4) {
                let wire = Markers::of(true, position).wire_len(mulpdu(emss, true));
                assert!(wire <= emss, "{emss} at {position}: {wire}");
            }
        }
    }

    #[test]
    fn bounds_hold_for_any_emss() {
        for emss in [0, 1, 127, 128, 134, 138, 65_535, 1 << 20, usize::MAX] {
            for markers in [false, true] {
                assert!((MIN_MULPDU..=MAX_ULPDU).contains(&mulpdu(emss, markers)));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "exhaustive, and nothing but arithmetic")]
    fn over_one_segment_it_is_the_formula_of_the_rfc() {
        for emss in (0..4000).chain([9000, 32_768, 64_776, 65_483, usize::MAX]) {
            for markers in [false, true] {
                let over = FpduSegments::ONE.mulpdu(emss, markers);
                assert_eq!(over, mulpdu(emss, markers), "{emss}");
            }
        }
        assert_eq!(FpduSegments::default(), FpduSegments::ONE);
    }

    #[test]
    #[cfg_attr(miri, ignore = "exhaustive, and nothing but arithmetic")]
    fn the_fpdu_of_a_mulpdu_over_segments_fills_as_many_whole_ones_as_it_may() {
        for emss in (150..3000).chain([8948, 32_388, 32_389, 65_483]) {
            for segments in [1, 2, 3, 7, 44, 45, 506] {
                let allowed = FpduSegments::new(segments).unwrap();
                let whole = (LONGEST_FPDU / emss).clamp(1, usize::from(segments));
                let room = whole * emss;
                let plain = Framer::new(true, false).fpdu_len(allowed.mulpdu(emss, false));
                assert!(plain <= room, "{emss} x {segments}: {plain}");
                // The FPDU consists of whole words of 4 bytes. No further word fits, except if a
                // segment is longer than any FPDU.
                assert!(
                    plain + 4 > room || room > LONGEST_FPDU,
                    "{emss} x {segments}: {plain}"
                );
                for position in [0, 4, 256, 508] {
                    let wire = Markers::of(true, position).wire_len(allowed.mulpdu(emss, true));
                    assert!(
                        wire <= room || allowed.mulpdu(emss, true) == MIN_MULPDU,
                        "{wire}"
                    );
                    assert!(
                        wire + 12 > room || room > LONGEST_FPDU,
                        "{emss} x {segments}: {wire}"
                    );
                }
            }
        }
    }

    #[test]
    fn bounds_hold_for_any_emss_and_number_of_segments() {
        for emss in [0, 1, 127, 128, 1460, 64_776, 64_777, 1 << 20, usize::MAX] {
            for segments in [1, 2, 45, 506] {
                for markers in [false, true] {
                    let ulpdu = FpduSegments::new(segments).unwrap().mulpdu(emss, markers);
                    assert!(
                        (MIN_MULPDU..=MAX_ULPDU).contains(&ulpdu),
                        "{emss} x {segments}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_of_segments_is_told_with_what_is() {
        for (text, words) in [
            ("0", "one TCP segment at least; expected 1 to 506"),
            ("507", "no FPDU is as long as that; expected 1 to 506"),
            ("99999999999999999999", "no FPDU is as long as that"),
            ("-1", "not a number"),
            ("+2", "not a number"),
            (
                "two",
                "that is not a number; expected one of TCP segments, 1 to 506",
            ),
            ("", "not a number"),
        ] {
            let error = text.parse::<FpduSegments>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        for number in [1, 2, 45, 506] {
            let segments = FpduSegments::new(number).unwrap();
            assert_eq!(segments.get(), number);
            assert_eq!(segments.to_string().parse(), Ok(segments));
        }
        assert_eq!(FpduSegments::new(0), None);
        assert_eq!(FpduSegments::new(507), None);
    }
}
