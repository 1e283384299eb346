//! [`SendHints`]: facts about the bytes passed to TCP, above all the ends of the FPDUs.

/// Hints for one call of [`Llp::try_send`](crate::Llp::try_send): the ends of the FPDUs in its
/// bytes, and the bytes that will follow. A TCP that can do so begins its segments at the start of
/// FPDUs (RFC 5044 section 3, appendix A.1).
///
/// It is a borrowed view: nothing is copied or allocated. The ends and the position of the first
/// byte are offsets in the stream. A call that was taken in part is therefore repeated with the
/// same ends and a larger base. The first FPDU may have begun in an earlier call, and the last may
/// continue in a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendHints<'a> {
    base: u64,
    ends: &'a [u64],
    over_segments: bool,
    followed: bool,
    asking: bool,
}

impl<'a> SendHints<'a> {
    /// A run of bytes without FPDUs, which may be cut anywhere.
    pub const NONE: SendHints<'static> = SendHints {
        base: 0,
        ends: &[],
        over_segments: false,
        followed: false,
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
            followed: false,
            asking: false,
        }
    }

    /// Marks FPDUs that may be longer than a segment because the user asked for it, and not because
    /// EMSS became smaller. A link that has its segments cut then fills its bursts, wherever FPDUs
    /// end. It makes no difference if all FPDUs are shorter than a segment, and on links without
    /// such an offload.
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

    /// Marks bytes that others follow at once, in another call. A TCP may keep the bytes at the end
    /// that fill no segment until it has the next ones. A caller that then has no more bytes calls
    /// [`Llp::push`](crate::Llp::push).
    #[must_use]
    pub const fn followed(self, by_more: bool) -> Self {
        Self {
            followed: by_more,
            ..self
        }
    }

    /// Returns true if others were announced to [follow](Self::followed).
    pub const fn is_followed(&self) -> bool {
        self.followed
    }

    /// Marks bytes that end with a request (a Read, an Atomic Operation). It must be the only
    /// request whose answer has not arrived, and nothing else waits to be sent after it. Perhaps no
    /// more bytes follow until there is another request. A TCP may use this hint or ignore it.
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

    /// Ends after the first byte, ascending, as stream offsets.
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
