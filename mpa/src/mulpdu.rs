//! How long a ULPDU may be (RFC 5044 section 4.5).

/// The longest ULPDU an FPDU may carry, in octets (RFC 5044 section 3).
pub const MAX_ULPDU: usize = 64_768;

/// MULPDU never goes below this many octets, however small the TCP segments are.
pub const MIN_MULPDU: usize = 128;

/// The longest ULPDU whose FPDU fits into one TCP segment of `emss` octets, in octets.
///
/// It is what the layer above is told that it may send (5044-3-02).
///
/// `markers` says whether we send Markers; the worst case of their number is set aside. The result
/// lies between [`MIN_MULPDU`] and [`MAX_ULPDU`] for every `emss`. Source: RFC 5044 section 4.5.
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

#[cfg(test)]
mod tests {
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
}
