//! [`SendHints`]: facts about the bytes passed to TCP, above all the ends of the FPDUs.

/// Hints for one call of `Llp::try_send`: the ends of the FPDUs in its bytes, and two marks. A TCP
/// that supports this begins its segments at the start of FPDUs (RFC 5044 section 3, appendix A.1).
///
/// It is a borrowed view: nothing is copied or allocated. The ends and the base (the position of
/// the first byte) are offsets in the stream. If a call accepts only some bytes, the caller offers
/// the rest with the same ends and a larger base. The first FPDU may have begun in an earlier call,
/// and the last may continue in a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendHints<'a> {
    base: u64,
    ends: &'a [u64],
    over_segments: bool,
    asking: bool,
}

impl<'a> SendHints<'a> {
    /// Hints for bytes that are not FPDUs. Segments may end anywhere in them.
    pub const NONE: SendHints<'static> = SendHints {
        base: 0,
        ends: &[],
        over_segments: false,
        asking: false,
    };

    /// Creates hints for bytes that start at the stream offset `base`. FPDUs end before each of
    /// the offsets `ends`, which must be in ascending order. Ends up to `base` are ignored.
    pub fn new(base: u64, ends: &'a [u64]) -> Self {
        debug_assert!(ends.is_sorted());
        let past = ends.partition_point(|end| *end <= base);
        Self {
            base,
            ends: ends.get(past..).unwrap_or_default(),
            over_segments: false,
            asking: false,
        }
    }

    /// Marks FPDUs that may be longer than a segment because the user asked for it, and not because
    /// EMSS became smaller. A link with segmentation offload then fills its bursts without regard
    /// to the ends of FPDUs. The mark has no effect on other links, or if all FPDUs are shorter
    /// than a segment.
    #[must_use]
    pub const fn over_segments(self) -> Self {
        Self {
            over_segments: true,
            ..self
        }
    }

    /// Returns true if [`over_segments`](Self::over_segments) was set.
    pub const fn may_go_over_segments(&self) -> bool {
        self.over_segments
    }

    /// Marks bytes that end with a request (a Read or an Atomic Operation), if `for_one_answer` is
    /// true. This request must be the only one whose answer has not arrived, and no other message
    /// may wait to be sent. A TCP may use this hint or ignore it.
    #[must_use]
    pub const fn asking(self, for_one_answer: bool) -> Self {
        Self {
            asking: for_one_answer,
            ..self
        }
    }

    /// Returns true if the bytes were marked to [ask](Self::asking) for one answer.
    pub const fn is_asking(&self) -> bool {
        self.asking
    }

    /// Stream offset of the first byte.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Stream offsets of the FPDU ends after [`base`](Self::base), in ascending order.
    pub const fn ends(&self) -> &'a [u64] {
        self.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_that_were_passed_are_left_out() {
        let all = [4, 10, 12];
        for (base, left) in [
            (0, &all[..]),
            (3, &all[..]),
            (4, &all[1..]),
            (11, &all[2..]),
            (12, &[]),
        ] {
            let hints = SendHints::new(base, &all);
            assert_eq!(hints.ends(), left, "{base}");
            assert_eq!(hints.over_segments().ends(), left, "{base}");
            assert_eq!(hints.asking(true).ends(), left, "{base}");
            assert!(hints.asking(true).is_asking() && !hints.asking(false).is_asking());
        }
    }
}
