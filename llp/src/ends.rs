//! [`FpduEnds`]: where FPDUs end in what is handed to TCP.

/// The ends of the FPDUs in one call of [`Llp::try_send`](crate::Llp::try_send), so that a TCP which
/// can begins its segments where FPDUs begin (RFC 5044 section 3, appendix A.1).
///
/// A borrowed view: nothing is copied or allocated. Ends are offsets in the stream, as is that of
/// the first octet of the call, so that a call which was taken in part is repeated with the same
/// ends and a larger base. The first FPDU may have begun in an earlier call, and the last may go on
/// in a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FpduEnds<'a> {
    base: u64,
    ends: &'a [u64],
    over_segments: bool,
    followed: bool,
    asking: bool,
}

impl<'a> FpduEnds<'a> {
    /// A run of octets with no FPDUs in it: it may be cut anywhere.
    pub const NONE: FpduEnds<'static> = FpduEnds {
        base: 0,
        ends: &[],
        over_segments: false,
        followed: false,
        asking: false,
    };

    /// Octets that start at the stream offset `base`, in which FPDUs end before the offsets `ends`.
    /// The ends must be in ascending order; those up to `base` count for nothing.
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

    /// The same, of FPDUs that may be longer than a segment because somebody wants them so, and not because EMSS has become smaller: a
    /// link that has segments cut puts as many octets into a burst as it takes, wherever FPDUs end. Where all are shorter than a
    /// segment, and on links that cut nothing, that makes no difference.
    #[must_use]
    pub const fn over_segments(self) -> Self {
        Self {
            over_segments: true,
            ..self
        }
    }

    /// Whether [`over_segments`](Self::over_segments) was asked for.
    pub const fn may_go_over_segments(&self) -> bool {
        self.over_segments
    }

    /// The same, of octets that others follow at once, in another call: a TCP may keep those at the end which fill no segment until it has the
    /// next ones. Who says so and then has none calls [`Llp::push`](crate::Llp::push).
    #[must_use]
    pub const fn followed(self, by_more: bool) -> Self {
        Self {
            followed: by_more,
            ..self
        }
    }

    /// Whether others were said to [follow](Self::followed).
    pub const fn is_followed(&self) -> bool {
        self.followed
    }

    /// The same, of octets that end with a request (a Read, an Atomic Operation), the only one whose answer has not come, and nothing else is to be
    /// sent behind it: what comes next may be all that comes until there is another request. A TCP may make use of that, or not.
    #[must_use]
    pub const fn asking(self, for_one_answer: bool) -> Self {
        Self {
            asking: for_one_answer,
            ..self
        }
    }

    /// Whether they were said to [ask](Self::asking) for one answer.
    pub const fn is_asking(&self) -> bool {
        self.asking
    }

    /// The stream offset of the first octet.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The ends after it, ascending, as stream offsets.
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
            let ends = FpduEnds::new(base, &all);
            assert_eq!(ends.ends(), left, "{base}");
            assert_eq!(ends.over_segments().ends(), left, "{base}");
            assert_eq!(ends.asking(true).ends(), left, "{base}");
            assert!(ends.asking(true).is_asking() && !ends.asking(false).is_asking());
        }
    }
}
