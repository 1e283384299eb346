//! What came out of one measurement.

use crate::distance::Distance;

/// A value in the unit of what was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Bytes or messages a second, or seconds.
    pub(crate) value: f64,
    /// Seconds of processor time for 10^9 bytes, of both sides.
    pub(crate) cpu: Option<f64>,
    /// How far apart the processors of both sides were meanwhile, where that is known.
    pub(crate) apart: Option<Distance>,
}

impl Sample {
    /// It could not be measured.
    pub(crate) const NONE: Sample = Sample::of(f64::NAN);

    pub(crate) const fn of(value: f64) -> Self {
        Sample {
            value,
            cpu: None,
            apart: None,
        }
    }

    /// Whether a ratio of both tells of what they measured, and not of the machine.
    pub(crate) fn is_like(&self, other: &Sample) -> bool {
        match (self.apart, other.apart) {
            (Some(one), Some(another)) => one.is_like(another),
            _ => true,
        }
    }
}
