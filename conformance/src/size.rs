//! Checks the sizes of FPDUs against MULPDU (RFC 5044 section 4.5).

use crate::check::{Breach, Rule};
use crate::wire::segment::{Address, Segment};
use crate::words::many;

/// Length in bytes of an untagged DDP Header, the longer one of the two kinds.
const HEADER: usize = 18;

/// Computes MULPDU for an EMSS by the formulas of section 4.5, limited to the range of section 3.
pub(crate) fn mulpdu(emss: usize, markers: bool) -> usize {
    let markers = if markers { 4 * emss.div_ceil(512) } else { 0 };
    let mulpdu = emss.saturating_sub(6 + markers + emss % 4);
    mulpdu.clamp(128, 64768)
}

/// State of the checks of ULPDU lengths on one connection.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// MULPDU of the target, if the suite knows its EMSS. If it is unknown, nothing is checked.
    pub(crate) mulpdu: Option<usize>,
    /// Number of segments and of payload bytes in the current message: one entry for each QN, and
    /// the last one for tagged messages.
    open: [(usize, usize); 5],
}

impl Sizes {
    /// Checks the length of a ULPDU. If it ends a message, also checks the number of segments.
    pub(crate) fn follow(&mut self, ulpdu: &[u8]) -> Vec<Breach> {
        let Some(mulpdu) = self.mulpdu else {
            return Vec::new();
        };
        let mut breaches = Vec::new();
        if ulpdu.len() > mulpdu {
            breaches.push(Breach {
                rule: Rule::Mulpdu,
                detail: format!(
                    "a ULPDU has {}, but MULPDU is {mulpdu}",
                    many(ulpdu.len(), "byte")
                ),
            });
        }
        let Some(segment) = Segment::parse(ulpdu) else {
            return breaches;
        };
        let queue = match segment.address {
            Address::Untagged { qn, .. } => qn as usize % 4,
            Address::Tagged { .. } => 4,
        };
        let (segments, bytes) = &mut self.open[queue];
        *segments += 1;
        *bytes += segment.payload.len();
        if segment.last() {
            let needed = bytes.div_ceil(mulpdu - HEADER);
            // MULPDU may shrink at times (section 4.5), so the check allows about 50 % more
            // segments than needed.
            if *segments > needed + needed / 2 + 1 {
                breaches.push(Breach {
                    rule: Rule::FewSegments,
                    detail: format!(
                        "a message of {bytes} has {segments}; with MULPDU {mulpdu}, {needed} are enough", bytes = many(bytes, "byte"), segments = many(segments, "segment")),
                });
            }
            self.open[queue] = (0, 0);
        }
        breaches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mulpdu_is_that_of_the_rfc_and_in_its_range() {
        assert_eq!(mulpdu(1460, false), 1454);
        assert_eq!(mulpdu(1448, true), 1448 - 6 - 12);
        assert_eq!(mulpdu(1461, false), 1454);
        assert_eq!(mulpdu(76, false), 128);
        assert_eq!(mulpdu(65483, false), 64768);
    }

    #[test]
    fn many_small_segments_are_a_breach_and_some_are_not() {
        let segments = |len: usize, count: usize| {
            let mut sizes = Sizes {
                mulpdu: Some(128),
                ..Sizes::default()
            };
            let mut rules = Vec::new();
            for number in 1..=count {
                let mut ulpdu = vec![0x01, 0x43];
                ulpdu[0] |= if number == count { 0x40 } else { 0 };
                ulpdu.resize(HEADER + len, 0);
                rules.extend(sizes.follow(&ulpdu).into_iter().map(|breach| breach.rule));
            }
            rules
        };
        assert_eq!(segments(110, 40), []);
        assert_eq!(segments(96, 40), []);
        assert_eq!(segments(64, 70), [Rule::FewSegments]);
        assert_eq!(segments(111, 1), [Rule::Mulpdu]);
    }
}
